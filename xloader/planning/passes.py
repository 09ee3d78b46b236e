"""Epochs of a number of samples, which go on where the last one stopped, through pass after pass.

A *pass* gives each sample once, in an order of its own: a plain `Epoch`::

    passes    |------ 0 ------|------ 1 ------|------ 2 ------|-- ...
    epochs    |--- 0 ---|--- 1 ---|--- 2 ---|--- 3 ---|--- 4 -- ...
                              ^ a batch in which two passes meet

Each lane goes through its part of every pass. Where samples do not divide evenly, lanes take turns
in having one more, so that all of them come to the end of a pass in the same batch. What that batch
has of the pass that ends is left out of what it takes of the pass that begins, and comes right
after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.order.lane_order import SubLanes
from xloader.order.listed import ListedOrder
from xloader.order.protocol import AnyOrder, take_places
from xloader.planning.epoch import Epoch, Lane, RemainingOrder, lane_left


@dataclass(frozen=True)
class JoinedOrder:
    """Parts of orders, one after the other. Entries, moments and places count on.

    `times`: occurrences before those of each part.
    """

    parts: tuple[RemainingOrder, ...]
    times: tuple[int, ...]

    @cached_property
    def edges(self) -> Ints:
        """Places where parts begin, and the end."""
        return np.cumsum([0, *(part.end - part.begin for part in self.parts)])

    @cached_property
    def _first_entries(self) -> Ints:
        return np.cumsum([0, *(len(part.count) for part in self.parts)])

    @cached_property
    def _first_moments(self) -> Ints:
        sizes = (int(part.last_moment.max(initial=-1)) + 1 for part in self.parts)
        return np.cumsum([0, *sizes])

    @property
    def num_samples(self) -> int:
        """Samples of all parts."""
        return int(self.edges[-1])

    @property
    def num_moments(self) -> int:
        """Moments of all parts, those outside their places included."""
        return int(self._first_moments[-1])

    @cached_property
    def count(self) -> Ints:
        """Samples of each entry within its part."""
        return np.concatenate([part.count for part in self.parts])

    @property
    def first_moment(self) -> Ints:
        """Moment of each entry's first sample in the whole order of its part."""
        return self._joined([part.first_moment for part in self.parts])

    @property
    def last_moment(self) -> Ints:
        """Moment of each entry's last sample in the whole order of its part."""
        return self._joined([part.last_moment for part in self.parts])

    def _joined(self, moments: list[Ints]) -> Ints:
        pairs = zip(moments, self._first_moments, strict=False)
        return np.concatenate([some + begin for some, begin in pairs])

    def boxes_of(self, entries: Ints | slice) -> Boxes:
        """Box of the positions of each given entry's samples."""
        if isinstance(entries, slice):
            entries = np.arange(*entries.indices(len(self.count)))
        taken = [(rows, part.boxes_of(some)) for part, _, rows, some in self._by_part(entries)]
        joined = np.empty((2, len(taken[0][1].lo), len(entries)), np.int64)
        for rows, boxes in taken:
            joined[:, :, rows] = boxes.lo, boxes.hi
        return Boxes(tuple(joined[0]), tuple(joined[1]))

    def ids(self, entries: Ints, ranks: Ints) -> Ints:
        """Sample ids by entry and rank; int64, of the shape of ``entries``."""
        return self.identify(entries, ranks)[0]

    def identify(self, entries: Ints, ranks: Ints) -> tuple[Ints, Ints]:
        """Sample ids as `ids`, and a number that is another one each time a sample occurs."""
        ids, times = np.empty((2, len(entries)), np.int64)
        for part, before, rows, some in self._by_part(entries):
            ids[rows], within = part.identify(some, ranks[rows])
            times[rows] = before if within is None else before + within
        return ids, times

    def _by_part(self, entries: Ints) -> Iterator[tuple[RemainingOrder, int, Ints, Ints]]:
        """Yield each part of some entries: it and its times, where they are, and their numbers."""
        numbers = np.searchsorted(self._first_entries, entries, side="right") - 1
        for number in np.unique(numbers).tolist() or [0]:
            rows = np.flatnonzero(numbers == number)
            some = entries[rows] - self._first_entries[number]
            yield self.parts[number], self.times[number], rows, some

    def places(self, begin: int = 0, size: int = 1 << 14) -> Iterator[tuple[Ints, Ints]]:
        """Yield the entry and the rank of each sample, in pieces of about ``size``."""
        for part, edge, first in zip(self.parts, self.edges, self._first_entries, strict=False):
            if begin < edge + part.end - part.begin:
                for entries, ranks in part.places(max(begin - edge, 0), size):
                    yield entries + first, ranks

    def counts_before(self, place: int) -> Ints:
        """Number of samples of each entry that come before ``place``."""
        return np.concatenate(
            [
                part.counts_before(min(max(place - edge, 0), part.end - part.begin))
                for part, edge in zip(self.parts, self.edges, strict=False)
            ]
        )


@dataclass(frozen=True)
class JoinedEpoch(Epoch):
    """An epoch of a number of samples, in which each lane goes on through its parts of all passes.

    `num_taken`: samples of an epoch. `is_endless`: whether passes are joined; otherwise epochs are
    parts of a pass, of which the rest is left out. `passes`: those made so far.
    """

    num_taken: int = 0
    is_endless: bool = True
    passes: dict[int, Epoch] = field(default_factory=dict, compare=False)

    @property
    def num_steps(self) -> int:
        """Steps that every rank takes."""
        return -(-self.num_taken // self.plan.global_batch)

    @cached_property
    def sublanes(self) -> SubLanes:
        """The division of the epoch's samples into lanes."""
        lanes, share = self.plan.pace.lanes, self.plan.lane_share
        return SubLanes(self.num_taken, lanes, 1, share, self.num_steps)

    def following(self, epoch: int) -> JoinedEpoch:
        """Another epoch, with those passes of this one that it goes through too."""
        first, last = (self._pass_at(self._begin(number)) for number in (epoch, epoch + 1))
        kept = {n: made for n, made in self.passes.items() if first - 1 <= n <= last + 1}
        return replace(self, epoch=epoch, passes=kept)

    def without_lanes(self) -> JoinedEpoch:
        """Copy without the lanes made so far, as `Epoch.without_lanes`."""
        return replace(self, passes={n: made.without_lanes() for n, made in self.passes.items()})

    def lanes(self, chosen: Iterable[int]) -> list[Lane]:
        """Make some lanes, by their numbers."""
        numbers = list(chosen)
        for number in numbers:
            if number not in self._made:
                self._made[number] = lane_left(self.footprint, self.plan, self._join(number))
        return [self._made[number] for number in numbers]

    @cached_property
    def _made(self) -> dict[int, Lane]:
        return {}

    def _join(self, lane: int) -> JoinedOrder:
        """The order of a lane: the last part of one pass, and the passes after it."""
        plan, begin = self.plan, self._begin(self.epoch)
        end = begin + self.num_taken // plan.pace.lanes
        first = number = self._pass_at(begin)
        parts: list[RemainingOrder] = []
        times: list[int] = []
        while (edge := self._edge(number, lane)) < end:
            # The last place of the pass, if the epoch comes so far.
            last = min(self._edge(number + 1, lane), end) - edge
            head, order, done = None, self._pass(number).lane(lane).order, 0
            if self.is_endless and begin < edge + plan.lane_share + plan.global_batch:
                head = self._head(number, lane, order)
            if head is not None:
                done = head.num_samples
                parts.append(RemainingOrder(head, max(begin - edge, 0), min(last, done)))
            parts.append(RemainingOrder(order, max(begin - edge, done), last))
            # Weights may draw a sample several times in a pass.
            times += [(number - first) * self.footprint.num_samples] * (len(parts) - len(times))
            number += 1
        some = [i for i, part in enumerate(parts) if part.begin < part.end]
        return JoinedOrder(tuple(parts[i] for i in some), tuple(times[i] for i in some))

    def _head(self, number: int, lane: int, order: AnyOrder) -> ListedOrder | None:
        """The first samples of a pass in a lane, with those that its first batch has last.

        None if the batch has none of them, so that nothing is to be changed.
        """
        tails, share = self._tails(number), self.plan.lane_share
        most, num_first = sum(map(len, tails)), share - len(tails[lane])
        # The samples of the last batch stay as they are: what comes after them depends on it.
        size = min(order.num_samples - share, num_first + most)
        if not most or not num_first:
            return None
        ids, times = order.identify(*take_places(order, 0, size))
        # With very few samples, one of another lane may have to be taken.
        badness = np.isin(ids, np.concatenate(tails)).astype(int) + np.isin(ids, tails[lane])
        first = np.sort(np.argsort(badness, kind="stable")[:num_first])
        size = int(first[-1]) + 1
        if size == num_first:
            return None
        changed = np.concatenate([first, np.delete(np.arange(size), first)])
        times = None if times is None else times[changed]
        return ListedOrder.of(self.footprint, ids[changed], times)

    def _tails(self, number: int) -> list[Ints]:
        """By lane, the ids of the pass before that are in the first batch of a pass."""
        if number not in self._known_tails:
            tails, share = [], self.plan.lane_share
            begin = self._edge(number, 0) // share * share
            for lane in range(self.plan.pace.lanes):
                size = self._edge(number, lane) - begin
                tails.append(np.zeros(0, np.int64))
                if size:
                    order = self._pass(number - 1).lane(lane).order
                    tails[-1] = order.ids(*take_places(order, order.num_samples - size, size))
            self._known_tails[number] = tails
        return self._known_tails[number]

    @cached_property
    def _known_tails(self) -> dict[int, list[Ints]]:
        return {}

    def _pass(self, number: int) -> Epoch:
        if number not in self.passes:
            turn = number % self.plan.pace.lanes if self.is_endless else 0
            made = Epoch(self.footprint, self.plan, self.seed, number % (1 << 63), turn=turn)
            self.passes[number] = made
        return self.passes[number]

    def _begin(self, epoch: int) -> int:
        """The place of each lane at which an epoch begins."""
        return epoch * self.num_steps * self.plan.lane_share

    def _pass_at(self, begin: int) -> int:
        """The first pass of which a lane gives samples from a place on."""
        if self.is_endless:
            return begin * self.plan.pace.lanes // self.footprint.num_samples
        return begin // self._edge(1, 0)

    def _edge(self, number: int, lane: int) -> int:
        """Number of samples that a lane gives before a pass: the sum of `SubLanes.span`."""
        pace, num_samples = self.plan.pace, self.footprint.num_samples
        if self.is_endless:
            return (lane + number) * num_samples // pace.lanes - lane * num_samples // pace.lanes
        left = (num_samples - self.num_taken) // pace.lanes
        # Without a shuffle, each epoch begins anew.
        num_parts = 1 + left // self._begin(1) if pace.is_shuffled else 1
        return number * num_parts * self._begin(1)
