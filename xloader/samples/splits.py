"""`Split`, the named parts that `Samples.split` makes, and how windows fall into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.core.element_ranges import touching
from xloader.core.messages import show_count
from xloader.core.option_checks import check_whole
from xloader.errors import EmptySamplesError, OptionError
from xloader.order.cohorts import tile_edges
from xloader.recipe.demands import make_footprint
from xloader.recipe.label_steps import Duration, num_elements
from xloader.recipe.layout import make_layouts
from xloader.recipe.points import columns_by_name
from xloader.recipe.recipe import Recipe, find
from xloader.recipe.split_parts import (
    APART,
    CROSSES,
    PartGrid,
    block_parts,
    group_parts,
    labelled_parts,
    line_grid,
)
from xloader.show.cards import Card, Facts, facts_text
from xloader.show.drawings import draw_shares

Gap = int | Duration | Mapping[str, int | Duration]
_PIECE_SIZE = 1 << 20
_S = TypeVar("_S")


class Split(Mapping[str, _S], Generic[_S]):
    """The parts of a split, by name: a mapping that also says what is in no part.

    Parameters
    ----------
    parts : mapping of str to Samples
        The samples of each part.
    num_crossing : int
        Number of samples that are in no part because their windows reach from a part into another
        one, into the gap around it, or out of it.
    num_apart : int
        Number of samples whose windows touch no part.
    """

    def __init__(self, parts: Mapping[str, _S], num_crossing: int, num_apart: int) -> None:
        self._parts = dict(parts)
        self.num_crossing = num_crossing
        self.num_apart = num_apart

    def __getitem__(self, name: str) -> _S:
        find(name, self._parts, "part of the split")
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: len(part) for name, part in self.items()}  # type: ignore[arg-type]

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(name, show_count(size, "sample")) for name, size in self._sizes.items()]
        rows.append(("in no part", f"{self.num_crossing:,} cross the edge of a part or its gap"))
        if self.num_apart:
            rows.append(("", f"{self.num_apart:,} touch no part"))
        return rows

    def __repr__(self) -> str:
        return facts_text("xloader.Split", self._rows())

    def _repr_html_(self) -> str:
        whole = {**self._sizes, "in no part": self.num_crossing + self.num_apart}
        bar = draw_shares("Windows", {name: float(n) for name, n in whole.items()}, "in no part")
        return Card("xloader.Split", f"{len(self):,} parts", [Facts(self._rows()), bar]).to_html()


@dataclass(frozen=True)
class SplitRequest:
    """The arguments of `Samples.split`."""

    parts: Mapping[str, Any] | None
    along: Mapping[str, Mapping[str, Any]]
    gap: Gap | str
    blocks: Mapping[str, int | Duration] | None
    groups: str | ArrayLike | None
    seed: int


def make_split(
    recipe: Recipe, request: SplitRequest, select: Callable[[NDArray[np.bool_]], _S]
) -> Split[_S]:
    """Make the parts; see `Samples.split`. `select`: makes the samples of one."""
    names, part_of = _split_windows(recipe, request)
    made = {}
    for number, name in enumerate(names):
        if not (part_of == number).any():
            raise _empty_part(recipe, name, request)
        made[name] = select(part_of == number)
    num_crossing, num_apart = (int(np.count_nonzero(part_of == mark)) for mark in (CROSSES, APART))
    return Split(made, num_crossing, num_apart)


def _split_windows(
    recipe: Recipe, request: SplitRequest
) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    """Find the part of each sample."""
    check_whole("seed", request.seed, -(2**63), 2**64 - 1)
    for word, given in (("parts", request.parts), ("blocks", request.blocks)):
        if given is not None and not isinstance(given, Mapping):
            raise OptionError(
                f"{word} is no mapping",
                given=repr(given),
                allowed="a mapping of names to parts"
                if word == "parts"
                else "a mapping of dimensions to sizes",
                remedy='pass for example {"train": 0.8, "valid": 0.2}, blocks={"time": 30}',
            )
    ways = {
        "labels or fractions along dimensions": bool(request.along),
        "parts with blocks=": request.parts is not None and request.blocks is not None,
        "parts with groups=": request.parts is not None and request.groups is not None,
        "regions": request.parts is not None and request.blocks is None is request.groups,
    }
    if sum(ways.values()) != 1:
        raise OptionError(
            "a split needs one way to tell its parts",
            given=", ".join(way for way, is_given in ways.items() if is_given) or "none",
            allowed=f"one of: {', '.join(ways)}",
            remedy='pass for example time={"train": slice(None, "2015"), "valid": slice("2016", '
            "None)}",
        )
    grid: PartGrid
    parts = request.parts or {}
    if request.along:
        names, grid = labelled_parts(recipe, request.along)
    elif request.blocks is not None:
        edges = _chunk_edges(recipe, request.blocks)
        names, grid = block_parts(recipe, parts, request.blocks, edges, request.seed)
    elif request.groups is not None:
        dim, groups = _groups(recipe, request.groups)
        names, owners = group_parts(parts, groups, request.seed)
        if dim is None:
            return names, _apart(recipe, owners, request.gap)
        grid = line_grid(recipe, dim, owners)
    else:
        names, grid = labelled_parts(recipe, _regions_by_dim(parts))
    return names, _parts_of(recipe, grid, request.gap)


def _parts_of(recipe: Recipe, grid: PartGrid, gap: Gap | str) -> NDArray[np.int8]:
    windows = recipe.require_windows()
    boxes = grid.boxes(windows, _gaps(recipe, grid, gap))
    part_of = np.empty(recipe.num_ids, np.int8)
    for begin in range(0, len(part_of), _PIECE_SIZE):
        ids = np.arange(begin, min(begin + _PIECE_SIZE, len(part_of)))
        part_of[ids] = boxes.parts_of(recipe.positions_of(ids))
    return part_of


def _apart(recipe: Recipe, owners: NDArray[np.int8], gap: Gap | str) -> NDArray[np.int8]:
    """The part of each sample, given that of its group, so that parts share no element.

    A sample that shares an element with one of a part named before is in no part.
    """
    if gap != "auto":
        raise OptionError(
            "a gap cannot be kept between groups of samples",
            given=f"gap={gap!r}",
            remedy='pass gap="auto", groups= as the name of a coordinate, or split by labels',
        )
    windows = recipe.require_windows()
    part_of = np.where(owners < 0, np.int8(APART), owners)
    positions = recipe.positions_of(np.arange(recipe.num_ids))
    for part in range(1, int(owners.max(initial=0)) + 1):
        members = np.flatnonzero(part_of == part)
        is_before = (part_of >= 0) & (part_of < part)
        part_of[members[touching(windows, positions[is_before], positions[members])]] = CROSSES
    return part_of


def _gaps(recipe: Recipe, grid: PartGrid, gap: Gap | str) -> tuple[int, ...]:
    """The gap along each dimension that is cut, in elements."""
    dims = [recipe.require_windows().dims[dim] for dim in grid.dims]
    if isinstance(gap, str) and gap == "auto":
        return (0,) * len(dims)
    by_dim = gap if isinstance(gap, Mapping) else dict.fromkeys(dims, gap)
    for dim in by_dim:
        find(dim, dims, "dimension that is split")
    return tuple(num_elements(recipe, "gap", dim, by_dim.get(dim, 0), least=0) for dim in dims)


def _regions_by_dim(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Regions by dimension and then by part; a dimension that a region leaves out is whole."""
    for name, region in parts.items():
        if not isinstance(region, Mapping) or not region:
            raise OptionError(
                f"the part {name!r} of a split is no region",
                given=repr(region),
                allowed='labels by dimension, such as {"lat": slice(90, 0)}; or fractions, with '
                "blocks= or groups=",
                remedy="to split by fractions along a dimension, pass for example "
                'time={"train": 0.8, "valid": 0.2}',
            )
    dims = dict.fromkeys(dim for region in parts.values() for dim in region)
    return {
        dim: {name: region.get(dim, slice(None)) for name, region in parts.items()} for dim in dims
    }


def _chunk_edges(recipe: Recipe, dims: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
    """Where chunks begin along dimensions, of the variable with the most bytes."""
    windows = recipe.require_windows()
    footprint = make_footprint(recipe, make_layouts(recipe))
    known = [dim for dim in dims if dim in windows.dims]
    return {dim: tile_edges(footprint, windows.dims.index(dim), 1) for dim in known}


def _groups(recipe: Recipe, groups: str | ArrayLike) -> tuple[str | None, NDArray[Any]]:
    """The dimension along which groups are given, None for one of each sample; and the groups."""
    columns = columns_by_name(recipe)
    if isinstance(groups, str) and groups in columns:
        return None, columns[groups].decoded
    if isinstance(groups, str):
        coords = recipe.source.coordinates()
        find(groups, [*map(str, coords.coords), *columns], "coordinate")
        labels = coords[groups].variable.to_base_variable()
        windowed = recipe.require_windows().dims
        if len(labels.dims) != 1 or labels.dims[0] not in windowed:
            raise OptionError(
                f"the coordinate {groups!r} does not group samples",
                given=f"dimensions {labels.dims}",
                allowed=f"one dimension of {list(windowed)}",
                remedy="pass one group for each sample",
            )
        dim = str(labels.dims[0])
        kept = recipe.kept_of(dim)
        assert not isinstance(kept, int)
        return dim, np.asarray(labels.values)[np.asarray(kept)]
    given = np.asarray(groups)
    if given.shape != (recipe.num_ids,):
        raise OptionError(
            "the groups do not fit the samples",
            given=f"shape {given.shape}",
            remedy=f"pass {recipe.num_ids} groups, one a sample, or the name of a coordinate",
        )
    return None, given


def _empty_part(recipe: Recipe, name: str, request: SplitRequest) -> EmptySamplesError:
    """The error for a part that no sample lies in."""
    windows = recipe.require_windows()
    extents = dict(zip(windows.dims, windows.extents, strict=True))
    return EmptySamplesError(
        f"no sample lies in the part {name!r} of the split",
        given=f"samples that span {extents} elements, gap={request.gap!r}",
        remedy="make the part or its blocks larger, or the window, the lead or the gap smaller"
        if request.groups is None
        else "use a larger stride or groups that lie apart: samples that share elements with a "
        "part named before are in no part",
    )
