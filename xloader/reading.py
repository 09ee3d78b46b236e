"""Samples read one by one, chunk by chunk, with no plan: slow, plain, so the reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.grid import Axis, Ints
from xloader.layout import FieldLayout, Part
from xloader.recipe import Recipe
from xloader.selecting import as_selection, stored
from xloader.sources.base import Read


def read_samples(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], ids: Ints
) -> dict[str, NDArray[Any]]:
    """Read samples straight from the source, no transform applied.

    Every sample reads its own chunks anew; nothing is kept between them.

    Parameters
    ----------
    recipe : Recipe
        A recipe with windows.
    layouts : tuple of FieldLayout
        Its layouts.
    ids : numpy.ndarray
        Sample ids, int64, shape ``(n,)``.

    Returns
    -------
    dict of str to numpy.ndarray
        By field, arrays of shape ``(n, *layout.shape)``.

    Raises
    ------
    SampleIndexError
        If an id lies outside ``[0, num_samples)``.
    ChunkError
        If a chunk cannot be had.
    """
    windows = recipe.require_windows()
    firsts = recipe.positions_of(ids) * np.asarray(windows.strides, np.int64)
    arrays: dict[str, NDArray[Any]] = {}
    for layout in layouts:
        array = np.empty((len(firsts), *layout.shape), layout.dtype)
        for part in layout.parts:
            view = part.view(array)
            for row, first in enumerate(firsts):
                _read_part(recipe, part, first, view[row, ...])
        arrays[layout.name] = array
    return arrays


def window_offsets(first: Ints | int, access: tuple[int, int, int]) -> Ints:
    """Offsets that an access takes of windows that begin at `first`; one more axis at the end."""
    begin, step, count = access
    taken = begin + step * np.arange(count, dtype=np.int64)
    return np.asarray(first, np.int64)[..., None] + taken


def _read_part(recipe: Recipe, part: Part, first: Ints, view: NDArray[Any]) -> None:
    stored_variable = recipe.variable(part.variable)
    windowed = recipe.require_windows().dims
    axes = recipe.axes_of(part.variable)
    pieces: list[list[tuple[int, slice | Ints, slice]]] = []
    for dim, axis in zip(stored_variable.dims, axes, strict=True):
        access = part.accesses[windowed.index(dim)] if dim in windowed else None
        if access is None:
            offsets = np.arange(axis.size, dtype=np.int64)
        else:
            offsets = window_offsets(int(first[windowed.index(dim)]), access)
        pieces.append(list(_split_by_block(axis, offsets)))
    for combination in itertools.product(*pieces):
        chunk = tuple(index for index, _, _ in combination)
        cut = tuple(piece for _, piece, _ in combination)
        places: tuple[Any, ...] = tuple(place for _, _, place in combination)
        shape = tuple(place.stop - place.start for place in places)
        out = np.empty(shape, stored_variable.stored_dtype)
        recipe.source.fetch([Read(part.variable, chunk, cut)]).decode([out])
        packing = stored_variable.packing
        view[(..., *places)] = out if packing is None else packing.unpack(out)


def _split_by_block(axis: Axis, offsets: Ints) -> Iterator[tuple[int, slice | Ints, slice]]:
    """Yield (stored chunk, cut of that chunk, where in ``offsets``), for increasing offsets."""
    blocks = axis.block_of(offsets)
    begins = np.flatnonzero(np.diff(blocks, prepend=-1))
    for begin, end in itertools.pairwise([*begins.tolist(), len(offsets)]):
        block = int(blocks[begin])
        origin = axis.cut(block)
        base = origin.start if isinstance(origin, slice) else int(origin[0])
        elements = stored(axis.selection, offsets[begin:end])
        elements = elements - axis.selection[axis.span_of(block)[0]] + base
        wanted = as_selection(elements)
        cut = (
            slice(wanted.start, wanted.stop, wanted.step) if isinstance(wanted, range) else elements
        )
        yield axis.stored_chunk(block), cut, slice(begin, end)
