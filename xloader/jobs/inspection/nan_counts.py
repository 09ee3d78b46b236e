"""Counts NaN in the chunks of a variable, and goes on where a chunk cannot be read."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from xloader.core.footprint import Footprint, Group
from xloader.core.options import usable_cores
from xloader.engine.task_threads import ThreadTask
from xloader.errors import ChunkError
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues
from xloader.jobs.whole_windows import group_of, whole_recipe
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Read
from xloader.sources.retries import Attempts

_MOST_NBYTES: Final = 1 << 28
"""Decoded bytes that are being read at a time."""

_WAVE_CHUNKS: Final = 1 << 12

_NUM_NAMED: Final = 3


@dataclass(frozen=True)
class NanCount:
    """NaN in the chunks of one variable.

    Parameters
    ----------
    num_chunks : int
        Chunks that were read.
    num_values : int
        Values in these chunks.
    num_nans : int
        NaN among them, unpacked fill values included.
    num_unreadable : int
        Chunks that could not be read.
    errors : tuple of str
        The errors of the first few of these.
    is_whole : bool
        Whether all chunks were asked for, and not only some.
    """

    num_chunks: int
    num_values: int
    num_nans: int
    num_unreadable: int
    errors: tuple[str, ...]
    is_whole: bool

    @property
    def share(self) -> float | None:
        """Share of NaN from 0 to 1; None if no value was read."""
        return self.num_nans / self.num_values if self.num_values else None


def count_nans(recipe: Recipe, name: str, most_chunks: int | None = None) -> NanCount:
    """Count NaN in the chunks of a variable."""
    if not math.prod(recipe.variable(name).shape):
        return NanCount(0, 0, 0, 0, (), is_whole=True)
    whole = whole_recipe(recipe, (name,))
    group = group_of(whole, name)
    count = min(group.num_blocks, most_chunks or group.num_blocks)
    places = np.linspace(0, group.num_blocks - 1, count).astype(np.int64)
    tally = _NanTally(recipe, name)
    footprint = Footprint(whole.require_windows(), (group,))
    with ChunkSweep(whole, footprint, _MOST_NBYTES, usable_cores()) as sweep:
        for begin in range(0, len(places), _WAVE_CHUNKS):
            chunks = np.unravel_index(places[begin : begin + _WAVE_CHUNKS], group.shape or (1,))
            blocks = list(zip(*(own.tolist() for own in chunks), strict=True))
            if not group.shape:
                blocks = [()] * len(blocks)
            _read(sweep, group, blocks, tally)
    return NanCount(
        tally.num_chunks,
        tally.num_values,
        tally.num_nans,
        len(tally.errors),
        # Threads find them in any order.
        tuple(text for _, text in sorted(tally.errors.items())[:_NUM_NAMED]),
        count == group.num_blocks,
    )


class _NanTally:
    """Counts of the chunks read so far, which several threads add to."""

    def __init__(self, recipe: Recipe, name: str) -> None:
        self._packing = recipe.variable(name).packing
        self._lock = threading.Lock()
        self.num_chunks = self.num_values = self.num_nans = 0
        self.errors: dict[tuple[int, ...], str] = {}

    def add(self, chunk: ChunkValues) -> None:
        """Count the values of a chunk."""
        values = chunk.values if self._packing is None else self._packing.unpack(chunk.values)
        num_nans = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
        with self._lock:
            self.num_chunks += 1
            self.num_values += values.size
            self.num_nans += num_nans

    def note(self, read: Read, error: ChunkError) -> None:
        """Keep the error of a chunk that could not be read."""
        with self._lock:
            self.errors[read.chunk] = str(error)


def _read(
    sweep: ChunkSweep, group: Group, blocks: Sequence[tuple[int, ...]], tally: _NanTally
) -> None:
    def tolerant(task: ThreadTask) -> Callable[[Attempts], None]:
        def do(attempts: Attempts) -> None:
            try:
                task.do(attempts)
            except ChunkError as error:
                if len(task.reads) == 1:
                    tally.note(task.reads[0], error)
                    return
                # One broken chunk fails all that are read with it.
                for read in task.reads:
                    for single in sweep.read(group, [read.chunk], tally.add):
                        tolerant(single)(attempts)

        return do

    tasks = sweep.read(group, blocks, tally.add)
    sweep.do([ThreadTask(task.reads, tolerant(task)) for task in tasks])
