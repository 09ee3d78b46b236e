"""Scores of samples: each chunk is read once, and the numbers are those of the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given

import xloader
from tests.cases import Case, cases
from xloader import Batch
from xloader.errors import OptionError, TransformError, UnknownNameError
from xloader.testing import CountingStore, write_store


def first_sum(batch: Batch) -> Any:
    return batch[0].reshape(len(batch.ids), -1).astype("f8").sum(axis=1)


def with_rain(num_steps: int = 96) -> xr.Dataset:
    rain = np.random.default_rng(0).random((num_steps, 12, 10))
    return xr.Dataset({"rain": (("time", "lat", "lon"), rain)})


@given(case=cases())
def test_scores_are_those_of_the_samples(case: Case) -> None:
    scores = case.samples.score(first_sum, memory="64MiB", batch_size=5)
    assert scores.dtype == np.float64
    expected = [case.sample(i)[0].astype("f8").sum() for i in range(len(case.samples))]
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


@pytest.mark.parametrize("memory", ["2GiB", 300_000])
@pytest.mark.parametrize("window", [{"time": 3}, {"time": 2, "lat": 5, "lon": 5}])
def test_each_chunk_is_read_once(memory: int | str, window: dict[str, int]) -> None:
    store = CountingStore(write_store(with_rain(), {"rain": (8, 6, 5)}))
    samples = xloader.open(store).window(window, stride=1)
    store.reset()
    samples.score(lambda batch: batch.rain.reshape(len(batch.ids), -1).max(axis=1), memory=memory)
    assert len(store.reads) == 12 * 2 * 2
    assert store.num_reads == len(store.reads)


def test_weights_do_not_matter_and_scores_choose() -> None:
    samples = xloader.open(with_rain()).window(time=2)
    scores = samples.score(first_sum)
    np.testing.assert_array_equal(samples.weighted(np.arange(48) % 3).score(first_sum), scores)
    wet = samples.select(scores > np.median(scores))
    np.testing.assert_array_equal(wet.score(first_sum), scores[scores > np.median(scores)])
    with samples.weighted(scores).loader(batch_size=8, output="numpy") as loader:
        assert loader.num_samples == 48
    slab = samples.slab("lat", 1, 2)
    np.testing.assert_array_equal(slab.score(first_sum), scores)


LEAST = 0.5


def num_wet(batch: Batch) -> Any:
    return (batch.rain > LEAST).sum(axis=(1, 2, 3))


def test_scores_follow_what_the_function_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(with_rain(), {"rain": (8, 6, 5)}, tmp_path / "s")
    samples = xloader.open(tmp_path / "s").window(time=2)
    before = samples.score(num_wet, cache=tmp_path / "own")
    monkeypatch.setitem(globals(), "LEAST", 2.0)
    assert before.any()
    assert not samples.score(num_wet, cache=tmp_path / "own").any()


def test_scores_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_store(with_rain(), {"rain": (8, 6, 5)}, tmp_path / "s")
    calls: list[int] = []

    def counting(batch: Batch) -> Any:
        calls.append(1)
        return first_sum(batch)

    samples = xloader.open(tmp_path / "s").window(time=2)
    before = samples.score(first_sum)
    (file,) = (tmp_path / "cache").rglob("*.scores")
    monkeypatch.setattr("xloader.jobs.valid.sample_scores.BatchSweep", None)
    np.testing.assert_array_equal(
        xloader.open(tmp_path / "s").window(time=2).score(first_sum), before
    )
    # Another function, other samples, a damaged file, and no cache are computed.
    for make in (
        lambda: samples.score(lambda batch: first_sum(batch) * 2),
        lambda: samples.select([1, 2]).score(first_sum),
        lambda: samples.score(first_sum, cache=False),
        lambda: samples.score(counting),
        lambda: samples.map(lambda ds: ds * 2).score(first_sum),
        lambda: file.write_bytes(file.read_bytes()[:-1]) and samples.score(first_sum),
    ):
        with pytest.raises(TypeError):
            make()
    assert not calls


def test_bad_functions() -> None:
    samples = xloader.open(with_rain()).window(time=2)
    with pytest.raises(OptionError, match=r"score needs a function.*'rain'"):
        samples.score("rain")  # type: ignore[arg-type]
    with pytest.raises(
        OptionError, match=r"number for each sample.*\(48, 2, 12, 10\) for 48 samples"
    ):
        samples.score(lambda batch: batch.rain)
    with pytest.raises(UnknownNameError, match=r"no field.*'snow'"):
        samples.score(lambda batch: batch["snow"].mean(axis=(1, 2, 3)))
    with pytest.raises(TransformError, match=r"function of score failed: ZeroDiv.*first has id"):
        samples.score(lambda batch: len(batch.ids) / 0)
    with pytest.raises(OptionError, match=r"cache is not a folder.*True"):
        samples.score(first_sum, cache=True)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="windows are not set"):
        xloader.open(with_rain()).score(first_sum)
