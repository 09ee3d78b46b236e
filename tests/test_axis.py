from __future__ import annotations

import itertools
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import axes
from xloader.core.axis import Axis
from xloader.errors import OptionError

some_axes = st.integers(1, 30).flatmap(axes)


@pytest.mark.parametrize(
    "axis",
    [Axis(0, 4, range(0)), Axis(9, 4, ()), Axis(9, (4, 5), range(3, 3))],
    ids=["no elements", "none picked", "an empty slice"],
)
def test_nothing_selected(axis: Axis) -> None:
    assert (axis.size, axis.num_blocks) == (0, 0)
    assert axis.read_sizes.tolist() == []


@pytest.mark.parametrize(
    ("stored_size", "chunks", "selection", "message"),
    [
        pytest.param(9, 4, range(8, 2, -1), "in [0, 9)", id="a step back"),
        pytest.param(9, 4, (3, 3), "in [0, 9)", id="an element twice"),
        pytest.param(9, 4, (4, 2, 5), "come back to a chunk", id="back to a chunk"),
        pytest.param(9, 4, range(5, 10), "in [0, 9)", id="beyond the end"),
        pytest.param(9, 4, (-1, 2), "in [0, 9)", id="before the start"),
        pytest.param(9, 0, range(9), "add up to 9", id="chunks of nothing"),
        pytest.param(9, (4, 4), range(9), "add up to 9", id="chunks too short"),
        pytest.param(9, (4, 6), range(9), "add up to 9", id="chunks too long"),
        pytest.param(9, (9, 0), range(9), "add up to 9", id="an empty chunk"),
    ],
)
def test_refused(
    stored_size: int, chunks: int | tuple[int, ...], selection: range, message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)) as caught:
        Axis(stored_size, chunks, selection)
    assert "Given: " in str(caught.value)


@given(some_axes)
def test_sizes_are_known_without_a_list_of_blocks(axis: Axis) -> None:
    spans = [axis.span_of(block) for block in range(axis.num_blocks)]
    edges = axis.edges.tolist()
    assert spans == list(itertools.pairwise(edges))
    assert axis.num_blocks == len(edges) - 1
    assert axis.max_read_size == axis.read_sizes.max()
    assert axis.total_read_size == axis.read_sizes.sum()


@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_a_dimension_of_billions_of_chunks_is_arithmetic(step: int) -> None:
    axis = Axis(2**40, 4, range(5, 2**40, step))
    near = Axis(4096, 4, range(5, 4096, step))
    blocks = [0, 1, 2, 77]
    offsets = near.edges[blocks]
    tracemalloc.start()
    assert axis.num_blocks == min(2**38 - 1, len(range(5, 2**40, step)))
    assert axis.block_of(offsets).tolist() == blocks
    assert [axis.span_of(block) for block in blocks] == [near.span_of(block) for block in blocks]
    assert [axis.cut(block) for block in blocks] == [near.cut(block) for block in blocks]
    assert [axis.stored_part(b) for b in blocks] == [near.stored_part(b) for b in blocks]
    assert (axis.max_read_size, axis.total_read_size) == (4, 4 * axis.num_blocks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_what_would_have_to_be_listed_says_what_would_do() -> None:
    axis = Axis(2**33, 4, range(2**33))
    told = r"too many chunks to plan for. Given: 2147483648 chunks of 4 .*chunks of 86 "
    for attempt in (lambda: axis.edges, lambda: axis.read_sizes):
        with pytest.raises(OptionError, match=told):
            attempt()
