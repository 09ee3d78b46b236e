"""The shipped test helpers count every way to read a store exactly once."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.abc.store import RangeByteRequest, Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore

from tests.sources import kinds
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr_adapter import is_synchronous
from xloader.testing import (
    CountingStore,
    FaultyStore,
    LatencyStore,
    SourceRecorder,
    datasets,
    garble,
    truncate,
    write_store,
)

PROTOTYPE = default_buffer_prototype()
KEY = "a/c/0"


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path) -> CountingStore:
    dataset = xr.Dataset({"a": ("x", np.arange(1.0, 7.0))})
    path = tmp_path / "z" if request.param == "local" else None
    return CountingStore(write_store(dataset, {"a": (2,)}, path))


async def many(store, keys):
    return [item async for item in store._get_many([(key, PROTOTYPE, None) for key in keys])]


async def ranges(store):
    asked = store.get_ranges(KEY, [RangeByteRequest(0, 4)], prototype=PROTOTYPE)
    return [group async for group in asked]


WAYS = {
    "get": lambda store: asyncio.run(store.get(KEY, PROTOTYPE)),
    "get-range": lambda store: asyncio.run(store.get(KEY, PROTOTYPE, RangeByteRequest(0, 4))),
    "get_sync": lambda store: store.get_sync(KEY, prototype=PROTOTYPE),
    "get_sync-bare": lambda store: store.get_sync(KEY),
    "get_partial_values": lambda store: asyncio.run(
        store.get_partial_values(PROTOTYPE, [(KEY, RangeByteRequest(0, 4))])
    ),
    "_get_many": lambda store: asyncio.run(many(store, [KEY])),
}
# Only some releases of zarr have these methods.
if hasattr(Store, "_get_bytes"):
    WAYS["_get_bytes"] = lambda store: asyncio.run(store._get_bytes(KEY, prototype=PROTOTYPE))
    WAYS["_get_bytes_sync"] = lambda store: store._get_bytes_sync(KEY, prototype=PROTOTYPE)
if hasattr(Store, "get_ranges"):
    WAYS["get_ranges"] = lambda store: asyncio.run(ranges(store))
    WAYS["get_ranges_sync"] = lambda store: store.get_ranges_sync(
        KEY, [RangeByteRequest(0, 4)], prototype=PROTOTYPE
    )


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_reading_counts_once(store: CountingStore, way: str):
    assert store.num_reads == 0
    assert WAYS[way](store)
    assert store.reads == {KEY: 1}
    # A read-only copy that zarr makes counts into the same tally.
    copy = store.with_read_only(True)
    WAYS[way](copy)
    assert copy.read_only
    assert copy.get_sync.__self__ is copy
    assert store.reads == {KEY: 2}
    store.reset()
    assert store.num_reads == 0


def test_absent_keys_count_and_metadata_does_not(store: CountingStore):
    assert store.get_sync("a/c/99") is None
    store.get_sync("a/zarr.json")
    store.get_sync("zarr.json")
    assert store.reads == {"a/c/99": 1}
    assert store.metadata_reads == {"a/zarr.json": 1, "zarr.json": 1}


def test_zarr_itself_counts(store: CountingStore):
    array = zarr.open_group(store, mode="r")["a"]
    array[:]
    array[:2]
    assert store.reads == {"a/c/0": 2, "a/c/1": 1, "a/c/2": 1}


def test_get_sync_is_there_where_it_was():
    assert is_synchronous(CountingStore(MemoryStore()))
    slow = LatencyStore(MemoryStore(), 0.0)
    assert not is_synchronous(slow)
    assert not is_synchronous(CountingStore(slow))


def test_threads_lose_no_count(store: CountingStore):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.get_sync(KEY), range(400)))
    assert store.reads == {KEY: 400}


def test_wrappers_pickle(tmp_path):
    inner = LocalStore(tmp_path / "z")
    write_store(xr.Dataset({"a": ("x", np.arange(4.0))}), {"a": (2,)}, tmp_path / "z")
    store = FaultyStore(CountingStore(inner), {"a/c/1": None})
    store.get_sync("a/c/0")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get_sync("a/c/1") is None
    assert copy.get_sync("a/c/0").to_bytes() == store.get_sync("a/c/0").to_bytes()
    assert copy.num_faults == 1
    assert store.num_faults == 0
    assert copy._store.reads == {"a/c/0": 2, "a/c/1": 1}
    slow = pickle.loads(pickle.dumps(LatencyStore(inner, 0.5)))
    assert slow.seconds == 0.5
    assert not is_synchronous(slow)


@pytest.mark.parametrize("way", ["get", "get_sync", "get_partial_values", "_get_many"])
def test_faults_come_by_every_way_and_heal(store: CountingStore, way: str):
    faulty = FaultyStore(store, {KEY: OSError("gone")}, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            WAYS[way](faulty)
    assert WAYS[way](faulty)
    assert faulty.num_faults == 2


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Switch threads as often as possible, so that a race shows soon."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("quick_switches")
def test_a_key_heals_after_so_many_faults_however_many_threads_ask(store: CountingStore):
    for _ in range(20):
        faulty = FaultyStore(store, {KEY: None}, times=50)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _, faulty=faulty: faulty.get_sync(KEY), range(200)))
        assert (answers.count(None), faulty.num_faults) == (50, 50)


def test_damage_changes_the_bytes(store: CountingStore):
    stored = store.get_sync(KEY).to_bytes()
    cut = FaultyStore(store, {KEY: truncate}).get_sync(KEY).to_bytes()
    assert cut == stored[: len(stored) // 2]
    wrong = FaultyStore(store, {KEY: garble}).get_sync(KEY).to_bytes()
    assert len(wrong) == len(stored)
    assert all(a != b for a, b in zip(wrong, stored, strict=True))
    assert FaultyStore(store, {"other": None}).get_sync(KEY).to_bytes() == stored


def test_latency_waits_before_every_request(monkeypatch: pytest.MonkeyPatch, store: CountingStore):
    waits = []

    async def pause(seconds):
        waits.append(seconds)

    monkeypatch.setattr("xloader.testing.stores.asyncio.sleep", pause)
    slow = LatencyStore(store, 0.25)
    for way in ("get", "get_partial_values", "_get_many"):
        waits.clear()
        WAYS[way](slow)
        assert waits == [0.25]


def test_recorder_records_chunks_and_bytes_in_flight():
    source = SourceRecorder(open_source(kinds.make_dataset().chunk({"time": 4})))
    kinds.read(source, "flag", (1,))
    kinds.read(source, "flag", (1,))
    kinds.read(source, "s", ())
    assert source.reads == {("flag", (1,)): 2, ("s", ()): 1}
    assert source.num_reads == 3
    assert source.peak_in_flight_nbytes == 8
    assert "dask" in source.path_of("flag")
    source.reset()
    assert source.num_reads == source.peak_in_flight_nbytes == 0


@hypothesis.given(datasets())
def test_drawn_datasets_are_read_back_once_a_chunk(drawn):
    dataset, chunks = drawn
    store = CountingStore(write_store(dataset, chunks))
    source = open_source(store)
    store.reset()
    seen = []
    for name, variable in source.variables.items():
        assert variable.chunks == chunks[name]
        values = kinds.read_all(source, name)
        np.testing.assert_array_equal(values, dataset[name].values, strict=True)
        seen.append(values.ravel())
    every = np.concatenate([values.astype("i8") for values in seen])
    assert len(np.unique(every)) == len(every)
    assert store.num_reads == sum(
        np.prod(kinds.num_chunks(variable)) for variable in source.variables.values()
    )
    assert set(store.reads.values()) == {1}
