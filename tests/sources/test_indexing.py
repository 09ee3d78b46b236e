"""Selections of selections, and chunk sizes of consecutive parts, equal those of plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xloader.sources.arrays.xarray_views import IndexedArray, join
from xloader.sources.chunk_sizes import compact, each, join_sizes, num_chunks, span_of

SIZES = st.one_of(
    st.tuples(st.integers(1, 5), st.integers(0, 12)),
    st.lists(st.integers(1, 4), min_size=1, max_size=4).map(lambda own: (tuple(own), sum(own))),
)


@given(
    steps=st.lists(st.integers(1, 4), max_size=5),
    step=st.sampled_from([1, 1, 2, -1, -3]),
    as_array=st.sets(st.integers(0, 5)),
    gap=st.integers(0, 6),
)
def test_parts_that_are_joined(steps: list[int], step: int, as_array: set[int], gap: int):
    parts, begin = [], 40
    for number, count in enumerate(steps):
        # At most one jump between elements.
        begin += step if number == gap else 0
        part = range(begin, begin + step * count, step)
        parts.append(np.array(part) if number in as_array else part)
        begin += step * count
    whole = join(parts)
    assert list(whole) == [element for part in parts for element in part]
    if gap == 0 or gap >= len(steps):
        assert isinstance(whole, range)


def test_long_ranges_are_joined_without_their_elements():
    size = 10**15
    assert join([range(size), range(size, 2 * size), range(2 * size, 2 * size + 1)]) == range(
        2 * size + 1
    )


@given(st.lists(SIZES, max_size=4))
def test_chunks_of_parts_in_a_row(parts: list[tuple[int | tuple[int, ...], int]]):
    sizes, size = join_sizes(parts), sum(count for _, count in parts)
    expected = [own for part in parts for own in each(*part)]
    assert list(each(sizes, size)) == expected
    assert num_chunks(sizes, size) == len(expected)
    ends = np.cumsum(expected).tolist()
    spans = [span_of(sizes, index, size) for index in range(len(expected))]
    assert spans == list(zip([0, *ends], ends, strict=False))


@pytest.mark.parametrize(("sizes", "expected"), [((4, 4, 5), (4, 4, 5)), ((), 1), ((7,), 7)])
def test_sizes_in_short(sizes: tuple[int, ...], expected: object):
    assert compact(sizes) == expected


def test_a_selection_of_transposed_axes_is_one_of_the_stored_axes() -> None:
    block = IndexedArray((range(4), range(9)), (1, 0)).select([slice(2, 5), 3])
    assert block == IndexedArray((3, range(2, 5)), (1,))
