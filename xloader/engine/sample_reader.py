"""Reads samples without a plan or a cache, one chunk at a time.

It is slow and simple. `samples[...]` uses it, and tests compare the planned reads with it.
"""

from __future__ import annotations

import itertools
from array import array as numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis, Circle, Ints, Line, line_of
from xloader.engine.borders import Borders
from xloader.engine.change_watch import ChangeWatch
from xloader.engine.threads import TaskThreads, ThreadTask
from xloader.recipe.layout import FieldLayout, FieldPart, window_offsets
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import as_selection, stored
from xloader.sources.base import Read


def read_samples(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], ids: Ints
) -> dict[str, NDArray[Any]]:
    """Read samples straight from the source, without transforms and without label fields' values.

    Each chunk is read and decoded once, whatever the order of the samples. Besides the samples,
    only one decoded chunk is in memory at a time.

    Parameters
    ----------
    recipe : Recipe
        A recipe with windows.
    layouts : tuple of FieldLayout
        The layouts of its fields.
    ids : numpy.ndarray of int64, shape (n,)
        Sample ids.

    Returns
    -------
    dict of str to numpy.ndarray
        By field, arrays of shape ``(n, *layout.shape)``.

    Raises
    ------
    SampleIndexError
        If an id lies outside ``[0, num_samples)``.
    ChunkError
        If a chunk cannot be read.
    StoreChangedError
        If the store is no longer what was opened.
    """
    firsts = recipe.firsts_of(ids)
    arrays: dict[str, NDArray[Any]] = {}
    uses: dict[str, list[_Use]] = {}
    for layout in layouts:
        array = arrays[layout.name] = np.empty((len(firsts), *layout.shape), layout.dtype)
        for part in layout.parts:
            name, spans = part.variable, _spans(recipe, part, firsts)
            lines = _lines(recipe, name)
            uses.setdefault(name, []).append(_Use(lines, spans, part.view(array)))
    # On a thread that can be given up if the store does not answer.
    with TaskThreads(recipe.retry_policy, recipe.source.name) as threads:
        for name, own in uses.items():
            _read_variable(recipe, name, own, threads)
    ChangeWatch(recipe.source, set(uses), recipe.retry_policy).check()
    Borders(recipe.require_windows(), layouts).fill(arrays, firsts)
    return arrays


@dataclass(frozen=True)
class _Span:
    """The offsets that windows take along one dimension of a variable.

    Parameters
    ----------
    firsts : numpy.ndarray of int64, shape (n,), or None
        The first element of each sample's window; None for a dimension without windows.
    elements : range
        The elements that are taken of each window, counted from its first one.
    """

    firsts: Ints | None
    elements: range

    def offsets(self, row: int) -> Ints:
        """The offsets that one sample takes, ascending."""
        first = 0 if self.firsts is None else int(self.firsts[row])
        return window_offsets(first, self.elements)


@dataclass(frozen=True)
class _Use:
    """The part of one variable that samples take for one field, and where it goes.

    Parameters
    ----------
    lines : tuple of (Axis, Circle or PaddedAxis)
        Each dimension of the variable, as windows meet it.
    spans : list of _Span
        The offsets that samples take along each dimension.
    view : numpy.ndarray
        A view of the field's array, shape ``(n, ...)``. Its last axes are those of the variable.
    """

    lines: tuple[Line, ...]
    spans: list[_Span]
    view: NDArray[Any]

    def blocks(self, row: int) -> list[list[int]]:
        """Along each dimension, the blocks of its line that a sample takes elements of."""
        pairs = zip(self.lines, self.spans, strict=True)
        return [np.unique(line.block_of(span.offsets(row))).tolist() for line, span in pairs]

    def fold(self, block: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The stored block of a block of the lines, and along which dimensions it is a second turn.

        The dimensions are given as the bits of a number.
        """
        folded, turns = [], 0
        for dim, (line, number) in enumerate(zip(self.lines, block, strict=True)):
            turn = 0
            if isinstance(line, Circle):
                turn, number = divmod(number, line.axis.num_blocks)
            folded.append(number)
            turns |= turn << dim
        return tuple(folded), turns

    def take(self, row: int, block: tuple[int, ...], turns: int) -> tuple[list[Ints], NDArray[Any]]:
        """The elements that a sample takes of a block.

        Parameters
        ----------
        row : int
            The sample's row.
        block : tuple of int
            Index of the block along each dimension.
        turns : int
            Along which dimensions a window that wraps takes it in its second turn, as `fold` says.

        Returns
        -------
        taken : list of numpy.ndarray of int64
            Along each dimension, the offsets of the elements.
        place : numpy.ndarray
            The view that they are copied to.
        """
        taken: list[Ints] = []
        places: list[slice] = []
        for dim, (line, span, number) in enumerate(zip(self.lines, self.spans, block, strict=True)):
            offsets = span.offsets(row)
            axis = line if isinstance(line, Axis) else line.axis
            if turns >> dim & 1:
                offsets = offsets - axis.size
            begin, end = np.searchsorted(offsets, axis.span_of(number)).tolist()
            taken.append(offsets[begin:end])
            places.append(slice(begin, end))
        index: tuple[Any, ...] = (row, ..., *places)
        return taken, self.view[index]


def _lines(recipe: Recipe, name: str) -> tuple[Line, ...]:
    """Each dimension of a variable, as windows meet it."""
    windows, dims = recipe.require_windows(), recipe.variable(name).dims
    ends = dict(zip(windows.dims, windows.ends, strict=True))
    pairs = zip(dims, recipe.axes_of(name), strict=True)
    return tuple(line_of(axis, ends.get(dim, "stop")) for dim, axis in pairs)


def _spans(recipe: Recipe, part: FieldPart, firsts: Ints) -> list[_Span]:
    windowed, dims = recipe.require_windows().dims, recipe.variable(part.variable).dims
    spans = []
    for dim, axis in zip(dims, recipe.axes_of(part.variable), strict=True):
        number = windowed.index(dim) if dim in windowed else None
        access = None if number is None else part.accesses[number]
        if number is None or access is None:
            spans.append(_Span(None, range(axis.size)))
        else:
            begin, step, count = access
            spans.append(_Span(firsts[:, number], range(begin, begin + step * count, step)))
    return spans


def _read_variable(recipe: Recipe, name: str, uses: list[_Use], threads: TaskThreads) -> None:
    """Read every chunk of a variable that samples need, and copy the part that each takes."""
    # There may be millions of samples. An array of integers takes little memory beside their
    # values.
    needs: dict[tuple[int, ...], numbers[int]] = {}
    for number, use in enumerate(uses):
        for row in range(len(use.view)):
            for unrolled in itertools.product(*use.blocks(row)):
                block, turns = use.fold(unrolled)
                needs.setdefault(block, numbers("q")).extend((number, row, turns))
    for block in sorted(needs):
        triples = zip(*[iter(needs[block])] * 3, strict=True)
        rows = [(uses[number], row, turns) for number, row, turns in triples]
        _read_block(recipe, name, block, rows, threads)


def _read_block(
    recipe: Recipe,
    name: str,
    block: tuple[int, ...],
    rows: list[tuple[_Use, int, int]],
    threads: TaskThreads,
) -> None:
    """Read one chunk of a variable, and copy the part that each row takes."""
    variable, axes = recipe.variable(name), recipe.axes_of(name)
    # Only the elements that some row takes: some sources have less to do for a part of a chunk.
    edges = [axis.span_of(number) for axis, number in zip(axes, block, strict=True)]
    is_read = [np.zeros(end - begin, np.bool_) for begin, end in edges]
    for use, row, turns in rows:
        taken, _ = use.take(row, block, turns)
        for own, (begin, _), offsets in zip(is_read, edges, taken, strict=True):
            own[offsets - begin] = True
    pairs = zip(is_read, edges, strict=True)
    read: list[Ints] = [np.flatnonzero(own) + begin for own, (begin, _) in pairs]
    out = np.empty([len(offsets) for offsets in read], variable.stored_dtype)
    chunk = tuple(axis.stored_chunk(number) for axis, number in zip(axes, block, strict=True))
    cut = tuple(itertools.starmap(_cut, zip(axes, block, read, strict=True)))
    asked = [Read(name, chunk, cut)]
    threads.do([ThreadTask(asked, lambda _: recipe.source.fetch(asked).decode([out]))], 1)
    for use, row, turns in rows:
        taken, place = use.take(row, block, turns)
        values: NDArray[Any] = out
        for dim, (offsets, wanted) in enumerate(zip(read, taken, strict=True)):
            index = _as_index(np.searchsorted(offsets, wanted))
            values = values[(slice(None),) * dim + (index,)]
        place[...] = values if variable.packing is None else variable.packing.unpack(values)


def _cut(axis: Axis, block: int, offsets: Ints) -> slice | Ints:
    """Convert offsets within a block to elements counted from the start of the stored chunk."""
    origin = axis.cut(block)
    base = origin.start if isinstance(origin, slice) else int(origin[0])
    elements = stored(axis.selection, offsets)
    return _as_index(elements - axis.selection[axis.span_of(block)[0]] + base)


def _as_index(elements: Ints) -> slice | Ints:
    wanted = as_selection(elements)
    return slice(wanted.start, wanted.stop, wanted.step) if isinstance(wanted, range) else elements
