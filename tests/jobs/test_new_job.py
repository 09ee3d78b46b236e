"""How little a new job over chunks needs: counts of values above a threshold, by month."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.typing import NDArray
from zarr.storage import LocalStore

import xloader
from tests.cluster.conftest import distributed, local_cluster
from tests.moments import killed_at
from xloader.errors import MemoryBudgetError, StateError
from xloader.jobs import merge_trees, swept_job
from xloader.jobs.chunk_sweep import ChunkOrder, ChunkValues
from xloader.jobs.kept_result import KeptResult
from xloader.jobs.merge_trees import Leaves, TreeForm
from xloader.jobs.statistics.stats_options import find_time_dim, labels_of
from xloader.jobs.swept_job import Reducer, SweptJob, SweptRun, SweptVariable
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass
class Counts:
    """What is made of a chunk, and merged: a number for each month."""

    months: NDArray[np.int64]
    nbytes = 12 * 8

    def merge(self, other: Counts) -> Counts:
        return Counts(self.months + other.months)

    def to_bytes(self) -> bytes:
        return self.months.astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Counts:
        return cls(np.frombuffer(data, "<i8"))


class CountResult:
    """The result, into which the counts of each variable are put."""

    def __init__(self, form: CountForm) -> None:
        self.names, self.months = form.names, dict[str, Any]()

    def put(self, variable: int, tree: int, value: Counts) -> None:
        self.months[self.names[variable]] = "month", value.months

    def dataset(self) -> xr.Dataset:
        arrays = {name: self.months[name] for name in self.names}
        return xr.Dataset(arrays, {"month": np.arange(1, 13)})


@dataclass(frozen=True, kw_only=True)
class CountForm(TreeForm):
    """What all parts know. No dimension of the data is kept: all chunks make one tree."""

    name, noun, mark = "counts", "counts of high values", "counts_job"
    value_type, result_type = Counts, CountResult
    names: tuple[str, ...]
    chunks: Leaves

    @property
    def leaves(self) -> Leaves:
        return self.chunks

    @property
    def nbytes(self) -> int:
        return Counts.nbytes * len(self.names)


@dataclass(frozen=True, eq=False)
class HighValues(SweptVariable):
    """The work on one variable. `times`: the labels of the time dimension, which is the first."""

    times: Any
    threshold: float

    @property
    def node_nbytes(self) -> int:
        return Counts.nbytes

    @property
    def work_nbytes(self) -> int:
        return 4 * self.chunk_nbytes

    def reducer(self) -> Reducer:
        return lambda chunk, at, wanted: [(at, self.counts(chunk))]

    def counts(self, chunk: ChunkValues) -> Counts:
        is_high = chunk.values > self.threshold
        needed = self.covered.of_box(chunk.begins, is_high.shape).mask()
        is_high &= True if needed is None else needed
        time = slice(chunk.begins[0], chunk.begins[0] + len(is_high))
        numbers = is_high.reshape(len(is_high), -1).sum(axis=1)
        rows = pd.DatetimeIndex(self.times[time]).month - 1
        return Counts(np.bincount(rows, numbers, 12).astype(np.int64))


@dataclass(frozen=True, eq=False)
class HighValuesJob(SweptJob):
    form_type = CountForm
    threshold: float

    @cached_property
    def jobs(self) -> list[HighValues]:
        recipe, jobs = self.recipe, []
        times = labels_of(recipe, find_time_dim(recipe, "months"))
        for variable, chunks in self.needed():
            name = variable[1].name
            order = ChunkOrder.of(name, recipe.axes_of(name), (), chunks)
            jobs.append(HighValues(*variable, order, times, self.threshold))
        return jobs

    @cached_property
    def template(self) -> CountForm:
        digests = self.digests(str(self.threshold))
        return CountForm(names=tuple(self.names), chunks=self.leaves, fingerprint=digests)


def count_high(
    samples: xloader.Samples, threshold: float, path: Path | None = None, **how: Any
) -> xr.Dataset | None:
    run = SweptRun(HighValuesJob(samples.recipe.planned, threshold), **how)
    if path is None:
        return run.in_memory()
    return run.in_files(KeptResult.to_write(path, CountForm, samples.recipe.source))[0]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).random((90, 4, 4))
    time = pd.date_range("2001-01-01", periods=90)
    ds = xr.Dataset(
        {"t": (("time", "y", "x"), values), "u": ("time", values[:, 0, 0])}, {"time": time}
    )
    write_store(ds, {"t": (8, 2, 4), "u": (30,)}, tmp_path / "data.zarr")
    return tmp_path / "data.zarr"


def test_threads_and_a_cluster_count_what_samples_need(data: Path, tmp_path: Path) -> None:
    samples = xloader.open(data).isel(x=slice(1, 4)).window(time=2, stride=3)
    taken = xr.open_zarr(data, consolidated=False).isel(x=slice(1, 4)).load()
    taken = taken.sel(time=taken.time[np.arange(90) % 3 < 2])
    expected = (taken > 0.7).sum(["y", "x"]).groupby("time.month").sum()
    counts = count_high(samples, 0.7, threads=2, client=False)
    xr.testing.assert_equal(counts.sel(month=[1, 2, 3]), expected[["t", "u"]])
    with local_cluster(2) as cluster, distributed.Client(cluster) as client:
        found = count_high(samples, 0.7, tmp_path / "counts.nc", client=client)
    xr.testing.assert_identical(found, counts)
    with pytest.raises(MemoryBudgetError, match="too small for the counts of high values"):
        count_high(samples, 0.7, memory=100)


def test_a_killed_run_is_gone_on_with(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_trees, "_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(swept_job, "_WAVE_CHUNKS", 4)
    store = CountingStore(LocalStore(data))
    samples = xloader.open(store)
    whole, num_left = count_high(samples, 0.5, threads=1), []
    for number in itertools.count(step=7):
        path = tmp_path / f"{number}" / "counts.zarr"
        path.parent.mkdir()
        with killed_at(number, path.parent) as done:
            count_high(samples, 0.5, path, threads=1)
        if len(done) <= number:
            break
        if KeptResult(path, CountForm).has_begun() and not path.exists():
            with pytest.raises(StateError, match="other options"):
                count_high(samples, 0.6, path)
        store.reset()
        xr.testing.assert_identical(count_high(samples, 0.5, path, threads=1), whole)
        num_left.append(store.num_reads)
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert sorted(num_left, reverse=True) == num_left
    assert num_left[0] > num_left[-1]
