"""The windows of a set by box: counts and ids are those of plain counting."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xloader.core import window_sets
from xloader.core.window_sets import (
    BoxedWindows,
    WindowBits,
    WindowList,
)


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Draw the number of positions along each dimension, pieces, and a flag for each window."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    starts = []
    for count in shape:
        cuts = draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
        starts.append(np.array([0, *sorted(cuts), count]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    flags = rng.random(shape) < draw(st.sampled_from([0.0, 0.03, 0.5, 1.0]))
    return shape, tuple(starts), flags


SIZES = [(1, 1, 1, 1), (5, 3, 1, 2), (20, 3, 16, 7), (1 << 20, 1 << 12, 16, 1 << 16)]


@pytest.mark.parametrize("sizes", SIZES)
@given(grid=grids())
def test_ids_of_boxes(
    sizes: tuple[int, ...],
    grid: tuple[tuple[int, ...], tuple[np.ndarray, ...], np.ndarray],
) -> None:
    shape, starts, flags = grid
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(
            ("_BLOCK_SIZE", "_LONG_ROW", "_MOST_WASTE", "_LOOK_UP_SIZE"), sizes, strict=True
        ):
            patch.setattr(window_sets, name, size)
        ids = np.where(flags.reshape(-1), np.cumsum(flags) - 1, -1).reshape(shape)
        bits = WindowBits.of_flags(flags.reshape(-1))
        for kept in (bits, bits.runs(), WindowList(flags.size, np.flatnonzero(flags))):
            boxed = BoxedWindows(kept, shape, starts)
            ranges = [list(itertools.pairwise(own.tolist())) for own in starts]
            for number, box in enumerate(itertools.product(*ranges)):
                own = ids[tuple(slice(*part) for part in box)].reshape(-1)
                wanted = own[own >= 0]
                assert np.diff(boxed.offsets)[number] == len(wanted)
                ranks = np.arange(len(wanted))
                found, times = boxed.find(np.array([number]), np.zeros(len(wanted), int), ranks)
                assert found.tolist() == wanted.tolist()
                assert times is None


def test_short_rows_far_from_each_other_are_looked_up_together() -> None:
    """A call for each row takes minutes for 10^8 windows in narrow boxes."""
    shape, lo, hi = (2000, 40, 60), (0, 10, 20), (2000, 12, 22)
    flags = np.random.default_rng(0).random(shape) < 0.01
    bits = WindowBits.of_flags(flags.reshape(-1))
    parts = list(window_sets.box_flags(bits, shape, lo, hi))
    assert len(parts) == 1
    np.testing.assert_array_equal(parts[0], flags[:, 10:12, 20:22].reshape(-1))


def test_memory_for_boxes_is_a_few_bits_a_window() -> None:
    shape = (1000, 100, 100)
    flags = np.random.default_rng(0).random(10**7) < 0.5
    bits = WindowBits.of_flags(flags)
    starts = tuple(np.append(np.arange(0, count, 16), count) for count in shape)
    tracemalloc.start()
    try:
        boxed = BoxedWindows(bits, shape, starts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert boxed.offsets[-1] == np.count_nonzero(flags)
    # Bits in another order and two sets of counts take 3 MB, the orders within blocks the rest.
    assert peak < 40e6
