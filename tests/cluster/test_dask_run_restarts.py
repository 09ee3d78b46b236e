"""Ranks of killed workers and jobs of killed clients go on: nothing is lost or comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.cluster.conftest import distributed, local_cluster
from tests.cluster.test_dask_run import OPTIONS, Rows, expected, ids_in, make_samples, rows_of
from xloader.cluster.cluster_tasks import code_digest
from xloader.errors import ClusterError, TargetError


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """A client of a cluster whose workers are killed and started again."""
    with local_cluster(2) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def gather_and_die(saves: bool, is_late: bool, log: Path) -> Any:
    """A function that gathers rows; the worker of rank 1 dies at its first attempt."""

    def gather(loader: Any) -> tuple[Rows, int]:
        checkpoint = xloader.dask.checkpoint()
        assert (checkpoint.rank, checkpoint.world_size) == (loader.rank, loader.world_size)
        rows = checkpoint.value or []
        dies = loader.rank == 1 and checkpoint.attempt == 0
        for _ in range(loader.epoch, 2):
            for batch in loader:
                rows.append(rows_of(batch))
                with open(log / f"{loader.rank}", "a") as file:
                    file.write("batch\n")
                if saves and len(rows) % 3 == 0:
                    checkpoint.save(rows)
                if dies and not is_late and len(rows) == 11:
                    die()
        if saves:
            checkpoint.save(rows)
        if dies:
            die()
        return rows, checkpoint.attempt

    return gather


def two_epochs(samples: xloader.Samples) -> list[Rows]:
    found = []
    for rank in range(2):
        with samples.loader(**OPTIONS, world=xloader.World(rank, 2)) as loader:
            found.append([rows_of(batch) for _ in range(2) for batch in loader])
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("saves", "is_late", "has_path", "num_batches"),
    # Eight batches an epoch. The worker dies after eleven, two of which are not saved.
    [
        (False, False, False, 11 + 16),
        (True, False, False, 11 + 7),
        (True, False, True, 11 + 7),
        (True, True, True, 16),
    ],
)
def test_a_rank_of_a_killed_worker_goes_on(
    workers: Any, tmp_path: Path, saves: bool, is_late: bool, has_path: bool, num_batches: int
):
    samples = make_samples(tmp_path)
    path = tmp_path / "job" if has_path else None
    function = gather_and_die(saves, is_late, tmp_path)
    results = xloader.dask.run(
        function, samples, world_size=2, client=workers, path=path, **OPTIONS
    )
    assert [attempt for _, attempt in results] == [0, 1]
    assert [rows for rows, _ in results] == two_epochs(samples)
    assert ids_in([rows for rows, _ in results]) == sorted(list(range(len(samples))) * 2)
    assert len((tmp_path / "0").read_text().split()) == 16
    assert len((tmp_path / "1").read_text().split()) == num_batches


@pytest.mark.filterwarnings("ignore")
def test_a_rank_that_kills_all_its_workers(workers: Any, tmp_path: Path):
    with pytest.raises(ClusterError, match=r"rank 0 has lost its worker 2 times.*memory="):
        xloader.dask.run(
            lambda loader: die(),
            make_samples(tmp_path),
            world_size=1,
            client=workers,
            retries=1,
            **OPTIONS,
        )


@pytest.mark.filterwarnings("ignore")
def test_predictions_of_ranks_make_one_mosaic(workers: Any, tmp_path: Path):
    values = np.random.default_rng(0).normal(size=(20, 8, 9)).astype("f4")
    ds = xr.Dataset({"t": (("time", "y", "x"), values)})
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=3, consolidated=False)
    windows = xloader.open(tmp_path / "s.zarr").window(time=1, y=4, x=5, stride={"y": 2, "x": 2})
    samples = windows.inputs("t").targets("t")
    target = tmp_path / "ranks.zarr"
    options = {**OPTIONS, "shuffle": False}

    def predict(loader: Any) -> int:
        ranks = {"world": xloader.World(loader.rank, loader.world_size)}
        checkpoint = xloader.dask.checkpoint()
        dies = loader.rank == 1 and checkpoint.attempt == 0
        with samples.mosaic(target, blend="linear", **ranks) as out:
            for step, batch in enumerate(loader):
                if not out.is_done(batch).all():
                    out.write(batch, batch.inputs * 2)
                if dies and step == 1:
                    # The next attempt begins behind the predictions that still wait in memory.
                    checkpoint.save()
                if dies and step == 3:
                    die()
            return out.num_skipped

    xloader.dask.run(predict, samples, world_size=4, client=workers, **options)
    with samples.mosaic(tmp_path / "one.zarr", blend="linear") as out:
        for batch in samples.loader(**options, world=xloader.World()):
            out.write(batch, batch.inputs * 2)
    xr.testing.assert_identical(xr.open_zarr(target), xr.open_zarr(tmp_path / "one.zarr"))
    np.testing.assert_allclose(xr.open_zarr(target).t, values * 2, rtol=1e-6)


CLIENT = """
import sys
from pathlib import Path
import distributed, xloader
from tests.cluster import test_dask_run_restarts as tests
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with distributed.Client(sys.argv[2]):
        tests.run_slow(folder)
"""


def run_slow(folder: Path) -> list[tuple[Rows, int]]:
    samples = xloader.open(folder / "s.zarr").window(time=2, stride=1)
    return xloader.dask.run(
        gather_until_killed, samples, world_size=2, path=folder / "job", **OPTIONS
    )


def gather_until_killed(loader: Any) -> tuple[Rows, int, float]:
    """Rank 0 ends; rank 1 comes to its fifth batch, saves its third, and never ends at first."""
    checkpoint = xloader.dask.checkpoint()
    rows = checkpoint.value or []
    for _ in range(loader.epoch, 1):
        for batch in loader:
            rows.append(rows_of(batch))
            if len(rows) == 3:
                checkpoint.save(rows)
            if len(rows) == 5 and loader.rank == 1 and checkpoint.attempt == 0:
                while True:
                    for _ in loader:
                        time.sleep(0.01)
    return rows, checkpoint.attempt, time.time()


def test_a_job_of_a_killed_client_goes_on(client: Any, tmp_path: Path):
    samples = make_samples(tmp_path)
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path), client.scheduler.address],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )
    try:
        while not (
            list(tmp_path.glob("job/*/rank-0000/*.result"))
            and list(tmp_path.glob("job/*/rank-0001/*.state"))
        ):
            assert child.poll() is None
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    begun = time.time()
    results = run_slow(tmp_path)
    assert [rows for rows, *_ in results] == expected(samples, 2)
    assert [attempt for _, attempt, _ in results] == [0, 1]
    # Rank 0 had ended before.
    assert results[0][2] < begun < results[1][2]
    with pytest.raises(TargetError, match="another seed"):
        xloader.dask.run(
            gather_until_killed, samples, world_size=2, path=tmp_path / "job",
            **{**OPTIONS, "seed": 1},
        )  # fmt: skip


def test_functions_with_other_constants_are_other_code() -> None:
    first, same, other = (lambda x: x + 1), (lambda x: x + 1), (lambda x: x + 2)
    assert code_digest(first.__code__) == code_digest(same.__code__)
    assert code_digest(first.__code__) != code_digest(other.__code__)
