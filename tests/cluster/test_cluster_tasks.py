"""Tasks on a cluster: results of all units, few at a time, errors and lost workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from dask.utils import key_split

import xloader
from tests.cluster.conftest import distributed, local_cluster
from xloader.errors import ClusterError, CorruptChunkError, OptionError
from xloader.jobs.cluster_tasks import ClusterTasks, find_cluster
from xloader.sources.dask_cluster import active_client


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


def test_a_client_that_is_closed(shared_cluster: Any, tmp_path: Path):
    tasks = ClusterTasks(distributed.Client(shared_cluster))
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


@pytest.mark.filterwarnings("ignore")
def test_tasks_of_a_lost_worker_are_done_by_another(tmp_path: Path):
    # One more worker than this dies before dask gives a task up; each takes seconds to start.
    failures = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with failures, local_cluster(2) as cluster, distributed.Client(cluster) as client:
        found = ClusterTasks(client).run("dying", die_once, tmp_path, range(8))
        assert sorted(unit for unit, _ in found) == list(range(8))
        with pytest.raises(ClusterError, match="workers died each time"):
            list(ClusterTasks(client).run("dying", die, None, range(2)))


def test_find_cluster(client: Any, tmp_path: Path):
    ds = xr.Dataset({"t": ("time", np.arange(8.0))})
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False)
    recipe = xloader.open(tmp_path / "s.zarr").window(time=2).recipe
    assert find_cluster(None, recipe).client is client
    assert find_cluster(client, recipe).client is client
    assert find_cluster(False, recipe) is None
    large = xr.Dataset({"t": ("time", np.zeros(2_000_000))}).xloader.window(time=2).recipe
    assert find_cluster(None, large) is None
    with pytest.raises(OptionError, match="cannot be sent to the workers"):
        find_cluster(client, large)
    with pytest.raises(OptionError, match="client is not a dask client"):
        find_cluster("tcp://localhost:8786", recipe)


def test_memory_of_a_task(client: Any):
    tasks = ClusterTasks(client)
    assert tasks.num_threads == 2
    assert tasks.task_memory(1000) == 1000
