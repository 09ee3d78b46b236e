"""How often an epoch has each element: `Samples.coverage`.

A sample counts once for each element that its fields need. Along one dimension, the windows at each
position are counted, and then the windows that reach each element::

    samples at positions     1   1   0   2            windows of 3, stride 2
    elements                 1 1 2 1 1 0 2 2 2
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.element_ranges import ElementRanges
from xloader.core.messages import require_matplotlib, show_count
from xloader.core.subset import Subset
from xloader.core.window_sets import WindowSet
from xloader.core.windows import Windows
from xloader.errors import OptionError
from xloader.loader.interleaved.sample_sets import num_samples_of
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe, find
from xloader.samples.single_samples import coords_of
from xloader.show.cards import CardPart
from xloader.show.cost_figures import FigureTable
from xloader.show.drawings import draw_counts
from xloader.show.plot_axes import place_text

if TYPE_CHECKING:
    from xloader.show.canvas import Picture


Counts = NDArray[Any]
"""Numbers of samples: int64, or float64 where they are drawn by weight."""

_PIECE_SIZE: Final = 1 << 24
"""Windows that are summed in one call."""
_MOST_PLACES: Final = 1 << 26
"""Most combinations of positions along the last two dimensions, each of 8 bytes."""
_MOST_CELLS: Final = 1 << 23
"""Most elements of a map, each of 8 bytes."""
_MOST_NAMED: Final = 3

Stretches = list[tuple[int, int]]
"""Stretches of elements of a window: the first one and their number."""


@dataclass(frozen=True, eq=False)
class PositionCounts:
    """How often an epoch has the windows at each position.

    `lines`: along each dimension. `plane`: along the last two; along the only one if there is one.
    """

    total: float
    lines: tuple[Counts, ...]
    plane: Counts

    @classmethod
    def of(cls, windows: Windows, subset: Subset | None) -> PositionCounts:
        """Count the windows of an epoch."""
        shape = windows.num_positions
        lead, row = math.prod(shape[:-2]), math.prod(shape[-2:])
        if subset is None or subset.has_all:
            # Windows lie at all combinations equally often, and the counts take no memory.
            counts = (np.int64(lead * row // size) for size in shape)
            lines = tuple(map(np.broadcast_to, counts, shape))
            return cls(lead * row, lines, np.broadcast_to(np.int64(lead), shape[-2:]))
        if max(lead, row) > _MOST_PLACES:
            raise OptionError(
                "the places of the samples are too many to count",
                given=f"{max(lead, row):,} combinations of positions",
                allowed=f"up to {_MOST_PLACES:,}",
                remedy="count a part of the data, chosen with .sel before .window",
            )
        dtype = np.dtype(np.float64 if subset.is_drawn else np.int64)
        leading, plane = np.zeros(lead, dtype), np.zeros(row, dtype)
        for rows, sums, row_sums in _sums(subset, lead, row):
            leading[rows] += sums
            plane += row_sums
        before, last = leading.reshape(shape[:-2]), plane.reshape(shape[-2:])
        lines = (*_marginals(before), *_marginals(last))
        return cls(plane.sum().item(), lines, last)


def _marginals(counts: Counts) -> Iterator[Counts]:
    """The sums along each axis over all others."""
    for axis in range(counts.ndim):
        yield counts.sum(axis=tuple(d for d in range(counts.ndim) if d != axis))


def _sums(subset: Subset, lead: int, row: int) -> Iterator[tuple[slice, Any, Any]]:
    """Sums over pieces of the windows: some rows, the sum of each, and the sums along a row."""
    indices, weights = subset.indices, _expected(subset)
    bits = indices.as_bits() if isinstance(indices, WindowSet) and weights is None else None
    if bits is not None or indices is None:
        # Each window has a value: whether it is a sample, or how often.
        num_rows = max(_PIECE_SIZE // row, 1)
        for first in range(0, lead, num_rows):
            last = min(first + num_rows, lead)
            begin, end = first * row, last * row
            values: Any = weights if bits is None else bits.flags(begin, end)
            piece = (values[begin:end] if bits is None else values).reshape(-1, row)
            dtype = np.int64 if piece.dtype == np.bool_ else None
            yield slice(first, last), piece.sum(axis=1, dtype=dtype), piece.sum(axis=0, dtype=dtype)
        return
    for begin in range(0, len(subset), _PIECE_SIZE >> 2):
        ids = np.arange(begin, min(begin + (_PIECE_SIZE >> 2), len(subset)))
        places, within = np.divmod(subset.windows_of(ids), row)
        # Counts by `bincount` are integers without weights.
        some = None if weights is None else weights[ids]
        sums = np.bincount(places, some, minlength=lead)
        yield slice(None), sums, np.bincount(within, some, minlength=row)


def _expected(subset: Subset) -> NDArray[np.float64] | None:
    """How often an epoch has each sample on average; None if each occurs once."""
    if subset.draws is not None:
        sizes = np.diff(subset.groups.offsets)
        shares = np.minimum(sizes, subset.draws.num_each) / np.maximum(sizes, 1)
        return shares[subset.draws.groups_of(subset.windows_of(np.arange(len(subset))))]
    if subset.weights is None:
        return None
    # Scaled before the sum, which keeps it finite for huge weights.
    shares = subset.weights / subset.weights.max()
    return np.asarray(shares * (subset.num_samples / shares.sum()), np.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Coverage(FigureTable):
    """How often the samples of an epoch need each element of the data.

    Its text says for each dimension how many elements no sample needs, and where they lie.

    Attributes
    ----------
    num_samples : int or float
        Samples of an epoch.
    counts : dict of str to xarray.DataArray
        Per windowed dimension, the samples that need each element; int64, or float64 with the
        expected numbers where an epoch draws samples at random.
    grid : xarray.DataArray or None
        The same for each element along the last two windowed dimensions. None if there is only one
        windowed dimension, or if the map would have more than 8 million elements.
    fields : tuple of str
        The fields whose elements are counted.
    """

    num_samples: float
    counts: Mapping[str, xr.DataArray]
    grid: xr.DataArray | None
    fields: tuple[str, ...]

    def to_xarray(self) -> xr.Dataset:
        """The counts as a Dataset with labels: ``<dim>_count`` and, for the map, ``count``."""
        variables = {f"{dim}_count": counts for dim, counts in self.counts.items()}
        if self.grid is not None:
            variables["count"] = self.grid
        return xr.Dataset(variables, attrs={"num_samples": self.num_samples})

    def plot(self) -> Picture:
        """Draw the counts: a line for each dimension, and a map of the last two.

        Elements that no sample needs are red below a line, and grey in the map.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        require_matplotlib()
        from xloader.show.epoch_plots import draw_coverage

        title = f"{self._title()}, {show_count(self.num_samples, 'sample')}"
        return draw_coverage(list(self.counts.values()), self.grid, title)

    def _title(self) -> str:
        return f"Coverage of an epoch by {', '.join(self.fields)}"

    def _drawings(self) -> list[CardPart]:
        return [draw_counts(dim, counts.values) for dim, counts in self.counts.items()]

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("samples", f"{_number(self.num_samples)} an epoch")]
        rows += [(dim, _line_text(counts)) for dim, counts in self.counts.items()]
        if self.grid is not None:
            over = " x ".join(map(str, self.grid.dims))
            rows.append((over, _share_text(self.grid.values)))
        elif len(self.counts) > 1:
            rows.append(("map", f"left out: it has more than {_MOST_CELLS:,} elements"))
        return rows

    def __repr__(self) -> str:
        return str(self)


def count_coverage(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], fields: Sequence[str]
) -> Coverage:
    """Count how often an epoch has each element; see `Samples.coverage`."""
    windows = recipe.require_windows()
    for name in fields:
        find(name, [layout.name for layout in layouts], "field")
    chosen = [x for x in layouts if x.parts and (not fields or x.name in fields)]
    if not chosen:
        raise OptionError("these fields need no element of the data", given=", ".join(fields))
    positions = PositionCounts.of(windows, recipe.subset)
    # Where an epoch takes a part of the samples, the next epochs take the others.
    num_samples = num_samples_of(recipe)
    # Whole numbers stay whole where all samples are taken.
    share = 1 if num_samples == positions.total else num_samples / positions.total
    offsets = [_offsets_along(chosen, number) for number in range(len(windows.dims))]
    coords = coords_of(recipe)
    counts = {
        dim: _labelled(_along(windows, number, stretches, sums) * share, (dim,), coords)
        for number, (dim, stretches, sums) in enumerate(
            zip(windows.dims, offsets, positions.lines, strict=True)
        )
        if stretches
    }
    grid = None
    if len(windows.dims) > 1 and np.prod(windows.dim_sizes[-2:]) <= _MOST_CELLS:
        grid_counts = _count_grid(windows, chosen, positions)
        grid = _labelled(grid_counts * share, windows.dims[-2:], coords)
    names = tuple(layout.name for layout in chosen)
    return Coverage(num_samples, counts, grid, names)


def _labelled(counts: Counts, dims: tuple[str, ...], coords: xr.Coordinates) -> xr.DataArray:
    labels = {dim: coords[dim].variable for dim in dims if dim in coords}
    attrs = {"long_name": "samples of an epoch that need the element"}
    return xr.DataArray(counts, labels, dims, attrs=attrs)


def _offsets_along(layouts: Sequence[FieldLayout], number: int) -> Stretches:
    """The elements of a window, along a dimension, that some field needs."""
    spans = {piece.accesses[number] for layout in layouts for piece in layout.parts} - {None}
    offsets = [np.arange(count) * step + first for first, step, count in filter(None, spans)]
    return _stretches_of(np.unique(np.concatenate(offsets))) if offsets else []


def _stretches_of(offsets: NDArray[np.int64]) -> Stretches:
    begins = np.flatnonzero(np.diff(offsets, prepend=-2) > 1)
    sizes = np.diff(begins, append=len(offsets))
    return list(zip(offsets[begins].tolist(), sizes.tolist(), strict=True))


def _along(
    windows: Windows, number: int, stretches: Stretches, counts: Counts, axis: int = 0
) -> Counts:
    """Replace an axis of positions by one of elements, and count the windows that need each."""
    edges = np.arange(windows.dim_sizes[number] + 1)
    positions = np.arange(windows.num_positions[number])
    pieces = (
        ElementRanges.of(windows, number, (first, 1, size), positions).count(counts, axis, edges)
        for first, size in stretches
    )
    return np.asarray(sum(pieces))


def _count_grid(
    windows: Windows, layouts: Sequence[FieldLayout], positions: PositionCounts
) -> Counts:
    """The samples that need each element along the last two windowed dimensions."""
    first, second = len(windows.dims) - 2, len(windows.dims) - 1
    grid: Counts = np.zeros(windows.dim_sizes[-2:], np.int64)
    for rows, columns in _rectangles(layouts, first, second):
        half = _along(windows, first, rows, positions.plane, 0)
        grid = grid + _along(windows, second, columns, half, 1)
    return grid


def _rectangles(
    layouts: Sequence[FieldLayout], first: int, second: int
) -> Iterator[tuple[Stretches, Stretches]]:
    """The elements of a window along two dimensions, as products that do not overlap."""
    spans = {(x.accesses[first], x.accesses[second]) for layout in layouts for x in layout.parts}
    pairs = [(rows, columns) for rows, columns in spans if rows and columns]
    if not pairs:
        return
    size = [max(span[d][0] + span[d][1] * (span[d][2] - 1) + 1 for span in pairs) for d in (0, 1)]
    mask = np.zeros(size, np.bool_)
    for rows, columns in pairs:
        at = (np.arange(count) * step + begin for begin, step, count in (rows, columns))
        mask[np.ix_(*at)] = True
    # Rows of equal elements are one product.
    patterns, which = np.unique(mask, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if pattern.any():
            alike = np.flatnonzero(which.reshape(-1) == number)
            yield _stretches_of(alike), _stretches_of(np.flatnonzero(pattern))


def _line_text(counts: xr.DataArray) -> str:
    text = _share_text(counts.values)
    never = np.flatnonzero(counts.values == 0)
    if not len(never):
        return text
    dim = str(counts.dims[0])
    stretches = _stretches_of(never)
    named = [
        place_text(counts, dim, begin)
        + (f" to {place_text(counts, dim, begin + size - 1)}" if size > 1 else "")
        for begin, size in stretches[:_MOST_NAMED]
    ]
    more = len(stretches) - len(named)
    return f"{text}. Never: {', '.join(named)}" + (f" and {more:,} more stretches" if more else "")


def _share_text(counts: Counts) -> str:
    used = counts[counts > 0]
    never = counts.size - used.size
    text = (
        f"{counts.size:,} elements, {never:,} of them never"
        if never
        else f"{counts.size:,} elements"
    )
    if not used.size:
        return text
    low, high = _number(used.min()), _number(used.max())
    often = "once" if low == high == "1" else f"{low if low == high else f'{low} to {high}'} times"
    return f"{text}, {'the others' if never else 'each'} {often}"


def _number(count: float) -> str:
    return f"{count:,.0f}" if count == round(count) else f"{count:,.4g}"
