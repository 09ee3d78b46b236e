"""Which sample comes when: cohorts that hand out their samples at an even pace.

A lane is a list of *entries*. Each is a cohort, or the part of one that the lane owns, with the
stretch of keys over which it hands out its samples::

    key(sample) = start + length * (rank + phase) / count

    entry 0   |--x-----x-----x-----x---|                    start 0, length 4, count 4
    entry 1         |x-----x-----x-----x-----|              start 1
    entry 2               |---x-----x-----x-----x--|        start 2
    slot      0     1     2     3     4     5               a slot is one unit of key

The epoch is the samples sorted by key, ties by cohort and then rank. How many come before a
key is arithmetic, so an order is produced segment by segment, from any place, and stores
nothing per sample.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import bijection, draw
from xloader.core.footprint import Boxes, expand_ranges
from xloader.core.windows import Windows
from xloader.order.cohorts import Cohorts, digit_order, distinct_near, spread_order

PHASE_STEPS = 1 << 20
"""Phases are whole multiples of 1 / PHASE_STEPS, so that they are exact in floating point."""

_SEGMENT_SIZE = 1 << 14
"""Samples of a segment, about: large enough that NumPy's calls cost little beside the work."""

_NUM_EDGES = 256
"""Segments whose ends are worked out together."""


@dataclass(frozen=True)
class LaneOrder:
    """One lane's order of one epoch.

    Parameters
    ----------
    windows : Windows
    cohorts : Cohorts
    cohort : numpy.ndarray of int64
        Per entry, its cohort. No cohort occurs twice in a lane.
    cut_cohort, num_skipped : int
        The cohort of which an earlier lane owns the first so many samples.
    count : numpy.ndarray of int64
        Per entry, the number of samples it hands out.
    start, length : numpy.ndarray of int32
        Per entry, where its keys begin and over how many slots they reach. Starts never fall.
    phase : numpy.ndarray of int32
        Per entry, in ``[0, PHASE_STEPS)``.
    permutation_key : int or None
        Draws the permutation of each cohort; ``None`` keeps ids ascending.
    """

    windows: Windows
    cohorts: Cohorts
    cohort: Ints
    cut_cohort: int
    num_skipped: int
    count: Ints
    start: NDArray[np.int32]
    length: NDArray[np.int32]
    phase: NDArray[np.int32]
    permutation_key: int | None

    @cached_property
    def num_samples(self) -> int:
        """Number of samples that the lane hands out."""
        return int(self.count.sum())

    @property
    def boxes(self) -> Boxes:
        """Per entry, the positions of its cohort."""
        return self.cohorts.boxes(self.cohort)

    @cached_property
    def num_slots(self) -> int:
        """Number of slots that hold keys."""
        ends = self.start + np.maximum(self.length, 1)
        return int(ends.max(initial=0))

    @property
    def first_slot(self) -> Ints:
        """Per entry, the slot of its first sample."""
        return self._keys_of_all(np.zeros(1, np.int64)).astype(np.int32)

    @property
    def last_slot(self) -> Ints:
        """Per entry, the slot of its last sample."""
        return self._keys_of_all(self.count - 1).astype(np.int32)

    def keys(self, entries: Ints, ranks: Ints) -> NDArray[np.float64]:
        """The key of a sample, given its entry and its rank there; it never falls with rank."""
        share = (ranks + self.phase[entries] / PHASE_STEPS) / self.count[entries]
        return np.asarray(self.start[entries] + self.length[entries] * share, np.float64)

    def _keys_of_all(self, ranks: Ints) -> NDArray[np.float64]:
        share = (ranks + self.phase / PHASE_STEPS) / self.count
        return np.asarray(self.start + self.length * share, np.float64)

    def num_before(self, entries: Ints, key: float) -> Ints:
        """Per entry, how many of its samples have a smaller key."""
        count, start, length = self.count[entries], self.start[entries], self.length[entries]
        if not np.isfinite(key):
            return count
        share = np.where(length > 0, (key - start) / np.maximum(length, 1), start < key)
        guess = np.ceil(np.clip(share, 0.0, 1.0) * count - self.phase[entries] / PHASE_STEPS)
        found = np.clip(guess, 0, count).astype(np.int64)
        # Rounding can put the guess one off: the keys themselves decide.
        previous, current = np.maximum(found - 1, 0), np.minimum(found, count - 1)
        is_over = (found > 0) & (self.keys(entries, previous) >= key)
        is_under = (found < count) & (self.keys(entries, current) < key)
        return found - is_over + is_under

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """The sample id at a rank of an entry."""
        return self.identify(entries, ranks)[0]

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """As `ids`, and which time in the epoch it is that each comes; None: always the first."""
        # What is the same for all samples of an entry is worked out once for each entry.
        distinct, which = distinct_near(entries)
        cohorts, members = self.cohort[distinct], self.cohorts.members
        if self.num_skipped:
            ranks = ranks + np.where(cohorts == self.cut_cohort, self.num_skipped, 0)[which]
        boxes = self.cohorts.boxes(cohorts)
        if self.permutation_key is not None:
            keys = draw(self.permutation_key, cohorts)
            sizes = boxes.num_samples if members is None else self.cohorts.counts_of(cohorts)
            ranks = bijection(keys, sizes, ranks, which)
        if members is not None:
            places = members.offsets[cohorts][which] + ranks
            times = members.occurrences
            return members.ids[places], None if times is None else times[places].astype(np.int64)
        ids = np.zeros(len(ranks), np.int64)
        weight = 1
        for dim in reversed(range(len(boxes.lo))):
            sizes = boxes.hi[dim] - boxes.lo[dim]
            ids += (boxes.lo[dim] * weight)[which]
            if not dim:
                ids += ranks * weight
            elif (sizes > 1).any():
                size = sizes[which]
                above = ranks // size
                ids += (ranks - above * size) * weight
                ranks = above
            weight *= self.windows.num_positions[dim]
        return ids, None

    def segments(self, begin: int = 0) -> Iterator[tuple[Ints, Ints]]:
        """The ids from place ``begin`` on, with the entry of each, in pieces.

        Yields
        ------
        ids, entries : numpy.ndarray of int64, shape (n,)
        """
        for entries, ranks in self.places(begin):
            yield self.ids(entries, ranks), entries

    def places(self, begin: int = 0, size: int = _SEGMENT_SIZE) -> Iterator[tuple[Ints, Ints]]:
        """As `segments`, with the entry and the rank of each sample, and no ids drawn.

        Parameters
        ----------
        begin : int
            The first place.
        size : int
            Samples of a piece, about; where more entries are at work, there are more.
        """
        first, num_passed = self._first_edge(begin)
        yield from self._walk(first, self._edges(first, begin, size), num_passed)

    def counts_before(self, place: int) -> Ints:
        """Per entry, how many of its samples come before ``place``."""
        if place >= self.num_samples:
            return self.count
        first, num_left = self._first_edge(place)
        done, active = self._begun(first)
        found = np.zeros(len(self.cohort), np.int64)
        found[:done] = self.count[:done]
        found[active] = self.num_before(active, first)
        for entries, _ in self._walk(first, self._edges(first, place)):
            np.add.at(found, entries[:num_left], 1)
            num_left = max(num_left - len(entries), 0)
            if not num_left:
                break
        return found

    def _walk(
        self, first: float, edges: Iterator[float], num_passed: int = 0
    ) -> Iterator[tuple[Ints, Ints]]:
        """Entries and ranks in order, but for the first so many, in pieces between edges."""
        active = self._begun(first)[1]
        started = self._num_started(first)
        given = self.num_before(active, first)
        for previous, edge in itertools.pairwise(itertools.chain([first], edges)):
            until = self._num_started(edge)
            active = np.concatenate([active, np.arange(started, until)])
            given = np.concatenate([given, np.zeros(until - started, np.int64)])
            started = until
            reached = self.num_before(active, edge)
            num_here = int(reached.sum() - given.sum())
            if num_passed >= num_here:
                num_passed -= num_here
            elif edge == np.nextafter(previous, np.inf):
                yield from self._at_one_key(active, given, reached, num_passed)
                num_passed = 0
            else:
                # Samples with equal keys go by cohort and then rank: the sort is stable.
                by_cohort = digit_order(self.cohort[active], len(self.cohorts))
                rows, ranks = expand_ranges(given[by_cohort], reached[by_cohort])
                entries = active[by_cohort][rows]
                line = spread_order(self.keys(entries, ranks))[num_passed:]
                yield entries[line], ranks[line]
                num_passed = 0
            is_left = reached < self.count[active]
            active, given = active[is_left], reached[is_left]

    def _at_one_key(
        self, active: Ints, given: Ints, reached: Ints, num_passed: int
    ) -> Iterator[tuple[Ints, Ints]]:
        """Samples that all have one key, and so go by cohort: there may be millions of them."""
        by_cohort = digit_order(self.cohort[active], len(self.cohorts))
        active, given, reached = active[by_cohort], given[by_cohort], reached[by_cohort]
        before = np.concatenate([[0], np.cumsum(reached - given)])
        for begin in range(num_passed, int(before[-1]), _SEGMENT_SIZE):
            places = np.arange(begin, min(begin + _SEGMENT_SIZE, int(before[-1])))
            rows = np.searchsorted(before, places, side="right") - 1
            yield active[rows], given[rows] + places - before[rows]

    @cached_property
    def _num_of_earlier(self) -> Ints:
        """Per entry, the samples of all entries before it."""
        return np.concatenate([[0], np.cumsum(self.count)])

    def _begun(self, key: float) -> tuple[int, Ints]:
        """How many entries are sure to have ended before a key, and those that may not have."""
        longest = int(self.length.max(initial=0)) + 1
        done = self._num_started(key - longest)
        return done, np.arange(done, self._num_started(key))

    def _num_started(self, key: float) -> int:
        """How many entries start before a key."""
        # In whole slots: a search for a fraction would make all starts fractions first.
        slot = min(max(key, 0.0), float(self.num_slots))
        return int(np.searchsorted(self.start, np.int32(math.ceil(slot)), side="left"))

    def _num_samples_before(self, key: float) -> int:
        done, active = self._begun(key)
        return int(self._num_of_earlier[done] + self.num_before(active, key).sum())

    @cached_property
    def _samples_before_slot(self) -> NDArray[np.float64]:
        """About how many samples come before each slot; exact where all pace evenly."""
        change = np.zeros(self.num_slots + 1)
        paced = self.length > 0
        rate = self.count[paced] / self.length[paced]
        np.add.at(change, self.start[paced], rate)
        np.add.at(change, self.start[paced] + self.length[paced], -rate)
        per_slot = np.cumsum(change)[: self.num_slots]
        np.add.at(per_slot, self.start[~paced], self.count[~paced])
        return np.concatenate([[0.0], np.cumsum(np.maximum(per_slot, 0.0))])

    @cached_property
    def _crowded(self) -> NDArray[np.float64]:
        """Keys that more samples have than a segment holds."""
        at_once = self.length == 0
        num_samples = np.bincount(self.start[at_once], self.count[at_once])
        return np.flatnonzero(num_samples > _SEGMENT_SIZE).astype(np.float64)

    @cached_property
    def _least_size(self) -> int:
        """Twice the entries at work, so that a segment's cost is in its samples."""
        ends = self.start + np.maximum(self.length, 1)
        begun = np.bincount(self.start, minlength=self.num_slots)
        ended = np.bincount(ends, minlength=self.num_slots)[: self.num_slots]
        return 2 * int(np.cumsum(begun - ended).max(initial=0))

    def _first_edge(self, begin: int) -> tuple[float, int]:
        """A key not far before place ``begin``, and the samples to pass over from there."""
        before = self._samples_before_slot
        first = 0.0
        if begin:
            # The estimate can be late by a few samples: step back until it is not. A slot may
            # hold millions of samples, which are not to be passed over one by one.
            slots = np.arange(len(before), dtype=np.float64)
            first, step = float(np.interp(begin, before, slots)), 2.0**-10
            while first > 0 and (excess := self._num_samples_before(first) - begin) > 0:
                slot = min(int(first), self.num_slots - 1)
                rate = max(before[slot + 1] - before[slot], 1.0)
                step = max(2 * step, float(2 * excess / rate))
                first = max(first - step, 0.0)
            if first > 0:
                return first, -excess
        return 0.0, begin

    def _edges(self, first: float, begin: int, size: int = _SEGMENT_SIZE) -> Iterator[float]:
        """Keys beyond the first one that cut the samples from place ``begin`` on."""
        before, step = self._samples_before_slot, max(size, self._least_size)
        slots = np.arange(len(before), dtype=np.float64)
        crowded = np.concatenate([self._crowded, np.nextafter(self._crowded, np.inf)])
        # A part at a time: who looks at one batch of a billion has no need of all edges.
        for place in range(begin + step, math.ceil(before[-1]) + step, _NUM_EDGES * step):
            targets = np.arange(place, place + _NUM_EDGES * step, step, dtype=np.float64)
            inner = np.interp(targets[targets < before[-1]], before, slots)
            last = inner[-1] if len(inner) == _NUM_EDGES else np.inf
            near = crowded[(crowded > first) & (crowded <= last)]
            inner = np.unique(np.concatenate([inner[inner > first], near]))
            yield from inner.tolist()
            first = float(last)
        yield math.inf


def lane_part(line: Ints, total: Ints, span: tuple[int, int]) -> tuple[Ints, Ints, int]:
    """The part of a line of cohorts that lies between two places of its samples.

    Parameters
    ----------
    line : numpy.ndarray of int64
        Cohorts in line.
    total : numpy.ndarray of int64
        Samples of each and of all before it.
    span : tuple of int
        The first place, and the one behind the last.

    Returns
    -------
    entries, count : numpy.ndarray of int64
        The part's cohorts, and how many samples of each are its own.
    skipped : int
        Samples of the first one that an earlier part owns.

    Examples
    --------
    >>> entries, count, skipped = lane_part(np.array([4, 2, 7]), np.array([3, 9, 10]), (5, 10))
    >>> entries.tolist(), count.tolist(), skipped
    ([2, 7], [4, 1], 2)
    """
    begin, end = span
    if begin == end:
        return line[:0], line[:0], 0
    first = int(np.searchsorted(total, begin, side="right"))
    last = int(np.searchsorted(total, end, side="left"))
    reached = np.minimum(total[first : last + 1], end)
    skipped = begin - (int(total[first - 1]) if first else 0)
    return line[first : last + 1], np.diff(reached, prepend=begin), skipped
