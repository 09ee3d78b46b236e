"""Kill jobs at random moments, run them again to the end, and compare with an undisturbed run.

python -m benchmarks.kills                       # 20 kills each of stats and materialize
python -m benchmarks.kills --kills 3 --only stats --seed 7

Each job runs in a process of its own over a store that answers slowly, so that there is time to
kill it. It is killed by SIGKILL, once or several times in a row, and then run to the end. The
digests of the result must be those of an undisturbed run. One line is printed for each kill, and
the exit code is 1 if any digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import xarray as xr
from zarr.storage import LocalStore

import xloader
from xloader.jobs import merge_trees, swept_job
from xloader.testing import CountingStore, LatencyStore

DELAY_SECONDS: Final = 0.05
"""Seconds that each read of the store takes."""
BEGUN: Final = "begun"
"""Printed by a job when it starts to work, as imports take long and cannot be hurt."""
MOST_KILLS: Final = 3
"""Most kills in a row before a job may end."""
SHAPE, CHUNKS = (480, 40, 60), (10, 40, 60)


def write(path: Path) -> None:
    """Write the store of 48 chunks for each of two variables."""
    rng = np.random.default_rng(0)
    dims = ("time", "lat", "lon")
    arrays = {name: rng.normal(280, 10, SHAPE).round(2).astype("f4") for name in ("t2m", "u10")}
    ds = xr.Dataset({name: (dims, array) for name, array in arrays.items()})
    ds.to_zarr(
        path,
        zarr_format=3,
        consolidated=False,
        encoding={name: {"chunks": CHUNKS} for name in arrays},
    )


def _opened(store: Any) -> xloader.Samples:
    return xloader.open(store).window(time=4, stride={"time": 1})


def run_stats(store: Any, target: Path) -> None:
    """Compute statistics, with every option that keeps something of its own."""
    _opened(store).stats(path=target, by=None, leads=(2,), threads=2)


def run_materialize(store: Any, target: Path) -> None:
    """Write the store with other chunks, in memory that holds a small part of it."""
    chunks = {"time": 24, "lat": 20, "lon": 30}
    _opened(store).materialize(target, chunks=chunks, memory="4MiB", threads=2)


@dataclass(frozen=True)
class KilledJob:
    """A job that is killed.

    Parameters
    ----------
    run : callable
        Runs the job from a store to a target.
    suffix : str
        Suffix of the target.
    """

    run: Callable[[Any, Path], None]
    suffix: str


JOBS: Final = {
    "stats": KilledJob(run_stats, ".nc"),
    "materialize": KilledJob(run_materialize, ".zarr"),
}


def digest(target: Path) -> str:
    """Return a digest of a result: the values of a file, or the bytes of all files of a folder."""
    found = hashlib.sha256()
    if target.is_dir():
        for path in sorted(target.rglob("*")):
            if path.is_file():
                held = _without_time(path) if path.name == "zarr.json" else path.read_bytes()
                found.update(path.relative_to(target).as_posix().encode() + held)
        return found.hexdigest()
    with xr.open_dataset(target) as ds:
        for name in sorted(map(str, ds.variables)):
            found.update(name.encode() + np.ascontiguousarray(ds[name].values).tobytes())
    return found.hexdigest()


def _without_time(path: Path) -> bytes:
    """The metadata in a file, without the line that says when it was written."""
    held = json.loads(path.read_text("utf-8"))
    held.get("attributes", {}).pop("history", None)
    return json.dumps(held).encode()


def start(job: str, store: Path, target: Path) -> subprocess.Popen[str]:
    """Start a job in a process of its own, and return when it works."""
    command = [sys.executable, "-m", "benchmarks.kills", "--child", job, str(store), str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline().strip() != BEGUN:
        raise RuntimeError(f"{job} did not start: exit code {process.wait()}")
    return process


def finish(process: subprocess.Popen[str]) -> int:
    """Wait for a job to end, and return how many chunks it read."""
    told, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a job ended with {process.returncode}")
    return int(told.split()[-1])


def finish_or_kill(process: subprocess.Popen[str], seconds: float) -> int | None:
    """Kill a job after some seconds; return how many chunks it read if it ended before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    return finish(process)


def try_job(job: str, num_kills: int, seed: int, folder: Path) -> int:
    """Kill a job at random moments, print a line each, and return the number of differences."""
    store = folder / "archive.zarr"
    if not store.exists():
        write(store)
    whole = folder / f"whole{JOBS[job].suffix}"
    process = start(job, store, whole)
    begin = time.perf_counter()
    num_reads = finish(process)
    seconds, expected = time.perf_counter() - begin, digest(whole)
    print(f"{job}: undisturbed in {seconds:.1f} s, {num_reads} reads, {expected[:12]}", flush=True)
    rng = random.Random(seed)
    num_wrong = 0
    for number in range(num_kills):
        target = folder / f"{job}{number}" / f"killed{JOBS[job].suffix}"
        target.parent.mkdir()
        moments = [rng.uniform(0, seconds) for _ in range(rng.randint(1, MOST_KILLS))]
        num_left = None
        for moment in moments:
            num_left = finish_or_kill(start(job, store, target), moment)
            if num_left is None and target.is_file():
                # It was killed between its last file and its end. A file is there when it is whole.
                num_left = 0
            if num_left is not None:
                break
        if num_left is None:
            num_left = finish(start(job, store, target))
        found = digest(target)
        num_wrong += found != expected
        told = ", ".join(f"{moment:.2f}" for moment in moments)
        print(
            f"{job}: killed after {told} s; the last run read {num_left} of {num_reads}; "
            f"{'the same' if found == expected else 'DIFFERS: ' + found[:12]}",
            flush=True,
        )
        shutil.rmtree(target.parent)
    return num_wrong


def _run_child(job: str, place: str, target: str) -> None:
    store = CountingStore(LatencyStore(LocalStore(place, read_only=True), DELAY_SECONDS))
    # Opening imports what is left, and reads only metadata.
    _opened(store)
    print(BEGUN, flush=True)
    # Statistics write every ten seconds, after some hundred chunks, which is longer than this job.
    with (
        mock.patch.object(merge_trees, "_FLUSH_SECONDS", 0.0),
        mock.patch.object(swept_job, "_WAVE_CHUNKS", 8),
    ):
        JOBS[job].run(store, Path(target))
    print(sum(n for key, n in store.reads.items() if key.startswith(("t2m/", "u10/"))), flush=True)


def main() -> None:
    """Parse the command line, and try each job."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kills", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=20, help="of each job")
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _run_child(*options.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        wrong = [try_job(job, options.kills, options.seed, Path(folder)) for job in options.only]
    print(f"{sum(wrong)} of {options.kills * len(options.only)} results differ")
    sys.exit(1 if any(wrong) else 0)


if __name__ == "__main__":
    main()
