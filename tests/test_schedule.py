"""Schedules equal a simulation that checks the chunks in memory moment by moment."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.ground import footprints, line_footprint, plan_of, slow_needs
from tests.test_lane_order import paces
from xloader.core.axis import Ints
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint, Group
from xloader.order.shuffle import Pace
from xloader.planning import schedule as stays
from xloader.planning.epoch import Epoch, Remainder
from xloader.planning.schedule import Residences, Schedule

COLUMNS = ("block", "first_moment", "last_moment", "num_samples", "members")


@dataclass(frozen=True)
class Moments:
    """Made-up entries: boxes of samples, each with its moments."""

    boxes: Boxes
    count: Ints
    first_moment: Ints
    last_moment: Ints

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int]]) -> Moments:
        """Make entries from rows of (first position, one past the last, first and last moment)."""
        lo, hi, first, last = np.array(rows, np.int64).reshape(-1, 4).T
        return cls(Boxes((lo,), (hi,)), hi - lo, first, last)

    def boxes_of(self, entries: Ints | slice) -> Boxes:
        return self.boxes.take(entries)


@st.composite
def some_entries(draw: st.DrawFn, num_samples: int) -> Moments:
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        lo = draw(st.integers(0, num_samples - 1))
        hi = draw(st.integers(lo + 1, min(lo + 3, num_samples)))
        first = draw(st.integers(0, 12))
        rows.append((lo, hi, first, first + draw(st.integers(0, 3))))
    return Moments.of(rows)


def slow_blocks(footprint: Footprint, group: Group, entries: Moments, entry: int) -> set[int]:
    samples = range(int(entries.boxes.lo[0][entry]), int(entries.boxes.hi[0][entry]))
    return set().union(*(slow_needs(footprint.windows, group, sample) for sample in samples))


@given(some_entries(38), st.integers(0, 60), st.data())
def test_numbers_that_hold_no_length_give_the_same_schedule(
    entries: Moments, pool: int, data: st.DataObject
) -> None:
    """With many blocks and moments, the length of a stay does not fit the number that is sorted."""
    flags = data.draw(st.lists(st.booleans(), min_size=len(entries.count), max_size=12))
    is_needed = np.resize(flags, len(entries.count))
    expected = Schedule(two_variables, entries, pool, is_needed=is_needed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stays, "_MOST_BITS", 0)
        patch.setattr(stays, "_PIECE_SIZE", 2)
        found = Schedule(two_variables, entries, pool, is_needed=is_needed)
        assert found.busy.tolist() == expected.busy.tolist()
        for ours, theirs in zip(found.residences, expected.residences, strict=True):
            for name in (*COLUMNS, "offsets"):
                assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()


def in_memory(residences: Residences, moment: int) -> list[int]:
    """Return the blocks in memory during a moment."""
    is_here = (residences.first_moment <= moment) & (moment <= residences.last_moment)
    return residences.block[is_here].tolist()


def peak_of(schedule: Schedule, num_moments: int) -> int:
    return max(
        sum(
            int(r.group.block_nbytes(np.array(in_memory(r, moment), np.int64)).sum())
            for r in schedule.residences
        )
        for moment in range(num_moments)
    )


two_variables = replace(
    line_footprint(40, 4, 3),
    groups=(
        *line_footprint(40, 4, 3).groups,
        *line_footprint(40, 10, 3, spans=((1, 1, 1),)).groups,
    ),
)


@given(some_entries(38), st.integers(0, 60))
def test_what_entries_need_is_in_memory_no_longer_than_needed(entries: Moments, pool: int) -> None:
    schedule = Schedule(two_variables, entries, pool)
    for residences in schedule.residences:
        needed = Counter[int]()
        for entry in range(len(entries.count)):
            expected = slow_blocks(two_variables, residences.group, entries, entry)
            members = residences.members[residences.offsets[entry] : residences.offsets[entry + 1]]
            assert sorted(residences.block[members].tolist()) == sorted(expected)
            needed.update({int(member): int(entries.count[entry]) for member in members})
        assert residences.num_samples.tolist() == [
            needed[member] for member in range(len(residences.block))
        ]
        assert 0 not in residences.num_samples
        owner = np.repeat(np.arange(len(entries.count)), np.diff(residences.offsets))
        for number in range(len(residences.block)):
            own = owner[residences.members == number]
            assert residences.first_moment[number] == entries.first_moment[own].min()
            assert residences.last_moment[number] == entries.last_moment[own].max()
        for moment in range(16):
            assert len(set(in_memory(residences, moment))) == len(in_memory(residences, moment))
    # The peak is what is in memory at most.
    least = Schedule(two_variables, entries, 0)
    assert schedule.peak_nbytes == peak_of(schedule, 16)
    # Blocks in use are always held. Apart from these, the pool is never exceeded.
    assert schedule.peak_nbytes <= max(pool, least.peak_nbytes)
    assert schedule.num_reads <= least.num_reads
    plenty = Schedule(two_variables, entries, 1 << 40)
    resident = Schedule(two_variables, entries, 0, is_resident=True)
    distinct = sum(len(np.unique(r.block)) for r in schedule.residences)
    assert plenty.num_reads == resident.num_reads == distinct <= schedule.num_reads


def gaps_of(schedule: Schedule) -> list[tuple[int, int]]:
    """Return the moments between two residences of each block, both ends left out."""
    (residences,) = schedule.residences
    found = []
    for block in set(residences.block.tolist()):
        own = sorted(
            np.flatnonzero(residences.block == block), key=residences.first_moment.__getitem__
        )
        found += [
            (int(residences.last_moment[a]) + 1, int(residences.first_moment[b]))
            for a, b in itertools.pairwise(own)
        ]
    return found


def most_kept(gaps: list[tuple[int, int]], room: list[int]) -> int:
    """Return the largest number of one-byte gaps that fit every moment, by trying all sets."""
    for size in range(len(gaps), 0, -1):
        for kept in itertools.combinations(gaps, size):
            held = Counter(moment for begin, end in kept for moment in range(begin, end))
            if all(held[moment] <= room[moment] for moment in held):
                return size
    return 0


@given(some_entries(10), st.integers(0, 5))
def test_as_many_gaps_are_kept_as_by_any_policy(entries: Moments, pool: int) -> None:
    """With blocks of one size, dropping the block needed farthest ahead reads the least."""
    footprint = line_footprint(10, 1, 1)
    least = Schedule(footprint, entries, 0)
    gaps = gaps_of(least)
    assume(0 < len(gaps) <= 12)
    room = [pool - len(in_memory(least.residences[0], moment)) for moment in range(16)]
    found = Schedule(footprint, entries, pool)
    assert least.num_reads - found.num_reads == most_kept(gaps, room)


@given(some_entries(38), st.integers(0, 60), st.data())
def test_entries_that_hand_out_nothing_hold_nothing(
    entries: Moments, pool: int, data: st.DataObject
) -> None:
    num_entries = len(entries.count)
    flags = data.draw(st.lists(st.booleans(), min_size=num_entries, max_size=num_entries))
    is_needed = np.array(flags)
    rows = np.flatnonzero(is_needed)
    found = Schedule(two_variables, entries, pool, is_needed=is_needed)
    alone = Moments(
        entries.boxes.take(rows),
        entries.count[rows],
        entries.first_moment[rows],
        entries.last_moment[rows],
    )
    expected = Schedule(two_variables, alone, pool)
    assert found.peak_nbytes == expected.peak_nbytes
    for ours, theirs in zip(found.residences, expected.residences, strict=True):
        for name in COLUMNS:
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
        assert np.diff(ours.offsets)[~is_needed].sum() == 0


@pytest.mark.parametrize("lanes", [1, 2])
def test_drop_last_does_not_read_for_samples_left_out(lanes: int) -> None:
    footprint = line_footprint(700, 5, 2)
    plan = plan_of(Pace((1,), 0, 6, 3, 6, lanes), batch=400)
    whole = Epoch(footprint, plan, 0, 0).lanes(range(lanes))
    cut = Epoch(footprint, plan, 0, 0, drop_last=True).lanes(range(lanes))
    for all_of_it, part in zip(whole, cut, strict=True):
        order = part.order
        boxes = order.boxes_of(slice(None))
        places = [
            (i, e) for ids, entries in order.segments() for i, e in zip(ids, entries, strict=True)
        ]
        assert [i for i, _ in places] == [i for ids, _ in all_of_it.order.segments() for i in ids]
        at_work = {int(entry) for _, entry in places[: 400 // lanes]}
        needed = set().union(
            *(
                slow_needs(footprint.windows, footprint.groups[0], sample)
                for entry in at_work
                for sample in range(boxes.lo[0][entry], boxes.hi[0][entry])
            )
        )
        assert set(part.schedule.residences[0].block.tolist()) == needed
        assert part.schedule.num_reads < 0.7 * all_of_it.schedule.num_reads


def test_bytes_read_are_of_whole_chunks_and_bytes_held_of_what_is_selected() -> None:
    footprint = line_footprint(10, 4, 1)
    (demand,) = footprint.groups[0].demands
    axis = replace(demand.axes[0], stored_size=20, selection=range(2, 12))
    cut = Footprint.of(footprint.windows, (replace(demand, axes=(axis,)),))
    schedule = Schedule(cut, Moments.of([(0, 10, 0, 0)]), 0)
    assert (schedule.num_reads, schedule.read_nbytes, schedule.peak_nbytes) == (3, 12, 10)


@given(st.data(), footprints(), st.integers(0, 400), st.integers(0, 3))
def test_what_surely_fits_does_fit(
    data: st.DataObject, footprint: Footprint, pool: int, number: int
) -> None:
    """A bound that is cheap to find spares a count of what is at work, and changes no spread."""
    pace: Pace = data.draw(paces(len(footprint.windows.dims)))
    epoch = Epoch(footprint, plan_of(pace, pool=pool), 3, number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Epoch, "_surely_fits", lambda self, order: False)
        counted = Epoch(footprint, plan_of(pace, pool=pool), 3, number).lanes(range(pace.lanes))
    for lane, expected in zip(epoch.lanes(range(pace.lanes)), counted, strict=True):
        assert lane.order.start.tolist() == expected.order.start.tolist()
        assert lane.order.length.tolist() == expected.order.length.tolist()
        if epoch._surely_fits(lane.order):
            assert expected.schedule.at_work_nbytes <= pool


def test_a_resumed_epoch_counts_the_needs_of_what_is_left_alone() -> None:
    footprint = line_footprint(10_000, 10, 3)
    plan = plan_of(Pace((1,), 0, 20, 8, 10), batch=10)
    rest = Remainder(Epoch(footprint, plan, 0, 0), 990, footprint, (range(1),))
    found: list[int] = []
    needs = Footprint.needs

    def counted(self: Footprint, group: Group, boxes: Boxes) -> tuple[Ints, Ints]:
        found.append(len(boxes))
        return needs(self, group, boxes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Footprint, "needs", counted)
        (lane,) = rest.lanes(range(1))
        assert lane.schedule.num_reads < 60
    assert 0 < sum(found) < 100
