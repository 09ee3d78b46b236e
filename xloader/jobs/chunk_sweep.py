"""Reads chunks once each, on threads, and hands the values of each to a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.footprint import Footprint, Group
from xloader.core.windows import Windows
from xloader.engine.assembly import stored_variables
from xloader.engine.block_reader import BlockReader, Bundle
from xloader.engine.threads import TaskThreads, ThreadTask
from xloader.errors import CorruptChunkError
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import layout_of
from xloader.recipe.recipe import Field, Recipe
from xloader.sources.retries import Attempts

_NUM_REQUESTS: Final = 16
"""Threads that read from a store whose reads mostly wait."""

NUM_BLOCKS: Final = 1024
"""So many chunks are listed for reading at a time: the list takes 3 KiB for each."""


@dataclass(frozen=True, slots=True)
class ChunkValues:
    """The selected values of one chunk."""

    variable: str
    begins: tuple[int, ...]
    values: NDArray[Any]


class ChunkSweep:
    """A reader of the chunks of a recipe. Use it in a ``with`` statement."""

    def __init__(
        self, recipe: Recipe, footprint: Footprint, most_nbytes: int, num_threads: int
    ) -> None:
        stored = stored_variables(recipe, footprint)
        # A bundle takes several times its decoded bytes while it is worked on.
        if any(map(recipe.source.is_waiting, stored)):
            num_threads = max(num_threads, _NUM_REQUESTS)
        self._num_threads = max(min(num_threads, most_nbytes // footprint.max_chunk_nbytes), 1)
        share, policy = most_nbytes // self._num_threads, recipe.retry_policy
        self._reader = BlockReader(recipe.source, stored, share, policy)
        self._stored = stored
        self._max_retries = policy.max_retries
        self._threads = TaskThreads(policy, recipe.source.name)
        self.num_reads = 0

    def __enter__(self) -> ChunkSweep:
        self._reader.change_watch.begin()
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        self._threads.close()
        if error_type is None:
            self._reader.change_watch.check(is_last=True)

    def read(
        self,
        group: Group,
        blocks: Sequence[tuple[int, ...]],
        use: Callable[[ChunkValues], None],
        share: tuple[int, int] = (0, 1),
    ) -> list[ThreadTask]:
        """The tasks that read the chunks of some blocks; pass them to `do`."""
        tasks = []
        bundles = self._reader.bundles(group, blocks, self._num_threads)
        for bundle in bundles if share[1] == 1 else _one_share(bundles, share):
            self.num_reads += bundle.num_reads
            task = partial(self._read_bundle, group, blocks, bundle, use)
            tasks.append(ThreadTask(bundle.reads, task))
        return tasks

    def do(self, tasks: Sequence[ThreadTask], most_threads: int | None = None) -> None:
        """Do some tasks, and return when all are done."""
        if tasks:
            self._threads.do(tasks, most_threads or self._num_threads)

    def _read_bundle(
        self,
        group: Group,
        blocks: Sequence[tuple[int, ...]],
        bundle: Bundle,
        use: Callable[[ChunkValues], None],
        _: Attempts,
    ) -> None:
        outs, begins = [], []
        for read, (number, _part, place) in zip(bundle.reads, bundle.places, strict=True):
            variable = self._stored[read.variable]
            # A variable without dimensions has an ellipsis as its place.
            parts = [part for part in place if isinstance(part, slice)]
            outs.append(np.empty([part.stop - part.start for part in parts], variable.dtype))
            first = [
                part.start if dim is None else _begin_of(group, dim, blocks[number])
                for part, dim in zip(parts, variable.windowed, strict=True)
            ]
            begins.append(tuple(first))
        try:
            self._reader.fetch(bundle).decode(outs)
        except CorruptChunkError:
            # As in an epoch: the bytes may have been cut short on a network.
            if not bundle.is_waiting or not self._max_retries:
                raise
            self._reader.fetch(bundle).decode(outs)
        for read, first_elements, values in zip(bundle.reads, begins, outs, strict=True):
            use(ChunkValues(read.variable, first_elements, values))


def _one_share(bundles: Sequence[Bundle], share: tuple[int, int]) -> Iterator[Bundle]:
    """One of some equal shares of the reads of some bundles, as bundles."""
    total, first = sum(len(bundle.reads) for bundle in bundles), 0
    begin, end = (total * number // share[1] for number in (share[0], share[0] + 1))
    for bundle in bundles:
        lo, hi = max(begin - first, 0), min(end - first, len(bundle.reads))
        first += len(bundle.reads)
        if lo < hi:
            yield bundle.some(range(lo, hi))


def _begin_of(group: Group, dim: int, block: tuple[int, ...]) -> int:
    axis = group.axes[dim]
    assert axis is not None
    return axis.span_of(block[dim])[0]


def whole_recipe(recipe: Recipe, names: Iterable[str], fields: tuple[Field, ...] = ()) -> Recipe:
    """The recipe with one window over everything that is selected of some variables."""
    dims = tuple(dict.fromkeys(dim for name in names for dim in recipe.dims_of(name)))
    if fields:
        # The window of a field without dimensions lies along some other one.
        dims = dims or tuple(recipe.dim_sizes)[:1]
    sizes = tuple(recipe.dim_sizes[dim] for dim in dims)
    windows = Windows(dims, sizes, sizes, sizes, (1,) * len(sizes))
    return replace(
        recipe, windows=windows, fields=fields, steps=(), subset=None, slab=None, num_taken=None
    )


def one_sample(recipe: Recipe, name: str) -> tuple[Recipe, Footprint]:
    """One sample that takes all selected elements of a variable, and the chunks that it needs."""
    whole = whole_recipe(recipe, (name,), (Field(name, (name,), has_channels=False),))
    return whole, make_footprint(whole, (layout_of(whole, whole.fields[0]),))


def sweep_values(
    recipe: Recipe,
    name: str,
    most_nbytes: int,
    num_threads: int,
    use: Callable[[ChunkValues], None],
) -> int:
    """Read all chunks of a variable once; the number of reads."""
    whole, footprint = one_sample(recipe, name)
    with ChunkSweep(whole, footprint, most_nbytes, num_threads) as sweep:
        for group in footprint.groups:
            needed = footprint.needed(group)
            for begin in range(0, len(needed), NUM_BLOCKS):
                index = np.unravel_index(needed[begin : begin + NUM_BLOCKS], group.shape)
                blocks = [tuple(row) for row in np.stack(index, axis=-1).tolist()]
                sweep.do(sweep.read(group, blocks, use))
        return sweep.num_reads


def group_of(whole: Recipe, name: str) -> Group:
    """The chunks of one variable, as a group of its own."""
    layout = layout_of(whole, Field(name, (name,), has_channels=False))
    return make_footprint(whole, (layout,)).groups[0]
