"""Jobs that write, disturbed at any moment: by an equal job on the same path, or by the disk."""

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
from tests.moments import killed_at, watched
from xloader.errors import SourceAccessError, StoreFullError, XloaderError

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Job:
    """A job that writes, and the way in which its result is read."""

    name: str
    run: Callable[[xloader.Samples, Path], Any]

    def values(self, path: Path) -> xr.Dataset:
        """The result."""
        options: dict[str, Any] = {} if path.suffix == ".nc" else {"engine": "zarr"}
        with xr.open_dataset(path, **options) as found:
            return found.load().drop_attrs()


def mosaic(samples: xloader.Samples, path: Path) -> None:
    with samples.mosaic(path) as out:
        left = out.remaining_ids
        for batch in samples.select(left).loader(batch_size=4, shuffle=False, output="numpy"):
            out.write(batch, batch.targets + 1, selected=left)
            out.flush()


def materialize(samples: xloader.Samples, path: Path) -> None:
    samples.materialize(path, chunks={"time": 2}, threads=1, progress=False)


JOBS = [
    Job("mosaic.zarr", mosaic),
    Job("target.zarr", materialize),
    Job("stats.nc", lambda samples, path: samples.stats(path=path, by="month", threads=1)),
    Job("stats.zarr", lambda samples, path: samples.stats(path=path, by="month", threads=1)),
]
by_name = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)


@pytest.fixture
def samples(tmp_path: Path) -> xloader.Samples:
    values = np.random.default_rng(0).normal(size=(6, 2, 2))
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
    expected = job.values(tmp_path / job.name)
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
        assert job.values(path).identical(expected), done[number]
        assert os.listdir(path.parent) == [job.name], done[number]
    assert num_met > 1


@by_name
def test_a_job_that_is_killed_at_any_moment_goes_on(
    job: Job, samples: xloader.Samples, tmp_path: Path
) -> None:
    job.run(samples, tmp_path / job.name)
    expected = job.values(tmp_path / job.name)
    for number in itertools.count(step=7):
        path = tmp_path / f"{number}" / job.name
        path.parent.mkdir()
        with killed_at(number, path.parent) as done:
            job.run(samples, path)
        if len(done) <= number:
            break
        job.run(samples, path)
        assert job.values(path).identical(expected), done[number]
        assert os.listdir(path.parent) == [job.name], done[number]
    assert number > 20


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
    expected = job.values(tmp_path / job.name)
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
        assert job.values(path).identical(expected), done[number]
    assert kinds == {kind}
