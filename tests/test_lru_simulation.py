"""The simulated reads of a least-recently-used cache equal those of a slow plain one."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
import xloader.planning.cache_budget
from tests.ground import box_footprint, footprints, line_footprint, slow_needs
from xloader.core.footprint import Footprint
from xloader.core.subset import Subset
from xloader.errors import MemoryBudgetError
from xloader.planning.cache_budget import CacheCount, Recent, cache_budget, least_nbytes, simulate
from xloader.recipe.layout import FieldLayout, make_layouts

Key = tuple[int, int]


def slow_sizes(footprint: Footprint, sample: int) -> dict[Key, int]:
    """Return the bytes of each block that a sample needs, keyed by (group, block)."""
    window = int(footprint.subset.windows_of(np.array([sample]))[0]) if footprint.subset else sample
    return {
        (number, block): int(group.block_nbytes(np.array([block]))[0])
        for number, group in enumerate(footprint.groups)
        for block in sorted(slow_needs(footprint.windows, group, window))
    }


def slow_least(footprint: Footprint) -> int:
    possible = footprint.subset.possible_ids if footprint.subset else range(footprint.num_samples)
    return max(sum(slow_sizes(footprint, int(sample)).values()) for sample in possible)


def slow_cache(footprint: Footprint, ids: list[int], capacity: int) -> tuple[list[Key], int]:
    """Return the blocks that are read and the most bytes held, computed with plain lists."""
    line: list[Key] = []
    sizes: dict[Key, int] = {}
    read, peak = [], 0
    for sample in ids:
        own = slow_sizes(footprint, sample)
        sizes.update(own)
        missing = [key for key in own if key not in line]
        while sum(sizes[key] for key in line) + sum(sizes[key] for key in missing) > capacity:
            line.remove(next(key for key in line if key not in own))
        read += missing
        line = [key for key in line if key not in own] + list(own)
        peak = max(peak, sum(sizes[key] for key in line))
    return read, peak


def subset_of(footprint: Footprint, data: st.DataObject) -> Footprint:
    num_windows = len(footprint.windows)
    some = st.lists(st.integers(0, num_windows - 1), min_size=1, max_size=8)
    subset = data.draw(st.none() | some)
    if subset is None:
        return footprint
    chosen = Subset(num_windows, np.array(subset))
    return Footprint(footprint.windows, footprint.groups, chosen)


@given(footprints(max_dims=3), st.data())
def test_the_least_is_what_the_neediest_sample_needs(
    footprint: Footprint, data: st.DataObject
) -> None:
    footprint = subset_of(footprint, data)
    assert least_nbytes(footprint) == slow_least(footprint)


def test_two_offsets_of_a_window_may_lie_in_one_chunk_or_in_two() -> None:
    footprint = line_footprint(64, 16, 4, spans=((0, 1, 1), (3, 1, 1)))
    assert least_nbytes(footprint) == 32


def test_samples_that_no_epoch_draws_need_nothing() -> None:
    whole = line_footprint(64, 16, 2)
    weights = np.zeros(63)
    weights[3] = 1.0
    drawn = Footprint(whole.windows, whole.groups, Subset(63, weights=weights))
    assert (least_nbytes(whole), least_nbytes(drawn)) == (32, 16)


@given(footprints(), st.data())
def test_reads_are_those_of_a_plain_cache(footprint: Footprint, data: st.DataObject) -> None:
    footprint = subset_of(footprint, data)
    num_ids = len(footprint.subset) if footprint.subset else footprint.num_samples
    ids = data.draw(st.lists(st.integers(0, num_ids - 1), min_size=1, max_size=40))
    capacity = slow_least(footprint) + data.draw(st.integers(0, footprint.total_nbytes))
    batch_size, num_workers = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    batches = [ids[lo : lo + batch_size] for lo in range(0, len(ids), batch_size)]
    owned = [list(chain(*batches[worker::num_workers])) for worker in range(num_workers)]
    runs = [slow_cache(footprint, own, capacity) for own in owned]

    def num_chunks(keys: list[Key] | set[Key]) -> int:
        return sum(footprint.groups[group].num_reads_per_block for group, _ in keys)

    def nbytes(keys: list[Key]) -> int:
        return sum(int(footprint.groups[g].read_nbytes(np.array([b]))[0]) for g, b in keys)

    needed = num_chunks({key for read, _ in runs for key in read})
    expected = CacheCount(
        num_reads=sum(num_chunks(read) for read, _ in runs),
        read_nbytes=sum(nbytes(read) for read, _ in runs),
        num_needed=needed,
        num_shared_reads=sum(num_chunks(set(read)) for read, _ in runs) - needed,
        peak_nbytes=sum(peak for _, peak in runs),
    )
    found = simulate(
        footprint, np.array(ids), capacity, batch_size=batch_size, num_workers=num_workers
    )
    assert found == expected


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    footprint = box_footprint((20, 20), (4, 6), (3, 2))
    ids = np.random.default_rng(0).integers(0, footprint.num_samples, 500)
    least = least_nbytes(footprint)
    expected = simulate(footprint, ids, 3 * least, batch_size=4, num_workers=2)
    monkeypatch.setattr(xloader.planning.cache_budget, "_PIECE_SIZE", 3)
    assert simulate(footprint, ids, 3 * least, batch_size=4, num_workers=2) == expected
    assert least_nbytes(footprint) == least


def test_a_worker_without_a_batch_reads_nothing() -> None:
    footprint = line_footprint(64, 16, 1)
    alone = simulate(footprint, np.arange(8), 16, batch_size=8)
    assert simulate(footprint, np.arange(8), 16, batch_size=8, num_workers=5) == alone


def test_what_was_used_last_stays() -> None:
    """With chunks 0 1 0 2 in order, the second use of 0 keeps it, and 1 is dropped."""
    footprint = line_footprint(64, 16, 1)
    ids = np.array([0, 16, 1, 32, 2, 17])
    assert simulate(footprint, ids, 32).num_reads == 4
    assert simulate(footprint, ids, 16).num_reads == 6
    assert simulate(footprint, ids, 48).num_reads == 3


def test_what_could_not_be_read_is_forgotten() -> None:
    recent = Recent(16)
    recent.touch([4, 7], [6, 5], [False, True])
    recent.forget(4)
    assert recent.used_nbytes == 5
    assert recent.touch([4, 7], [6, 5], [False, True]) == ([4], [])


# Memory


def bytes_of_two_steps() -> tuple[FieldLayout, ...]:
    line = xr.Dataset({"x": ("time", np.zeros(64, np.uint8))})
    return make_layouts(xloader.open(line, dtype=None).window(time=2, stride=1).recipe)


LAYOUTS = bytes_of_two_steps()


def cache_nbytes(footprint: Footprint, memory: int, batch_size: int, num_workers: int = 1) -> int:
    budget = cache_budget(footprint, LAYOUTS, memory, batch_size, 2, num_workers=num_workers)
    return budget.lane_nbytes


def test_the_cache_has_what_the_rest_of_the_memory_leaves() -> None:
    footprint = line_footprint(64, 16, 2)
    budget = cache_budget(footprint, LAYOUTS, 8000, 10, 2, num_workers=4)
    assert (budget.memory_nbytes, budget.batches_nbytes) == (2000, 4 * 10 * 2)
    assert cache_nbytes(footprint, 8000, 10, num_workers=4) == 2000 - 80 - 125
    assert cache_nbytes(footprint, 2000, 10) == 2000 - 80 - 125


def test_a_batch_of_more_than_there_is_takes_no_more_memory() -> None:
    footprint = line_footprint(64, 16, 2)
    assert cache_nbytes(footprint, 4000, 10**9) == cache_nbytes(footprint, 4000, 63)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_too_little_memory_is_refused_with_the_least_that_would_do(num_workers: int) -> None:
    footprint = line_footprint(64, 16, 2)
    with pytest.raises(MemoryBudgetError, match=r"chunks of one sample.*memory=7 bytes") as told:
        cache_nbytes(footprint, 7, 10, num_workers=num_workers)
    assert ("shared by 3 workers" in str(told.value)) == (num_workers == 3)
    enough = told.value.minimum_nbytes
    assert cache_nbytes(footprint, enough, 10, num_workers=num_workers) >= 32
    with pytest.raises(MemoryBudgetError):
        cache_nbytes(footprint, enough - 1, 10, num_workers=num_workers)
