"""Units of statistics: any cuts give the same bits, and end where no chunk is read twice."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader.jobs.chunk_sweep import ChunkOrder
from xloader.jobs.merge_trees import MergeTree, MergeTrees
from xloader.jobs.statistics.stats_job import StatsJob
from xloader.jobs.statistics.stats_parts import StatsResult
from xloader.jobs.swept_job import (
    SweptUnit,
    chunks_of,
    compute_unit,
    cut_units,
    num_nodes,
    num_subtrees,
)
from xloader.testing import SourceRecorder, write_store


def job_of(samples: xloader.Samples, **options: Any) -> StatsJob:
    settings = {"dim": None, "by": None, "quantiles": (), "leads": (), "weights": None, **options}
    return StatsJob(samples.recipe.planned, **settings)


def units_of(job: StatsJob, *sizes: int) -> list[SweptUnit]:
    return cut_units(job.jobs, job.all_pieces(), *sizes)


def compute(job: StatsJob, units: list[SweptUnit]) -> tuple[xr.Dataset, int]:
    """The result of all units, each as a worker computes it, and the number of reads."""
    result = StatsResult(job.template)
    trees = MergeTrees(job.leaves, result.put)
    work = job, 1 << 20
    num_reads = 0
    for unit in units:
        unit_nodes, unit_reads = pickle.loads(pickle.dumps(compute_unit(work, unit)))
        num = sum(num_nodes(job.jobs[own.variable].order, own)[0] for own in unit)
        # Differences have ranges of their own within a unit, which are merged.
        assert sum(map(len, unit_nodes.values())) <= num
        for tree, nodes in unit_nodes.items():
            for node, value in nodes.items():
                trees.add(tree, node, value)
        num_reads += unit_reads
    assert not trees.drain()
    return job.template.whole(result), num_reads


def num_chunks(order: ChunkOrder, units: list[SweptUnit]) -> int:
    return sum(len(chunks_of(order, slice(own.begin, own.end))) for unit in units for own in unit)


def any_units(job: StatsJob, data: st.DataObject) -> list[SweptUnit]:
    return units_of(job, *(data.draw(st.integers(1, most)) for most in (900, 3000, 3000)))


def shuffled(units: list[SweptUnit], data: st.DataObject) -> list[SweptUnit]:
    order = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(len(units))
    return [units[number] for number in order]


@settings(max_examples=40)
@given(case=cases(has_nan=True), data=st.data())
def test_any_units_in_any_order_give_the_same_bits(case: Case, data: st.DataObject) -> None:
    dims = list(case.dataset["v0"].isel(case.selection).dims)
    dim = data.draw(st.none() | st.lists(st.sampled_from(dims), unique=True, min_size=1))
    recorder = SourceRecorder(case.samples.recipe.source)
    samples = xloader.Samples(replace(case.samples.recipe, source=recorder))
    job = job_of(samples, dim=dim)
    units = any_units(job, data)
    result, num_reads = compute(job, shuffled(units, data))
    assert set(recorder.reads.values()) <= {1}
    assert num_reads == recorder.num_reads
    xr.testing.assert_identical(result, case.samples.stats(dim=dim, threads=1, client=False))


def dataset(shape: tuple[int, ...] = (40, 6, 8)) -> xr.Dataset:
    rng = np.random.default_rng(3)
    return xr.Dataset(
        {"t": (("time", "y", "x"), rng.normal(size=shape).astype("f4"))},
        {"time": pd.date_range("2001-01-01", periods=shape[0])},
    )


@settings(max_examples=25)
@given(data=st.data())
def test_units_of_differences_count_what_is_read_twice(data: st.DataObject) -> None:
    chunks = tuple(data.draw(st.integers(1, size)) for size in (9, 3, 4))
    store = write_store(dataset((24, 3, 4)), {"t": chunks})
    recorder = SourceRecorder(xloader.open(store).recipe.source)
    samples = xloader.open(recorder)
    leads = data.draw(st.lists(st.integers(0, 19), min_size=1, max_size=3, unique=True))
    dim = data.draw(st.sampled_from([None, "time", ["time", "x"]]))
    job = job_of(samples, dim=dim, leads=leads)
    units = any_units(job, data)
    result, num_reads = compute(job, shuffled(units, data))
    order = job.jobs[0].order
    assert num_reads == recorder.num_reads
    assert num_reads == sum(
        len(chunks_of(order, slice(own.begin, own.end))) for unit in units for own in unit
    )
    xr.testing.assert_identical(result, samples.stats(dim=dim, leads=leads, client=False))
    # Units that may be as large as a line of time read no chunk twice.
    line = job.jobs[0].chunk_nbytes * -(-24 // chunks[0])
    units = units_of(job, job.jobs[0].chunk_nbytes, line, 1 << 40)
    assert sum(
        len(chunks_of(order, slice(own.begin, own.end))) for unit in units for own in unit
    ) == len(chunks_of(order, np.ones(order.num_pieces, np.bool_)))


def test_units_end_at_places_and_round_numbers() -> None:
    samples = xloader.open(write_store(dataset(), {"t": (2, 3, 8)}))
    job = job_of(samples, dim="time")
    chunk = job.jobs[0].chunk_nbytes
    assert job.jobs[0].order.edges.tolist() == [0, 20, 40]

    def ends(num: int) -> list[int]:
        return [unit[-1].end for unit in units_of(job, num * chunk, 0, 1 << 40)]

    assert ends(6) == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert ends(13) == [8, 20, 28, 40]
    assert ends(25) == [20, 40]


def test_small_variables_share_a_unit_and_a_result_has_its_limit() -> None:
    names = [f"v{number}" for number in range(9)]
    ds = xr.Dataset({name: ("x", np.arange(4.0)) for name in names})
    samples = xloader.open(write_store(ds, dict.fromkeys(names, (4,))))
    assert list(map(len, units_of(job_of(samples), 96, 0))) == [3, 3, 3]
    job = job_of(samples)
    assert job.jobs[0].node_nbytes == 48
    assert list(map(len, units_of(job, 1 << 20, 0, 100))) == [2, 2, 2, 2, 1]
    maps = job_of(xloader.open(write_store(dataset(), {"t": (40, 1, 8)})), dim="time")
    assert len(units_of(maps, 1 << 20, 0, 1)) == 6


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 5, 8, 13])
def test_number_of_subtrees(num_leaves: int) -> None:
    for begin in range(num_leaves):
        for end in range(begin + 1, num_leaves + 1):
            tree: MergeTree[int] = MergeTree(num_leaves, int.__add__)
            for leaf in range(begin, end):
                tree.add((0, leaf), 1)
            assert len(tree.nodes) == num_subtrees(begin, end, num_leaves)
