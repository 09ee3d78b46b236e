"""The stored elements that samples need, and how many of them two sets of samples share.

Along each dimension, neighbouring elements that every window needs together, or not at all, are one
*cell*. So the cost does not grow with the size of windows::

    samples a   `-----'   `-----'
    samples b               `--------'
    cell        |     |   | |   |    |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.element_ranges import ElementRanges, check_num_places
from xloader.errors import OptionError
from xloader.recipe.layout import FieldPart, make_layouts
from xloader.recipe.recipe import Recipe

_PIECE_SIZE: Final = 1 << 20


def count_shared(first: Recipe, second: Recipe) -> int:
    """Count the stored elements that both of two sets of samples need."""
    if first.source.fingerprint != second.source.fingerprint:
        raise OptionError(
            "the two sets of samples are of different data",
            given=f"{first.source.name} and {second.source.name}",
            remedy="open the source once, and make both sets of samples from it",
        )
    parts = [_parts(recipe) for recipe in (first, second)]
    return sum(
        _shared_of(name, (first, parts[0][name]), (second, parts[1][name]))
        for name in parts[0]
        if name in parts[1] and not first.variable(name).is_computed
    )


def _parts(recipe: Recipe) -> dict[str, list[FieldPart]]:
    """The parts of fields, by variable."""
    parts: dict[str, list[FieldPart]] = {}
    for layout in make_layouts(recipe):
        for part in layout.parts:
            parts.setdefault(part.variable, []).append(part)
    return parts


Use = tuple[Recipe, list[FieldPart]]


def _shared_of(name: str, first: Use, second: Use) -> int:
    shape = first[0].variable(name).shape
    used = [used_positions(recipe) for recipe, _ in (first, second)]
    spans = [
        [_spans(recipe, name, part, positions) for part in parts]
        for (recipe, parts), positions in zip((first, second), used, strict=True)
    ]
    edges = []
    for dim, size in enumerate(shape):
        is_edge = np.zeros(size + 1, np.bool_)
        for span in (ranges[dim] for uses in spans for ranges in uses):
            is_edge[span.lo] = is_edge[span.hi] = True
        edges.append(np.flatnonzero(is_edge))
    check_num_places([len(dim_edges) for dim_edges in edges])
    needed = []
    for (recipe, _), uses, positions in zip((first, second), spans, used, strict=True):
        covered = np.zeros([max(len(dim_edges) - 1, 0) for dim_edges in edges], np.bool_)
        for ranges in uses:
            covered |= _covered(recipe, name, ranges, edges, positions)
        needed.append(covered)
    shared = (needed[0] & needed[1]).astype(np.int64)
    for along in reversed(edges):
        shared = shared @ np.diff(along)
    return int(shared)


def used_positions(recipe: Recipe) -> list[Ints]:
    """Positions at which there are samples, along each windowed dimension."""
    windows = recipe.require_windows()
    if recipe.subset is None or recipe.subset.has_all:
        return [np.arange(count, dtype=np.int64) for count in windows.num_positions]
    used = [np.zeros(0, np.int64) for _ in windows.dims]
    for positions in _positions(recipe):
        used = [np.union1d(known, at) for known, at in zip(used, positions.T, strict=True)]
    return used


def _spans(recipe: Recipe, name: str, part: FieldPart, used: list[Ints]) -> list[ElementRanges]:
    """Per stored dimension of a variable, the elements that each position needs."""
    windows = recipe.require_windows()
    spans = []
    for dim in recipe.variable(name).dims:
        kept = recipe.kept_of(dim)
        elements = np.atleast_1d(np.asarray(kept, np.int64))
        is_line = bool((np.diff(elements) == 1).all())
        if dim in windows.dims and not isinstance(kept, int):
            axis = windows.dims.index(dim)
            access = part.accesses[axis]
            assert access is not None
            ranges = ElementRanges.of(windows, axis, access, used[axis], is_split=not is_line)
            # The end of the selection stands for the end of empty ranges, too.
            stored = np.append(elements, elements[-1] + 1)
            lo, is_empty = stored[ranges.lo], ranges.lo == ranges.hi
            hi = stored[ranges.hi] if is_line else np.where(is_empty, lo, lo + 1)
            spans.append(ElementRanges(lo, hi))
        elif is_line:
            spans.append(ElementRanges(elements[None, :1], elements[None, -1:] + 1))
        else:
            spans.append(ElementRanges(elements[None], elements[None] + 1))
    return spans


def _covered(
    recipe: Recipe, name: str, spans: list[ElementRanges], edges: list[Ints], used: list[Ints]
) -> NDArray[np.bool_]:
    """Whether the samples need each cell, with one axis for each stored dimension."""
    if recipe.subset is None or recipe.subset.has_all:
        covered = np.ones((), np.bool_)
        for span, dim_edges in zip(spans, edges, strict=True):
            is_along = span.cover(np.ones(len(span.lo), np.bool_), 0, dim_edges)
            covered = covered[..., None] & is_along
        return np.asarray(covered)
    shape = [len(span.lo) for span in spans]
    check_num_places(shape)
    marks = np.zeros(shape, np.bool_)
    windowed = recipe.require_windows().dims
    for positions in _positions(recipe):
        ranks = dict(zip(windowed, map(np.searchsorted, used, positions.T), strict=True))
        none = np.zeros(len(positions), np.int64)
        marks[tuple(ranks.get(dim, none) for dim in recipe.variable(name).dims)] = True
    for axis, (span, dim_edges) in enumerate(zip(spans, edges, strict=True)):
        marks = span.cover(marks, axis, dim_edges)
    return marks


def _positions(recipe: Recipe) -> Iterator[Ints]:
    """The positions of all samples, shape ``(n, num_dims)``, in pieces."""
    assert recipe.subset is not None
    ids = recipe.subset.possible_ids
    for begin in range(0, len(ids), _PIECE_SIZE):
        yield recipe.positions_of(ids[begin : begin + _PIECE_SIZE])
