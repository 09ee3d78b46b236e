"""score and advise on a cluster: the numbers of threads, and few chunks read twice."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xloader
from xloader import Batch, Samples
from xloader.errors import ClusterError, ClusterWarning, OptionError, TransformError
from xloader.jobs.valid.batch_sweep import cut_samples, num_reads
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.testing import SourceRecorder, write_store


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    ds = xr.Dataset(
        {
            "rain": (("time", "lat", "lon"), rng.gamma(0.5, 2.0, (96, 12, 10))),
            "depth": (("lat", "lon"), rng.random((12, 10))),
        },
        {"time": np.arange(96), "lat": np.arange(12.0), "lon": np.arange(10.0)},
    )
    path = tmp_path_factory.mktemp("scores") / "s.zarr"
    chunks = {"rain": (8, 6, 10), "depth": (12, 10)}
    write_store(ds, chunks, path, encoding={"rain": {"shards": (16, 12, 10)}})
    return path


def counted(path: Path, log: Path) -> tuple[Samples, SourceRecorder]:
    opened = xloader.open(path)
    recorder = SourceRecorder(opened.recipe.source, log=log)
    return Samples(replace(opened.recipe, source=recorder, variables=("rain",))), recorder


CASES: dict[str, Any] = {
    "straddling": lambda s: s.window(time=5, stride=2),
    "2-d": lambda s: s.window(time=8, lat=6),
    "subset": lambda s: s.window(time=4).select([9, 2, 17, 23, 2]),
    "wrap": lambda s: s.window(time=8, lon=4, stride={"lon": 3}, wrap="lon"),
    "points": lambda s: s.window(time=3, lat=3).at_points(
        pd.DataFrame({"time": [40, 3, 90], "lat": [4.0, 9.0, 2.0], "name": ["a", "b", "c"]})
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_threads(client: Any, path: Path, tmp_path: Path, name: str) -> None:
    def wet(batch: Batch) -> Any:
        # By id, too: workers see the ids of all samples.
        return batch.rain.reshape(len(batch.ids), -1).mean(axis=1) + 1e-3 * batch.ids

    expected = CASES[name](xloader.open(path)).score(wet, client=False)
    opened, recorder = counted(path, tmp_path / "log")
    samples = CASES[name](opened)
    scores = samples.score(wet)
    np.testing.assert_array_equal(scores, expected)
    assert scores.dtype == np.float64
    footprint = make_footprint(samples.recipe.planned, make_layouts(samples.recipe.planned))
    if name in ("2-d", "wrap"):
        assert recorder.num_reads == len(recorder.reads) == footprint.num_needed
    else:
        units = cut_samples(footprint, 1 << 12, 2)
        assert recorder.num_reads <= num_reads(footprint, units)


def test_errors_of_the_function_and_caches(client: Any, path: Path, tmp_path: Path) -> None:
    samples = xloader.open(path).window(time=4)
    with pytest.raises(TransformError, match="function of score failed: ZeroDivisionError"):
        samples.score(lambda batch: len(batch.ids) / 0)
    with pytest.raises(OptionError, match="does not return a number for each sample"):
        samples.score(lambda batch: batch.rain)
    held = np.zeros(2_000_000)
    with pytest.raises(OptionError, match="cannot be sent to the workers"):
        samples.score(lambda batch: held[batch.ids], client=client)
    # The active client is not one that was asked for.
    with pytest.warns(ClusterWarning, match="the function or mask cannot be sent"):
        assert not samples.score(lambda batch: held[batch.ids]).any()
    first = samples.score(mean_rain, cache=tmp_path / "own")
    assert len(list((tmp_path / "own").rglob("*.scores"))) == 1
    np.testing.assert_array_equal(samples.score(mean_rain, cache=tmp_path / "own"), first)


def mean_rain(batch: Batch) -> Any:
    return batch.rain.mean(axis=(1, 2, 3))


def test_a_module_that_workers_lack(client: Any, path: Path, tmp_path: Path) -> None:
    name = "only_here_of_scores"
    (tmp_path / f"{name}.py").write_text(
        "def mean(batch):\n    return batch.rain.mean((1, 2, 3))\n"
    )
    samples = xloader.open(path).window(time=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        module = importlib.import_module(name)
        with pytest.raises(ClusterError, match=rf"lacks a module.*{name}.*upload_file"):
            samples.score(module.mean, client=client)
        cloudpickle.register_pickle_by_value(module)
        try:
            scores = samples.score(module.mean, client=client)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    np.testing.assert_array_equal(scores, samples.score(mean_rain, client=False))


def test_advice_is_measured_by_a_worker(client: Any, path: Path, tmp_path: Path) -> None:
    opened, recorder = counted(path, tmp_path / "log")
    samples = opened.window(time=4)
    advice = samples.advise(measure=True, batch_size=4)
    assert advice.speed.is_measured
    assert recorder.num_reads == advice.speed.num_reads
    own = SourceRecorder(opened.recipe.source)
    here = Samples(replace(samples.recipe, source=own))
    # Reads without a log are counted in their own process.
    assert here.advise(measure=True, batch_size=4).speed.is_measured
    assert not own.num_reads
    assert here.advise(measure=True, batch_size=4, client=False).speed.is_measured
    assert own.num_reads
    assert not here.advise(batch_size=4, client=client).speed.is_measured
