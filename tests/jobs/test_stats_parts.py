"""Partial statistics: the same bits in any number of parts, and after any end of a process."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xloader
from xloader.errors import (
    CorruptChunkError,
    MemoryBudgetError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    StateError,
    StatisticsWarning,
    StoreFullError,
    TargetError,
    UnsupportedDataError,
)
from xloader.jobs import kept_result, merge_trees, swept_job
from xloader.jobs.kept_result import KeptResult
from xloader.jobs.statistics import stats_job, stats_parts
from xloader.testing import CountingStore, FaultyStore, LatencyStore, truncate, write_store

KINDS: list[dict[str, Any]] = [
    {},
    {"dim": "time"},
    {"by": "month", "weights": "area"},
    {"leads": ["12h", 40], "by": "season"},
]


def write_data(place: Any = None) -> Any:
    """45 + 90 chunks, 24 chunks in 8 shards, 30 packed ones and a static variable."""
    rng = np.random.default_rng(5)
    t2m = rng.normal(280, 10, (300, 8, 9)).astype("f4")
    t2m[rng.random(t2m.shape) < 0.1] = np.nan
    dims = ("time", "lat", "lon")
    ds = xr.Dataset(
        {
            "t2m": (dims, t2m),
            "z": (dims, rng.normal(5e4, 900, t2m.shape)),
            "q": (dims, rng.random(t2m.shape, "f4")),
            "rain": (dims, rng.integers(0, 3000, t2m.shape) * 0.01),
            "orog": (("lat", "lon"), rng.random((8, 9))),
        },
        {
            "time": pd.date_range("2001-01-01", periods=300, freq="12h"),
            "lat": np.linspace(70, -70, 8),
            "lon": np.arange(9) * 40.0,
        },
    )
    chunks = {"t2m": (20, 8, 3), "z": (10, 4, 9), "q": (25, 4, 9), "rain": (30, 8, 3)}
    packing = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -999}
    return write_store(
        ds,
        {**chunks, "orog": (3, 3)},
        place,
        encoding={"q": {"shards": (75, 4, 9)}, "rain": packing},
    )


def samples_of(store: Any) -> xloader.Samples:
    samples = xloader.open(store, max_retries=0).window(time=5, stride=7)
    return samples.inputs("t2m", time=slice(0, 2)).targets("t2m", "z", time=4).field("o", "orog")


def chunk_reads(store: CountingStore) -> dict[str, int]:
    """How often each chunk of the variables was read."""
    names = ("t2m/c/", "z/c/", "orog/c/")
    return {key: n for key, n in store.reads.items() if key.startswith(names)}


def often(patch: pytest.MonkeyPatch) -> None:
    """Write partial statistics after every few chunks."""
    patch.setattr(merge_trees, "_FLUSH_SECONDS", 0.0)
    patch.setattr(swept_job, "_WAVE_CHUNKS", 4)


@pytest.mark.parametrize("options", KINDS)
def test_the_same_bits_on_any_threads_and_in_any_parts(
    options: dict[str, Any], tmp_path: Path
) -> None:
    samples = samples_of(write_data())
    whole = samples.stats(threads=1, **options)
    for threads in (2, 4):
        xr.testing.assert_identical(samples.stats(threads=threads, **options), whole)
    parts = [samples.stats(part=(i, 3), **options) for i in range(3)]
    for order in itertools.permutations(parts):
        xr.testing.assert_identical(xloader.merge(order), whole)
    sent = [pickle.loads(pickle.dumps(own)) for own in parts]
    xr.testing.assert_identical(xloader.merge(sent), whole)
    path = tmp_path / "stats.nc"
    for i in (2, 0, 1):
        told = samples.stats(part=(i, 3), path=path, **options)
        assert f"part {i} of 3" in str(told)
    xr.testing.assert_identical(xloader.merge(path), whole)
    assert [own.name for own in tmp_path.iterdir()] == ["stats.nc"]
    with xr.open_dataset(path) as stored:
        xr.testing.assert_equal(stored.load(), whole)
    # A job of a queue that is run once more.
    with pytest.warns(StatisticsWarning, match="returned as it is"):
        xr.testing.assert_identical(samples.stats(path=path, **options), whole)
    xr.testing.assert_identical(xloader.merge(path), whole)
    xr.testing.assert_identical(samples.stats(path=path, overwrite=True, **options), whole)


def test_quantiles_have_the_same_bits_in_parts(tmp_path: Path) -> None:
    pytest.importorskip("crick")
    samples = samples_of(write_data())
    options: dict[str, Any] = {"quantiles": [0.1, 0.9], "by": "month"}
    whole = samples.stats(threads=1, **options)
    xr.testing.assert_identical(samples.stats(threads=4, **options), whole)
    xr.testing.assert_identical(
        xloader.merge([samples.stats(part=(i, 4), **options) for i in range(4)]), whole
    )
    path = tmp_path / "stats.zarr"
    for i in range(2):
        samples.stats(part=(i, 2), path=path, **options)
    xr.testing.assert_identical(xloader.merge(path), whole)
    xr.testing.assert_equal(xr.open_zarr(path, consolidated=False).load(), whole)


@pytest.mark.parametrize("options", KINDS)
def test_a_rerun_reads_only_what_is_missing(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk cannot be read; when it is mended, the job goes on."""
    often(monkeypatch)
    inner = write_data()
    counted = CountingStore(inner)
    whole = samples_of(inner).stats(**options)
    store = FaultyStore(counted, {"z/c/17/1/0": truncate})
    samples = samples_of(store)
    counted.reset()
    path = tmp_path / "stats.nc"
    with pytest.raises(CorruptChunkError):
        samples.stats(path=path, threads=1, **options)
    first = chunk_reads(counted)
    counted.reset()
    result = samples_of(counted).stats(path=path, **options)
    xr.testing.assert_identical(result, whole)
    second = chunk_reads(counted)
    again = set(first) & set(second)
    assert 0 < len(second) < len(first) + len(second)
    # Chunks of one wave, and those whose partners were not read yet.
    waiting = 3 * 20 * 2 if "leads" in options else 0
    assert len(again) <= 8 + waiting
    assert max(second.values()) == 1


def test_a_slow_job_is_written_between_few_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_trees, "_FLUSH_SECONDS", 0.0)
    # As if each chunk took longer than the time between two files.
    monkeypatch.setattr(swept_job, "_WAVE_SECONDS", 0.0)
    monkeypatch.setattr(swept_job, "_FIRST_WAVE", 8)
    inner = write_data()
    whole = samples_of(inner).stats()
    counted = CountingStore(inner)
    path = tmp_path / "stats.nc"
    with pytest.raises(CorruptChunkError):
        samples_of(FaultyStore(counted, {"z/c/17/1/0": truncate})).stats(path=path, threads=1)
    first = chunk_reads(counted)
    counted.reset()
    xr.testing.assert_identical(samples_of(counted).stats(path=path), whole)
    assert len(first) > 80
    assert len(set(first) & set(chunk_reads(counted))) <= 1


def test_a_result_that_cannot_be_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The netCDF library raises errors of its own, and the rerun reads no chunk again."""
    store = CountingStore(write_data())
    samples = samples_of(store)
    path = tmp_path / "stats.nc"

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("NetCDF: HDF error")

    with monkeypatch.context() as patch:
        patch.setattr(xr.Dataset, "to_netcdf", fail)
        with pytest.raises(SourceAccessError, match="HDF error"):
            samples.stats(path=path)
        patch.setattr(kept_result, "_LEAST_FREE", 1 << 62)
        with pytest.raises(StoreFullError, match="no room"):
            samples.stats(path=path)
    store.reset()
    result = samples.stats(path=path)
    assert not chunk_reads(store)
    xr.testing.assert_identical(result, samples.stats())
    assert [own.name for own in tmp_path.iterdir()] == ["stats.nc"]


def test_parts_of_other_jobs_are_refused(tmp_path: Path) -> None:
    store = write_data()
    samples = samples_of(store)
    path = tmp_path / "stats.nc"
    samples.stats(path=path, part=(0, 2))
    others = [
        (lambda: samples.select(slice(0, 9)).stats(path=path), "samples"),
        (lambda: samples.stats(path=path, by="month"), "options"),
        (
            lambda: samples_of(
                write_store(
                    xr.open_zarr(store, consolidated=False)[["t2m", "z", "orog"]]
                    .isel(lat=slice(0, 6))
                    .load(),
                    {"t2m": (20, 6, 3), "z": (10, 4, 9), "orog": (3, 3)},
                )
            ).stats(path=path),
            "data",
        ),
    ]
    for run, word in others:
        with pytest.raises(StateError, match=word):
            run()
    # Transforms change no statistics, so they are the same job.
    scaled = samples.normalize({"t2m": (280.0, 10.0)})
    scaled.stats(path=path, part=(1, 2))
    xr.testing.assert_identical(xloader.merge(path), samples.stats())
    samples.stats(path=path, part=(0, 2), overwrite=True)
    result = samples.stats(path=path, by="month", overwrite=True)
    xr.testing.assert_identical(result, samples.stats(by="month"))


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_finished_job_that_is_run_again_reads_nothing(suffix: str, tmp_path: Path) -> None:
    store = CountingStore(write_data())
    samples = samples_of(store)
    path = tmp_path / f"stats{suffix}"
    whole = samples.stats(path=path, by="month", leads=[1])
    template = stats_job.StatsJob(samples.recipe, None, "month", (), [1], None).template
    KeptResult.at(path, stats_parts.StatsTemplate).open_parts(template, merge_trees.TreeParts)
    store.reset()
    with pytest.warns(StatisticsWarning, match="returned as it is"):
        xr.testing.assert_identical(samples.stats(path=path, by="month", leads=[1]), whole)
    with pytest.warns(StatisticsWarning):
        assert samples.stats(path=path, by="month", leads=[1], part=(1, 2)).num_reads == 0
    xr.testing.assert_identical(xloader.merge(path), whole)
    assert not chunk_reads(store)
    assert [own.name for own in tmp_path.iterdir()] == [path.name]
    for other in (samples, samples.select(slice(0, 9))):
        with pytest.raises(TargetError, match="other data, samples or options"):
            other.stats(path=path)
    # Another job has begun to replace it: its parts stay.
    samples.stats(path=path, part=(0, 2), overwrite=True)
    with pytest.warns(StatisticsWarning):
        xr.testing.assert_identical(samples.stats(path=path, by="month", leads=[1]), whole)
    with pytest.raises(TargetError):
        xloader.merge(path)
    samples.stats(path=path, part=(1, 2), overwrite=True)
    xr.testing.assert_identical(xloader.merge(path, overwrite=True), samples.stats())


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_something_else_at_the_path_is_left_alone(suffix: str, tmp_path: Path) -> None:
    samples = samples_of(write_data())
    path = tmp_path / f"stats{suffix}"
    ds = xr.Dataset({"a": 1})
    if suffix == ".nc":
        ds.to_netcdf(path)
    else:
        ds.to_zarr(path, consolidated=False)
    with pytest.raises(TargetError, match="something else"):
        samples.stats(path=path)
    broken = tmp_path / f"broken{suffix}"
    broken.write_text("nothing")
    with pytest.raises(TargetError, match="something else"):
        samples.stats(path=broken)


def test_a_path_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    samples = samples_of(write_data())
    for i in range(2):
        samples.stats(path="~/stats.zarr", part=(i, 2))
    xr.testing.assert_identical(xloader.merge("~/stats.zarr"), samples.stats())
    assert [own.name for own in tmp_path.iterdir()] == ["stats.zarr"]


@pytest.mark.parametrize("kind", ["path", "part", "waiting"])
def test_statistics_of_many_cells_stay_within_the_memory(kind: str, tmp_path: Path) -> None:
    """What is done and not written yet, and what each of many threads merges, counts too."""
    shape, chunks = (
        ((2, 400, 400), (2, 50, 50)) if kind != "waiting" else ((60, 99, 99), (1, 99, 99))
    )
    ds = xr.Dataset(
        {"a": (("time", "y", "x"), np.random.default_rng(0).random(shape, "f4"))},
        {"time": pd.date_range("2001-01-01", periods=shape[0])},
    )
    store: Any = write_store(ds, {"a": chunks})
    options: dict[str, Any] = {"dim": "time", "threads": 2}
    if kind == "waiting":
        store, options["leads"] = LatencyStore(store, 0.001), [1, 5]
    else:
        options |= {"path": tmp_path / "stats.nc"} if kind == "path" else {"part": (0, 1)}
    samples = xloader.open(store)
    whole = samples.stats(dim="time", leads=options.get("leads", ()))
    with pytest.raises(MemoryBudgetError) as caught:
        samples.stats(**{**options, "memory": 1000})
    for factor in (1.0, 1.4, 2.0):
        memory = int(caught.value.minimum_nbytes * factor)
        tracemalloc.start()
        try:
            found = samples.stats(**{**options, "memory": memory, "overwrite": True})
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < memory + 500_000
        if kind == "part":
            found = xloader.merge([found])
        xr.testing.assert_identical(found, whole)


def test_parts_that_are_missing_or_come_twice(tmp_path: Path) -> None:
    samples = samples_of(write_data())
    parts = [samples.stats(part=(i, 3)) for i in range(3)]
    with pytest.raises(StateError, match=r"missing.*\[1, 2\] of 3"):
        xloader.merge(parts[1:])
    with pytest.raises(StateError, match="twice"):
        xloader.merge([*parts, parts[1]])
    with pytest.raises(StateError, match="parts of 3 and of 2"):
        xloader.merge([parts[0], samples.stats(part=(1, 2))])
    with pytest.raises(StateError, match="options"):
        xloader.merge([parts[0], samples.stats(part=(1, 3), by="month")])
    path = tmp_path / "stats.nc"
    written = samples.stats(part=(0, 3), path=path)
    with pytest.raises(StateError, match="files"):
        xloader.merge([written, *parts[1:]])
    with pytest.raises(StateError, match="missing"):
        xloader.merge(path)
    # A part that was run twice, and one that holds another, are the same bits.
    samples.stats(part=(0, 3), path=path)
    samples.stats(part=(1, 2), path=path)
    samples.stats(part=(1, 3), path=path)
    xr.testing.assert_identical(xloader.merge(path), samples.stats())
    with pytest.raises(SourceNotFoundError):
        xloader.merge(tmp_path / "nothing.nc")
    for nonsense in ([], [3], 3):
        with pytest.raises(UnsupportedDataError):
            xloader.merge(nonsense)


@pytest.mark.parametrize("harm", ["cut", "flip", "key"])
def test_a_damaged_file_counts_as_missing(harm: str, tmp_path: Path) -> None:
    samples = samples_of(write_data())
    path = tmp_path / "stats.nc"
    for i in range(2):
        samples.stats(part=(i, 2), path=path)
    (file, _) = sorted(tmp_path.glob("stats.nc.parts/parts/*.part"))
    data = bytearray(file.read_bytes())
    if harm == "cut":
        del data[-1]
    elif harm == "flip":
        data[-3] ^= 1
    else:
        at = data.index(b'"key": "') + 8
        data[at] = ord("x")
    file.write_bytes(bytes(data))
    with pytest.raises(StateError, match="damaged"):
        xloader.merge(path)
    xr.testing.assert_identical(samples.stats(path=path), samples.stats())


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    samples = samples_of(write_data())
    folder = tmp_path / "stats.nc.parts"
    folder.mkdir()
    (folder / "thesis.tex").write_text("a year of work")
    with pytest.raises(StateError, match="something else"):
        samples.stats(path=tmp_path / "stats.nc")
    assert (folder / "thesis.tex").exists()
    with pytest.raises(OptionError):
        samples.stats(path=tmp_path / "stats.parts")


def test_parts_that_begin_anew_at_the_same_time_keep_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = samples_of(write_data())
    path = tmp_path / "stats.nc"
    thesis = tmp_path / "stats.nc.parts/thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("a year of work")
    begin, parts = KeptResult._begin, [(1, 2)]

    def begin_late(*args: Any, **options: Any) -> None:
        if parts:
            samples.stats(path=path, part=parts.pop(), overwrite=True)
        begin(*args, **options)

    monkeypatch.setattr(KeptResult, "_begin", begin_late)
    with pytest.raises(MemoryBudgetError):
        samples.stats(path=path, memory=10, overwrite=True)
    samples.stats(path=path, part=(0, 2), overwrite=True)
    assert thesis.exists()
    xr.testing.assert_identical(xloader.merge(path), samples.stats())


def test_a_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stats.nc"
    samples_of(write_data()).stats(path=path, part=(0, 1))

    def fail(self: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(merge_trees.ZipFile, "testzip", fail)
    with pytest.raises(MemoryError):
        xloader.merge(path)


def test_a_result_beside_parts_of_an_earlier_version_is_returned(tmp_path: Path) -> None:
    samples = samples_of(write_data())
    path = tmp_path / "stats.nc"
    whole = samples.stats(path=path)
    form = tmp_path / "stats.nc.parts/form/stats.json"
    form.parent.mkdir(parents=True)
    form.write_text('{"version": 1}', "utf-8")
    with pytest.warns(StatisticsWarning):
        xr.testing.assert_identical(samples.stats(path=path), whole)
    with pytest.raises(StateError):
        samples.stats(path=path, by="month")


def test_a_folder_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    samples = samples_of(write_data())
    path = tmp_path / "stats.nc"
    samples.stats(path=path, part=(0, 2))
    form = tmp_path / "stats.nc.parts/form/stats.json"
    form.write_text(form.read_text("utf-8").replace('"version": 3', '"version": 2'), "utf-8")
    with pytest.raises(StateError, match=r"stats\.nc\.parts holds .* this version of xloader"):
        samples.stats(path=path)
    xr.testing.assert_identical(samples.stats(path=path, overwrite=True), samples.stats())


def test_what_appears_at_the_path_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = samples_of(write_data())
    path = tmp_path / "stats.zarr"
    write = kept_result._write

    def write_late(result: xr.Dataset, made: Path) -> None:
        write(result, made)
        path.mkdir()
        (path / "thesis.tex").write_text("a year of work")

    monkeypatch.setattr(kept_result, "_write", write_late)
    with pytest.raises(TargetError, match="something else"):
        samples.stats(path=path)
    assert (path / "thesis.tex").exists()


def test_a_form_that_is_no_text_is_refused_and_begun_anew(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    samples = xloader.open(ds.chunk({"time": 2})).window(time=1)
    path = tmp_path / "s.nc"
    samples.stats(path=path, part=(0, 2))
    (form,) = (tmp_path / "s.nc.parts").rglob("stats.json")
    form.write_bytes(b"\xff\xfe{")
    with pytest.raises(StateError, match="holds no partial"):
        samples.stats(path=path)
    assert samples.stats(path=path, overwrite=True).sizes


def test_finished_statistics_have_no_parts_to_merge_anew(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    xloader.open(ds.chunk({"time": 2})).window(time=1).stats(path=tmp_path / "s.nc")
    with pytest.raises(SourceNotFoundError):
        xloader.merge(tmp_path / "s.nc", overwrite=True)
