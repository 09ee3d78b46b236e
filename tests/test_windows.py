from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import slow_starts, with_gaps
from xloader.core.windows import Segments, Windows


@st.composite
def some_windows(draw: st.DrawFn) -> Windows:
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        window, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        size = (window - 1) * dilation + 1 + draw(st.integers(0, 8))
        columns.append((size, window, draw(st.integers(1, 6)), dilation))
    sizes, window_sizes, strides, dilations = zip(*columns, strict=True)
    dims = ("a", "b", "c")[: len(columns)]
    return draw(with_gaps(Windows(dims, sizes, window_sizes, strides, dilations)))


@given(some_windows())
def test_dropped_windows(windows: Windows) -> None:
    without_gaps = replace(windows, segments=())
    complete, begun = [], []
    for dim, size in enumerate(windows.dim_sizes):
        starts = slow_starts(without_gaps, dim)
        following = starts[-1] + windows.strides[dim]
        is_covered = starts[-1] + windows.extents[dim] == size or windows.ends[dim] != "stop"
        complete.append(len(starts))
        begun.append(len(starts) + (not is_covered and following < size))
    num_complete = int(np.prod(complete))
    across = num_complete - len(windows)
    beyond = int(np.prod(begun)) - num_complete
    assert windows.dropped == {k: n for k, n in {"gap": across, "end": beyond}.items() if n}
    assert windows.num_dropped == across + beyond


@given(some_windows())
def test_windows_lie_between_gaps(windows: Windows) -> None:
    for dim, size in enumerate(windows.dim_sizes):
        starts = np.array(slow_starts(windows, dim))
        positions = np.arange(windows.num_positions[dim])
        assert windows.starts_of(dim, positions).tolist() == starts.tolist()
        offsets = np.arange(-3, size + 3)
        expected = [int((starts < offset).sum()) for offset in offsets]
        assert windows.num_before(dim, offsets).tolist() == expected
        edges = windows.stretch_edges(dim).tolist()
        for lo, hi in itertools.pairwise(edges):
            assert (np.diff(starts[lo:hi]) == windows.strides[dim]).all()
        assert (edges[0], edges[-1]) == (0, len(starts))


def test_windows_without_gaps_keep_their_fingerprint() -> None:
    plain = Windows(("t",), (10,), (3,), (1,), (1,))
    assert repr(plain) == (
        "Windows(dims=('t',), dim_sizes=(10,), window_sizes=(3,), strides=(1,), dilations=(1,))"
    )
    with_gap = replace(plain, segments=(Segments.between(10, np.array([4])),))
    assert with_gap != plain
    assert repr(with_gap) != repr(plain)
    assert repr(replace(plain, extents=(5,))) != repr(plain)
    for other in (with_gap, replace(plain, wraps=(True,)), replace(plain, pads=(float("nan"),))):
        assert repr(other) != repr(plain)
        assert pickle.loads(pickle.dumps(other)) == other != plain


@given(some_windows())
def test_windows_beyond_the_ends(windows: Windows) -> None:
    beyond = {}
    for end in ("wrap", "pad"):
        inside = [
            [
                windows.ends[dim] != end or (start >= 0 and start + windows.extents[dim] <= size)
                for start in slow_starts(windows, dim)
            ]
            for dim, size in enumerate(windows.dim_sizes)
        ]
        beyond[end] = sum(not all(row) for row in itertools.product(*inside))
    assert beyond == {end: windows.num_beyond(end) for end in beyond}


def test_a_window_that_ends_where_the_dimension_ends_drops_none() -> None:
    assert Windows(("t",), (10,), (3,), (1,), (1,)).num_dropped == 0
    assert Windows(("t",), (10,), (4,), (4,), (1,)).num_dropped == 1
    # One row is left over and counts as one dropped window, although more windows would begin
    # before the end.
    assert Windows(("t",), (89,), (32,), (8,), (1,)).num_dropped == 1
    assert Windows(("t",), (89,), (17,), (8,), (1,)).num_dropped == 0
