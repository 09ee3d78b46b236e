"""Sections: reads are those counted one by one, and plans keep to the memory."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import axes
from xloader.errors import MemoryBudgetError
from xloader.jobs.materialize.rechunking import (
    Rechunking,
    SectionAxis,
    intermediate_chunks,
    plan_sections,
)
from xloader.sources.chunk_sizes import boxes_of


@st.composite
def rechunkings(draw: st.DrawFn) -> Rechunking:
    """Draw an array of up to three dimensions, with selections and chunks of any sizes."""
    own = []
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(axes(draw(st.integers(1, 24))))
        if axis.size:
            own.append(SectionAxis(axis.edges, axis.read_sizes, draw(st.integers(1, axis.size))))
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    return Rechunking(tuple(own), itemsize, itemsize, draw(st.integers(1, 3)))


def slow_reads(job: Rechunking, steps: tuple[int, ...]) -> tuple[int, int]:
    """The chunks read for all sections, and their bytes, chunk by chunk."""
    count, elements = 0, 0
    for box in boxes_of(job.grid, steps):
        for block in itertools.product(*job.blocks_of(box)):
            count += 1
            pairs = zip(job.axes, block, strict=True)
            elements += math.prod(int(axis.read_sizes[n]) for axis, n in pairs)
    return count, elements * job.unit_size * job.itemsize


@given(job=rechunkings(), more=st.integers(0, 40_000), num_threads=st.integers(1, 3))
def test_plans_count_their_reads_and_keep_to_the_memory(
    job: Rechunking, more: int, num_threads: int
) -> None:
    with pytest.raises(MemoryBudgetError) as refused:
        plan_sections(job, 0, num_threads)
    memory = refused.value.minimum_nbytes + more
    plan = plan_sections(job, memory, num_threads)
    assert plan.peak_nbytes <= memory
    assert plan.waiting(memory).peak_nbytes == memory
    assert (plan.num_reads, plan.read_nbytes) == slow_reads(job, plan.steps)
    seen = np.zeros(job.grid, int)
    for box in boxes_of(job.grid, plan.steps):
        seen[tuple(slice(*part) for part in box)] += 1
        size = math.prod(end - begin for begin, end in job.elements_of(box)) * job.itemsize
        assert size <= plan.section_nbytes
    assert (seen == 1).all()
    # More memory never reads more.
    assert plan_sections(job, 2 * memory, num_threads).read_nbytes <= plan.read_nbytes


@given(job=rechunkings(), more=st.integers(0, 4000))
def test_an_intermediate_store_moves_fewer_bytes(job: Rechunking, more: int) -> None:
    with pytest.raises(MemoryBudgetError) as refused:
        plan_sections(job, 0, 1)
    memory = refused.value.minimum_nbytes + more
    direct = plan_sections(job, memory, 1)
    chunks = intermediate_chunks(job, direct, memory, 1)
    if chunks is not None:
        first = plan_sections(job.with_shards(chunks), memory, 1)
        second = plan_sections(job.read_from(chunks), memory, 1)
        assert first.read_nbytes + job.nbytes + second.read_nbytes < direct.read_nbytes


def make_axis(size: int, chunk: int, shard: int) -> SectionAxis:
    edges = np.append(np.arange(0, size, chunk), size)
    return SectionAxis(edges, np.diff(edges), shard)


def test_sections_follow_chunks_where_that_reads_each_once() -> None:
    job = Rechunking((make_axis(480, 16, 24), make_axis(10, 10, 10)), 4, 4)
    plan = plan_sections(job, 20_000, 1)
    # 48 elements hold whole chunks and whole shards.
    assert plan.steps[0] % 2 == 0
    assert plan.num_reads == 30
    tight = plan_sections(job, 2 * 24 * 10 * 4 * 4, 1)
    assert tight.steps[0] == 1
    assert tight.num_reads == 40


def test_the_classic_transposition() -> None:
    """From all times of a few cells to all cells of a few times, with little memory."""
    job = Rechunking((make_axis(10_000, 10_000, 10), make_axis(1000, 10, 1000)), 4, 4)
    direct = plan_sections(job, 4 << 20, 1)
    chunks = intermediate_chunks(job, direct, 4 << 20, 1)
    assert chunks is not None
    assert direct.read_nbytes > 3 * job.nbytes
    first = plan_sections(job.with_shards(chunks), 4 << 20, 1)
    assert first.num_reads == 100
    assert intermediate_chunks(job, plan_sections(job, 1 << 30, 1), 1 << 30, 1) is None


def test_a_plan_of_many_dimensions_is_found_soon() -> None:
    axes = tuple(make_axis(4096, 48, 7) for _ in range(5))
    plan = plan_sections(Rechunking(axes, 4, 4), 1 << 34, 64)
    assert plan.peak_nbytes <= 1 << 34
    assert [2 <= len(axis.choices(8)) <= 8 for axis in axes] == [True] * 5
