"""Shards: few requests, each index read once, and damage reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec
from zarr.storage import LocalStore, MemoryStore

from tests.sources import kinds
from xloader.compiled.library import load_library
from xloader.errors import CorruptChunkError, MissingChunkError
from xloader.sources.base import Outcome, Read, SmallKey
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr import object_readers, shards, zarr_source
from xloader.sources.zarr import shards as indexes
from xloader.sources.zarr.object_readers import ObjectPiece
from xloader.sources.zarr.shards import IndexCache, coalesce
from xloader.sources.zarr.zarr_source import ZarrSource
from xloader.testing import CountingStore, LatencyStore

NUM_CHUNKS, CHUNK_SIZE = 8, 100
"""Number of chunks in one shard."""
CHUNK_NBYTES = CHUNK_SIZE * 4
INDEX_NBYTES = NUM_CHUNKS * 16 + 4
KEY = "a/c/0"


def make_store(
    *,
    num_shards: int = 2,
    shape: int | None = None,
    location: str = "end",
    is_checked: bool = True,
    codecs: list[Any] | None = None,
    skip: tuple[int, ...] = (),
) -> tuple[MemoryStore, np.ndarray]:
    store = MemoryStore()
    size = NUM_CHUNKS * CHUNK_SIZE * num_shards if shape is None else shape
    array = zarr.create_group(store, zarr_format=3).create_array(
        "a",
        shape=(size,),
        chunks=(NUM_CHUNKS * CHUNK_SIZE,),
        dtype="i4",
        fill_value=-1,
        dimension_names=("x",),
        compressors=[],
        serializer=ShardingCodec(
            chunk_shape=(CHUNK_SIZE,),
            codecs=[BytesCodec(), *(codecs or [])],
            index_codecs=[BytesCodec(), *([Crc32cCodec()] if is_checked else [])],
            index_location=location,
        ),
        config={"write_empty_chunks": True},
    )
    values = np.arange(size, dtype="i4")
    for chunk in range(-(-size // CHUNK_SIZE)):
        if chunk not in skip:
            part = slice(chunk * CHUNK_SIZE, (chunk + 1) * CHUNK_SIZE)
            array[part] = values[part]
        else:
            values[chunk * CHUNK_SIZE : (chunk + 1) * CHUNK_SIZE] = -1
    return store, values


def put_files(store: MemoryStore, folder: Path) -> None:
    """Write all objects of a store as files."""
    for key, data in store._store_dict.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data.to_bytes())


def decode(source: ZarrSource, chunks: list[int]) -> tuple[Outcome, list[np.ndarray]]:
    reads = [Read("a", (chunk,), (slice(0, CHUNK_SIZE),)) for chunk in chunks]
    outs = [np.full(CHUNK_SIZE, -7, "i4") for _ in chunks]
    return source.fetch(reads).decode(outs), outs


def read(source: ZarrSource, chunks: list[int], values: np.ndarray) -> Outcome:
    outcome, outs = decode(source, chunks)
    for chunk, out in zip(chunks, outs, strict=True):
        begin = chunk * CHUNK_SIZE
        np.testing.assert_array_equal(out, values[begin : begin + CHUNK_SIZE])
    return outcome


def without_get_sync(store: Store) -> Store:
    return LatencyStore(store, 0.0)


def ranges_of_the_first(store: CountingStore) -> dict[Any, int]:
    return {byte_range: n for (key, byte_range), n in store.ranges.items() if key == KEY}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test with empty caches of shard indexes."""
    monkeypatch.setattr(indexes, "_CACHES", {})


@pytest.mark.parametrize("wrap", [lambda store: store, without_get_sync], ids=["sync", "async"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_an_index_is_read_once(location: str, wrap: Callable[[Store], Store]):
    inner, values = make_store(location=location)
    store = CountingStore(wrap(inner))
    source = open_source(store)
    store.reset()
    assert read(source, [3], values) == Outcome(num_missing=0, num_requests=2)
    assert kinds.read_into(source, "a", (5,), (slice(0, 100),), np.empty(100, "i4"))
    assert read(source, [3, 4], values) == Outcome(num_missing=0, num_requests=1)
    first = INDEX_NBYTES if location == "start" else 0
    index = RangeByteRequest(0, INDEX_NBYTES)
    if location == "end":
        index = SuffixByteRequest(INDEX_NBYTES)
    assert ranges_of_the_first(store) == {
        index: 1,
        RangeByteRequest(first + 3 * CHUNK_NBYTES, first + 4 * CHUNK_NBYTES): 1,
        RangeByteRequest(first + 5 * CHUNK_NBYTES, first + 6 * CHUNK_NBYTES): 1,
        RangeByteRequest(first + 3 * CHUNK_NBYTES, first + 5 * CHUNK_NBYTES): 1,
    }
    read(source, [8], values)
    assert IndexCache.of_process().nbytes == 2 * NUM_CHUNKS * 16
    assert source.variables["a"].index_nbytes == 2 * NUM_CHUNKS * 16


@pytest.mark.parametrize("wrap", [lambda store: store, without_get_sync], ids=["sync", "async"])
def test_neighbours_are_one_request(
    wrap: Callable[[Store], Store], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shards.coalesce, "__defaults__", (CHUNK_NBYTES, 3 * CHUNK_NBYTES))
    inner, values = make_store()
    store = CountingStore(wrap(inner))
    source = open_source(store)
    read(source, [0], values)
    store.reset()
    # A gap of one chunk is fetched too; a gap of two is not. A range has three chunks at most.
    assert read(source, [7, 0, 2, 5, 6], values) == Outcome(num_missing=0, num_requests=2)
    ranges = [(0, 3), (5, 8)]
    assert ranges_of_the_first(store) == {
        RangeByteRequest(first * CHUNK_NBYTES, last * CHUNK_NBYTES): 1 for first, last in ranges
    }
    store.reset()
    assert read(source, [0, 1, 2, 3, 4], values) == Outcome(num_missing=0, num_requests=2)


def test_a_whole_shard_is_one_request():
    inner, values = make_store(shape=11 * CHUNK_SIZE)
    store = CountingStore(inner)
    source = open_source(store)
    everything = list(range(NUM_CHUNKS))
    assert read(source, everything, values) == Outcome(num_missing=0, num_requests=1)
    assert ranges_of_the_first(store) == {None: 1}
    # The index came with the shard, and its copy does not keep the shard in memory.
    (kept,) = IndexCache.of_process()._kept.values()
    assert (kept.base is None) or kept.base.nbytes == kept.nbytes
    store.reset()
    assert read(source, everything, values) == Outcome(num_missing=0, num_requests=1)
    assert ranges_of_the_first(store) == {RangeByteRequest(0, NUM_CHUNKS * CHUNK_NBYTES): 1}
    # Only three chunks of the last shard lie within the array.
    assert read(source, [8, 9, 10], values) == Outcome(num_missing=0, num_requests=1)
    assert store.ranges["a/c/1", None] == 1


def test_large_shards_are_not_fetched_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "MOST_RANGE_NBYTES", NUM_CHUNKS * CHUNK_NBYTES - 1)
    inner, values = make_store()
    store = CountingStore(inner)
    source = open_source(store)
    read(source, list(range(NUM_CHUNKS)), values)
    assert (KEY, None) not in store.ranges


def test_chunks_of_one_shard_are_a_bundle(monkeypatch: pytest.MonkeyPatch):
    for most_nbytes, is_small in ((CHUNK_NBYTES, True), (0, False)):
        monkeypatch.setattr(zarr_source, "SMALL_NBYTES", most_nbytes)
        source = open_source(make_store()[0])
        assert source.bundle_of("a", (0,)) == source.bundle_of("a", (7,))
        assert source.bundle_of("a", (7,)) != source.bundle_of("a", (8,))
        # Bundles of small chunks are read with any others.
        assert isinstance(source.bundle_of("a", (0,)), SmallKey) == is_small
    monkeypatch.undo()
    store = MemoryStore()
    group = zarr.create_group(store)
    for name, chunk in (("b", 2), ("large", 2**19)):
        group.create_array(
            name, shape=(2 * chunk,), chunks=(chunk,), dtype="i4", dimension_names=(f"{name}_x",)
        )
    plain = open_source(store)
    # Large chunks of their own are read alone.
    assert plain.bundle_of("b", (0,)) is None
    assert plain.bundle_of("large", (0,)) != plain.bundle_of("large", (1,))
    assert plain.variables["b"].index_nbytes == 0


@pytest.mark.parametrize("chunks", [[2], [1, 2, 3], list(range(NUM_CHUNKS))])
@pytest.mark.parametrize("skip", [(2,), tuple(range(NUM_CHUNKS))], ids=["chunk", "shard"])
def test_what_is_absent_is_filled(skip: tuple[int, ...], chunks: list[int]):
    store, values = make_store(skip=skip)
    assert (KEY in store._store_dict) == (len(skip) == 1)
    source = open_source(store, on_missing="fill")
    num_absent = len(set(skip) & set(chunks))
    # An absent shard is asked for again, because it may be written later.
    for num in (1, 2):
        assert read(source, chunks, values).num_missing == num_absent
        assert source.num_missing == num * num_absent
    if len(skip) > 1:
        assert read(source, chunks, values).num_requests == 1
        assert read(source, [8], values).num_missing == 0
    with pytest.raises(MissingChunkError, match="'a/c/0'") as caught:
        decode(open_source(store, on_missing="raise"), chunks)
    assert caught.value.chunk[0] in skip


DEADLINE = 10
"""Seconds after which a test gives up a wait."""


@pytest.fixture
def num_waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Count the threads that wait for an index; each wait has a deadline."""
    num_waiting = threading.Semaphore(0)

    class Waited(Future):
        def result(self, timeout: float | None = None) -> Any:
            num_waiting.release()
            return super().result(DEADLINE)

    monkeypatch.setattr(indexes, "Future", Waited)
    return num_waiting


def test_many_threads_read_an_index_once(
    monkeypatch: pytest.MonkeyPatch, num_waiting: threading.Semaphore
):
    inner, values = make_store(num_shards=1)
    num_threads = 6
    store = CountingStore(inner)
    source = open_source(store)
    cache = IndexCache.of_process()
    get = cache.get

    def get_late(key: indexes.Name, load: Callable[[], Any]) -> Any:
        def load_late() -> Any:
            # Load only after all other threads wait.
            assert all(num_waiting.acquire(timeout=DEADLINE) for _ in range(num_threads - 1))
            return load()

        return get(key, load_late)

    monkeypatch.setattr(cache, "get", get_late)
    with ThreadPoolExecutor(num_threads) as pool:
        outcomes = list(pool.map(lambda n: read(source, [n], values), range(num_threads)))
    assert store.ranges[KEY, SuffixByteRequest(INDEX_NBYTES)] == 1
    assert sorted(outcome.num_requests for outcome in outcomes) == [1] * 5 + [2]


@pytest.mark.parametrize("error", [OSError("no answer"), SystemExit("stopped")])
def test_the_waiting_share_a_failure_and_outlive_a_reader_that_is_stopped(
    error: BaseException, num_waiting: threading.Semaphore
):
    started = threading.Event()

    def fail() -> None:
        started.set()
        assert num_waiting.acquire(timeout=DEADLINE)
        raise error

    cache, index = IndexCache(), np.zeros((2, 2), np.uint64)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "k", fail)
        assert started.wait(DEADLINE)
        second = pool.submit(cache.get, "k", lambda: index)
        with pytest.raises(type(error)):
            first.result(DEADLINE)
        if isinstance(error, OSError):
            with pytest.raises(OSError, match="no answer"):
                second.result(DEADLINE)
            assert cache.get("k", lambda: index) == (index, 1)
        else:
            # The stop was meant for the first reader only, so the second reads by itself.
            assert second.result(DEADLINE) == (index, 1)


def test_the_cache_drops_what_was_used_longest_ago():
    cache = IndexCache(most_nbytes=100)
    index = np.zeros((1, 2), np.uint64)  # 16 bytes
    for number in range(6):
        cache.get(str(number), lambda: index)
    assert cache.get("0", lambda: pytest.fail("dropped too early"))[1] == 0
    cache.get("6", lambda: index)
    assert ("0" in cache, "1" in cache, cache.nbytes) == (True, False, 96)
    large = np.zeros((7, 2), np.uint64)
    assert cache.get("large", lambda: large) == (large, 1)
    assert ("large" in cache, cache.nbytes) == (False, 96)
    cache.forget("6")
    cache.forget("unheard of")
    assert cache.nbytes == 80


@pytest.mark.parametrize("location", ["start", "end"])
def test_chunks_of_several_shards_are_read_with_one_call(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, values = make_store(location=location, skip=(9,))
    folder = LocalStore(tmp_path)
    put_files(store, tmp_path)
    source = open_source(folder, on_missing="fill")
    chunks = [1, 2, 6, 8, 9, 10, 15]
    read(source, chunks, values)
    calls, read_pieces = [], object_readers.read_pieces

    def note(prefix: str, parts: Sequence[ObjectPiece], *rest: Any) -> Any:
        calls.append([part.key for part in parts])
        return read_pieces(prefix, parts, *rest)

    monkeypatch.setattr(object_readers, "read_pieces", note)
    outcome = read(source, chunks, values)
    assert outcome.num_missing == 1
    if load_library()[0] is not None:
        # The gaps are narrow, so there is one range in each shard.
        assert calls == [["a/c/0", "a/c/1"]]


def test_the_shard_that_cannot_be_read_is_named():
    store, values = make_store()
    source = open_source(store)
    read(source, [0, 8], values)
    del store._store_dict["a/c/1"]
    reads = [Read("a", (chunk,), (slice(0, CHUNK_SIZE),)) for chunk in (0, 7, 8)]
    outs = [np.empty(CHUNK_SIZE, "i4") for _ in reads]
    store._store_dict["a/c/1"] = store._store_dict["a/c/0"][:100]
    with pytest.raises(CorruptChunkError, match=r"chunk \(8,\), key 'a/c/1'"):
        source.fetch(reads).decode(outs)


def test_coalescing_keeps_every_chunk():
    rng = np.random.default_rng(0)
    for _ in range(200):
        starts, sizes = rng.integers(0, 60, 8).tolist(), rng.integers(1, 9, 8).tolist()
        chunks = [
            (start, start + size, number)
            for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]
        joined = coalesce(chunks, most_gap=3, most_nbytes=20)
        assert sorted(chunk for _, own in joined for chunk in own) == sorted(chunks)
        for (start, stop), own in joined:
            assert start == min(first for first, _, _ in own)
            assert stop == max(end for _, end, _ in own)
            assert stop - start <= 20
        assert joined == sorted(joined)
