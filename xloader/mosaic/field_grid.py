"""The grid of one field's predictions, and where on it each sample lies.

Which elements a window takes is asked of the recipe and the field's layout, as reading does::

    the field takes                  the mosaic has
    all of a window                  the dimension as selected; windows are blended
    one element of it (an int)       the labels that this element meets, in their order
    some elements, along time        the windows' first labels, and a dimension ``lead``

The mosaic of a subset, such as the part of a split, begins at the first and ends at the last window
of the subset along each dimension with labels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.option_checks import MOST, check_whole
from xloader.errors import OptionError
from xloader.loader.ranks.rank_plan import describe_samples
from xloader.mosaic.target_grid import COVERAGE, Blend, GridVariable, PlacedAxis, TargetGrid
from xloader.recipe.layout import Elements, FieldLayout, FieldPart, make_layouts, window_offsets
from xloader.recipe.names import CHANNEL
from xloader.recipe.recipe import Recipe, find
from xloader.recipe.selection import stored
from xloader.show.json_values import attribute_value
from xloader.sources.chunk_sizes import Sizes
from xloader.transforms.batch_datasets import dim_names
from xloader.transforms.outputs import make_outputs

_IDS_AT_A_TIME: Final = 1 << 20
"""Number of sample ids whose positions are looked up together."""

_MOST_CELLS: Final = 3 << 19
"""Most cells of a chunk, unless the user asks for more. A chunk is blended as a whole."""

LEAD: Final = "lead"
"""The dimension that counts leads."""

VALID: Final = "valid"
"""Prefix of the coordinate with the labels that predictions are for, along windows and leads."""

_CODING: Final = frozenset(
    {"scale_factor", "add_offset", "_FillValue", "missing_value", "dtype", "coordinates"}
)
"""Attributes that say how numbers are stored. Those of the source do not hold for the mosaic."""


Kind = Literal["blended", "single", "lead"]


@dataclass(frozen=True, eq=False)
class Placing:
    """How windows are placed along one windowed dimension of the field.

    `cells`: offsets, within the selection, of the cells of the mosaic. `starts`: the cell at which
    each window starts, by its position along the dimension.
    """

    axis: PlacedAxis
    number: int
    kind: Kind
    elements: Elements
    cells: Ints
    starts: Ints
    lead_dim: str = ""


class FieldGrid:
    """The grid of a field, bound to the recipe of the samples."""

    def __init__(
        self,
        recipe: Recipe,
        field: str | None,
        blend: Blend,
        leads: Collection[str] | None = None,
        chunks: Mapping[str, int] | None = None,
        keep_units: bool = False,
    ) -> None:
        if chunks is not None and not isinstance(chunks, Mapping):
            raise OptionError(
                "chunks are not given by dimension",
                given=repr(chunks),
                allowed='a mapping such as {"time": 1}, or None for chunks as in the source',
            )
        if leads is not None and not isinstance(leads, Collection):
            raise OptionError(
                "leads are not names of dimensions",
                given=repr(leads),
                allowed='a name or several, such as ("time",), or () to blend along all dimensions',
            )
        self._recipe = recipe
        self.layout = _layout_named(recipe, field)
        self.placings = _placings(recipe, self.layout, leads)
        variables = tuple(
            self._variable(part, chunks or {}, keep_units) for part in self.layout.variables
        )
        known = {dim for variable in variables for dim in variable.dims}
        for dim in chunks or {}:
            find(dim, sorted(known), "dimension")
        self.target = TargetGrid(
            field=self.layout.name,
            blend=blend,
            num_ids=recipe.num_ids,
            axes=tuple(placing.axis for placing in self.placings),
            variables=variables,
            fingerprint=self._fingerprint(recipe, blend),
        )

    def starts_of(self, ids: Ints) -> Ints:
        """The cells at which samples start, along the placed dimensions.

        The result has shape (n, num_axes).
        """
        positions = self._recipe.positions_of(ids)
        columns = [placing.starts[positions[:, placing.number]] for placing in self.placings]
        return np.column_stack(columns)

    def rows_of(self, predictions: NDArray[Any]) -> NDArray[Any]:
        """The predictions of all variables in one row for each sample, shape (n, row_size)."""
        rows = [part.view(predictions) for part in self.layout.variables]
        return np.concatenate([row.reshape(len(row), -1) for row in rows], axis=1)

    def _variable(
        self, part: FieldPart, chunks: Mapping[str, int], keep_units: bool
    ) -> GridVariable:
        variable = self._recipe.variable(part.variable)
        stored_dims = self._recipe.dims_of(part.variable)
        # As in `FieldPart.view`: dimensions that only other variables have come first.
        both = (*self.layout.dropped, *self.layout.dims)
        missing = [dim for dim in both if dim not in stored_dims and dim != CHANNEL]
        placed = {placing.axis.dim: placing for placing in self.placings}
        sizes: dict[str, int] = {}
        for dim in (*missing, *stored_dims):
            placing = placed.get(dim)
            sizes[dim] = placing.axis.size if placing else self._recipe.dim_sizes[dim]
            if placing and placing.lead_dim:
                sizes[placing.lead_dim] = len(placing.elements)
        is_changed = any(step.changes_units((variable.name,)) for step in self._recipe.steps)
        left_out = _CODING | ({"units"} if is_changed and not keep_units else set())
        attrs = {
            key: attribute_value(value)
            for key, value in variable.attrs.items()
            if key not in left_out
        }
        stored_chunks = dict(zip(variable.dims, variable.chunks, strict=True))
        cut = _choose_chunks(sizes, stored_chunks, chunks)
        return GridVariable(variable.name, tuple(sizes), tuple(sizes.values()), cut, attrs)

    def _fingerprint(self, recipe: Recipe, blend: Blend) -> dict[str, str]:
        # Ranges are written as by earlier releases, so that their merged mosaics are known again.
        placed = []
        for placing in self.placings:
            taken = placing.elements
            plain = (taken.start, taken.step, len(taken)) if isinstance(taken, range) else taken
            placed.append((placing.axis.dim, placing.kind, plain))
        digest = hashlib.sha256(repr((self.layout.name, placed)).encode()).hexdigest()[:12]
        return {**describe_samples(recipe), "field": digest, "blend": blend}


def _choose_chunks(
    sizes: Mapping[str, int], stored_chunks: Mapping[str, Sizes], requested: Mapping[str, int]
) -> tuple[int, ...]:
    """Choose the chunks of a variable of the mosaic."""
    chunks: dict[str, int] = {}
    for dim, size in sizes.items():
        if dim in requested:
            check_whole(f"chunks of {dim!r}", requested[dim], 1, MOST)
        chunk = requested.get(dim, int(np.max(stored_chunks.get(dim, size))))
        chunks[dim] = max(min(chunk, size), 1)
    free = [dim for dim in sizes if dim not in requested]
    while math.prod(chunks.values()) > _MOST_CELLS and any(chunks[dim] > 1 for dim in free):
        longest = max(free, key=chunks.__getitem__)
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks.values())


def _layout_named(recipe: Recipe, field: str | None) -> FieldLayout:
    if recipe.whole is not None:
        raise OptionError(
            "a mosaic cannot be made of slabs",
            remedy="gather the predictions on one rank, into a mosaic of samples before .slab(...)",
        )
    layouts = make_layouts(recipe)
    names = [layout.name for layout in layouts]
    if field is None:
        field = names[0] if len(names) == 1 else "targets"
    find(field, names, "field")
    layout = layouts[names.index(field)]
    if not any(layout.elements):
        raise OptionError(
            f"the field {field!r} has no windowed dimension, so no place on a grid",
            given=f"dimensions {layout.dims}",
            remedy="name another field: samples.mosaic(..., field=...)",
        )
    if not recipe.is_mapped:
        return layout
    output = {output.name: output for output in make_outputs(recipe, layouts)}.get(layout.name)
    # Where fields differ in a dimension, a transform sees it under the name of its field, and may
    # give it back its own.
    framed = dim_names(layouts)
    plain = {framed[layout.name, dim]: dim for dim in layout.dims}
    dims = None if output is None else tuple(plain.get(dim, dim) for dim in output.dims)
    wanted = (layout.dims, layout.shape, layout.channels)
    if output is None or (dims, output.shape, output.channels) != wanted:
        raise OptionError(
            f"a transform changes the shape of the field {layout.name!r}",
            given="no such field"
            if output is None
            else dict(zip(output.dims, output.shape, strict=True)),
            allowed=dict(zip(layout.dims, layout.shape, strict=True)),
            remedy="make the mosaic with samples without this transform, which have the same ids",
        )
    return layout


def _placings(
    recipe: Recipe, layout: FieldLayout, leads: Collection[str] | None
) -> tuple[Placing, ...]:
    windows = recipe.require_windows()
    elements_by_dim = dict(zip(layout.windowed, layout.elements, strict=True))
    if leads is not None:
        leads = (leads,) if isinstance(leads, str) else leads
        for dim in leads:
            find(dim, [d for d, taken in elements_by_dim.items() if taken], "dimension of windows")
    positions = _used_positions(recipe)
    placings = []
    for number, (dim, elements) in enumerate(elements_by_dim.items()):
        if elements is None:
            if (num_windows := windows.num_positions[number]) > 1:
                raise OptionError(
                    f"the field {layout.name!r} lacks the dimension {dim!r}, along which there are "
                    f"{num_windows:,} windows: all their predictions are for the same cells",
                    given=f"dimensions {layout.dims}",
                    remedy=f"window samples for this mosaic without {dim!r}, or name another field",
                )
            continue
        is_lead = _is_lead(recipe, number, elements) if leads is None else dim in leads
        if not is_lead and isinstance(elements, tuple):
            raise OptionError(
                f"elements of {dim!r} that are not equally spaced cannot be blended",
                given=f"elements {list(elements)} of the windows, with leads={leads!r}",
                remedy=f"pass leads=({dim!r},), which keeps them apart",
            )
        is_part = dim in layout.dropped or not _is_whole(recipe, number, elements)
        is_single = len(elements) == 1 and is_part
        kind: Kind = "lead" if is_lead else "single" if is_single else "blended"
        placings.append(_place(recipe, number, kind, elements, positions[number]))
    lead_dims = [placing.axis.dim for placing in placings if placing.kind == "lead"]
    names = {dim: LEAD if len(lead_dims) == 1 else f"{dim}_{LEAD}" for dim in lead_dims}
    taken = {*layout.dims, *recipe.dim_sizes, *recipe.variables}
    # Variables of groups, such as `radar/rain`, are stored in a group of the first name.
    stored_names = {part.variable.partition("/")[0] for part in layout.parts}
    clashing = {*(f"{VALID}_{dim}" for dim in names), COVERAGE} & stored_names
    for name in (*names.values(), *sorted(clashing)):
        if name in taken | stored_names:
            raise OptionError(
                f"the samples have a dimension or a variable called {name!r} already, which "
                "is the name of a part of the mosaic",
                given=f"leads along {lead_dims}",
                remedy="rename it with xarray, and open that Dataset",
            )
    return tuple(replace(placing, lead_dim=names.get(placing.axis.dim, "")) for placing in placings)


def _used_positions(recipe: Recipe) -> tuple[range, ...]:
    """Per windowed dimension, the positions from the first to the last one of a sample.

    Along dimensions without labels, all positions: there, only a cell's number says where it lies.
    """
    windows = recipe.require_windows()
    counts = windows.num_positions
    if recipe.subset is None or recipe.subset.indices is None or not recipe.num_ids:
        return tuple(map(range, counts))
    labels = recipe.source.coordinates(is_indexed=False).variables
    first, last = np.asarray(counts, np.int64), np.zeros(len(counts), np.int64)
    for begin in range(0, recipe.num_ids, _IDS_AT_A_TIME):
        ids = np.arange(begin, min(begin + _IDS_AT_A_TIME, recipe.num_ids))
        positions = recipe.positions_of(ids)
        first = np.minimum(first, positions.min(axis=0))
        last = np.maximum(last, positions.max(axis=0))
    return tuple(
        range(first[number], last[number] + 1) if dim in labels else range(counts[number])
        for number, dim in enumerate(windows.dims)
    )


def _place(
    recipe: Recipe, number: int, kind: Kind, elements: Elements, positions: range
) -> Placing:
    """Place windows along one dimension.

    `positions`: those between the first and the last sample.
    """
    windows = recipe.require_windows()
    dim, size, wraps = windows.dims[number], windows.dim_sizes[number], windows.wraps[number]
    every = np.arange(windows.num_positions[number], dtype=np.int64)
    used = slice(positions.start, positions.stop)
    firsts = windows.starts_of(number, every)
    if kind == "lead":
        cells, starts = firsts[used], every - positions.start
        return Placing(PlacedAxis(dim, len(cells), 1), number, kind, elements, cells, starts)
    # Outside padded borders, offsets stay as they are: these elements are cut off.
    offsets = _folded(recipe, number, firsts + elements[0])
    if kind == "single":
        cells = np.unique(offsets[used])
        starts = np.searchsorted(cells, offsets)
        return Placing(PlacedAxis(dim, len(cells), 1), number, kind, elements, cells, starts)
    assert isinstance(elements, range)
    begin, end = 0, size
    # Where the first or the last window is a sample, the cells reach to the end of the dimension,
    # so that samples that are no subset have all of it.
    if positions.start and not wraps:
        begin = max(int(firsts[positions.start]) + elements[0], 0)
    if positions.stop < len(every) and not wraps:
        end = min(int(firsts[positions.stop - 1]) + elements[-1] + 1, size)
    axis = PlacedAxis(dim, end - begin, len(elements), elements.step, wraps)
    return Placing(axis, number, kind, elements, np.arange(begin, end), offsets - begin)


def _folded(recipe: Recipe, number: int, offsets: Ints) -> Ints:
    """Offsets beyond the end, counted from the first element, where windows wrap."""
    windows = recipe.require_windows()
    return offsets % windows.dim_sizes[number] if windows.wraps[number] else offsets


def _is_whole(recipe: Recipe, number: int, elements: Elements) -> bool:
    """Whether a field takes all of the window along a dimension."""
    windows = recipe.require_windows()
    return elements == range(0, windows.spans[number], windows.dilations[number])


def _is_lead(recipe: Recipe, number: int, elements: Elements) -> bool:
    """Whether predictions of different elements of a window are kept apart by default.

    They are where the field takes several elements but not the whole window. Along labels that are
    decimal numbers, such as latitudes, these are the middle of a patch, and not leads.
    """
    if isinstance(elements, tuple):
        return True
    if len(elements) == 1 or _is_whole(recipe, number, elements):
        return False
    dim = recipe.require_windows().dims[number]
    labels = recipe.source.coordinates(is_indexed=False)
    return dim not in labels.variables or labels[dim].dtype.kind != "f"


def make_labels(recipe: Recipe, grid: FieldGrid) -> xr.Dataset:
    """The coordinates of a mosaic, in memory."""
    names = {variable.name for variable in grid.target.variables}
    dims = {dim for variable in grid.target.variables for dim in variable.dims}
    dims -= {placing.lead_dim for placing in grid.placings}
    source = recipe.source.coordinates()
    cells = {placing.axis.dim: placing.cells for placing in grid.placings}
    indexers: dict[str, Any] = {
        dim: kept for dim, kept in recipe.selection if isinstance(kept, int)
    }
    for dim in dims:
        kept = recipe.kept_of(dim)
        assert not isinstance(kept, int)
        indexers[dim] = stored(kept, cells[dim]) if dim in cells else np.asarray(kept, np.int64)
    unfit = [
        name
        for name, coord in source.coords.items()
        if not set(coord.dims) <= set(indexers) or name in names
    ]
    cut = source.drop_vars(unfit).isel(indexers, missing_dims="ignore")
    for placing in grid.placings:
        if placing.lead_dim:
            cut = cut.assign_coords(_lead_coords(recipe, source, placing))
    labels = xr.Dataset(coords=cut.coords).load().drop_encoding()
    for coord in labels.coords.values():
        # xarray refuses to write these where they are encoded.
        coord.attrs.pop("_FillValue", None)
    return labels


def _lead_coords(recipe: Recipe, source: xr.Dataset, placing: Placing) -> dict[str, xr.Variable]:
    """The leads, and the labels that predictions are for."""
    dim, lead_dim = placing.axis.dim, placing.lead_dim
    if dim in source.indexes:
        kept = recipe.kept_of(dim)
        assert not isinstance(kept, int)
        labels = source[dim].variable.to_base_variable()
        offsets = window_offsets(placing.cells, placing.elements)
        elements = stored(kept, _folded(recipe, placing.number, offsets))
        valid = labels[xr.Variable((dim, lead_dim), elements)]
        first = labels[xr.Variable(dim, stored(kept, placing.cells))]
        spans = _common_spans(valid.to_numpy(), first.to_numpy())
        coords = {f"{VALID}_{dim}": valid}
        if spans is not None:
            in_words = {"long_name": "time since the start of the window"}
            return {lead_dim: xr.Variable(lead_dim, spans, in_words), **coords}
    else:
        coords = {}
    in_words = {"long_name": f"elements of {dim} after the first one of the window"}
    return {lead_dim: xr.Variable(lead_dim, np.asarray(placing.elements), in_words), **coords}


def _common_spans(valid: NDArray[Any], first: NDArray[Any]) -> NDArray[np.timedelta64] | None:
    """The time from the start of windows to each lead; None if it differs, or labels are no times.

    A month after the start of the window is 28 to 31 days, for example.
    """
    try:
        spans = np.asarray(valid - first[:, None])
        if spans.dtype == object:
            spans = spans.astype("m8[us]")
    except (TypeError, ValueError):
        return None
    if spans.dtype.kind != "m" or (spans != spans[:1]).any():
        return None
    return np.asarray(spans[0].astype("m8[ns]"))
