"""Statistics on a dask cluster of this machine: the memory of the scheduler, and the speed.

python -m benchmarks.cluster                     # 10^3, 10^4 and 10^5 shards, in about five minutes
python -m benchmarks.cluster --quick             # few shards and small data

The scheduler has a process of its own, whose workers are two more. Two parts:

- its memory during statistics over more and more shards, with a task for each shard until there are
  as many tasks as a job may have. The shards are absent and so read as zeros;
- statistics of a store of noise on the workers, beside as many threads of this process, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import zarr
from distributed import Client, LocalCluster, SchedulerPlugin

import xloader
from benchmarks import page, stats_contest
from benchmarks.measure import MIB, PeakMemory, resident_nbytes
from benchmarks.stores import ensure_stores
from benchmarks.table import make_table
from xloader.cluster import cluster_tasks

NUM_WORKERS: Final = 2
NUM_SHARDS: Final = (10**3, 10**4, 10**5)
QUICK_SHARDS: Final = (10, 100)
CHUNKS_PER_SHARD: Final = 2
CHUNK: Final = (4, 8)
SHARD_NBYTES: Final = CHUNKS_PER_SHARD * CHUNK[0] * CHUNK[1] * 4


@dataclass(frozen=True)
class SchedulerFigures:
    """The memory of a scheduler during statistics.

    Parameters
    ----------
    num_shards, num_tasks : int
        Shards of the store, and tasks of the job.
    seconds : float
        Time of the job.
    begin_nbytes, grown_nbytes : int
        Memory before the job, and how much more it was at most.
    """

    num_shards: int
    num_tasks: int
    seconds: float
    begin_nbytes: int
    grown_nbytes: int


@dataclass(frozen=True)
class SpeedFigures:
    """The best times of statistics of one store.

    Parameters
    ----------
    nbytes : int
        Decoded bytes of the store.
    cluster_seconds, thread_seconds : float
        On the workers, and on threads of this process.
    """

    nbytes: int
    cluster_seconds: float
    thread_seconds: float


def main() -> None:
    """Measure, print the tables, and write the figures as JSON."""
    options = _parse()
    if options.host:
        _host()
        return
    begin = time.perf_counter()
    memory = []
    # Each in a cluster of its own, so that none begins with the memory of another.
    for num in QUICK_SHARDS if options.quick else NUM_SHARDS:
        _tell(f"{num} shards")
        with _started() as client:
            memory.append(measure_scheduler(options.folder, num, client))
    _tell("speed")
    with _started() as client:
        speed = measure_speed(options.folder, client, is_quick=options.quick)
    command = "python -m benchmarks.cluster" + " --quick" * options.quick
    about = page.describe_run(command, time.perf_counter() - begin)
    print("\n\n".join([about, show_memory(memory), show_speed(speed)]))
    if options.json is not None:
        figures = {"scheduler": list(map(asdict, memory)), "speed": asdict(speed)}
        options.json.write_text(json.dumps({"run": about, **figures}, indent=2), "utf-8")


def measure_scheduler(folder: Path, num_shards: int, client: Client) -> SchedulerFigures:
    """Measure the memory of a scheduler during statistics over many shards."""
    samples = xloader.open(write_shards(folder, num_shards), on_missing="fill")
    client.run_on_scheduler(_begin)  # type: ignore[no-untyped-call]
    begin = time.perf_counter()
    with mock.patch.object(cluster_tasks, "_MOST_UNIT_NBYTES", SHARD_NBYTES):
        stats = samples.stats(client=client)
    seconds = time.perf_counter() - begin
    assert int(stats["t"].sel(stat="count")) == num_shards * SHARD_NBYTES // 4
    told = client.run_on_scheduler(_grown)  # type: ignore[no-untyped-call]
    num_tasks, before, grown = told
    return SchedulerFigures(num_shards, num_tasks, seconds, before, grown)


def measure_speed(folder: Path, client: Client, *, is_quick: bool) -> SpeedFigures:
    """Measure statistics on the workers and on threads, in turns."""
    spec = stats_contest.QUICK_STORE if is_quick else stats_contest.STORE
    samples = xloader.open(ensure_stores(folder, [spec])[spec])
    seconds: dict[Any, list[float]] = {client: [], False: []}
    # The first turn warms up.
    for turn in range(2 if is_quick else 4):
        for where, own in seconds.items():
            begin = time.perf_counter()
            samples.stats(client=where, threads=NUM_WORKERS)
            own += [time.perf_counter() - begin] * (turn > 0)
    return SpeedFigures(spec.nbytes, min(seconds[client]), min(seconds[False]))


def write_shards(folder: Path, num_shards: int) -> Path:
    """Write the metadata of a store of tiny shards, of which none is there."""
    path = folder / f"shards-{num_shards}.zarr"
    if not path.exists():
        length = CHUNKS_PER_SHARD * CHUNK[0]
        zarr.create_group(path).create_array(
            "t",
            shape=(num_shards * length, CHUNK[1]),
            chunks=CHUNK,
            shards=(length, CHUNK[1]),
            dtype="float32",
            dimension_names=("time", "x"),
        )
    return path


def show_memory(figures: list[SchedulerFigures]) -> str:
    """Return the table of schedulers."""
    heads = ["shards", "tasks", "seconds", "scheduler before, MiB", "grown by at most, MiB"]
    return make_table(
        heads,
        (
            [
                f"{own.num_shards:,}",
                f"{own.num_tasks:,}",
                f"{own.seconds:.1f}",
                f"{own.begin_nbytes / MIB:.0f}",
                f"{own.grown_nbytes / MIB:.1f}",
            ]
            for own in figures
        ),
    )


def show_speed(figures: SpeedFigures) -> str:
    """Return the table of speeds."""
    rows = [
        (f"{NUM_WORKERS} workers of a cluster", figures.cluster_seconds),
        (f"{NUM_WORKERS} threads of one process", figures.thread_seconds),
    ]
    heads = ["statistics on", "GB/s", "seconds"]
    told = ([who, f"{figures.nbytes / own / 1e9:.2f}", f"{own:.2f}"] for who, own in rows)
    return make_table(heads, told)


@contextmanager
def _started() -> Iterator[Client]:
    """A client of a cluster whose scheduler has a process of its own."""
    line = [sys.executable, "-m", "benchmarks.cluster", "--host"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        address = host.stdout.readline().strip()
        with Client(address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            yield client
        host.stdin.close()


def _host() -> None:
    """Run a cluster until stdin ends."""
    options = {"n_workers": NUM_WORKERS, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster:  # type: ignore[no-untyped-call]
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


class TaskCounter(SchedulerPlugin):
    """Counts the tasks of a scheduler, and measures its memory."""

    def __init__(self) -> None:
        self.num = 0
        self.begin = resident_nbytes()
        self.peak = PeakMemory()

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Count a task that has ended."""
        self.num += start == "processing" and finish == "memory"


def _begin(dask_scheduler: Any) -> None:
    """Note the memory of the scheduler, and count its tasks."""
    dask_scheduler.add_plugin(TaskCounter(), name="tasks")


def _grown(dask_scheduler: Any) -> tuple[int, int, int]:
    """Number of tasks, the memory before them, and its growth."""
    own = dask_scheduler.plugins["tasks"]
    # One of them loads what they share.
    return own.num - 1, own.begin, own.peak.nbytes


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="few shards and small data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "xloader-bench",
        help="where stores are made, and found again",
    )
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
