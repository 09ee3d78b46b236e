"""Tasks on a cluster: results of all units, few at a time, errors and lost workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from dask.utils import key_split

import xloader
from tests.cluster.conftest import distributed, local_cluster
from xloader.cluster.cluster_tasks import ClusterTasks, find_cluster
from xloader.errors import (
    ClusterError,
    ClusterWarning,
    CorruptChunkError,
    OptionError,
    TransformError,
)
from xloader.sources.arrays.dask_cluster import active_client, cluster_errors, result_of


def add(shared: int, unit: int) -> tuple[int, int]:
    return shared + unit, os.getpid()


def test_each_unit_is_done_once(client: Any):
    found = list(ClusterTasks(client).run("adding", add, 100, range(50)))
    assert sorted(unit for unit, _ in found) == list(range(50))
    assert all(number == 100 + unit for unit, (number, _) in found)
    assert os.getpid() not in {pid for _, (_, pid) in found}


def test_units_are_taken_as_workers_get_free(client: Any):
    taken = []

    def units() -> Any:
        for unit in range(10**9):
            taken.append(unit)
            yield unit

    results = ClusterTasks(client).run("adding", add, 1, units())
    for _ in range(20):
        next(results)
    # Two tasks a thread and two threads, beside those that are done.
    assert len(taken) <= 24
    assert task_names(client) == {"xloader-adding", "xloader-adding-shared"}
    results.close()
    wait_until(lambda: not task_names(client))


def task_names(client: Any) -> set[str]:
    """The names of the tasks that the scheduler knows, as its dashboard shows them."""
    keys = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    return {key_split(key) for key in keys if key.startswith("xloader")}


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what happens soon; a test that waits in vain is ended by pytest."""
    while not is_so():
        time.sleep(0.01)


def fail(shared: Path, unit: int) -> None:
    if unit == 3:
        raise CorruptChunkError("bytes do not decode", store="s", variable="t", chunk=(3,), key="k")


def test_an_error_of_a_task_is_passed_on(client: Any):
    with pytest.raises(CorruptChunkError, match="bytes do not decode"):
        list(ClusterTasks(client).run("failing", fail, None, range(9)))


def leave(shared: None, unit: int) -> None:
    raise SystemExit(3)


def test_a_task_cannot_end_its_worker(client: Any):
    with pytest.raises(TransformError, match=r"tried to end the process.*SystemExit\(3\)"):
        list(ClusterTasks(client).run("leaving", leave, None, [0]))


def sees_client(shared: None, unit: int) -> bool:
    return active_client() is not None


def test_no_client_is_active_within_a_task():
    with (
        local_cluster(1, processes=False) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert active_client() is client
        assert list(ClusterTasks(client).run("looking", sees_client, None, [0])) == [(0, False)]
        assert active_client() is client


def die_once(folder: Path, unit: int) -> int:
    mark = folder / str(unit)
    if unit == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def die(shared: None, unit: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_client_that_is_closed(client_to_close: Any):
    tasks = ClusterTasks(client_to_close)
    found = tasks.run("adding", add, 1, range(9))
    next(found)
    tasks.client.close()
    with pytest.raises(ClusterError, match=r"lost or closed|cancelled or lost"):
        list(found)
    with pytest.raises(ClusterError, match="lost or closed"):
        tasks.call("looking", os.getpid)
    with pytest.raises(ClusterError, match="lost or closed"):
        _ = tasks.num_threads
    assert active_client() is None
    recipe = xr.Dataset({"t": ("time", np.arange(8.0))}).xloader.window(time=2).recipe
    with pytest.raises(OptionError, match="a client that was closed"):
        find_cluster(tasks.client, recipe)
    assert find_cluster(None, recipe) is None


def raise_timeout(shared: None, unit: int) -> None:
    raise TimeoutError("the task's own")


def test_a_timeout_that_a_task_raises_is_passed_on(client: Any):
    with pytest.raises(TimeoutError, match="the task's own"):
        list(ClusterTasks(client).run("waiting", raise_timeout, None, [0]))


class LateFuture:
    """A future whose client is closed while its result is awaited: the result never comes."""

    status = "finished"

    def __init__(self, client: Any) -> None:
        self.client = client

    def result(self, timeout: float) -> None:
        self.client.close()
        raise TimeoutError


def test_a_result_is_not_awaited_for_ever_on_a_client_that_is_closed(client_to_close: Any):
    with (
        pytest.raises(ClusterError, match="lost or closed"),
        cluster_errors("waiting", client_to_close),
    ):
        result_of(LateFuture(client_to_close))


def allow_failures(count: int, dask_scheduler: Any) -> None:
    dask_scheduler.allowed_failures = count


@pytest.mark.filterwarnings("ignore")
def test_tasks_of_a_lost_worker_are_done_by_another(mortal_client: Any, tmp_path: Path):
    found = ClusterTasks(mortal_client).run("dying", die_once, tmp_path, range(8))
    assert sorted(unit for unit, _ in found) == list(range(8))
    # Each worker that starts again takes seconds, so one is enough.
    mortal_client.run_on_scheduler(allow_failures, 0)
    try:
        with pytest.raises(ClusterError, match="workers died each time"):
            list(ClusterTasks(mortal_client).run("dying", die, None, range(1)))
    finally:
        mortal_client.run_on_scheduler(allow_failures, 1)


def test_find_cluster(client: Any, tmp_path: Path):
    ds = xr.Dataset({"t": ("time", np.arange(8.0))})
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False)
    recipe = xloader.open(tmp_path / "s.zarr").window(time=2).recipe
    assert find_cluster(None, recipe).client is client
    assert find_cluster(client, recipe).client is client
    assert find_cluster(False, recipe) is None
    large = xr.Dataset({"t": ("time", np.zeros(2_000_000))}).xloader.window(time=2).recipe
    with pytest.warns(ClusterWarning, match="runs on threads of this process"):
        assert find_cluster(None, large) is None
    with pytest.raises(OptionError, match="cannot be sent to the workers"):
        find_cluster(client, large)
    with pytest.raises(OptionError, match="client is not a dask client"):
        find_cluster("tcp://localhost:8786", recipe)


class Threads(ClusterTasks):
    """A cluster of two workers with four threads each."""

    def _threads(self) -> list[int]:
        return [4, 4]


def test_sizes_of_units(client: Any):
    gib, tasks = 1 << 30, Threads(client)
    # Large jobs: a quarter of a gigabyte, and at most so many units.
    assert tasks.unit_nbytes(1000 * gib) == gib // 4
    assert tasks.unit_nbytes(10**6 * gib) == 100 * gib
    assert tasks.unit_nbytes(10**6 * gib, 5000) == 200 * gib
    # Small jobs: four for each thread.
    assert (tasks.unit_nbytes(128), tasks.unit_nbytes(3)) == (4, 1)


def test_workers_that_start_for_tasks():
    """Of a cluster that starts its workers for tasks, the threads of a worker are known."""
    with (
        local_cluster(0, processes=False) as cluster,
        distributed.Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=1, interval="50ms", wait_count=10**6)
        recipe = xr.Dataset({"t": ("time", np.arange(8.0))}).xloader.window(time=2).recipe
        assert not client.nthreads()
        with pytest.warns(ClusterWarning, match="has no worker yet"):
            found = find_cluster(None, recipe)
        assert found is not None
        assert len(client.nthreads()) == 1


def count_in_task(path: str, kind: str) -> float:
    if kind == "an active client":
        distributed.get_client()
        client = None
    elif kind == "a client":
        client = distributed.get_client()
    samples = xloader.open(path).window(time=2)
    if kind == "a client of one's own":
        with distributed.worker_client() as client:
            return float(samples.stats(client=client).t.sel(stat="count"))
    return float(samples.stats(client=client).t.sel(stat="count"))


@pytest.mark.parametrize("kind", ["an active client", "a client", "a client of one's own"])
def test_jobs_within_a_task_do_not_wait_for_their_own_thread(
    client: Any, tmp_path: Path, kind: str
):
    xr.Dataset({"t": ("time", np.arange(8.0))}).to_zarr(
        tmp_path / "s.zarr", zarr_format=3, consolidated=False
    )
    # All threads of the workers wait at the same time.
    futures = [
        client.submit(count_in_task, str(tmp_path / "s.zarr"), kind, key=f"{kind}-{number}")
        for number in range(2)
    ]
    assert [future.result(timeout=60) for future in futures] == [8, 8]
