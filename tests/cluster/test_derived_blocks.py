"""Blocks that a cluster computes or holds: persisted ones, errors, cancelling, memory."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import xloader
from tests.cluster.conftest import distributed, local_cluster
from tests.sources import kinds
from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.errors import ChunkError, ClosedError, ClusterError, ClusterWarning, ReadTimeoutError
from xloader.sources.arrays import cluster_blocks
from xloader.sources.open.open_source import open_source

NUMBERS = np.arange(64 * 6.0).reshape(64, 6)


def dataset_of(array: da.Array) -> xr.Dataset:
    return xr.Dataset({"t": (("time", "x"), array)})


def rows(chunk: int = 4) -> da.Array:
    return da.from_array(NUMBERS, chunks=(chunk, 6))


def mapped(function: Callable[..., np.ndarray], *args: Any) -> xr.Dataset:
    """A dataset whose blocks are made by a function."""
    return dataset_of(rows().map_blocks(function, *args, dtype="f8", meta=np.ones(())))


def read_epoch(ds: xr.Dataset, limits: Any = None, **options: Any) -> np.ndarray:
    """The rows of an epoch of single steps, in the order of the data."""
    found = np.full(ds["t"].shape, np.nan)
    samples = xloader.open(ds, **(limits or {})).window(time=1)
    with samples.loader(batch_size=8, memory="1MiB", output="numpy", **options) as loader:
        for batch in loader:
            found[batch.ids] = batch["t"][:, 0]
    return found


def wait_until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def num_tasks(dask_scheduler: Any = None) -> int:
    return len(dask_scheduler.tasks)


def num_wanted(dask_scheduler: Any = None) -> int:
    """Number of values that a client wants, computed or not."""
    return sum(bool(task.who_wants) for task in dask_scheduler.tasks.values())


def wait_until_forgotten(client: Any) -> None:
    wait_until(lambda: client.run_on_scheduler(num_tasks) == 0)


def note(block: np.ndarray, folder: Path) -> np.ndarray:
    with (folder / f"{block.flat[0]:.0f}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return block + 1


def noted(folder: Path) -> Counter[str]:
    return Counter({path.name: len(path.read_text().split()) for path in folder.iterdir()})


ONCE = Counter({f"{24 * block}": 1 for block in range(16)})


def test_an_epoch_computes_each_block_once_and_forgets_it(client: Any, tmp_path: Path):
    found = read_epoch(mapped(note, tmp_path))
    np.testing.assert_array_equal(found, NUMBERS + 1)
    assert noted(tmp_path) == ONCE
    assert str(os.getpid()) not in "".join(path.read_text() for path in tmp_path.iterdir())
    wait_until_forgotten(client)


def test_a_block_is_one_task(client: Any, tmp_path: Path):
    ds = xr.Dataset(dict.fromkeys("uv", (("time", "x"), NUMBERS)))
    encoding = {name: {"chunks": (4, 6)} for name in ds}
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False, encoding=encoding)
    stored = xr.open_zarr(tmp_path / "s.zarr", chunks={}, consolidated=False)
    seen: list[int] = []
    get = client.get

    def counted(tasks: Any, *args: Any, **options: Any) -> Any:
        seen.append(len(tasks))
        return get(tasks, *args, **options)

    client.get = counted
    found = read_epoch(xr.Dataset({"t": np.sqrt(stored.u**2 + stored.v**2)}))
    np.testing.assert_array_equal(found, np.sqrt(2 * NUMBERS**2))
    assert sum(seen) == 16


@pytest.mark.filterwarnings("ignore:each of the 16 blocks")
def test_a_task_that_many_blocks_need_has_one_form(client: Any):
    array = rows()
    # With the block itself, a part of the mean needs another task than with other blocks.
    found = read_epoch(dataset_of(array - array.mean(axis=0)))
    np.testing.assert_array_equal(found, (array - array.mean(axis=0)).compute())
    told = [text for _, text in client.get_scheduler_logs() if "run_spec" in text]
    assert not told


def scattered(client: Any) -> da.Array:
    parts = client.scatter(list(NUMBERS.reshape(4, 16, 6)))
    whole = [da.from_delayed(dask.delayed(part), (16, 6), "f8") for part in parts]
    return da.concatenate(whole)


def within_tasks(client: Any) -> da.Array:
    parts = client.scatter(list(NUMBERS.reshape(4, 16, 6)))
    added = [dask.delayed(np.add)(part, 0) for part in parts]
    return da.concatenate([da.from_delayed(part, (16, 6), "f8") for part in added])


HELD: dict[str, Callable[[Any], da.Array]] = {
    "persisted": lambda client: rows().persist(),
    "scattered": scattered,
    "scattered, within tasks": within_tasks,
}


def read_here(ds: xr.Dataset, unit: int) -> np.ndarray:
    return read_epoch(ds)


def compute_within(block: np.ndarray) -> np.ndarray:
    return np.asarray(da.from_array(block, chunks=(2, 6)).sum(axis=0).compute() + block)


@pytest.mark.parametrize("kind", HELD)
def test_held_data_is_read_here_and_within_tasks(client: Any, kind: str):
    held = HELD[kind](client)
    for array, expected in ((held * 2, NUMBERS * 2), (held, NUMBERS)):
        ds = dataset_of(array)
        np.testing.assert_array_equal(read_epoch(ds), expected)
        # As many tasks at a time as there are threads: none is left for the blocks.
        found = dict(ClusterTasks(client).run("reading", read_here, ds, range(4)))
        assert sorted(found) == [0, 1, 2, 3]
        for values in found.values():
            np.testing.assert_array_equal(values, expected)


def test_functions_that_compute_do_so_on_their_thread_within_tasks(client: Any):
    ds = mapped(compute_within)
    expected = ds["t"].compute(scheduler="synchronous")
    found = dict(ClusterTasks(client).run("reading", read_here, ds, range(4)))
    for values in found.values():
        np.testing.assert_array_equal(values, expected)


def read_beside_client(ds: xr.Dataset) -> np.ndarray:
    # From now on, dask takes the worker's own client for the active one.
    distributed.get_client()
    return read_epoch(ds, {"read_timeout": 10, "max_retries": 0})


def test_tasks_of_the_user_compute_blocks_themselves(client: Any):
    ds = dataset_of(rows() + 1)
    futures = [client.submit(read_beside_client, ds, pure=False) for _ in range(2)]
    for values in client.gather(futures):
        np.testing.assert_array_equal(values, NUMBERS + 1)


def test_held_data_cannot_be_read_without_the_client(client_to_close: Any):
    ds = dataset_of(rows().persist() + 1)
    # Worker processes read nothing.
    np.testing.assert_array_equal(read_epoch(ds, processes=1), NUMBERS + 1)
    client_to_close.close()
    with pytest.raises(ClusterError, match="no client is active"):
        read_epoch(ds)


def test_blocks_that_this_process_computes_since_the_client_was_closed(client_to_close: Any):
    source = open_source(dataset_of(rows() + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kinds.read(source, "t", (0, 0))
    client_to_close.close()
    with pytest.warns(ClusterWarning, match="on its own threads now"):
        found = kinds.read(source, "t", (1, 0))
    np.testing.assert_array_equal(found, NUMBERS[4:8] + 1)
    # It is said once.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kinds.read(source, "t", (2, 0))


def test_blocks_that_workers_exchange_need_a_cluster(client_to_close: Any):
    with dask.config.set({"array.rechunk.method": "p2p"}):
        source = open_source(dataset_of(rows().rechunk((64, 2)).rechunk((16, 6)) + 1))
    np.testing.assert_array_equal(kinds.read(source, "t", (1, 0)), NUMBERS[16:32] + 1)
    with pytest.raises(ClusterError, match=r"p2p rechunk needs a cluster.*'tasks'"):
        ClusterTasks(client_to_close).call("reading", kinds.read, source, "t", (1, 0))
    client_to_close.close()
    with pytest.raises(ClusterError, match="p2p rechunk needs a cluster"):
        kinds.read(source, "t", (0, 0))


@pytest.fixture(scope="module")
def doomed() -> Iterator[Any]:
    """A cluster of two workers, each to be killed by one test. No other starts in its place."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_cluster(2) as cluster,
    ):
        for nanny in cluster.workers.values():
            nanny.auto_restart = False
        yield cluster


def worker_addresses(dask_scheduler: Any = None) -> list[str]:
    return list(dask_scheduler.workers)


@pytest.mark.filterwarnings("ignore")
def test_a_lost_worker_and_the_values_that_only_it_had(doomed: Any):
    with distributed.Client(doomed) as client:
        address, pid = next(iter(client.run(os.getpid).items()))
        (part,) = client.scatter([NUMBERS], workers=[address])
        source = open_source(dataset_of(da.from_delayed(dask.delayed(part), (64, 6), "f8") + 1))
        np.testing.assert_array_equal(kinds.read(source, "t", (0, 0)), NUMBERS + 1)
        os.kill(pid, signal.SIGKILL)
        # A task sent before the scheduler knows of the death would itself be blamed for it.
        wait_until(lambda: address not in client.run_on_scheduler(worker_addresses))
        with pytest.raises(ClusterError, match="tasks were cancelled or lost"):
            kinds.read(source, "t", (0, 0))


def die(block: np.ndarray) -> np.ndarray:
    os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.filterwarnings("ignore")
def test_a_block_that_kills_its_worker(doomed: Any):
    with (
        distributed.Client(doomed),
        pytest.raises(ClusterError, match="while computing blocks: workers died") as caught,
    ):
        kinds.read(open_source(mapped(die)), "t", (0, 0))
    assert not isinstance(caught.value, ChunkError)


def fail(block: np.ndarray) -> np.ndarray:
    if block.flat[0] == 24:
        raise ZeroDivisionError("no such number")
    return block


def test_an_error_of_a_function_names_the_block(client: Any):
    told = r"a block could not be computed \(ZeroDivisionError: no such number.*'t', chunk \(1, 0\)"
    with pytest.raises(ChunkError, match=told):
        read_epoch(mapped(fail))
    wait_until_forgotten(client)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read_epoch(mapped(fail), on_error="skip")
    assert np.isnan(found[4:8]).all()
    np.testing.assert_array_equal(found[8:], NUMBERS[8:])


def linger(block: np.ndarray, gate: Path) -> np.ndarray:
    (gate.parent / f"begun {block.flat[0]:.0f}").touch()
    while not gate.exists():
        time.sleep(0.02)
    return block


def test_a_block_that_takes_too_long(client: Any, tmp_path: Path):
    gate = tmp_path / "gate"
    try:
        with pytest.raises(ReadTimeoutError, match=r"variable 't'"):
            read_epoch(mapped(linger, gate), {"read_timeout": 0.3, "max_retries": 0})
    finally:
        gate.touch()
    wait_until_forgotten(client)


def take_one(loader: Any) -> None:
    with contextlib.suppress(ClosedError):
        next(iter(loader))


def test_blocks_under_way_are_forgotten_when_an_epoch_is_left(client: Any, tmp_path: Path):
    gate = tmp_path / "gate"
    samples = xloader.open(mapped(linger, gate)).window(time=1)
    try:
        loader = samples.loader(batch_size=8, memory="1MiB", output="numpy")
        thread = threading.Thread(target=take_one, args=(loader,))
        thread.start()
        wait_until(lambda: list(tmp_path.glob("begun *")))
        # A second one waits for it, on the other thread.
        wait_until(lambda: client.run_on_scheduler(num_tasks) > 1)
        loader.close()
        thread.join()
    finally:
        gate.touch()
    wait_until_forgotten(client)


def test_no_more_is_under_way_than_fits_in_flight(client: Any, monkeypatch: pytest.MonkeyPatch):
    array = da.random.random((4096, 64), chunks=(64, 64))
    under_way: list[int] = []
    most = [0]
    compute = cluster_blocks.compute_on_cluster

    def counted(client: Any, tasks: Any, keys: Any) -> Any:
        under_way.append(1)
        most[0] = max(most[0], len(under_way))
        try:
            return compute(client, tasks, keys)
        finally:
            under_way.pop()

    monkeypatch.setattr(cluster_blocks, "compute_on_cluster", counted)
    # 2 MiB in all: a sixteenth of the memory is 64 KiB, two blocks of 32 KiB.
    with (
        xloader.open(dataset_of(array))
        .window(time=1)
        .loader(batch_size=8, memory="1MiB", output="numpy") as loader
    ):
        assert sum(len(batch.ids) for batch in loader) == 4096
        assert loader.report().peak_nbytes <= loader.explain().peak_nbytes <= 2**20
    assert 1 <= most[0] <= 2
    wait_until_forgotten(client)


VIEWS: dict[str, Callable[[xr.Dataset], Any]] = {
    "plain": xloader.open,
    "a part of each block": lambda ds: xloader.open(ds).isel(x=slice(1, 4)),
    "one after the other": lambda ds: xloader.concat(
        [ds.isel(time=slice(0, 32)), ds.isel(time=slice(32, 64))]
    ),
    "side by side": lambda ds: xloader.join(
        {"a": ds, "b": ds.drop_vars("t").assign(own=(("time", "x"), NUMBERS))}
    ),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_blocks_behind_views_are_computed_on_the_cluster(client: Any, kind: str, tmp_path: Path):
    ds = dataset_of(rows().map_blocks(note, tmp_path, dtype="f8"))
    ds = ds.assign_coords(time=np.arange(64), x=np.arange(6))
    samples = VIEWS[kind](ds).window(time=1)
    with samples.loader(batch_size=8, memory="1MiB", output="numpy") as loader:
        for batch in loader:
            expected = NUMBERS[batch.ids][:, None] + 1
            found = batch[0]
            np.testing.assert_array_equal(
                found, expected[..., 1:4] if found.shape[-1] == 3 else expected
            )
    assert set(noted(tmp_path).values()) == {1}
    wait_until_forgotten(client)
