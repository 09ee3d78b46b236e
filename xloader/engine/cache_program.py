"""The program of batches that are asked for one by one, and a cache of the blocks used last.

It goes on for as long as batches are asked for. Which blocks stay in memory, and so how long each
residence is, decides `Recent`, as it does for `xloader.planning.cache_budget.simulate`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.engine.assembly import EngineParts
from xloader.engine.batches import BatchRows
from xloader.engine.buffers import LeasedPool
from xloader.engine.overlaps import Hits, finders_of
from xloader.engine.program import COPY_COLUMNS, LOAD_COLUMNS, Segment
from xloader.planning.cache_budget import BlockNumbers, Recent


class CacheProgram:
    """Makes a segment of one batch of each list of ids that is asked for."""

    num_steps: Final = sys.maxsize
    # No hand of the run makes segments: who asks for a batch does.
    is_over: Final = True

    def __init__(self, parts: EngineParts, capacity_nbytes: int) -> None:
        self.num_made = self.num_loads = 0
        self._footprint = parts.footprint
        self._keys = BlockNumbers(parts.footprint)
        self._finders = finders_of(parts.footprint.groups, parts.places.accesses)
        self._table_pool = LeasedPool(max(4, sum(map(len, self._finders))))
        self._recent = Recent(capacity_nbytes)
        self._ids: Ints = np.zeros(0, np.int64)
        # The load of each block in memory, by key; and those that the next segment ends.
        self._load_of: dict[int, int] = {}
        self._ends: list[int] = []

    @property
    def peak_nbytes(self) -> int:
        """The most decoded bytes that the cache held after any sample."""
        return self._recent.peak_nbytes

    def ask_for(self, ids: Ints, failed: Collection[int]) -> None:
        """Give the ids of the next segment, and the loads that failed, which are forgotten."""
        if failed:
            for key in [key for key, load in self._load_of.items() if load in failed]:
                self._recent.forget(key)
                self._ends.append(self._load_of.pop(key))
        self._ids = ids

    def next_segment(self, is_finished: Callable[[int], bool]) -> Segment:
        """Make the segment of the ids that were asked for."""
        positions = self._footprint.positions_of(self._ids)
        batch, first_load = BatchRows(self.num_made, self._ids), self.num_loads
        self.num_made += 1
        hits, places = self._find(self._footprint.windows.firsts_of(positions))
        # The pairs of a row and a block that it needs, by which blocks are used.
        touched, at = np.unique(places, return_inverse=True)
        rows, keys = np.divmod(touched, self._keys.bases[-1])
        numbers, loads = self._use(np.searchsorted(rows, np.arange(len(positions) + 1)), keys)
        copies = _copies(hits, numbers[at], len(positions.T))
        ends, self._ends = np.array(self._ends, np.int64), []
        copy_ends = np.array([len(copies)], np.int64)
        flags = np.array([is_finished(batch.index)], np.int64)
        return Segment(first_load, [batch], loads, copies, copy_ends, flags, ends)

    def _find(self, firsts: Ints) -> tuple[list[Hits], Ints]:
        """The hits by route, and in one number the row and the key of the block of each."""
        hits, places = [], []
        for base, finders in zip(self._keys.bases, self._finders, strict=False):
            for finder in finders:
                taken, blocks = finder.find(firsts, self._table_pool)
                hits.append(taken)
                places.append(taken.rows * self._keys.bases[-1] + (blocks + base))
        return hits, np.concatenate(places)

    def _use(self, begins: Ints, keys: Ints) -> tuple[Ints, NDArray[np.int64]]:
        """Use blocks row by row. Return the load of each use, and the loads that are new."""
        recent, load_of, used = self._recent, self._load_of, keys.tolist()
        if load_of.keys() >= set(used):
            recent.touch(used, used, [False] * len(used))
            return np.array([load_of[key] for key in used], np.int64), self._loads(keys[:0])
        known = np.unique(keys)
        loads = self._loads(known)
        nbytes = dict(zip(known.tolist(), loads[:, 2].tolist(), strict=True))
        numbers, added, first_rows = list[int](), list[int](), list[int]()
        wave, needed, missing = 0, set[int](), list[int]()
        edges = begins.tolist()

        def end_wave(end: int) -> None:
            """Number the loads of rows whose blocks are in memory together.

            They may be read together, so all are said to be first needed by the first of the rows.
            """
            for key in sorted(missing):
                load_of[key] = self.num_loads
                self.num_loads += 1
                added.append(key)
                first_rows.append(wave)
            numbers.extend(load_of[key] for key in used[edges[wave] : edges[end]])

        for row, (lo, hi) in enumerate(itertools.pairwise(edges)):
            row_keys = used[lo:hi]
            is_last = [False] * (hi - lo - 1) + [True]
            new, dropped = recent.touch(row_keys, [nbytes[key] for key in row_keys], is_last)
            if not needed.isdisjoint(dropped):
                end_wave(row)
                wave, needed, missing = row, set(), []
            self._ends += [load_of.pop(key) for key in dropped]
            needed.update(row_keys)
            missing += new
        end_wave(len(edges) - 1)
        loads = loads[np.searchsorted(known, added)]
        loads[:, 7] = first_rows
        return np.array(numbers, np.int64), loads

    def _loads(self, keys: Ints) -> NDArray[np.int64]:
        """Rows of `Segment.loads` for some blocks."""
        loads = np.zeros((len(keys), len(LOAD_COLUMNS)), np.int64)
        if not len(keys):
            return loads
        loads[:, 0] = np.searchsorted(self._keys.bases, keys, "right") - 1
        loads[:, 1] = keys - np.take(self._keys.bases, loads[:, 0])
        loads[:, 3] = -1
        for number, group in enumerate(self._footprint.groups):
            members = np.flatnonzero(loads[:, 0] == number)
            blocks = loads[members, 1]
            loads[members, 2] = group.block_nbytes(blocks)
            loads[members, 6] = group.read_nbytes(blocks)
        return loads


def _copies(hits: list[Hits], loads: Ints, num_dims: int) -> NDArray[np.int32]:
    """Rows of `Segment.copies` for the hits of all routes, given the load of each."""
    width, begin = len(COPY_COLUMNS), 0
    copies = np.zeros((len(loads), width + 3 * num_dims), np.int32)
    copies[:, 0] = loads
    for route, taken in enumerate(hits):
        rows = copies[begin : begin + len(taken)]
        rows[:, 1], rows[:, 3] = route, taken.rows
        rows[:, width:] = taken.table[3 : 3 + 3 * num_dims].T
        begin += len(taken)
    return copies
