"""Stores that a cluster writes: bytes of threads, predicted reads, lost workers and clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import zarr

import xloader
from tests.cluster.conftest import distributed
from tests.jobs.test_materialize_restarts import (
    BETWEEN,
    DIRECT,
    OPTIONS,
    make_dataset,
    objects_in,
    source_at,
)
from xloader import Samples
from xloader.errors import CorruptChunkError, MemoryBudgetError, OptionError, TargetError
from xloader.sources.base import Fetched, Read
from xloader.testing import SourceRecorder

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    # A worker that is killed closes its connections.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return source_at(tmp_path / "source.zarr")


Place = tuple[str, tuple[int, ...]]


class Trap:
    """A source that kills the process that reads one chunk first, or holds it there.

    Parameters
    ----------
    source : Source
        The source.
    place : (str, tuple of int)
        The variable, and the index of the chunk.
    folder : pathlib.Path
        Where the first that comes leaves the file ``caught``. It waits until ``free`` lies there.
    kill : bool
        Whether the process is killed instead.
    """

    def __init__(self, source: Any, place: Place, folder: Path, *, kill: bool) -> None:
        self._source, self._place, self._folder, self._kill = source, place, folder, kill

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        found = self._source.fetch(reads)
        if any((own.variable, own.chunk) == self._place for own in reads) and self._is_first():
            if self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            while not (self._folder / "free").exists():
                time.sleep(0.01)
        return found

    def _is_first(self) -> bool:
        try:
            (self._folder / "caught").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_source"], name)


Make = Callable[[Samples], Samples]

CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "read once": (lambda samples: samples, {**OPTIONS, "memory": DIRECT}),
    "through an intermediate store": (lambda samples: samples, {**OPTIONS, "memory": BETWEEN}),
    "chunks": (lambda samples: samples, {"chunks": {"time": 5, "y": 7}}),
    "packed": (lambda samples: samples, {**OPTIONS, "pack": {"u": "int16"}, "verify": True}),
    "selected": (
        lambda samples: samples.select([0, 1, 2, 30]),
        {"chunks": {"time": 4, "x": 8}, "shards": {"time": 4, "x": 16}, "dtype": "float16"},
    ),
    "split": (
        lambda samples: samples.split(time={"train": slice(0, 50), "test": slice(60, 96)})["train"],
        {"chunks": {"time": 4}},
    ),
}


def check_on(client: Any, samples: Samples, folder: Path, case: str) -> None:
    make, options = CASES[case]
    expected = make(samples).materialize(folder / "threads.zarr", client=False, **options)
    recorder = SourceRecorder(samples.recipe.source, log=folder / "reads")
    recorded = make(xloader.open(recorder).window(time=3))
    plan = recorded.materialize(folder / "t.zarr", client=client, dry_run=True, **options)
    assert recorder.num_reads == 0
    assert plan.num_cluster_threads == len(client.nthreads())
    assert f"on a cluster of {plan.num_cluster_threads} threads" in str(plan)
    done = recorded.materialize(folder / "t.zarr", client=client, **options)
    assert done.is_complete
    assert done.is_verified == bool(options.get("verify"))
    assert objects_in(folder / "t.zarr") == objects_in(folder / "threads.zarr")
    assert recorder.num_reads == done.num_reads + done.num_bounds_reads
    assert done.num_bounds_reads == plan.num_bounds_reads == expected.num_bounds_reads
    for own, by_plan, by_threads in zip(
        done.variables, plan.variables, expected.variables, strict=True
    ):
        assert own.num_reads == own.expected_reads == by_plan.expected_reads
        assert (own.digest, own.max_error) == (by_threads.digest, by_threads.max_error)
        assert (own.num_written, own.stored_nbytes) == (
            by_threads.num_written,
            by_threads.stored_nbytes,
        )
        is_between = case == "through an intermediate store" and own.name == "t"
        assert (own.intermediate_chunks is not None) == is_between
    pids = {pid for pid, _ in recorder._tally.lines()}
    assert os.getpid() not in pids
    # Nothing is left to do, for a cluster or for threads.
    assert recorded.materialize(folder / "t.zarr", client=client, **options).num_reads == 0
    assert make(samples).materialize(folder / "t.zarr", client=False, **options).num_reads == 0


@pytest.mark.parametrize("case", CASES)
def test_stores_have_the_bytes_of_threads(
    client: Any, samples: Samples, tmp_path: Path, case: str
) -> None:
    check_on(client, samples, tmp_path, case)


def test_an_active_client_is_used(client: Any, samples: Samples, tmp_path: Path) -> None:
    recorder = SourceRecorder(samples.recipe.source, log=tmp_path / "reads")
    recorded = xloader.open(recorder).window(time=3)
    done = recorded.materialize(tmp_path / "t.zarr", chunks={"time": 10})
    assert done.num_cluster_threads == 2
    assert set(recorder.reads.values()) == {1}
    assert {pid for pid, _ in recorder._tally.lines()} <= set(client.run(os.getpid).values())


def test_a_small_job_is_cut_into_many_sections(
    client: Any, samples: Samples, tmp_path: Path
) -> None:
    options = {"chunks": {"time": 4}, "dry_run": True}
    alone = samples.materialize(tmp_path / "t.zarr", client=False, **options)
    there = samples.materialize(tmp_path / "t.zarr", **options)
    nbytes = [[own.section_nbytes for own in one.variables] for one in (alone, there)]
    # All of "t" must be held to read its chunks once; those of "u" may be read one by one.
    assert nbytes[0][0] == nbytes[1][0]
    assert nbytes[1][1] <= nbytes[0][1] // 4
    assert [own.expected_reads for own in there.variables] == [64, 10]


def test_targets_that_workers_do_not_reach(client: Any, samples: Samples, tmp_path: Path) -> None:
    for target in (zarr.storage.MemoryStore(), "memory://cluster.zarr"):
        with pytest.raises(OptionError, match="workers of a cluster cannot write to the target"):
            samples.materialize(target, client=client, **OPTIONS)
        # With an active client only, this process writes it.
        done = samples.materialize(target, **OPTIONS)
        assert done.is_complete
        assert done.num_cluster_threads == 0
    with pytest.raises(OptionError, match="a cluster divides the work itself"):
        samples.materialize(tmp_path / "t.zarr", client=client, part=(0, 2), **OPTIONS)
    part = samples.materialize(tmp_path / "t.zarr", part=(0, 2), **OPTIONS)
    assert part.num_cluster_threads == 0


def test_a_session_of_icechunk(client: Any, samples: Samples) -> None:
    icechunk = pytest.importorskip("icechunk")
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    with pytest.raises(OptionError, match="a session of icechunk, which one process writes"):
        samples.materialize(session, client=client, **OPTIONS)
    assert samples.materialize(session, **OPTIONS).num_cluster_threads == 0


def test_an_error_of_a_task(client: Any, samples: Samples, tmp_path: Path) -> None:
    path = tmp_path / "source.zarr" / "u" / "c" / "3" / "0" / "0"
    data = path.read_bytes()
    path.write_bytes(data[:20])
    with pytest.raises(CorruptChunkError, match="variable 'u'"):
        samples.materialize(tmp_path / "t.zarr", **OPTIONS)
    path.write_bytes(data)
    done = samples.materialize(tmp_path / "t.zarr", **OPTIONS)
    assert done.is_complete


def test_overwrite(client: Any, samples: Samples, tmp_path: Path) -> None:
    samples.materialize(tmp_path / "t.zarr", **OPTIONS)
    with pytest.raises(TargetError, match="other codecs"):
        samples.materialize(tmp_path / "t.zarr", compressor="lz4", **OPTIONS)
    again = samples.materialize(tmp_path / "t.zarr", compressor="lz4", overwrite=True, **OPTIONS)
    assert sum(own.num_written for own in again.variables) == 24
    with xr.open_zarr(tmp_path / "t.zarr") as found:
        xr.testing.assert_equal(found, make_dataset())


def has_begun(folder: Path) -> bool:
    return (folder / "caught").exists()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)


LAST_OF_U: Place = ("u", (9, 0, 0))
IN_T: Place = ("t", (0, 4, 4))


@pytest.mark.filterwarnings("ignore")
def test_workers_that_are_killed(mortal_client: Any, samples: Samples, tmp_path: Path) -> None:
    """One while sections are written, and one while the intermediate store is filled."""
    samples.materialize(tmp_path / "threads.zarr", client=False, memory=DIRECT, **OPTIONS)
    source, folders = samples.recipe.source, [tmp_path / "first", tmp_path / "second"]
    for folder, place in zip(folders, (LAST_OF_U, IN_T), strict=True):
        folder.mkdir()
        source = Trap(source, place, folder, kill=True)
    trapped = xloader.open(source).window(time=3)
    done = trapped.materialize(tmp_path / "t.zarr", memory=BETWEEN, verify=True, **OPTIONS)
    assert all(map(has_begun, folders))
    assert done.is_complete
    assert done.variables[0].intermediate_chunks is not None
    assert [own.num_written for own in done.variables] == [12, 12]
    assert done.num_reads == done.expected_reads
    # Files that the worker had begun are gone, too.
    assert objects_in(tmp_path / "t.zarr") == objects_in(tmp_path / "threads.zarr")


CLIENT = """
import sys
from pathlib import Path
import distributed, xloader
from tests.cluster.test_cluster_materialize import OPTIONS, Trap
folder, address, memory, place = Path(sys.argv[1]), sys.argv[2], sys.argv[3], eval(sys.argv[4])
source = xloader.open(folder / "source.zarr").recipe.source
samples = xloader.open(Trap(source, place, folder, kill=False)).window(time=3)
with distributed.Client(address) as client:
    samples.materialize(folder / "t.zarr", memory=memory, client=client, **OPTIONS)
"""


def killed_client(folder: Path, address: str, memory: str, place: Place) -> None:
    """Write in a process of its own, and kill it while a task of it holds a chunk."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(folder), address, memory, repr(place)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        wait_for(lambda: has_begun(folder) or process.poll() is not None)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def wide_cluster() -> Iterator[Any]:
    """One worker with two threads: where a task holds one of them, the other goes on."""
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, dashboard_address=":0"
    ) as cluster:
        yield cluster


def test_the_memory_of_a_worker_is_divided_by_its_threads(
    wide_cluster: Any, samples: Samples, tmp_path: Path
) -> None:
    samples = xloader.open(tmp_path / "source.zarr", variables=["u"]).window(time=3)
    with distributed.Client(wide_cluster) as client:
        with pytest.raises(MemoryBudgetError, match="each of 2 threads of a worker") as error:
            samples.materialize(tmp_path / "t.zarr", client=client, memory=1000, **OPTIONS)
        least = error.value.minimum_nbytes
        options = {**OPTIONS, "dry_run": True}
        plan = samples.materialize(tmp_path / "t.zarr", memory=least, **options)
        alone = samples.materialize(tmp_path / "t.zarr", memory=least // 2, client=False, **options)
    assert plan.expected_peak_nbytes == 2 * alone.expected_peak_nbytes <= least


def wait_for_tasks(client: Any) -> None:
    """Wait until no worker does anything."""
    wait_for(lambda: not any(client.run(count_tasks).values()))


def count_tasks(dask_worker: Any) -> int:
    return len(dask_worker.active_threads)


@pytest.mark.parametrize(
    ("memory", "place", "is_held"), [("2MiB", LAST_OF_U, False), ("512KiB", IN_T, True)]
)
def test_a_client_that_is_killed(
    wide_cluster: Any, samples: Samples, tmp_path: Path, memory: str, place: Place, is_held: bool
) -> None:
    samples.materialize(tmp_path / "threads.zarr", client=False, memory=DIRECT, **OPTIONS)
    killed_client(tmp_path, wide_cluster.scheduler_address, memory, place)
    with distributed.Client(wide_cluster) as client:
        if not is_held:
            # The task of the dead client goes on beside those of the next call.
            (tmp_path / "free").touch()
        done = samples.materialize(tmp_path / "t.zarr", memory=memory, verify=True, **OPTIONS)
        # Or it goes on when the store is complete, and must leave nothing there.
        (tmp_path / "free").touch()
        wait_for_tasks(client)
    assert done.is_complete
    assert done.num_cluster_threads == 2
    assert done.num_reads == done.expected_reads
    assert sum(own.num_done + own.num_written for own in done.variables) == 24
    (is_between,) = {own.intermediate_chunks is not None for own in done.variables[:1]}
    assert is_between == (place == IN_T) or done.variables[0].num_written == 0
    assert objects_in(tmp_path / "t.zarr") == objects_in(tmp_path / "threads.zarr")


def test_a_task_of_a_killed_client_spoils_no_other_store(
    wide_cluster: Any, samples: Samples, tmp_path: Path
) -> None:
    options = {**OPTIONS, "compressor": "lz4"}
    samples.materialize(tmp_path / "threads.zarr", client=False, **options)
    killed_client(tmp_path, wide_cluster.scheduler_address, DIRECT, LAST_OF_U)
    with distributed.Client(wide_cluster) as client:
        done = samples.materialize(tmp_path / "t.zarr", overwrite=True, **options)
        (tmp_path / "free").touch()
        wait_for_tasks(client)
    assert done.is_complete
    assert objects_in(tmp_path / "t.zarr") == objects_in(tmp_path / "threads.zarr")
