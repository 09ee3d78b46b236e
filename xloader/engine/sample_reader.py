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

from xloader.core.axis import Axis, Ints
from xloader.engine.assembly import Borders
from xloader.engine.change_watch import ChangeWatch
from xloader.engine.threads import TaskThreads, ThreadTask
from xloader.recipe.layout import FieldLayout, FieldPart
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import as_selection, stored
from xloader.sources.base import Read
from xloader.transforms.sample_elements import places_along


def read_samples(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], ids: Ints
) -> dict[str, NDArray[Any]]:
    """Read samples straight from the source, without transforms and without label fields' values.

    Each chunk is read and decoded once, whatever the order of the samples. Besides the samples,
    only one decoded chunk is in memory at a time.
    """
    firsts = recipe.firsts_of(ids)
    arrays: dict[str, NDArray[Any]] = {}
    uses: dict[str, list[_Use]] = {}
    for layout in layouts:
        array = arrays[layout.name] = np.empty((len(firsts), *layout.shape), layout.dtype)
        for part in layout.parts:
            uses.setdefault(part.variable, []).append(_use(recipe, part, ids, part.view(array)))
    # On a thread that can be given up if the store does not answer.
    with TaskThreads(recipe.retry_policy, recipe.source.name) as threads:
        for name, variable_uses in uses.items():
            _read_variable(recipe, name, variable_uses, threads)
    ChangeWatch(recipe.source, set(uses), recipe.retry_policy).check()
    Borders(recipe.require_windows(), layouts).fill(arrays, firsts)
    return arrays


@dataclass(frozen=True)
class _Use:
    """The part of one variable that samples take for one field, and where it goes.

    `view`: of the field's array, shape ``(n, ...)``; its last axes are those of the variable.
    `places`, `blocks`: for each dimension, the elements that samples take, and their blocks.
    """

    view: NDArray[Any]
    places: list[Ints]
    blocks: list[Ints]

    def take(self, row: int, block: tuple[int, ...]) -> tuple[list[Ints], list[Ints]]:
        """Where the elements of a block lie in a sample, and which they are, by dimension."""
        numbered = zip(self.blocks, block, strict=True)
        targets = [np.flatnonzero(blocks[row] == number) for blocks, number in numbered]
        pairs = zip(self.places, targets, strict=True)
        return targets, [places[row][target] for places, target in pairs]


def _use(recipe: Recipe, part: FieldPart, ids: Ints, view: NDArray[Any]) -> _Use:
    windowed, positions = recipe.require_windows().dims, recipe.positions_of(ids)
    places, blocks = [], []
    dims, axes = recipe.variable(part.variable).dims, recipe.axes_of(part.variable)
    for dim, axis in zip(dims, axes, strict=True):
        access = part.accesses[windowed.index(dim)] if dim in windowed else None
        if access is None:
            whole = np.arange(axis.size)
            places.append(np.broadcast_to(whole, (len(view), axis.size)))
            blocks.append(np.broadcast_to(axis.block_of(whole), (len(view), axis.size)))
        else:
            begin, step, count = access
            elements, number = range(begin, begin + step * count, step), windowed.index(dim)
            places.append(places_along(recipe, number, elements, positions[:, number]))
            blocks.append(axis.block_of(places[-1]))
    return _Use(view, places, blocks)


def _read_variable(recipe: Recipe, name: str, uses: list[_Use], threads: TaskThreads) -> None:
    """Read every chunk of a variable that samples need, and copy the part that each takes."""
    # There may be millions of samples. An array of integers takes little memory beside their
    # values.
    needs: dict[tuple[int, ...], numbers[int]] = {}
    for number, use in enumerate(uses):
        for row in range(len(use.view)):
            along = [np.unique(blocks[row]).tolist() for blocks in use.blocks]
            for block in itertools.product(*along):
                needs.setdefault(block, numbers("q")).extend((number, row))
    for block in sorted(needs):
        pairs = zip(*[iter(needs[block])] * 2, strict=True)
        _read_block(recipe, name, block, [(uses[number], row) for number, row in pairs], threads)


def _read_block(
    recipe: Recipe,
    name: str,
    block: tuple[int, ...],
    rows: list[tuple[_Use, int]],
    threads: TaskThreads,
) -> None:
    """Read one chunk of a variable, and copy the part that each row takes."""
    variable, axes = recipe.variable(name), recipe.axes_of(name)
    # Only the elements that some row takes: some sources have less to do for a part of a chunk.
    edges = [axis.span_of(number) for axis, number in zip(axes, block, strict=True)]
    is_read = [np.zeros(end - begin, np.bool_) for begin, end in edges]
    for use, row in rows:
        _, taken = use.take(row, block)
        for flags, (begin, _), places in zip(is_read, edges, taken, strict=True):
            flags[places - begin] = True
    read = [np.flatnonzero(f) + begin for f, (begin, _) in zip(is_read, edges, strict=True)]
    out = np.empty([len(places) for places in read], variable.stored_dtype)
    chunk = tuple(axis.stored_chunk(number) for axis, number in zip(axes, block, strict=True))
    cut = tuple(itertools.starmap(_cut, zip(axes, block, read, strict=True)))
    asked = [Read(name, chunk, cut)]
    threads.do([ThreadTask(asked, lambda _: recipe.source.fetch(asked).decode([out]))], 1)
    for use, row in rows:
        targets, taken = use.take(row, block)
        pairs = zip(read, taken, strict=True)
        values = out[_as_index([np.searchsorted(places, some) for places, some in pairs])]
        # With the dots, it is a view even where the variable has no dimensions.
        target, packing = use.view[row, ...], variable.packing
        unpacked = values if packing is None else packing.unpack(values)
        target[(..., *_as_index(targets))] = unpacked


def _cut(axis: Axis, block: int, offsets: Ints) -> slice | Ints:
    """Convert offsets within a block to elements counted from the start of the stored chunk."""
    origin = axis.cut(block)
    base = origin.start if isinstance(origin, slice) else int(origin[0])
    elements = stored(axis.selection, offsets)
    cut: slice | Ints = _as_index([elements - axis.selection[axis.span_of(block)[0]] + base])[0]
    return cut


def _as_index(elements: list[Ints]) -> tuple[Any, ...]:
    """An index for elements along all dimensions: slices if there is one for each of them."""
    ranges = [along for along in map(as_selection, elements) if isinstance(along, range)]
    if len(ranges) < len(elements):
        return np.ix_(*elements)
    return tuple(slice(along.start, along.stop, along.step) for along in ranges)
