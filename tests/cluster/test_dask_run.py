"""Functions called with each rank's loader on a cluster: ranks, pins, options, errors, warnings."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.cluster.conftest import distributed, local_cluster
from xloader.cluster import checkpoint_places, rank_queue
from xloader.cluster.checkpoint_places import FolderPlace, SchedulerPlace
from xloader.cluster.rank_queue import HostShares, worker_threads
from xloader.errors import (
    ClosedError,
    ClusterError,
    EmptySamplesError,
    MemoryBudgetError,
    NanWarning,
    OptionError,
    SourceAccessError,
    StateError,
    StoreFullError,
    TargetError,
    TransformError,
)
from xloader.testing import write_store

OPTIONS: dict[str, Any] = {"batch_size": 4, "output": "numpy", "memory": "1MB", "seed": 5}

Rows = list[tuple[list[int], float]]


def make_samples(folder: Path, num_times: int = 60) -> xloader.Samples:
    values = np.arange(num_times * 3, dtype="f4").reshape(num_times, 3)
    store = write_store(
        xr.Dataset({"t": (("time", "x"), values)}), {"t": (5, 3)}, folder / "s.zarr"
    )
    return xloader.open(store).window(time=2, stride=1)


@pytest.fixture
def samples(tmp_path: Path) -> xloader.Samples:
    return make_samples(tmp_path)


def rows_of(batch: Any) -> tuple[list[int], float]:
    """The ids of a batch without those that fill it up, and the sum of its values."""
    real = ~batch.is_padding
    return batch.ids[real].tolist(), float(batch.t[real].sum())


def gather(loader: Any) -> Rows:
    return [rows_of(batch) for batch in loader]


def expected(samples: xloader.Samples, world_size: int, **options: Any) -> list[Rows]:
    """The rows of all ranks, each in a loader of this process."""
    found = []
    for rank in range(world_size):
        with samples.loader(**OPTIONS, **options, world=xloader.World(rank, world_size)) as loader:
            found.append(gather(loader))
    return found


def ids_in(results: list[Rows]) -> list[int]:
    return sorted(number for rows in results for ids, _ in rows for number in ids)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_get_the_batches_of_their_loaders(
    client: Any, samples: xloader.Samples, world_size: int
):
    results = xloader.dask.run(gather, samples, world_size=world_size, **OPTIONS)
    assert results == expected(samples, world_size)
    assert ids_in(results) == list(range(len(samples)))


def test_ranks_are_pinned_to_workers(client: Any, samples: xloader.Samples):
    def where(loader: Any) -> tuple[int, int, int]:
        return loader.rank, loader.world_size, os.getpid()

    first = xloader.dask.run(where, samples, **OPTIONS)
    assert [found[:2] for found in first] == [(0, 2), (1, 2)]
    assert len({pid for _, _, pid in first} | {os.getpid()}) == 3
    # Address by address.
    pids = client.run(os.getpid)
    assert [pid for _, _, pid in first] == [pids[worker] for worker in sorted(pids)]
    assert xloader.dask.run(where, samples, **OPTIONS) == first


def test_several_sets_are_fanned_out(client: Any, samples: xloader.Samples):
    both = xloader.interleave({"a": (samples, 3), "b": (samples, 1)})
    results = xloader.dask.run(gather, both, world_size=2, **OPTIONS)
    for rank in range(2):
        with both.loader(**OPTIONS, world=xloader.World(rank, 2)) as loader:
            assert (loader.rank, loader.world_size) == (rank, 2)
            assert results[rank] == gather(loader)


def test_functions_of_notebooks_and_what_they_refer_to(client: Any, samples: xloader.Samples):
    seen: list[int] = []
    results = xloader.dask.run(
        lambda loader: [seen.append(len(seen)), seen][1], samples, world_size=4, **OPTIONS
    )
    # Each rank has a copy of its own.
    assert results == [[0]] * 4
    assert seen == []


def test_ranks_of_one_process_share_nothing_and_divide_its_cores(samples: xloader.Samples):
    held = [0]

    def count(loader: Any) -> tuple[int, int, bool]:
        held[0] += 1
        return held[0], loader.options.num_threads, threading.current_thread().name == "MainThread"

    with (
        local_cluster(1, processes=False) as cluster,
        distributed.Client(cluster),
    ):
        results = xloader.dask.run(count, samples, world_size=3, **OPTIONS, threads=3)
    assert results == [(1, 3, False)] * 3


def test_cores_of_a_machine_are_divided(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr("xloader.cluster.rank_queue.usable_cores", lambda: 16)
    assert [HostShares(1, n).cores() for n in (1, 4, 5, 40)] == [16, 4, 3, 1]
    # A process that is tied to four cores of its machine has them for itself.
    monkeypatch.setattr("xloader.cluster.rank_queue.usable_cores", lambda: 4)
    assert HostShares(2, 8).cores() == 2


def test_a_function_sees_no_client(client: Any, samples: xloader.Samples):
    def threads_only(loader: Any) -> int:
        from xloader.sources.arrays.dask_cluster import active_client

        assert active_client() is None
        return len(loader)

    assert xloader.dask.run(threads_only, samples, **OPTIONS) == [8, 8]


def fail(loader: Any) -> None:
    for _ in loader:
        if loader.rank == 1:
            raise KeyError("no such weights")


def test_an_error_names_its_rank_and_ends_the_others(
    client: Any, samples: xloader.Samples, tmp_path: Path
):
    def fail_late(loader: Any) -> None:
        if loader.rank == 1:
            # A rank that has not begun is not ended: it never runs.
            while not (tmp_path / "begun").exists():
                time.sleep(0.01)
            raise KeyError("no such weights")
        try:
            (tmp_path / "begun").touch()
            while True:
                gather(loader)
        except ClosedError:
            # It seems to have ended well, with half of its result.
            (tmp_path / "ended").touch()

    with pytest.raises(KeyError, match="no such weights") as caught:
        xloader.dask.run(fail_late, samples, world_size=2, path=tmp_path / "job", **OPTIONS)
    assert any("rank 1" in note and "tcp://" in note for note in caught.value.__notes__)
    # The worker is free again, which only a rank that has ended makes it.
    assert len(xloader.dask.run(gather, samples, world_size=2, **OPTIONS)) == 2
    assert (tmp_path / "ended").exists()
    assert not list((tmp_path / "job").glob("*/*/*.result"))
    with pytest.raises(OptionError, match="a lambda of mine"):
        xloader.dask.run(refuse, samples, **OPTIONS)
    with pytest.raises(TransformError, match=r"sys.exit\(3\)"):
        xloader.dask.run(lambda loader: exit_with(3), samples, **OPTIONS)


def test_ctrl_c_ends_all_ranks(client: Any, samples: xloader.Samples, tmp_path: Path):
    def never_end(loader: Any) -> None:
        try:
            while True:
                for _ in loader:
                    (tmp_path / f"begun-{loader.rank}").touch()
        finally:
            (tmp_path / f"ended-{loader.rank}").touch()

    def interrupt() -> None:
        while len(list(tmp_path.glob("begun-*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        xloader.dask.run(never_end, samples, world_size=2, **OPTIONS)
    thread.join()
    assert len(xloader.dask.run(gather, samples, world_size=2, **OPTIONS)) == 2
    assert len(list(tmp_path.glob("ended-*"))) == 2


def refuse(loader: Any) -> None:
    raise OptionError("a lambda of mine")


def exit_with(code: int) -> None:
    raise SystemExit(code)


def test_results_that_do_not_pickle(client: Any, samples: xloader.Samples):
    with pytest.raises(OptionError, match="result of a rank cannot be pickled"):
        xloader.dask.run(lambda loader: threading.Lock(), samples, **OPTIONS)


def test_warnings_of_ranks_are_given_here(client: Any, samples: xloader.Samples):
    def warn(loader: Any) -> None:
        warnings.warn("the sea is dry", NanWarning, stacklevel=1)

    with pytest.warns(NanWarning, match="the sea is dry") as caught:
        xloader.dask.run(warn, samples, world_size=2, **OPTIONS)
    assert len(caught) == 1


def test_nothing_stays_on_the_cluster(client: Any, samples: xloader.Samples):
    def save(loader: Any) -> None:
        for _ in loader:
            xloader.dask.checkpoint().save(b"x" * 1000)

    def left(dask_scheduler: Any) -> tuple[list[str], list[str]]:
        return names_of_variables(dask_scheduler), [str(key) for key in dask_scheduler.tasks]

    xloader.dask.run(save, samples, **OPTIONS)
    with pytest.raises(KeyError):
        xloader.dask.run(fail, samples, **OPTIONS)
    deadline = time.monotonic() + 60
    while client.run_on_scheduler(left) != ([], []):
        assert time.monotonic() < deadline, client.run_on_scheduler(left)
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"world": xloader.World(1, 2)}, OptionError, "gives each loader its rank"),
        ({"world_size": 0}, OptionError, "world_size is too small"),
        ({"world_size": "two"}, OptionError, "world_size"),
        ({"world_size": 1000}, EmptySamplesError, "1000"),
        (
            {"world_size": 2, "plan": xloader.PlanRules(lanes=3)},
            OptionError,
            "ranks do not divide the lanes",
        ),
        ({"num_workers": 3}, OptionError, "threads="),
        ({"retries": -1}, OptionError, "retries"),
        ({"worker_timeout": "long"}, OptionError, "worker_timeout"),
        ({"client": False}, OptionError, "no dask cluster to run on"),
        ({"client": "tcp://localhost:1"}, OptionError, "not a dask client"),
        ({"path": "s3://bucket/run"}, OptionError, "not the path of a folder"),
        ({"path": 3}, OptionError, "not the path of a folder"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(
    client: Any, samples: xloader.Samples, tmp_path: Path, options: dict, error: type, text: str
):
    def touch(loader: Any) -> None:
        (tmp_path / "ran").touch()

    with pytest.raises(error, match=text):
        xloader.dask.run(touch, samples, **{**OPTIONS, **options})
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_sent_is_refused(client: Any, samples: xloader.Samples):
    lock = threading.Lock()
    with pytest.raises(OptionError, match="function cannot be sent"):
        xloader.dask.run(lambda loader: lock, samples, **OPTIONS)
    large = np.zeros(9 << 20, "u1")
    with pytest.raises(OptionError, match="load models inside the function"):
        xloader.dask.run(lambda loader: large, samples, **OPTIONS)
    in_memory = xr.Dataset({"t": ("time", np.zeros(2_000_000))}).xloader.window(time=2)
    with pytest.raises(OptionError, match="samples cannot be sent"):
        xloader.dask.run(gather, in_memory, **OPTIONS)
    with pytest.raises(OptionError, match="cannot be called"):
        xloader.dask.run(gather(()), samples, **OPTIONS)  # type: ignore[arg-type]
    with (
        samples.loader(**OPTIONS) as loader,
        pytest.raises(OptionError, match="cannot be fanned out"),
    ):
        xloader.dask.run(gather, loader, **OPTIONS)  # type: ignore[arg-type]


def test_a_client_is_needed(samples: xloader.Samples):
    with pytest.raises(OptionError, match="no active client"):
        xloader.dask.run(gather, samples, **OPTIONS)


def test_a_client_that_is_closed(client: Any, samples: xloader.Samples, tmp_path: Path):
    # Through a closed client, nothing on the scheduler can be removed any more.
    options = {**OPTIONS, "path": tmp_path / "job"}

    def linger(loader: Any) -> None:
        (tmp_path / f"begun-{loader.rank}").touch()
        time.sleep(0.5)

    def close() -> None:
        while len(list(tmp_path.glob("begun-*"))) < 2:
            time.sleep(0.01)
        own.close()

    with distributed.Client(client.scheduler.address, set_as_default=False) as own:
        threading.Thread(target=close).start()
        with pytest.raises(ClusterError, match="while running ranks"):
            xloader.dask.run(linger, samples, client=own, **options)
        with pytest.raises(OptionError, match="client that was closed"):
            xloader.dask.run(gather, samples, client=own, **OPTIONS)
        with pytest.raises(OptionError, match="client that was closed"):
            samples.stats(client=own)


def test_a_cluster_without_workers(samples: xloader.Samples):
    with local_cluster(0, processes=False) as cluster, distributed.Client(cluster) as client:
        with pytest.raises(ClusterError, match="has no worker"):
            xloader.dask.run(gather, samples, worker_timeout=0.1, **OPTIONS)
        with pytest.raises(ClusterError, match="has no worker"):
            xloader.dask.run(gather, samples, world_size=2, worker_timeout=0.1, **OPTIONS)
        # As a batch system starts them: later.
        cluster.scale(1)
        assert len(xloader.dask.run(gather, samples, client=client, **OPTIONS)) == 1


def test_there_is_no_checkpoint_outside():
    with pytest.raises(OptionError, match="no checkpoint here"):
        xloader.dask.checkpoint()


def test_checkpoints_that_cannot_be_kept(client: Any, samples: xloader.Samples, tmp_path: Path):
    def save_large(loader: Any) -> int:
        next(iter(loader))
        xloader.dask.checkpoint().save(b"x" * (2 << 20))
        return 1

    with pytest.raises(OptionError, match=r"too large for the scheduler.*pass path="):
        xloader.dask.run(save_large, samples, **OPTIONS)
    assert xloader.dask.run(save_large, samples, path=tmp_path / "job", **OPTIONS) == [1, 1]
    with pytest.raises(OptionError, match="value of a checkpoint cannot be pickled"):
        xloader.dask.run(
            lambda loader: xloader.dask.checkpoint().save(threading.Lock()), samples, **OPTIONS
        )


def test_a_finished_job_is_not_run_again(client: Any, samples: xloader.Samples, tmp_path: Path):
    path = tmp_path / "job"

    def times(loader: Any) -> tuple[float, int]:
        return time.time(), xloader.dask.checkpoint().attempt

    first = xloader.dask.run(times, samples, path=path, **OPTIONS)
    assert xloader.dask.run(times, samples, path=str(path), **OPTIONS) == first
    assert [attempt for _, attempt in first] == [0, 0]
    # Less memory plans otherwise, and another plan would give ranks other samples.
    assert xloader.dask.run(times, samples, path=path, **{**OPTIONS, "memory": "2MB"}) == first
    for name, change in {
        "batch_size": {"batch_size": 2},
        "seed": {"seed": 6},
        "world_size": {"world_size": 3},
        "lanes": {"plan": xloader.PlanRules(lanes=4)},
    }.items():
        with pytest.raises(TargetError, match=f"another {name}.*overwrite=True"):
            xloader.dask.run(times, samples, path=path, **{**OPTIONS, **change})
    with pytest.raises(TargetError, match="another function"):
        xloader.dask.run(lambda loader: 1, samples, path=path, **OPTIONS)
    with pytest.raises(StateError, match="other samples"):
        xloader.dask.run(times, samples.fillna(0.0), path=path, **OPTIONS)
    assert xloader.dask.run(times, samples, path=path, **OPTIONS) == first
    again = xloader.dask.run(times, samples, path=path, overwrite=True, **OPTIONS)
    assert all(new > old for new, old in zip(again, first, strict=True))
    assert len(list(path.iterdir())) == 2


@pytest.mark.filterwarnings("ignore:each chunk will be read")
def test_ranks_keep_their_plan_with_other_memory(client: Any, tmp_path: Path):
    values = np.zeros((400, 50), "f4")
    store = write_store(
        xr.Dataset({"t": (("time", "x"), values)}), {"t": (5, 50)}, tmp_path / "s.zarr"
    )
    samples = xloader.open(store).window(time=2, stride=1)
    marks = str(tmp_path)

    def gather_later(loader: Any) -> Rows:
        if loader.rank == 1 and not (Path(marks) / "again").exists():
            while not list(Path(marks).glob("job/*/rank-0000/*.result")):
                time.sleep(0.01)
            raise RuntimeError("not now")
        return gather(loader)

    def run_with(memory: str) -> list[Rows]:
        options = {**OPTIONS, "memory": memory, "world_size": 2, "path": tmp_path / "job"}
        return xloader.dask.run(gather_later, samples, **options)

    with pytest.raises(RuntimeError, match="not now"):
        run_with("30kB")
    (tmp_path / "again").touch()
    with pytest.raises(MemoryBudgetError, match="the plan of the state needs more memory"):
        run_with("22kB")
    assert ids_in(run_with("60kB")) == list(range(399))


def test_an_older_attempt_gives_up_its_rank_on_the_scheduler(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint_places, "_SECONDS", 0.2)
    place = SchedulerPlace("made-up")
    place.prepare(client, 4)
    old = place.claim(3)
    assert (old.attempt, old.load()) == (0, None)
    old.save(b"old")
    new = place.claim(3)
    assert (new.attempt, new.load()) == (1, b"old")
    with pytest.raises(ClusterError, match="another worker has taken it up"):
        old.save(b"older")
    new.save(b"new")
    assert place.claim(3).load() == b"new"
    place.remove(client, 4)
    # The scheduler hears of it on another connection than of requests.
    while client.run_on_scheduler(names_of_variables):
        time.sleep(0.01)
    with pytest.raises(ClusterError, match="its job has ended"):
        new.save(b"newer")
    with pytest.raises(ClusterError, match="its job has ended"):
        place.claim(3)
    # As an attempt that had read its number before the job ended.
    new.owner.set(2)
    with pytest.raises(ClusterError, match="its job has ended"):
        new.load()
    while client.run_on_scheduler(names_of_variables):
        time.sleep(0.01)


def names_of_variables(dask_scheduler: Any) -> list[str]:
    variables = dask_scheduler.extensions["variables"].variables
    return [name for name in variables if name.startswith("xloader")]


def test_a_folder_of_something_else_is_left_alone(
    client: Any, samples: xloader.Samples, tmp_path: Path
):
    for overwrite in (False, True):
        with pytest.raises(TargetError, match="holds no job"):
            xloader.dask.run(gather, samples, path=tmp_path, overwrite=overwrite, **OPTIONS)
    assert (tmp_path / "s.zarr").exists()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job-0123abcd.partial").touch()
    assert len(xloader.dask.run(gather, samples, path=tmp_path / "job", **OPTIONS)) == 2


@pytest.mark.parametrize(("number", "kind"), [(28, StoreFullError), (30, SourceAccessError)])
def test_a_disk_that_refuses_a_checkpoint(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    place = FolderPlace(tmp_path)
    claim = place.claim(0)
    claim.save(b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        patch.setattr(os, "open", refuse)
        for write in (claim.save, claim.finish, lambda _: place.claim(0)):
            with pytest.raises(kind):
                write(b"second")
    assert claim.load() == b"first"
    claim.save(b"third")
    assert claim.load() == b"third"


def test_a_worker_that_was_thought_lost_ends_at_its_next_save(
    client: Any, samples: xloader.Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stay(loader: Any) -> int:
        checkpoint = xloader.dask.checkpoint()
        # A task without an end would hold its worker during all later tests.
        end = time.monotonic() + 60
        if checkpoint.attempt == 0:
            (tmp_path / "where").write_text(distributed.get_worker().address)
            try:
                while time.monotonic() < end:
                    for _ in loader:
                        checkpoint.save("first")
            except ClusterError as error:
                (tmp_path / "gave up").write_text(str(error))
                raise
        # The older one may save once more, before it sees that it is not wanted.
        while not (tmp_path / "gave up").exists() and time.monotonic() < end:
            time.sleep(0.01)
        checkpoint.save("second")
        return checkpoint.attempt

    kept: list[Any] = []

    def without_lost(client: Any) -> dict[str, int]:
        """The workers, without the one that has saved a first state of rank 0."""
        threads = worker_threads(client)
        if list(tmp_path.glob("job/*/rank-0000/*.state")):
            threads.pop((tmp_path / "where").read_text(), None)
        return threads

    monkeypatch.setattr(rank_queue, "worker_threads", without_lost)
    # A lost worker does not hear that its task is cancelled.
    monkeypatch.setattr(distributed.Future, "release", lambda self: kept.append(self))
    assert xloader.dask.run(stay, samples, world_size=1, path=tmp_path / "job", **OPTIONS) == [1]
    assert "must give up rank 0" in (tmp_path / "gave up").read_text()
    monkeypatch.undo()
    for future in kept:
        future.release()
