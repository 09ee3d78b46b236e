"""All jobs that keep something, disturbed at any moment: ended, by an equal job, or by the disk."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xloader
from tests.jobs.tasks_here import TasksHere, run_here
from tests.moments import Killed, killed_at, watched
from xloader.errors import SourceAccessError, StoreFullError, XloaderError
from xloader.testing import write_store

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Job:
    """A job that writes. `has_errors`: whether a disk that refuses is an error to it."""

    name: str
    run: Callable[[xloader.Samples, Path], Any]
    has_errors: bool = True

    def values(self, samples: xloader.Samples, path: Path) -> xr.Dataset:
        """What it has written."""
        if path.is_dir() and path.suffix != ".zarr":
            # Kept for the next call, which finds it.
            return xr.Dataset({"kept": ("sample", np.asarray(self.run(samples, path)))})
        options: dict[str, Any] = {} if path.suffix == ".nc" else {"engine": "zarr"}
        with xr.open_dataset(path, **options) as found:
            return found.load().drop_attrs()


def mosaic(samples: xloader.Samples, path: Path) -> None:
    with samples.mosaic(path) as out:
        left = out.remaining_ids
        for batch in samples.select(left).loader(batch_size=4, shuffle=False, output="numpy"):
            out.write(batch, batch.targets + 1, selected=left)
            out.flush()


def materialize(samples: xloader.Samples, path: Path, memory: str = "1GiB") -> Any:
    return samples.materialize(path, chunks={"time": 2}, memory=memory, threads=1, progress=False)


def pass_between(samples: xloader.Samples, path: Path) -> None:
    """The values go through an intermediate store."""
    values = np.random.default_rng(0).normal(size=(48, 8, 8))
    ds = xr.Dataset({"t": (("time", "lat", "lon"), values)})
    long = xloader.open(write_store(ds, {"t": (48, 2, 2)})).window(time=2)
    done = materialize(long, path, "20KB")
    assert done.variables[0].intermediate_chunks or done.variables[0].num_written < 24


def total(batch: Any) -> Any:
    return batch.targets.reshape(len(batch.ids), -1).sum(axis=1)


JOBS = [
    Job("mosaic.zarr", mosaic),
    Job("target.zarr", materialize),
    Job("stats.nc", lambda samples, path: samples.stats(path=path, by="month", threads=1)),
    Job("stats.zarr", lambda samples, path: samples.stats(path=path, by="month", threads=1)),
    Job("masks", lambda samples, path: samples.is_valid(cache=path), has_errors=False),
    Job("scores", lambda samples, path: samples.score(total, cache=path), has_errors=False),
]
by_name = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)


@pytest.fixture
def samples(tmp_path: Path) -> xloader.Samples:
    values = np.random.default_rng(0).normal(size=(6, 2, 2))
    values[4, 1] = np.nan
    time = pd.date_range("2001-01-30", periods=6)
    ds = xr.Dataset({"t": (("time", "lat", "lon"), values)}, {"time": time})
    ds.to_zarr(tmp_path / "s", consolidated=False, encoding={"t": {"chunks": (2, 2, 2)}})
    return xloader.open(tmp_path / "s").window(time=2, stride=1).targets("t")


@by_name
@pytest.mark.parametrize("first", range(2))
def test_an_equal_job_may_come_at_any_moment(
    job: Job, first: int, samples: xloader.Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job runs from its start to its end in the middle of this one, without locks."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    job.run(samples, tmp_path / job.name)
    expected = job.values(samples, tmp_path / job.name)
    num_met = 0
    for number in itertools.count(first, 12):
        path = tmp_path / f"{number}" / job.name
        path.parent.mkdir()
        met = []

        def meet(current: int) -> None:
            # zarr cannot begin a second job in the thread of its event loop.
            is_here = current == number and "zarr" not in threading.current_thread().name  # noqa: B023
            if is_here:
                met.append(job.run(samples, path))  # noqa: B023

        with watched(path.parent, meet) as done:
            job.run(samples, path)
        if len(done) <= number:
            break
        num_met += len(met)
        assert job.values(samples, path).identical(expected), done[number]
        assert os.listdir(path.parent) == [job.name], done[number]
    assert num_met > job.has_errors


@by_name
def test_a_job_that_is_killed_at_any_moment_goes_on(
    job: Job, samples: xloader.Samples, tmp_path: Path
) -> None:
    job.run(samples, tmp_path / job.name)
    expected = job.values(samples, tmp_path / job.name)
    for number in itertools.count(step=9):
        path = tmp_path / f"{number}" / job.name
        path.parent.mkdir()
        with killed_at(number, path.parent) as done:
            job.run(samples, path)
        if len(done) <= number:
            break
        job.run(samples, path)
        assert job.values(samples, path).identical(expected), done[number]
        assert os.listdir(path.parent) == [job.name], done[number]
    assert number > (20 if job.has_errors else 0)


@pytest.mark.parametrize(
    "job",
    [*JOBS[1:], Job("between.zarr", pass_between)],
    ids=lambda job: job.name,
)
def test_a_job_that_is_killed_after_any_unit_goes_on(
    job: Job, samples: xloader.Samples, tmp_path: Path
) -> None:
    """The work is cut and merged as on a cluster."""
    job.run(samples, tmp_path / job.name)
    expected = job.values(samples, tmp_path / job.name)
    for most in itertools.count():
        path = tmp_path / f"{most}" / job.name
        path.parent.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            run_here(patch, TasksHere(None, most=most, seed=most))
            try:
                job.run(samples, path)
                break
            except Killed:
                pass
            run_here(patch, TasksHere(None, seed=most + 1))
            job.run(samples, path)
        assert job.values(samples, path).identical(expected)
        assert os.listdir(path.parent) == [job.name]
    assert most > 1


@by_name
@pytest.mark.parametrize(
    ("number_of_error", "kind"),
    [(errno.ENOSPC, StoreFullError), (errno.EROFS, SourceAccessError)],
)
def test_a_disk_that_refuses_at_any_moment(
    job: Job,
    number_of_error: int,
    kind: type[XloaderError],
    samples: xloader.Samples,
    tmp_path: Path,
) -> None:
    job.run(samples, tmp_path / job.name)
    expected = job.values(samples, tmp_path / job.name)
    kinds = set()
    for number in itertools.count(0, 16):
        path = tmp_path / f"{number}" / job.name
        path.parent.mkdir()

        def refuse(current: int) -> None:
            if current >= number:  # noqa: B023
                raise OSError(number_of_error, os.strerror(number_of_error))

        try:
            with watched(path.parent, refuse) as done:
                job.run(samples, path)
        except XloaderError as error:
            kinds.add(type(error))
        if len(done) <= number:
            break
        # There is room now.
        job.run(samples, path)
        assert job.values(samples, path).identical(expected), done[number]
    assert kinds == ({kind} if job.has_errors else set())
