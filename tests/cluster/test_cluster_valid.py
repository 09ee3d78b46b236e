"""is_valid on a cluster: the mask of threads, and each chunk read by one worker, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.cluster import cluster_tasks
from xloader.errors import ClusterWarning, CorruptChunkError, MemoryBudgetError, OptionError
from xloader.sources.base import Fetched, Read
from xloader.testing import SourceRecorder, write_store

SIZES = {"time": 36, "lat": 12, "lon": 10}


def make_dataset() -> xr.Dataset:
    rng = np.random.default_rng(7)
    sst = rng.random(tuple(SIZES.values())).astype("f4")
    sst[rng.random(sst.shape) < 0.1] = np.nan
    return xr.Dataset(
        {
            "sst": (tuple(SIZES), sst),
            "tall": (tuple(SIZES), sst[::-1] * 2),
            "packed": (tuple(SIZES), np.where(sst < 0.2, np.nan, np.round(sst * 100))),
            "sharded": (tuple(SIZES), sst.astype("f8")),
            "depth": (("lat", "lon"), np.where(rng.random((12, 10)) < 0.3, np.nan, 1.0)),
            "index": ("time", np.where(rng.random(36) < 0.1, np.nan, 1.0)),
            "sea": (("lat", "lon"), rng.random((12, 10)) < 0.8),
            "whole": (tuple(SIZES), rng.random(sst.shape) < 0.9),
        },
        {"time": np.arange(36), "lat": np.linspace(80, -80, 12), "lon": np.arange(10) * 36.0},
    )


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("valid") / "s.zarr"
    chunks = {
        "sst": (5, 6, 5),
        "tall": (36, 4, 4),
        "packed": (4, 12, 10),
        "sharded": (2, 6, 5),
        "depth": (5, 5),
        "index": (8,),
        "sea": (6, 10),
        "whole": (9, 12, 10),
    }
    encoding = {
        "packed": {"dtype": "int16", "_FillValue": -999},
        "sharded": {"shards": (8, 12, 10)},
    }
    write_store(make_dataset(), chunks, path, encoding=encoding)
    return path


def counted(path: Path, log: Path) -> tuple[Samples, SourceRecorder]:
    """Samples whose reads are counted over all processes."""
    opened = xloader.open(path)
    recorder = SourceRecorder(opened.recipe.source, log=log)
    return Samples(replace(opened.recipe, source=recorder)), recorder


def points() -> Any:
    table = xr.Dataset(
        {
            "time": ("p", [30, 4, 17, 4, 9]),
            "lat": ("p", [40.0, -30.0, 10.0, 30.0, -40.0]),
            "y": ("p", [0.5, np.nan, 2.0, 3.0, 4.0]),
        }
    )
    return table.to_dataframe()


def only(samples: Samples, *names: str) -> Samples:
    """Samples of some variables."""
    return Samples(replace(samples.recipe, variables=names))


Make = Callable[[Samples], Samples]
CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "straddling": (lambda s: only(s, "sst").window(time=3, lat=4, stride=2), {"at_least": 0.9}),
    "mask as array": (
        lambda s: only(s, "sst").isel(lat=slice(1, 9)).window(time=2, stride=1),
        {"at_least": 0.66, "mask": make_dataset().sea.isel(lat=slice(1, 9))},
    ),
    "mask as variable": (
        lambda s: s.window(time=5, lat=6).inputs("sst").field("d", "depth"),
        {"at_least": 0.62, "mask": "whole"},
    ),
    "subset and split": (
        lambda s: (
            only(s, "sst", "depth").window(time=2).split(time={"train": 0.7, "test": 0.3})["train"]
        ),
        {"at_least": 0.9},
    ),
    "packed": (lambda s: only(s, "packed").window(time=3, stride=1), {"at_least": 0.72}),
    "sharded": (lambda s: only(s, "sharded").window(time=3, stride=1), {"at_least": 0.9}),
    "one block": (lambda s: only(s, "tall").window(time=3, stride=2), {"at_least": 0.9}),
    "nothing to read": (lambda s: only(s, "whole").window(time=3), {}),
}
"""Kinds of sweeps; ``jobs/test_sample_units.py`` tries any samples in units."""


@pytest.mark.parametrize("name", CASES)
def test_the_mask_of_threads_and_each_chunk_once(
    client: Any, path: Path, tmp_path: Path, name: str
) -> None:
    make, options = CASES[name]
    options = {**options, "cache": False}
    expected = make(xloader.open(path)).is_valid(**options, client=False)
    opened, recorder = counted(path, tmp_path / "log")
    mask = make(opened).is_valid(**options, client=client)
    assert mask == expected
    assert mask.num_reads == expected.num_reads == recorder.num_reads == len(recorder.reads)
    assert mask.num_valid > 0
    assert mask.num_valid < len(mask) or name == "nothing to read"


@pytest.mark.parametrize(
    ("windows", "options"),
    [
        ({"time": 2, "lon": 4}, {"wrap": "lon"}),
        ({"time": 3, "lat": 3}, {"pad": {"lat": "edge"}}),
    ],
)
def test_windows_that_wrap_or_are_padded(
    client: Any, path: Path, windows: dict[str, int], options: dict[str, Any]
) -> None:
    samples = only(xloader.open(path), "sst").window(windows, stride=1, **options)
    expected = samples.is_valid(at_least=0.9, cache=False, client=False)
    mask = samples.is_valid(at_least=0.9, cache=False)
    assert mask == expected
    assert 0 < mask.num_valid < len(mask)


def test_dropna(client: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options = CASES["straddling"]
    expected = make(xloader.open(path)).dropna(**options, client=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened, recorder = counted(path, tmp_path / "log")
    assert make(opened).dropna(**options).recipe.subset == expected.recipe.subset
    assert recorder.num_reads == len(recorder.reads) > 0


def test_points_and_labels(client: Any, path: Path) -> None:
    samples = only(xloader.open(path), "sst").window(time=2, lat=3)
    samples = samples.at_points(points(), method="nearest")
    expected = samples.is_valid(at_least=0.85, cache=False, client=False)
    assert samples.is_valid(at_least=0.85, cache=False) == expected
    assert 0 < expected.num_valid < len(expected)


class DyingSource(SourceRecorder):
    """The process that first reads one chunk is killed at that point."""

    mark: Path
    chunk: tuple[int, ...]

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        if any(read.chunk == self.chunk for read in reads) and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fetch(reads)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_worker_that_is_killed_costs_nothing_but_time(
    mortal_client: Any, path: Path, tmp_path: Path
) -> None:
    opened = xloader.open(path)
    source = DyingSource(opened.recipe.source, log=tmp_path / "log")
    source.mark, source.chunk = tmp_path / "mark", (4, 1, 1)
    samples = Samples(replace(opened.recipe, source=source))
    make, options = CASES["straddling"]
    expected = make(opened).is_valid(**options, cache=False, client=False)
    mask = make(samples).is_valid(**options, cache=False, client=mortal_client)
    assert source.mark.exists()
    assert mask == expected
    # What the lost worker had read is counted once.
    assert mask.num_reads == expected.num_reads == len(source.reads)


CLIENT = """
import os, signal, sys
import distributed
import xloader
from tests.cluster.test_cluster_valid import CASES
from xloader.jobs.valid import window_counter

def killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)

window_counter.WindowCounter.add_unit = killed
with distributed.Client(sys.argv[1]) as client:
    make, options = CASES["straddling"]
    make(xloader.open(sys.argv[2])).is_valid(**options, cache=False)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_client_that_is_killed_leaves_the_cluster_as_it_was(client: Any, path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", CLIENT, client.scheduler.address, str(path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    make, options = CASES["straddling"]
    samples = make(xloader.open(path))
    expected = samples.is_valid(**options, cache=False, client=False)
    assert samples.is_valid(**options, cache=False) == expected


def test_caches_are_kept_by_the_client(client: Any, path: Path, tmp_path: Path) -> None:
    samples = only(xloader.open(path), "sst").window(time=2)
    first = samples.is_valid(at_least=0.9, cache=tmp_path / "c")
    assert first.num_reads
    again = samples.is_valid(at_least=0.9, cache=tmp_path / "c", client=False)
    assert again == first
    assert not again.num_reads


def test_what_is_too_large_to_be_sent_is_refused(
    client: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = only(xloader.open(path), "sst", "whole").window(time=2).inputs("sst")
    options: dict[str, Any] = {"at_least": 0.5, "cache": False, "mask": "whole"}
    most = len(cluster_tasks.dump((samples.recipe, None))) + 36 * 12 * 10 // 8
    monkeypatch.setattr(cluster_tasks, "MOST_SHARED_NBYTES", most + 500)
    expected = samples.is_valid(**options, client=client)
    monkeypatch.setattr(cluster_tasks, "MOST_SHARED_NBYTES", most - 100)
    with pytest.raises(OptionError, match=r"cannot be sent.*a mask along fewer dimensions"):
        samples.is_valid(**options, client=client)
    # The active client is not one that was asked for: threads of this process do it.
    with pytest.warns(ClusterWarning, match="the function or mask cannot be sent"):
        assert samples.is_valid(**options) == expected


def test_errors(client: Any, path: Path, tmp_path: Path) -> None:
    samples = only(xloader.open(path), "sst").window(time=2)
    with pytest.raises(MemoryBudgetError, match="one chunk at work"):
        samples.is_valid(memory=100, cache=False)
    write_store(make_dataset()[["sst"]], {"sst": (10, 12, 10)}, tmp_path / "bad")
    (tmp_path / "bad" / "sst" / "c" / "1" / "0" / "0").write_bytes(b"nonsense")
    with pytest.raises(CorruptChunkError, match="sst"):
        xloader.open(tmp_path / "bad").window(time=2).is_valid(cache=False)
    with pytest.raises(OptionError, match="client is not a dask client"):
        samples.is_valid(client="tcp://here:1")
