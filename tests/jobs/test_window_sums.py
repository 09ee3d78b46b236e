"""Sums over windows of the elements in one chunk."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xloader.core.windows import Windows
from xloader.jobs.valid.sweep_line import StartLine, sum_windows


@given(
    size=st.integers(1, 30),
    span=st.tuples(st.integers(0, 8), st.integers(1, 6), st.integers(1, 6)),
    stride=st.integers(1, 4),
    cut=st.tuples(st.integers(0, 29), st.integers(1, 30)),
    only=st.sets(st.integers(0, 29)),
)
def test_sums_are_those_of_a_loop(
    size: int, span: tuple[int, int, int], stride: int, cut: tuple[int, int], only: set[int]
) -> None:
    first, step, count = span
    reach = first + step * (count - 1) + 1
    windows = Windows(("x",), (size + reach,), (reach,), (stride,), (1,))
    kept = np.array(sorted(p for p in only if p < len(windows)), np.int64)
    values = np.arange(100, 100 + size + reach)
    begin = min(cut[0], size)
    end = min(begin + cut[1], len(values))
    for line in (StartLine(windows, 0), StartLine(windows, 0, kept)):
        lo, hi = (int(own[0]) for own in line.touching(np.array([begin]), np.array([end]), span))
        starts = line.starts(0, len(line)).tolist()
        sums = [
            sum(values[e] for e in range(s + first, s + reach, step) if begin <= e < end)
            for s in starts
        ]
        assert not any(sums[:lo]) and not any(sums[max(hi, lo) :])  # noqa: PT018
        if lo < hi:
            chunk = np.stack([values[begin:end]] * 2)
            found = sum_windows(chunk, 1, begin, line.starts(lo, hi), span)
            assert found.tolist() == [sums[lo:hi]] * 2
