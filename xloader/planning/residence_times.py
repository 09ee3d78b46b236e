"""When each chunk is in memory, in steps of an epoch: the arrays behind a picture of a plan."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.order.protocol import AnyOrder
from xloader.planning.epoch import Epoch, Remainder, RemainingOrder
from xloader.planning.mixing import batch_regions
from xloader.planning.passes import JoinedOrder
from xloader.show.cards import CardPart, CardSection, Words
from xloader.show.drawings import ResidenceTimes, draw_stays

_MOST_SAMPLES: Final = 1 << 17
_MOST_CHEAP: Final = 20_000
"""Samples of an epoch whose schedule is made again for a small drawing."""
_MOST_BLOCKS: Final = 200_000
"""Blocks whose stays are looked for at once."""
_FEWEST_SPOTS, _NUM_SPOTS = 8, 64
"""Places of a long epoch at which regions are counted."""
_MOST_ACTIVE: Final = 800_000
"""Tiles at work, summed over these places. Each is looked at to find the samples of a place."""


@dataclass(frozen=True, eq=False)
class TimesMaker:
    """Makes the `ResidenceTimes` of an epoch when they are asked for.

    It does not keep the schedule of the epoch in memory. If nothing else does either, the schedule
    is made again.
    """

    epoch: Epoch | Remainder
    processes: Sequence[Sequence[int]]
    made: weakref.ref[Epoch | Remainder]

    @classmethod
    def of(cls, epoch: Epoch | Remainder, processes: Sequence[Sequence[int]]) -> TimesMaker:
        """The maker of an epoch's times."""
        return cls(epoch.without_lanes(), processes, weakref.ref(epoch))

    def __call__(self) -> ResidenceTimes:
        """The times, found now."""
        return residence_times(self._epoch(), self.processes)

    def if_cheap(self) -> ResidenceTimes | None:
        """The times without the regions of batches; None if finding them took long.

        That is so where the schedule must be made again for many samples.
        """
        footprint = self.epoch.footprint
        if footprint.num_samples > _MOST_CHEAP and self.made() is None:
            return None
        if max(group.num_blocks for group in footprint.groups) > _MOST_BLOCKS:
            return None
        return residence_times(self._epoch(), self.processes, with_regions=False)

    def _epoch(self) -> Epoch | Remainder:
        made = self.made()
        return self.epoch.without_lanes() if made is None else made


def residence_times(
    epoch: Epoch | Remainder, processes: Sequence[Sequence[int]], *, with_regions: bool = True
) -> ResidenceTimes:
    """Find when each chunk is in memory."""
    footprint, sublanes = epoch.footprint, epoch.sublanes
    sizes = [group.num_blocks * group.most_read_nbytes for group in footprint.groups]
    index = sizes.index(max(sizes))
    group = footprint.groups[index]
    first = epoch.first_step
    end = first + epoch.num_steps
    lanes, blocks, loads, drops = [], [], [], []
    numbers = [number for process in processes for number in process]
    for number, lane in zip(numbers, epoch.lanes(numbers), strict=True):
        residences = lane.schedule.residences[index]
        before = _samples_before(lane.order) / sublanes.share
        # The batches of a sub-lane are those of one worker: every so-many-th of the lane's.
        steps = (before + sublanes.num_done_of(number)) * sublanes.workers
        steps += number % sublanes.workers
        load, drop = steps[residences.first_moment], steps[residences.last_moment + 1]
        if epoch.plan.is_resident:
            drop = np.full(len(drop), float(end))
        blocks.append(residences.block)
        lanes.append(np.full(len(residences.block), number // sublanes.workers))
        loads.append(np.clip(load, first, end))
        drops.append(np.clip(drop, first, end))
    none = np.zeros(0, np.int64)
    batches, regions = _regions(epoch) if with_regions else (none, none)
    return ResidenceTimes(
        tuple(demand.variable for demand in group.demands),
        len(footprint.variables) - len(group.demands),
        group.num_blocks,
        sublanes.lanes,
        epoch.num_steps,
        first,
        np.concatenate(lanes),
        np.concatenate(blocks).astype(np.int64),
        np.concatenate(loads),
        np.concatenate(drops),
        batches,
        regions,
    )


def _samples_before(order: AnyOrder) -> NDArray[np.float64]:
    """Number of samples before each moment, and before the end; shape (num_moments + 1,).

    Entries hand out their samples at an even pace, so each moment between an entry's first and last
    has an equal share of them.
    """
    if isinstance(order, RemainingOrder):
        return np.maximum(_samples_before(order.whole) - order.begin, 0.0)
    if isinstance(order, JoinedOrder):
        pairs = zip(order.parts, itertools.pairwise(order.edges), strict=True)
        parts = [
            np.minimum(_samples_before(part)[:-1] + begin, end) for part, (begin, end) in pairs
        ]
        return np.append(np.concatenate(parts), order.num_samples)
    first, last = order.first_moment.astype(np.int64), order.last_moment.astype(np.int64)
    num_moments = int(last.max(initial=-1)) + 1
    share = order.count / (last - first + 1)
    change = np.bincount(first, share, num_moments + 1) - np.bincount(
        last + 1, share, num_moments + 1
    )
    return np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1])])


def _regions(epoch: Epoch | Remainder) -> tuple[Ints, Ints]:
    """Steps of some global batches, and the number of regions that each draws from."""
    whole, first = epoch.whole, epoch.first_step
    sublanes, footprint = whole.sublanes, whole.footprint
    orders = [lane.order for lane in whole.lanes(sublanes.of_one_batch)]
    share = whole.plan.lane_share
    active = len(orders) * max(whole.plan.pace.spread, 1)
    num_spots = int(np.clip(_MOST_ACTIVE // active, _FEWEST_SPOTS, _NUM_SPOTS))
    numbers, counts = batch_regions(footprint, orders, share, _MOST_SAMPLES, num_spots)
    steps = numbers * sublanes.workers
    is_left = (steps >= first) & (steps < first + epoch.num_steps)
    return steps[is_left], counts[is_left]


def stay_parts(maker: object) -> list[CardPart]:
    """The drawing of an epoch's stays if it is found at once, else words on how to get it."""
    if not isinstance(maker, TimesMaker):
        return []
    times = maker.if_cheap()
    if times is None:
        words = "Not drawn here, because it takes a while for so many samples: .plot() draws it."
        return [CardSection("chunks in memory", [Words([words])], is_open=False)]
    return [CardSection("chunks in memory", [draw_stays(times)])]
