"""Stores that answer slowly: many requests at once, and obstore without zarr's event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from zarr.abc.store import Store
from zarr.storage import MemoryStore, ObjectStore

from tests.sources.test_shards import CHUNK_SIZE, NUM_CHUNKS, decode, make_store
from xloader.sources.base import Outcome, Read
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr import object_readers as objects
from xloader.sources.zarr import shards
from xloader.sources.zarr import shards as indexes
from xloader.sources.zarr.object_readers import ObjectPiece, objects_of
from xloader.testing import LatencyStore, is_chunk_key

DEADLINE = 10
"""Seconds after which a test gives up a wait."""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test with empty caches of shard indexes."""
    monkeypatch.setattr(indexes, "_CACHES", {})


class Gathering(LatencyStore):
    """A store that answers requests for chunks only when a given number of them wait together."""

    barrier: asyncio.Barrier | None = None

    def __init__(self, store: Store) -> None:
        super().__init__(store, 0.0)

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        if self.barrier is not None and is_chunk_key(key):
            async with asyncio.timeout(DEADLINE):
                await self.barrier.wait()
        return await super().get(key, *args, **kwargs)


def test_fetches_of_many_threads_wait_side_by_side():
    num_shards = 24
    inner, values = make_store(num_shards=num_shards)
    store = Gathering(inner)
    source = open_source(store)
    assert source.is_waiting("a")
    store.barrier = asyncio.Barrier(num_shards)
    # Each thread fetches from its own shard: the index, then a chunk.
    reads = [[Read("a", (n * NUM_CHUNKS,), (slice(0, 100),))] for n in range(num_shards)]
    with ThreadPoolExecutor(num_shards) as pool:
        fetched = list(pool.map(source.fetch, reads))
    for number, one in enumerate(fetched):
        out = np.empty(CHUNK_SIZE, "i4")
        assert one.decode([out]) == Outcome(num_missing=0, num_requests=2)
        begin = number * NUM_CHUNKS * CHUNK_SIZE
        np.testing.assert_array_equal(out, values[begin : begin + CHUNK_SIZE])


def test_ranges_of_one_shard_wait_side_by_side(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards.coalesce, "__defaults__", (0, 1))
    inner, _ = make_store()
    store = Gathering(inner)
    source = open_source(store)
    decode(source, [0])
    store.barrier = asyncio.Barrier(3)
    assert decode(source, [1, 4, 6])[0] == Outcome(num_missing=0, num_requests=3)


@pytest.fixture
def obstore() -> Any:
    return pytest.importorskip("obstore", reason="obstore is not installed")


def in_obstore(obstore: Any, store: MemoryStore) -> ObjectStore[Any]:
    memory = obstore.store.MemoryStore()
    for key, buffer in store._store_dict.items():
        memory.put(key, buffer.to_bytes())
    return ObjectStore(memory)


def test_obstore_is_not_waited_for_in_zarrs_loop(obstore: Any, monkeypatch: pytest.MonkeyPatch):
    inner, values = make_store(num_shards=3, skip=tuple(range(NUM_CHUNKS, 2 * NUM_CHUNKS)))
    source = open_source(in_obstore(obstore, inner), on_missing="fill")

    def refuse(coroutine: Any) -> None:
        coroutine.close()
        raise AssertionError("zarr's event loop is asked")

    monkeypatch.setattr(objects, "sync", refuse)
    # One chunk by the index, a whole shard, and an absent chunk.
    for chunks, num_missing in [([3], 0), (list(range(16, 24)), 0), ([9], 1)]:
        outcome, outs = decode(source, chunks)
        assert outcome.num_missing == num_missing
        for chunk, out in zip(chunks, outs, strict=True):
            begin = chunk * CHUNK_SIZE
            np.testing.assert_array_equal(out, values[begin : begin + CHUNK_SIZE])


def test_the_end_of_an_object_where_only_its_size_tells(obstore: Any):
    memory = obstore.store.MemoryStore()
    memory.put("a", b"0123456789")
    found = objects_of(ObjectStore(memory))

    def refuse(*_: object, **__: object) -> None:
        raise obstore.exceptions.NotSupportedError("no suffixes here")

    expected = found.get_last("a", 3)
    found._obstore = SimpleNamespace(get=refuse, exceptions=obstore.exceptions)
    assert found.get_last("a", 3).tobytes() == expected.tobytes() == b"789"


def test_obstore_gives_what_zarr_gives(obstore: Any, tmp_path: Any):
    (tmp_path / "a").write_bytes(bytes(range(200)))
    for inner in (obstore.store.LocalStore(str(tmp_path)), obstore.store.MemoryStore()):
        inner.put("a", bytes(range(200)))
        ours = objects_of(ObjectStore(inner))
        theirs = objects.Asynchronous(ObjectStore(inner))
        assert type(ours) is not type(theirs)
        for key in ("a", "absent"):
            assert listed(ours.get(key)) == listed(theirs.get(key))
            assert listed(ours.get_last(key, 7)) == listed(theirs.get_last(key, 7))
            for spans in ([(3, 50)], [(3, 50), (90, 100)]):
                parts = [ObjectPiece(key, *span) for span in spans]
                one, other = (
                    [listed(data) for found in reader.get_pieces(parts, 100) for data in found]
                    for reader in (ours, theirs)
                )
                assert one == other


def listed(data: np.ndarray | None) -> list[int] | None:
    return None if data is None else data.tolist()
