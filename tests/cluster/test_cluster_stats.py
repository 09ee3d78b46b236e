"""Statistics on a cluster: the bits of threads, each chunk read once, and nothing lost by kills."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.storage import LocalStore

import xloader
from tests.jobs.test_stats_parts import write_data
from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.errors import ChunkWarning, MemoryBudgetError, OptionError
from xloader.jobs.statistics.stats_job import StatsJob
from xloader.jobs.swept_job import ClusterSweep
from xloader.testing import FaultyStore, SourceRecorder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "data.zarr"
    write_data(place)
    return place


def recorded(data: Any, log: Path | None) -> tuple[SourceRecorder, xloader.Samples]:
    """Samples whose reads are counted over all processes."""
    recorder = SourceRecorder(xloader.open(data, max_retries=0).recipe.source, log=log)
    return recorder, xloader.open(recorder)


def windows(samples: xloader.Samples) -> xloader.Samples:
    samples = samples.window(time=5, stride=7)
    samples = samples.inputs("t2m", "rain", time=slice(0, 2)).targets("t2m", "z", time=4)
    return samples.field("static", "orog")


def some(samples: xloader.Samples) -> xloader.Samples:
    return windows(samples).select(np.random.default_rng(0).permutation(42)[:15])


def train(samples: xloader.Samples) -> xloader.Samples:
    parts = samples.window(time=3).inputs("q", "z").split(time={"a": 0.6, "b": 0.4})
    return parts["a"]


RECIPES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "all": (lambda own: own, {}, 0),
    "month and area": (windows, {"by": "month", "weights": "area"}, 0),
    "cells": (lambda own: own, {"dim": "time"}, 0),
    "leads": (windows, {"leads": ["12h", 40], "by": "season"}, 99),
    "quantiles": (windows, {"quantiles": [0.1, 0.9], "by": "hour"}, 0),
    "select": (some, {"dim": ["time", "lon"]}, 0),
    "split": (train, {"weights": xr.DataArray(np.arange(8.0), dims="lat")}, 0),
    "lines of time": (lambda own: own.isel(lat=slice(0, 4)), {"leads": [1, 30]}, 0),
}


def num_twice(counts: Counter[Any]) -> int:
    return sum(counts.values()) - len(counts)


def pids_of(recorder: SourceRecorder) -> set[int]:
    return {pid for pid, _ in recorder._tally.lines()}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_bits_of_threads_and_each_chunk_once(
    name: str, client: Any, data: Path, tmp_path: Path
) -> None:
    make, options, most_twice = RECIPES[name]
    if "quantiles" in options:
        pytest.importorskip("crick")
    recorder, source = recorded(data, tmp_path / "log")
    samples = make(source)
    whole = samples.stats(client=False, **options)
    here = recorder.reads
    assert set(here.values()) == {1}
    recorder.reset()
    # The client is active.
    xr.testing.assert_identical(samples.stats(**options), whole)
    assert set(recorder.reads) == set(here)
    assert num_twice(recorder.reads) <= most_twice
    assert os.getpid() not in pids_of(recorder)
    recorder.reset()
    path = tmp_path / "stats.nc"
    xr.testing.assert_identical(samples.stats(path=path, client=client, **options), whole)
    assert num_twice(recorder.reads) <= most_twice
    assert os.getpid() not in pids_of(recorder)
    assert sorted(own.name for own in tmp_path.iterdir()) == ["log", "stats.nc"]


def test_reads_of_two_tasks_are_those_that_are_predicted(
    client: Any, data: Path, tmp_path: Path
) -> None:
    """Differences along one long line of time: chunks at the borders are read by both sides."""
    recorder, samples = recorded(data, tmp_path / "log")
    samples = samples.isel(lat=slice(0, 4))
    samples = xloader.Samples(samples.recipe).window(time=1).inputs("z")
    job = StatsJob(samples.recipe.planned, None, None, (), [1], None)
    run = ClusterSweep(job, ClusterTasks(client), job.all_pieces())
    assert 30 < run.num_chunks(job.all_pieces()) < 60
    xr.testing.assert_identical(samples.stats(leads=[1]), samples.stats(leads=[1], client=False))
    assert recorder.num_reads == run.num_chunks(job.all_pieces()) + 30


def die_once(mark: Path, stored: bytes) -> bytes:
    """Kill the process that reads a chunk for the first time."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return stored


def meet(folder: Path, stored: bytes) -> bytes:
    """Wait until two processes have read a chunk."""
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return stored


def faulty(data: Path, faults: dict[str, Any]) -> FaultyStore:
    return FaultyStore(LocalStore(data, read_only=True), faults)


@pytest.mark.filterwarnings("ignore")
def test_four_workers_of_which_one_is_killed(
    mortal_client: Any, data: Path, tmp_path: Path
) -> None:
    whole = xloader.open(data).stats(client=False)
    (tmp_path / "pids").mkdir()
    both = {f"t2m/c/{number}/0/0": partial(meet, tmp_path / "pids") for number in range(15)}
    recorder, samples = recorded(faulty(data, both), tmp_path / "log")
    one = {"z/c/17/1/0": partial(die_once, tmp_path / "mark")}
    mortal_client.wait_for_workers(4)
    xr.testing.assert_identical(samples.stats(client=mortal_client), whole)
    assert set(recorder.reads.values()) == {1}
    assert len(pids_of(recorder)) > 1
    assert os.getpid() not in pids_of(recorder)
    recorder, samples = recorded(faulty(data, one), tmp_path / "log of kills")
    found = samples.stats(client=mortal_client, path=tmp_path / "s.nc")
    xr.testing.assert_identical(found, whole)
    assert (tmp_path / "mark").exists()
    assert recorder.reads["z", (17, 1, 0)] == 2
    # What was done by other workers is not done again.
    assert num_twice(recorder.reads) < len(recorder.reads) / 2


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.cluster import test_cluster_stats as tests
from tests.cluster.conftest import distributed
from xloader.jobs import merge_trees
from xloader.jobs.merge_trees import TreeParts

if __name__ == "__main__":
    merge_trees._FLUSH_SECONDS = 0.0
    folder, add = Path(sys.argv[2]), TreeParts.add

    def add_or_die(parts, nodes):
        add(parts, nodes)
        if parts._num_files == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    TreeParts.add = add_or_die
    _, samples = tests.recorded(Path(sys.argv[1]), folder / "log")
    with distributed.Client(sys.argv[3]):
        samples.stats(path=folder / "stats.nc", by="month")
"""


def test_a_killed_client_goes_on_from_its_files(client: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD, "utf-8")
    line = [sys.executable, str(tmp_path / "child.py"), str(data), str(tmp_path)]
    line.append(client.scheduler.address)
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    child = subprocess.run(line, cwd=ROOT, env=here, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(list(tmp_path.glob("stats.nc.parts/parts/*.part"))) == 2
    recorder, samples = recorded(data, tmp_path / "log of rest")
    first, samples_here = recorded(data, None)
    whole = samples_here.stats(by="month", client=False)
    xr.testing.assert_identical(samples.stats(path=tmp_path / "stats.nc", by="month"), whole)
    assert 0 < recorder.num_reads < first.num_reads
    assert set(recorder.reads.values()) == {1}
    with xr.open_dataset(tmp_path / "stats.nc") as stored:
        xr.testing.assert_equal(stored.load(), whole)


def test_absent_chunks_are_warned_of_once(client: Any, tmp_path: Path) -> None:
    write_data(tmp_path / "data.zarr")
    for number in range(0, 30, 3):
        (tmp_path / f"data.zarr/z/c/{number}/0/0").unlink()
    samples = xloader.open(tmp_path / "data.zarr")
    found = []
    for own in (False, client):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found.append(samples.stats(client=own))
        (warning,) = (w for w in caught if w.category is ChunkWarning)
        assert "is absent from" in str(warning.message)
    assert Path(warning.filename) == Path(__file__)
    xr.testing.assert_identical(*found)


def test_memory_is_that_of_a_worker(client: Any, data: Path, tmp_path: Path) -> None:
    recorder, samples = recorded(data, tmp_path / "log")
    with pytest.raises(MemoryBudgetError) as caught:
        samples.stats(dim="time", memory=1000)
    least = caught.value.minimum_nbytes
    with pytest.raises(MemoryBudgetError):
        samples.stats(dim="time", memory=least - 1)
    assert recorder.num_reads == 0
    samples.stats(dim="time", memory=least)
    tasks = Threads(client)
    job = StatsJob(samples.recipe.planned, None, None, (), (), None)
    run = ClusterSweep(job, tasks, job.all_pieces())
    with pytest.raises(MemoryBudgetError, match="each of 8 threads of a worker") as caught:
        run.check_memory(100_000, 0, 0, is_flushed=False)
    assert caught.value.minimum_nbytes % 8 == 0
    run.check_memory(caught.value.minimum_nbytes, 0, 0, is_flushed=False)


class Threads(ClusterTasks):
    """A cluster of workers with eight threads each."""

    def _threads(self) -> list[int]:
        return [8, 8]


def test_parts_are_computed_here(client: Any, data: Path, tmp_path: Path) -> None:
    recorder, samples = recorded(data, tmp_path / "log")
    with pytest.raises(OptionError, match="without a cluster"):
        samples.stats(part=(0, 2), client=client)
    parts = [samples.stats(part=(number, 2)) for number in range(2)]
    assert pids_of(recorder) == {os.getpid()}
    xr.testing.assert_identical(xloader.merge(parts), samples.stats(client=client))
    ds = xr.Dataset({"t": ("x", np.arange(6.0))})
    xr.testing.assert_identical(xloader.stats(ds, client=client), xloader.stats(ds, client=False))


def test_what_tasks_share_is_small(data: Path) -> None:
    job = StatsJob(xloader.open(data).recipe.planned, None, "month", (), ["12h"], "area")
    work = pickle.loads(pickle.dumps(job))
    sent = len(pickle.dumps(work))
    assert sent < 20_000
    # What a worker finds out stays with it.
    assert work.template.key == job.template.key
    assert len(pickle.dumps(work)) == sent
