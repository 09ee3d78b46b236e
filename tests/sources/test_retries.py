"""Reads that fail for a while are tried again, and retries are counted."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import xloader
from tests.sources.flaky import Fault, Flaky, serving
from xloader.core.retry_policy import RetryPolicy
from xloader.errors import ChunkError, OptionError, ReadTimeoutError, SourceAccessError
from xloader.sources.retries import is_timeout, is_transient, told_pause
from xloader.sources.stores.redaction import cause_of
from xloader.testing import FaultyStore, write_store

VALUES = np.arange(800.0).reshape(40, 20)
NUM_CHUNKS = 8


@pytest.fixture(scope="module")
def flaky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flaky]:
    folder: Path = tmp_path_factory.mktemp("served")
    ds = xr.Dataset({"t": (("time", "x"), VALUES)}, {"time": np.arange(40)})
    stores = [write_store(ds, {"t": (5, 20)}, folder / "plain.zarr")]
    encoding = {"t": {"shards": (20, 20)}}
    stores += [write_store(ds, {"t": (5, 10)}, folder / "shards.zarr", encoding=encoding)]
    with warnings.catch_warnings():
        # Consolidated metadata is not yet part of the Zarr v3 specification, so zarr warns. Stores
        # over HTTP need it.
        warnings.simplefilter("ignore")
        for store in stores:
            zarr.consolidate_metadata(store)
    with serving(folder) as server:
        yield server


@pytest.fixture(params=["obstore", "fsspec"])
def by(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options with which one library or the other opens a URL."""
    pytest.importorskip("obstore" if request.param == "obstore" else "aiohttp")
    # With any option given, fsspec opens it.
    return {} if request.param == "obstore" else {"storage_options": {"client_kwargs": {}}}


def read_all(samples: xloader.Samples, **options: Any) -> xloader.Report:
    with samples.loader(batch_size=8, output="numpy", **options) as loader:
        ids = []
        for batch in loader:
            np.testing.assert_array_equal(batch.t[:, 0], VALUES[batch.ids])
            ids += batch.ids.tolist()
        assert sorted(ids) == list(range(40))
        return loader.report()


@pytest.mark.parametrize("fault", ["503", "429", "drop", "cut"])
def test_an_epoch_is_complete_where_each_key_fails_twice(
    flaky: Flaky, fault: Fault, by: dict[str, Any]
) -> None:
    flaky.fail(fault, 2)
    samples = xloader.open(f"{flaky.url}/plain.zarr", **by).window(time=1)
    report = read_all(samples)
    assert flaky.num_failed("/t/c/") == 2 * NUM_CHUNKS
    assert report.num_reads == NUM_CHUNKS
    assert f"{report.num_retries} of {report.num_requests} requests repeated a failed one" in str(
        report
    )
    if not (by and fault == "drop"):
        # aiohttp itself repeats a request once when a connection drops, and does not report it.
        assert report.num_retries == flaky.num_failed("/t/c/")
        assert report.num_requests == flaky.num_asked("/t/c/")


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_shards_whose_indexes_and_ranges_fail(
    flaky: Flaky, fault: Fault, by: dict[str, Any]
) -> None:
    flaky.fail(fault, 2, "/t/c/")
    samples = xloader.open(f"{flaky.url}/shards.zarr", **by).window(time=1)
    report = read_all(samples)
    assert report.num_retries == flaky.num_failed("/t/c/") > 0
    assert report.num_requests == flaky.num_asked("/t/c/")


def test_bytes_that_came_short_unnoticed_are_fetched_once_more(
    flaky: Flaky, by: dict[str, Any]
) -> None:
    flaky.fail("short", 1, "/t/c/")
    samples = xloader.open(f"{flaky.url}/plain.zarr", **by).window(time=1)
    assert read_all(samples).num_retries == NUM_CHUNKS


def test_after_the_last_attempt_the_error_names_the_chunk(flaky: Flaky, by: dict[str, Any]) -> None:
    url = f"{flaky.url}/plain.zarr"
    samples = xloader.open(url, **by, max_retries=2).window(time=1)
    flaky.fail("503", 1000, "/t/c/3")
    with samples.loader(batch_size=8, output="numpy") as loader:
        with pytest.raises(ChunkError, match=r"variable 't', chunk \(3, 0\)"):
            list(loader)
        assert flaky.num_failed("/t/c/3") == 3
        assert loader.report().num_retries == 2


def test_a_chunk_that_never_comes_is_a_timeout(flaky: Flaky, by: dict[str, Any]) -> None:
    url, retry_policy = f"{flaky.url}/plain.zarr", {"read_timeout": 0.5, "max_retries": 1}
    samples = xloader.open(url, **by, **retry_policy).window(time=1)
    flaky.fail("hang", 1000, "/t/c/3")
    loader = samples.loader(batch_size=8, output="numpy")
    with loader, pytest.raises(ReadTimeoutError, match=r"2 attempts of 0.5 s.*chunk \(3, 0\)"):
        list(loader)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("503", r"could not be read in 2 attempts \(\w+, HTTP status 503\).*max_retries="),
        ("403", r"refuses access to a chunk \(\w+, HTTP status 403\).*credentials"),
    ],
)
def test_the_error_tells_the_status(
    flaky: Flaky, status: Fault, told: str, by: dict[str, Any]
) -> None:
    url = f"{flaky.url}/plain.zarr"
    samples = xloader.open(url, **by, max_retries=1).window(time=1)
    flaky.fail(status, 1000, "/t/c/3")
    loader = samples.loader(batch_size=8, output="numpy")
    with loader, pytest.raises(ChunkError, match=told):
        list(loader)


def test_metadata_that_never_comes_is_asked_for_by_one_library(flaky: Flaky) -> None:
    pytest.importorskip("obstore")
    flaky.fail("hang", 1000, "zarr.json")
    told = r"does not answer in time \(TimeoutError: 2 attempts of 0.5 s\).*read_timeout="
    with pytest.raises(SourceAccessError, match=told):
        xloader.open(f"{flaky.url}/plain.zarr", read_timeout=0.5, max_retries=1)
    assert flaky.num_asked("/plain.zarr/zarr.json") == 2


def test_labels_and_metadata_are_asked_for_again_too(flaky: Flaky, by: dict[str, Any]) -> None:
    flaky.fail("503", 2)
    samples = xloader.open(f"{flaky.url}/plain.zarr", **by)
    assert samples.sel(time=slice(3, 7)).sizes["time"] == 5
    assert flaky.num_failed("zarr.json") >= 2
    assert flaky.num_failed("/time/c/") == 2


def test_no_more_attempts_than_asked_for(flaky: Flaky) -> None:
    pytest.importorskip("obstore")
    samples = xloader.open(f"{flaky.url}/plain.zarr", max_retries=0).window(time=1)
    flaky.fail("503", 1, "/t/c/3")
    with pytest.raises(ChunkError):
        read_all(samples)
    assert flaky.num_asked("/t/c/3") == 1
    # One more is enough.
    samples = xloader.open(f"{flaky.url}/plain.zarr", max_retries=1).window(time=1)
    flaky.fail("503", 1, "/t/c/3")
    assert read_all(samples).num_retries == 1


def test_a_sample_asks_again(flaky: Flaky) -> None:
    pytest.importorskip("obstore")
    samples = xloader.open(f"{flaky.url}/plain.zarr").window(time=1)
    flaky.fail("503", 2, "/t/c/")
    np.testing.assert_array_equal(samples[17][0][0], VALUES[17])
    assert flaky.num_failed("/t/c/") == 2


def test_a_cache_asks_again(flaky: Flaky) -> None:
    doors = pytest.importorskip("xloader.torch")
    pytest.importorskip("torch")
    pytest.importorskip("obstore")
    samples = xloader.open(f"{flaky.url}/plain.zarr").window(time=1)
    flaky.fail("503", 2, "/t/c/")
    np.testing.assert_array_equal(doors.MapDataset(samples)[23][0][0], VALUES[23])
    assert flaky.num_failed("/t/c/") == 2


def test_a_local_store_is_asked_again_as_well() -> None:
    ds = xr.Dataset({"t": (("time", "x"), VALUES)})
    fault = ConnectionResetError("a network file system that was away for a moment")
    store = FaultyStore(write_store(ds, {"t": (5, 20)}), {"t/c/2/0": fault}, times=3)
    report = read_all(xloader.open(store).window(time=1))
    assert (report.num_retries, report.num_requests) == (3, NUM_CHUNKS + 3)


def test_what_will_not_pass_is_not_asked_for_again() -> None:
    ds = xr.Dataset({"t": (("time", "x"), VALUES)})
    fault = PermissionError("not for you")
    store = FaultyStore(write_store(ds, {"t": (5, 20)}), {"t/c/2/0": fault})
    with pytest.raises(ChunkError, match="PermissionError"):
        read_all(xloader.open(store).window(time=1))
    assert store.num_faults == 1


class _Told(Exception):
    """An error with status and headers like aiohttp's."""

    status = 503

    def __init__(self, after: str) -> None:
        super().__init__(after)
        self.headers = {"Retry-After": after}


def test_a_store_says_how_long_to_wait() -> None:
    assert told_pause(_Told("7")) == 7.0
    assert told_pause(_Told("100000")) == 600.0
    assert told_pause(_Told("nonsense")) is None
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    told = told_pause(_Told(date))
    assert told is not None
    assert 0.0 <= told <= 100.0
    assert told_pause(TimeoutError()) is None


def test_a_told_pause_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = xr.Dataset({"t": (("time", "x"), VALUES)})
    store = FaultyStore(write_store(ds, {"t": (5, 20)}), {"t/c/2/0": _Told("3")}, times=1)
    slept: list[float] = []
    monkeypatch.setattr("xloader.sources.retries.time.sleep", slept.append)
    read_all(xloader.open(store).window(time=1))
    assert slept == [3.0]


def test_pauses_grow_and_are_drawn_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = xr.Dataset({"t": (("time", "x"), VALUES)})
    fault = TimeoutError("slow")
    store = FaultyStore(write_store(ds, {"t": (5, 20)}), {"t/c/2/0": fault}, times=9)
    slept: list[float] = []
    monkeypatch.setattr("xloader.sources.retries.time.sleep", slept.append)
    read_all(xloader.open(store, max_retries=9).window(time=1))
    most = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert all(m / 2 <= s <= m for s, m in zip(slept, most, strict=True))
    assert slept[-1] != slept[-2]


def test_which_failures_may_pass() -> None:
    passing = [TimeoutError(), ConnectionResetError(), OSError(5, "EIO"), _Told("1")]
    lasting = [FileNotFoundError("c/0"), PermissionError(), ValueError(), OSError("text")]
    assert all(map(is_transient, passing))
    assert not any(map(is_transient, lasting))


def test_causes_decide_and_contexts_do_not_but_contexts_are_searched_for_credentials() -> None:
    raised, handling = OSError("failed"), OSError("failed")
    raised.__cause__ = handling.__context__ = TimeoutError("of a store with token=s3cret")
    assert is_transient(raised)
    assert not is_transient(handling)
    for error in (raised, handling):
        assert cause_of(error) is error
        assert cause_of(error, ("s3cret",)) is None
        # A circle of errors ends.
        error.__context__ = error.__cause__ = ValueError()
        error.__cause__.__cause__ = error
        assert not is_transient(error)


@pytest.mark.parametrize(
    "options",
    [
        *({"read_timeout": seconds} for seconds in (0, -1.0, float("nan"), float("inf"), "5")),
        *({"max_retries": number} for number in (-1, 1.5, True, 2**70)),
    ],
)
def test_numbers_that_are_none_are_refused(options: dict[str, Any]) -> None:
    name = next(iter(options))
    ds = xr.Dataset({"t": (("time", "x"), VALUES)})
    for refuse in (RetryPolicy, lambda **o: xloader.open(ds, **o)):
        with pytest.raises(OptionError, match=name):
            refuse(**options)


def test_a_lost_connection_is_no_timeout() -> None:
    assert is_timeout(TimeoutError())
    assert not is_timeout(ConnectionResetError())
