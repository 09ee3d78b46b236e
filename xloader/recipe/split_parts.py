"""Conversion of the arguments of `split` to a grid of cells and the part that owns each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, permutation
from xloader.core.element_ranges import sums_before
from xloader.core.windows import Windows
from xloader.errors import OptionError, UnknownNameError
from xloader.recipe.label_steps import Duration, num_elements
from xloader.recipe.recipe import Recipe, find
from xloader.recipe.selection import sel

CROSSES: Final = -1
"""Stands for the part of a window that touches a part, but belongs to none."""
APART: Final = -2
"""Stands for the part of a window that touches no part."""


@dataclass(frozen=True, eq=False)
class PartGrid:
    """The cells of some dimensions, and the part that owns each."""

    dims: tuple[int, ...]
    edges: tuple[Ints, ...]
    owners: NDArray[np.int8]

    def boxes(self, windows: Windows, gaps: tuple[int, ...]) -> PartBoxes:
        """Find the part of each kind of window. Windows of a kind touch the same cells.

        A window belongs to a part if the part owns all its elements, from the first to the last
        one that a sample needs, and no other part owns an element within the gap around it.
        """
        kinds, spans, wider, owners = [], [], [], self.owners
        for axis, (dim, edges, gap) in enumerate(zip(self.dims, self.edges, gaps, strict=True)):
            if windows.wraps[dim]:
                # Three turns of the circle hold each window and the gap around it.
                turn = windows.dim_sizes[dim]
                edges = np.concatenate([edges[:-1] - turn, edges[:-1], edges + turn])
                owners = np.concatenate([owners] * 3, axis=axis)
            # Along a single dimension it is enough to look back: of two windows that are too
            # close, one comes after the other.
            after = gap if len(self.dims) > 1 else 0
            last = windows.extents[dim] - 1
            shifts = (0, last, -gap, last + after)
            # Windows between two of these positions touch the same cells.
            cuts = [windows.num_before(dim, edges[1:-1] - shift) for shift in shifts]
            begins = np.unique(np.concatenate([np.zeros(1, np.int64), *cuts]))
            begins = begins[begins < windows.num_positions[dim]]
            starts = windows.starts_of(dim, begins)
            cells = [
                np.clip(np.searchsorted(edges, starts + shift, side="right") - 1, 0, len(edges) - 2)
                for shift in shifts
            ]
            kinds.append(begins)
            spans.append((cells[0], cells[1] + 1))
            wider.append((cells[2], cells[3] + 1))
        num_cells = _count_flags(np.ones(owners.shape, np.bool_), spans)
        num_owned = _count_flags(owners >= 0, wider)
        parts = np.where(_count_flags(owners >= 0, spans) > 0, CROSSES, APART).astype(np.int8)
        for part in range(int(owners.max(initial=-1)) + 1):
            is_own = owners == part
            is_whole = _count_flags(is_own, spans) == num_cells
            parts[is_whole & (_count_flags(is_own, wider) == num_owned)] = part
        return PartBoxes(self.dims, tuple(kinds), parts)


@dataclass(frozen=True, eq=False)
class PartBoxes:
    """The part of each kind of window. Windows of a kind touch the same cells.

    `kinds`: per cut dimension, the first position of each kind, ascending.
    """

    dims: tuple[int, ...]
    kinds: tuple[Ints, ...]
    parts: NDArray[np.int8]

    def parts_of(self, positions: Ints) -> NDArray[np.int8]:
        """The part of each window by its positions, shape ``(n, num_dims)``."""
        at = tuple(
            np.searchsorted(begins, positions[:, dim], side="right") - 1
            for dim, begins in zip(self.dims, self.kinds, strict=True)
        )
        return self.parts[at]


def _count_flags(flags: NDArray[np.bool_], spans: list[tuple[Ints, Ints]]) -> Ints:
    """Number of flagged cells in all boxes of a half-open range of cells along each dimension."""
    counts = flags.astype(np.int64)
    for axis, (lo, hi) in enumerate(spans):
        # From the sums over all cells before a corner.
        before = sums_before(counts, axis)
        counts = before.take(hi, axis) - before.take(lo, axis)
    return counts


_BLOCKS, _GROUPS = 0x5B11, 0x5B12
_MOST_PARTS: Final = 100
_MOST_CELLS: Final = 10**7
_LONGEST_EXAMPLE: Final = 160
"""Characters of a user's arguments that an error repeats."""

Part = Any
"""Labels, or a fraction, of one part along one dimension."""


def labelled_parts(
    recipe: Recipe, along: Mapping[str, Mapping[str, Part]]
) -> tuple[tuple[str, ...], PartGrid]:
    """The parts that are given by labels or fractions along dimensions."""
    _refuse_names_of_parts(recipe, along)
    for dim, parts in along.items():
        if not isinstance(parts, Mapping):
            raise OptionError(
                f"the parts along {dim!r} have no names",
                given=repr(parts),
                remedy=f'pass them by name, such as {dim}={{"train": 0.8, "valid": 0.2}}',
            )
    names = tuple(next(iter(along.values()), ()))
    _check_names(names)
    dims = tuple(_windowed(recipe, dim) for dim in along)
    edges, members = [], []
    for dim, parts in along.items():
        if set(parts) != set(names):
            raise OptionError(
                "the dimensions of a split name different parts",
                given=f"{sorted(map(str, parts))} along {dim!r}, {list(names)} along others",
                remedy="give every part along every dimension; slice(None) is the whole of it",
            )
        is_member = _members(recipe, dim, [parts[name] for name in names])
        changes = np.flatnonzero((is_member[:, 1:] != is_member[:, :-1]).any(axis=0)) + 1
        edges.append(np.array([0, *changes, is_member.shape[1]]))
        members.append(is_member[:, edges[-1][:-1]])
    _check_num_cells(edges)
    owners = np.full([len(dim_edges) - 1 for dim_edges in edges], -1, np.int8)
    for number, name in enumerate(names):
        is_own = np.ones((), np.bool_)
        for member in members:
            is_own = is_own[..., None] & member[number]
        if (owners[is_own] >= 0).any():
            earlier = names[int(owners[is_own].max())]
            raise OptionError(
                "two parts of a split share elements",
                given=f"{earlier!r} and {name!r}",
                remedy=f"let {name!r} begin after the last label of {earlier!r}",
            )
        owners[is_own] = number
    return names, PartGrid(dims, tuple(edges), owners)


def block_parts(
    recipe: Recipe,
    fractions: Mapping[str, Part],
    blocks: Mapping[str, int | Duration],
    chunk_edges: Mapping[str, Ints],
    seed: int,
) -> tuple[tuple[str, ...], PartGrid]:
    """Parts made of random blocks."""
    names = tuple(fractions)
    _check_names(names)
    dims, edges = tuple(_windowed(recipe, dim) for dim in blocks), []
    for dim, size in blocks.items():
        edges.append(_merge(chunk_edges[dim], num_elements(recipe, "blocks", dim, size)))
    _check_num_cells(edges)
    shape = [len(dim_edges) - 1 for dim_edges in edges]
    owners = np.full(math.prod(shape), -1, np.int8)
    cuts = _cuts(fractions, len(owners), "blocks")
    order = permutation(derive_key(seed, 0, _BLOCKS), len(owners))
    for number, (lo, hi) in enumerate(itertools.pairwise(cuts)):
        owners[order[lo:hi]] = number
    return names, PartGrid(dims, tuple(edges), owners.reshape(shape))


def group_parts(
    parts: Mapping[str, Part], groups: NDArray[Any], seed: int
) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    """The part of each element or sample, where whole groups belong to a part."""
    names = tuple(parts)
    _check_names(names)
    is_missing = pd.isna(groups)
    if is_missing.any():
        raise OptionError(
            "some groups are missing",
            given=f"{np.count_nonzero(is_missing)} of {len(groups)} groups are NaN or None, the "
            f"first at {int(np.argmax(is_missing))}",
            remedy="fill them, or select the others first",
        )
    known, number_of = np.unique(groups, return_inverse=True)
    owner_of = np.full(len(known), -1, np.int8)
    if all(_is_fraction(part) for part in parts.values()):
        cuts = _cuts(parts, len(known), "groups")
        order = permutation(derive_key(seed, 0, _GROUPS), len(known))
        for number, (lo, hi) in enumerate(itertools.pairwise(cuts)):
            owner_of[order[lo:hi]] = number
        return names, owner_of[number_of]
    for number, (name, listed) in enumerate(parts.items()):
        wanted = np.atleast_1d(np.asarray(listed))
        is_own = np.isin(known, wanted)
        missing = wanted[~np.isin(wanted, known)]
        if len(missing):
            raise UnknownNameError(
                f"the part {name!r} names a group that does not exist",
                given=repr(missing[0]),
                allowed=f"{len(known)} groups, such as {known[:5].tolist()}",
                remedy="pass groups that occur, or fractions",
            )
        if (owner_of[is_own] >= 0).any():
            twice = known[is_own & (owner_of >= 0)][0]
            raise OptionError(
                "a group belongs to two parts of a split",
                given=f"{twice!r} in {names[int(owner_of[known == twice][0])]!r} and {name!r}",
                remedy=f"take it out of {name!r}",
            )
        owner_of[is_own] = number
    return names, owner_of[number_of]


def line_grid(recipe: Recipe, dim: str, owners: NDArray[np.int8]) -> PartGrid:
    """The grid along one dimension, given the part of each element."""
    begins = np.flatnonzero(np.diff(owners, prepend=owners[0] - 1))
    edges = np.append(begins, len(owners))
    return PartGrid((_windowed(recipe, dim),), (edges,), owners[begins])


def _members(recipe: Recipe, dim: str, parts: list[Part]) -> NDArray[np.bool_]:
    """Whether each part has each element of a dimension; shape ``(num_parts, size)``."""
    size = recipe.dim_sizes[dim]
    is_member = np.zeros((len(parts), size), np.bool_)
    if any(map(_is_fraction, parts)):
        for number, (lo, hi) in enumerate(itertools.pairwise(_fraction_edges(parts, size))):
            is_member[number, lo:hi] = True
        return is_member
    kept = recipe.kept_of(dim)
    assert not isinstance(kept, int)
    for number, labels in enumerate(parts):
        taken = dict(sel(recipe, {dim: labels}, method=None, tolerance=None))[dim]
        stored = np.atleast_1d(np.asarray(taken, np.int64))
        is_member[number] = np.isin(np.asarray(kept, np.int64), stored)
    return is_member


def _is_fraction(part: Part) -> bool:
    return isinstance(part, float | np.floating)


def _fraction_edges(fractions: Sequence[Part], count: int) -> list[int]:
    """Where each fraction of a line of ``count`` begins, then where the last one ends."""
    is_number = all(map(_is_fraction, fractions))
    if not is_number or min(fractions) <= 0 or sum(map(float, fractions)) > 1 + 1e-9:
        raise OptionError(
            "the fractions of a split do not fit",
            given=list(fractions),
            remedy="pass numbers above 0 with a sum of at most 1, such as 0.8, 0.1 and 0.1",
        )
    edges = np.round(np.cumsum([0.0, *map(float, fractions)]) * count)
    return list(map(int, edges))


def _cuts(parts: Mapping[str, Part], count: int, what: str) -> list[int]:
    """Where each part begins in a line of ``count`` blocks or groups; each gets at least one."""
    fractions = list(parts.values())
    cuts = _fraction_edges(fractions, count)
    for name, (lo, hi) in zip(parts, itertools.pairwise(cuts), strict=True):
        if lo == hi:
            raise OptionError(
                f"the part {name!r} of a split gets none of the {what}",
                given=f"{count} {what} for fractions {fractions}",
                remedy=(
                    "make smaller blocks, or pass a larger fraction"
                    if what == "blocks"
                    else "pass a larger fraction, or name the groups of each part"
                ),
            )
    return cuts


def _merge(chunk_edges: Ints, least: int) -> Ints:
    """Edges of blocks of whole chunks with at least ``least`` elements; the last may be longer.

    If one chunk holds the whole dimension, it is cut all the same.
    """
    if len(chunk_edges) == 2:
        chunk_edges = np.append(np.arange(0, chunk_edges[-1], least), chunk_edges[-1])
    edges = [0]
    for edge in chunk_edges[1:].tolist():
        if edge - edges[-1] >= least:
            edges.append(edge)
    edges[-1 if len(edges) > 1 else len(edges) :] = [int(chunk_edges[-1])]
    return np.array(edges)


def _refuse_names_of_parts(recipe: Recipe, along: Mapping[str, Any]) -> None:
    """Refuse ``train=slice(...)``: keywords are dimensions, and their values name the parts."""
    dims = recipe.require_windows().dims
    if not along or not dims or set(along) & set(recipe.dim_sizes):
        return
    are_regions = all(
        isinstance(part, Mapping) and part and set(part) <= set(recipe.dim_sizes)
        for part in along.values()
    )
    if not are_regions and any(isinstance(part, Mapping) for part in along.values()):
        # More likely the name of a dimension was mistyped.
        return
    listed = ", ".join(f'"{name}": {part!r}' for name, part in along.items())
    if len(listed) > _LONGEST_EXAMPLE:
        listed = ", ".join(f'"{name}": ...' for name in along)
    raise OptionError(
        "the keywords of a split are dimensions, and these name parts",
        given=", ".join(f"{name}=" for name in along),
        allowed=f"dimensions with windows: {list(dims)}",
        remedy=f"pass split({{{listed}}})" if are_regions else f"pass {dims[0]}={{{listed}}}",
    )


def _windowed(recipe: Recipe, dim: str) -> int:
    windowed = recipe.require_windows().dims
    if dim not in windowed:
        find(dim, recipe.dim_sizes, "dimension")
        raise OptionError(
            f"every sample holds all of the dimension {dim!r}, so it cannot be split",
            allowed=f"dimensions with windows: {list(windowed)}",
            remedy=f"name {dim!r} in .window(...)",
        )
    return windowed.index(dim)


def _check_names(names: tuple[str, ...]) -> None:
    if not names or len(names) > _MOST_PARTS or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"a split needs 1 to {_MOST_PARTS} names for its parts",
            given=list(names),
            remedy='pass for example time={"train": slice("2015"), "valid": slice("2016", None)}',
        )


def _check_num_cells(edges: list[Ints]) -> None:
    num_cells = math.prod(len(dim_edges) - 1 for dim_edges in edges)
    if num_cells > _MOST_CELLS:
        raise OptionError("too many blocks", given=num_cells, allowed=f"up to {_MOST_CELLS}")
