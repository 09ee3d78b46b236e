"""The shipped test helpers count every way to read a store exactly once."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
import xarray as xr
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


def test_get_sync_is_there_where_it_was():
    assert is_synchronous(CountingStore(MemoryStore()))
    slow = LatencyStore(MemoryStore(), 0.0)
    assert not is_synchronous(slow)
    assert not is_synchronous(CountingStore(slow))


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
