"""The order of samples in a lane: each cohort hands out its samples at an even pace.

A lane is a list of *entries*. An entry is a cohort, or a part of it: the part that belongs to the
lane, or that one of several passes over the lane's tiles hands out. It spreads its samples evenly
over an interval of keys. A sample's *rank* counts the samples of its entry, and the phase lies in
[0, 1)::

    key(sample) = start + length * (rank + phase) / count

    entry 0   |--x-----x-----x-----x---|                    start 0, length 4, count 4
    entry 1         |x-----x-----x-----x-----|              start 1
    entry 2               |---x-----x-----x-----x--|        start 2
    moment    0     1     2     3     4     5               a moment is one unit of key

The order is the samples sorted by key; samples with equal keys by cohort, entry and then rank.
A *place* is an index into the order. The number of samples before a key follows from arithmetic.
So the order can be made in segments, from any place on, and nothing is stored for each sample.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.core.axis import Ints, int_dtype
from xloader.core.boxes import Boxes
from xloader.core.counter_rng import bijection, draw
from xloader.core.footprint import expand_ranges
from xloader.core.sorting import digit_order, distinct_near
from xloader.core.windows import Windows
from xloader.order.cohorts import Cohorts

PHASE_STEPS = 1 << 20
"""Phases are multiples of 1 / PHASE_STEPS, which floating-point numbers hold exactly."""

_SEGMENT_SIZE = 1 << 14
"""Approximate number of samples of a segment, large enough that NumPy's calls cost little."""

_NUM_EDGES = 256
"""Number of segments whose ends are computed in one call."""

_ARGUMENTS: Final = (ADDRESS, ADDRESS, NUMBER, NUMBER, *(ADDRESS,) * 5)


@dataclass(frozen=True)
class LaneOrder:
    """The order of one lane in one epoch.

    `first_rank`: number of samples of each entry's cohort that other entries hand out before it,
    in this lane or an earlier one; None if there are none.
    """

    windows: Windows
    cohorts: Cohorts
    cohort: Ints
    first_rank: Ints | None
    count: Ints
    start: NDArray[np.int32]
    length: NDArray[np.int32]
    phase: NDArray[np.int32]
    permutation_key: int | None

    @cached_property
    def num_samples(self) -> int:
        """Number of samples that the lane hands out."""
        return int(self.count.sum())

    def boxes_of(self, entries: Ints | slice) -> Boxes:
        """Box of the positions of each given entry's cohort."""
        return self.cohorts.boxes(self.cohort[entries])

    @cached_property
    def num_moments(self) -> int:
        """Number of moments from 0 to the last one that holds keys."""
        return int((self.start + np.maximum(self.length, 1)).max(initial=0))

    @property
    def first_moment(self) -> Ints:
        """Moment of each entry's first sample; int32."""
        return self._moments(is_last=False)

    @property
    def last_moment(self) -> Ints:
        """Moment of each entry's last sample; int32."""
        return self._moments(is_last=True)

    def keys(self, entries: Ints, ranks: Ints) -> NDArray[np.float64]:
        """Keys of samples, given the entry and the rank of each. Keys never decrease with rank."""
        share = (ranks + self.phase[entries] / PHASE_STEPS) / self.count[entries]
        return np.asarray(self.start[entries] + self.length[entries] * share, np.float64)

    def _moments(self, *, is_last: bool) -> NDArray[np.int32]:
        """Moment of the first or the last sample of each entry."""
        moments = np.empty(len(self.count), np.int32)
        for begin in range(0, len(moments), _SEGMENT_SIZE):
            part = slice(begin, begin + _SEGMENT_SIZE)
            count = self.count[part]
            share = ((count - 1 if is_last else 0) + self.phase[part] / PHASE_STEPS) / count
            moments[part] = self.start[part] + self.length[part] * share
        return moments

    def num_before(self, entries: Ints, key: float) -> Ints:
        """Number of samples of each given entry whose key is smaller than ``key``."""
        count, start, length = self.count[entries], self.start[entries], self.length[entries]
        if not np.isfinite(key):
            return count
        share = np.where(length > 0, (key - start) / np.maximum(length, 1), start < key)
        guess = np.ceil(np.clip(share, 0.0, 1.0) * count - self.phase[entries] / PHASE_STEPS)
        num = np.clip(guess, 0, count).astype(np.int64)
        # Rounding can put the guess off by one, so it is compared with the keys themselves.
        previous, current = np.maximum(num - 1, 0), np.minimum(num, count - 1)
        is_over = (num > 0) & (self.keys(entries, previous) >= key)
        is_under = (num < count) & (self.keys(entries, current) < key)
        return num - is_over + is_under

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """Sample ids by entry and rank; int64, of the shape of ``entries``."""
        return self.identify(entries, ranks)[0]

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """Sample ids as `ids`, and their occurrences, or None if each is its sample's first."""
        # Values that all samples of an entry share are computed once for each entry.
        distinct, which = distinct_near(entries)
        cohorts, members = self.cohort[distinct], self.cohorts.members
        if self.first_rank is not None:
            ranks = ranks + self.first_rank[distinct][which]
        boxes = self.cohorts.boxes(cohorts)
        if self.permutation_key is not None:
            keys = draw(self.permutation_key, cohorts)
            sizes = boxes.num_samples if members is None else self.cohorts.counts_of(cohorts)
            ranks = bijection(keys, sizes, ranks, which)
        if members is not None:
            return members.find(cohorts, which, ranks)
        return boxes.ids_of(which, ranks, self.windows.num_positions), None

    def segments(self, begin: int = 0) -> Iterator[tuple[Ints, Ints]]:
        """Yield the ids of the samples from place ``begin`` on, and their entries, in pieces."""
        for entries, ranks in self.places(begin):
            yield self.ids(entries, ranks), entries

    def places(self, begin: int = 0, size: int | None = None) -> Iterator[tuple[Ints, Ints]]:
        """Yield the entry and the rank of each sample, in pieces. No ids are computed."""
        size = size or _SEGMENT_SIZE
        if not begin and self.num_samples <= 2 * size:
            # In one piece, which needs no edges.
            yield from self._walk(0.0, iter([math.inf]))
            return
        first, num_passed = self._first_edge(begin)
        yield from self._walk(first, self._edges(first, begin, size), num_passed)

    def counts_before(self, place: int) -> Ints:
        """Number of samples of each entry that come before ``place``."""
        if place >= self.num_samples:
            return self.count
        first, num_left = self._first_edge(place)
        done, active = self._begun(first)
        counts = np.zeros_like(self.count)
        counts[:done] = self.count[:done]
        counts[active] = self.num_before(active, first)
        for entries, _ in self._walk(first, self._edges(first, place, _SEGMENT_SIZE)):
            np.add.at(counts, entries[:num_left], 1)
            num_left = max(num_left - len(entries), 0)
            if not num_left:
                break
        return counts

    def _walk(
        self, first: float, edges: Iterator[float], num_passed: int = 0
    ) -> Iterator[tuple[Ints, Ints]]:
        """Yield entries and ranks in order, a piece for each interval between successive edges.

        The intervals begin at the key ``first``. The first ``num_passed`` samples are left out.
        """
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
                by_cohort = digit_order(self.cohort[active], len(self.cohorts))
                columns = active[by_cohort], given[by_cohort], reached[by_cohort]
                entries, ranks = self._by_key(*columns)
                yield entries[num_passed:], ranks[num_passed:]
                num_passed = 0
            is_left = reached < self.count[active]
            active, given = active[is_left], reached[is_left]

    def _by_key(self, entries: Ints, given: Ints, reached: Ints) -> tuple[Ints, Ints]:
        """Entries and ranks of the samples between two ranks of each entry, sorted by key.

        Those with equal keys stay in the order of the entries, and then of ranks.
        """
        sorted_samples = self._by_spread_key(entries, given, reached)
        if sorted_samples is not None:
            return sorted_samples
        rows, ranks = expand_ranges(given, reached)
        entries = entries[rows]
        by_key = np.argsort(self.keys(entries, ranks), kind="stable")
        return entries[by_key], ranks[by_key]

    def _by_spread_key(self, entries: Ints, given: Ints, reached: Ints) -> tuple[Ints, Ints] | None:
        """The same by the compiled library; None without it, or if keys are not spread evenly."""
        order = find_function("xloader_order_samples", _ARGUMENTS)
        if order is None:
            return None
        ranges = np.empty((len(entries), 3), np.int64)
        for column, ranks in enumerate((entries, given, reached)):
            ranges[:, column] = ranks
        paces = np.empty((len(entries), 4))
        for column, quantity in enumerate((self.start, self.length, self.phase, self.count)):
            paces[:, column] = quantity[entries]
        paces[:, 2] /= PHASE_STEPS
        num = int(np.maximum(reached - given, 0).sum())
        keys, edges = np.empty(num), np.empty(num + 1, np.int64)
        samples, columns = np.empty((num, 3)), np.empty((2, num), np.int64)
        addresses = map(address_of, (keys, edges, samples, *columns))
        is_sorted = order(address_of(ranges), address_of(paces), len(entries), num, *addresses)
        return (columns[0], columns[1]) if is_sorted else None

    def _at_one_key(
        self, active: Ints, given: Ints, reached: Ints, num_passed: int
    ) -> Iterator[tuple[Ints, Ints]]:
        """Yield entries and ranks of samples that share one key, sorted by cohort and rank.

        There may be millions of them, so they are cut into segments here.
        """
        by_cohort = digit_order(self.cohort[active], len(self.cohorts))
        active, given, reached = active[by_cohort], given[by_cohort], reached[by_cohort]
        before = np.concatenate([[0], np.cumsum(reached - given)])
        for begin in range(num_passed, int(before[-1]), _SEGMENT_SIZE):
            places = np.arange(begin, min(begin + _SEGMENT_SIZE, int(before[-1])))
            rows = np.searchsorted(before, places, side="right") - 1
            yield active[rows], given[rows] + places - before[rows]

    def _begun(self, key: float) -> tuple[int, Ints]:
        """Number of entries that surely end before a key, and the others that start before it."""
        longest = int(self.length.max(initial=0)) + 1
        done = self._num_started(key - longest)
        return done, np.arange(done, self._num_started(key))

    def _num_started(self, key: float) -> int:
        """Number of entries that start before a key."""
        # An integer is searched for, because a float would make NumPy convert all starts.
        moment = min(max(key, 0.0), float(self.num_moments))
        return int(np.searchsorted(self.start, np.int32(math.ceil(moment)), side="left"))

    def _num_samples_before(self, key: float) -> int:
        done, active = self._begun(key)
        return int(self.count[:done].sum() + self.num_before(active, key).sum())

    @cached_property
    def _samples_before_moment(self) -> NDArray[np.float64]:
        """Approximate number of samples before each moment; phases are ignored."""
        change = np.zeros(self.num_moments + 1)
        paced = self.length > 0
        rate = self.count[paced] / self.length[paced]
        np.add.at(change, self.start[paced], rate)
        np.add.at(change, self.start[paced] + self.length[paced], -rate)
        per_moment = np.cumsum(change)[: self.num_moments]
        np.add.at(per_moment, self.start[~paced], self.count[~paced])
        return np.concatenate([[0.0], np.cumsum(np.maximum(per_moment, 0.0))])

    @cached_property
    def _crowded(self) -> NDArray[np.float64]:
        """Keys that are shared by more samples than a segment holds."""
        at_once = self.length == 0
        num_samples = np.bincount(self.start[at_once], self.count[at_once])
        return np.flatnonzero(num_samples > _SEGMENT_SIZE).astype(np.float64)

    @cached_property
    def most_under_way(self) -> int:
        """The largest number of entries that hand out samples at the same time."""
        ends = self.start + np.maximum(self.length, 1)
        begun = np.bincount(self.start, minlength=self.num_moments)
        ended = np.bincount(ends, minlength=self.num_moments)[: self.num_moments]
        return int(np.cumsum(begun - ended).max(initial=0))

    def _first_edge(self, begin: int) -> tuple[float, int]:
        """A key shortly before place ``begin``, and the number of samples between the two."""
        before = self._samples_before_moment
        first = 0.0
        if begin:
            # The estimate can be a few samples too late, so it is moved back until it is not. The
            # steps back begin at a fraction of a moment, which may hold millions of samples.
            moments = np.arange(len(before), dtype=np.float64)
            first, step = float(np.interp(begin, before, moments)), 2.0**-10
            while first > 0 and (excess := self._num_samples_before(first) - begin) > 0:
                moment = min(int(first), self.num_moments - 1)
                rate = max(before[moment + 1] - before[moment], 1.0)
                step = max(2 * step, float(2 * excess / rate))
                first = max(first - step, 0.0)
            if first > 0:
                return first, -excess
        return 0.0, begin

    def _edges(self, first: float, begin: int, size: int) -> Iterator[float]:
        """Yield keys above ``first`` that cut the samples from place ``begin`` on into segments."""
        # With fewer samples in a segment, its cost would not depend on their number.
        before, step = self._samples_before_moment, max(size, 2 * self.most_under_way)
        moments = np.arange(len(before), dtype=np.float64)
        crowded = np.concatenate([self._crowded, np.nextafter(self._crowded, np.inf)])
        # In parts, because a caller may need one batch of a billion samples and not all edges.
        for place in range(begin + step, math.ceil(before[-1]) + step, _NUM_EDGES * step):
            targets = np.arange(place, place + _NUM_EDGES * step, step, dtype=np.float64)
            inner = np.interp(targets[targets < before[-1]], before, moments)
            last = inner[-1] if len(inner) == _NUM_EDGES else np.inf
            near = crowded[(crowded > first) & (crowded <= last)]
            inner = np.unique(np.concatenate([inner[inner > first], near]))
            yield from inner.tolist()
            first = float(last)
        yield math.inf


def lane_part(order: Ints, total: Ints, span: tuple[int, int]) -> tuple[Ints, Ints, Ints | None]:
    """Cut out the cohorts, in some order, that hold a range of their samples, and count those.

    The last array counts the samples of each that come before the range; None if there are none.
    """
    begin, end = span
    if begin == end:
        return order[:0], order[:0], None
    first = int(np.searchsorted(total, begin, side="right"))
    last = int(np.searchsorted(total, end, side="left"))
    ends = total[first : last + 1]
    count = np.empty(len(ends), int_dtype(end - begin))
    np.subtract(ends[1:], ends[:-1], out=count[1:], casting="same_kind")
    count[0] = ends[0] - begin
    count[-1] = end - (begin if first == last else int(ends[-2]))
    num_before = begin - (int(total[first - 1]) if first else 0)
    if not num_before:
        return order[first : last + 1], count, None
    first_rank = np.zeros(len(count), int_dtype(num_before))
    first_rank[0] = num_before
    return order[first : last + 1], count, first_rank


@dataclass(frozen=True)
class SubLanes:
    """Lanes of equal size, each cut into one sub-lane for each worker.

    Sub-lanes are numbered lane by lane, and within a lane by worker. `turn`: the lane from
    which on those with one sample more are counted.
    """

    num_samples: int
    lanes: int
    workers: int = 1
    share: int = 1
    num_steps: int = 0
    first_step: int = 0
    made_again: frozenset[int] = frozenset()
    turn: int = 0

    @property
    def num(self) -> int:
        """Number of sub-lanes of all lanes together."""
        return self.lanes * self.workers

    @property
    def of_one_batch(self) -> range:
        """Numbers of the sub-lanes that the first batch comes from: those of one worker."""
        # Without any step, all samples belong to the last worker, which leaves them out.
        return range(0 if self.num_steps else self.workers - 1, self.num, self.workers)

    def num_steps_of(self, number: int) -> int:
        """Number of steps that the worker of a sub-lane makes, with one that is made again."""
        return self._num_steps_before(number, self.num_steps) - self.num_done_of(number)

    def num_again_of(self, number: int) -> int:
        """Number of steps that the worker of a sub-lane makes again: 0 or 1. They come first."""
        return int(number in self.made_again)

    def num_done_of(self, number: int) -> int:
        """Number of steps before those of `num_steps_of`."""
        return self._num_steps_before(number, self.first_step) - self.num_again_of(number)

    def most_samples(self, number: int) -> int:
        """Largest number of samples of a sub-lane in the steps of `num_steps_of`.

        Samples beyond that are left out of the epoch.
        """
        return self.num_steps_of(number) * self.share

    def has_padding_only(self, numbers: Sequence[int]) -> bool:
        """Whether a process has steps left, but none of its samples."""
        num_done = self.num_done_of(numbers[0])
        if not num_done or not self.num_steps_of(numbers[0]):
            return False
        spans = (self.span(number) for number in numbers)
        return all(end - begin <= num_done * self.share for begin, end in spans)

    def span(self, number: int) -> tuple[int, int]:
        """Places of a sub-lane in the order of samples, as a half-open range ``(begin, end)``."""
        lane, worker = divmod(number, self.workers)
        first, last = (
            (edge + self.turn) * self.num_samples // self.lanes
            - self.turn * self.num_samples // self.lanes
            for edge in (lane, lane + 1)
        )
        if self.workers == 1:
            return first, last
        begin = first + self._num_before(worker, last - first)
        if worker + 1 == self.workers:
            # The last sub-lane also holds the samples that fit into no step.
            return begin, last
        return begin, first + self._num_before(worker + 1, last - first)

    def _num_before(self, worker: int, size: int) -> int:
        """Number of samples of a lane of ``size`` samples that belong to earlier workers."""
        steps = sum(self._num_steps_before(earlier, self.num_steps) for earlier in range(worker))
        is_short_before = self.num_steps > 0 and (self.num_steps - 1) % self.workers < worker
        missing = max(self.num_steps * self.share - size, 0)
        return min(steps * self.share - is_short_before * missing, size)

    def _num_steps_before(self, number: int, step: int) -> int:
        return len(range(number % self.workers, step, self.workers))
