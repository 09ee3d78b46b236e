from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xloader.core.windows import Windows
from xloader.errors import SampleIndexError, WindowError


@st.composite
def some_windows(draw: st.DrawFn) -> Windows:
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        window, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        size = (window - 1) * dilation + 1 + draw(st.integers(0, 8))
        columns.append((size, window, draw(st.integers(1, 6)), dilation))
    sizes, window_sizes, strides, dilations = zip(*columns, strict=True)
    return Windows(("a", "b", "c")[: len(columns)], sizes, window_sizes, strides, dilations)


def slow_starts(windows: Windows, dim: int) -> list[int]:
    """Return the first offset of every window that fits into a dimension."""
    last = (windows.window_sizes[dim] - 1) * windows.dilations[dim]
    begins = range(0, windows.dim_sizes[dim], windows.strides[dim])
    return [begin for begin in begins if begin + last < windows.dim_sizes[dim]]


@given(some_windows())
def test_ids_count_positions_in_c_order(windows: Windows) -> None:
    counts = [len(slow_starts(windows, dim)) for dim in range(len(windows.dims))]
    expected = list(itertools.product(*map(range, counts)))
    assert windows.num_positions == tuple(counts)
    assert len(windows) == len(expected)
    ids = np.arange(len(windows))
    assert [tuple(row) for row in windows.positions_of(ids).tolist()] == expected
    assert windows.ids_of(np.array(expected)).tolist() == ids.tolist()


@given(some_windows())
def test_dropped_windows(windows: Windows) -> None:
    begun = []
    for dim, size in enumerate(windows.dim_sizes):
        starts = slow_starts(windows, dim)
        following = starts[-1] + windows.strides[dim]
        is_covered = starts[-1] + windows.spans[dim] == size
        begun.append(len(starts) + (not is_covered and following < size))
    assert windows.num_dropped == int(np.prod(begun)) - len(windows)


def test_a_window_that_ends_where_the_dimension_ends_drops_none() -> None:
    assert Windows(("t",), (10,), (3,), (1,), (1,)).num_dropped == 0
    assert Windows(("t",), (10,), (4,), (4,), (1,)).num_dropped == 1
    # One row is left over and counts as one dropped window, although more windows would begin
    # before the end.
    assert Windows(("t",), (89,), (32,), (8,), (1,)).num_dropped == 1
    assert Windows(("t",), (89,), (17,), (8,), (1,)).num_dropped == 0


@pytest.mark.parametrize("bad", [-1, 4])
def test_an_id_out_of_range_names_itself_and_the_range(bad: int) -> None:
    windows = Windows(("t", "x"), (2, 2), (1, 1), (1, 1), (1, 1))
    with pytest.raises(SampleIndexError, match=rf"Given: {bad}\. Allowed: \[0, 4\)"):
        windows.positions_of(np.array([0, bad, 1]))


@pytest.mark.parametrize("field", ["window_sizes", "strides", "dilations"])
def test_below_one_is_refused_by_name(field: str) -> None:
    windows = Windows(("t", "x"), (9, 9), (2, 2), (1, 1), (1, 1))
    word = {"window_sizes": "window", "strides": "stride", "dilations": "dilation"}[field]
    with pytest.raises(WindowError, match=rf"the {word} along 'x'.*Given: 0.*>= 1.*{word}="):
        replace(windows, **{field: (1, 0)})


def test_a_window_longer_than_its_dimension_is_refused() -> None:
    with pytest.raises(WindowError, match=r"'t'.*spans 9 elements.*at most 8.*smaller window"):
        Windows(("t",), (8,), (5,), (1,), (2,))
