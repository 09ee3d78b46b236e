"""Fetching and decoding are separate: which requests each makes, and the bytes held between."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec, GzipCodec
from zarr.storage import LocalStore, MemoryStore

from tests.sources import kinds
from xloader.compiled.library import load_library
from xloader.errors import ChunkError, MissingChunkError
from xloader.sources.base import Fetched, Read, Source
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr import fetched_chunks, object_readers, shards
from xloader.sources.zarr.codec_chain import SCRATCH
from xloader.sources.zarr.object_readers import Files, ObjectPiece
from xloader.testing import CountingStore, LatencyStore, SourceRecorder, truncate, write_store

WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "sharded": {"t": {"shards": (8, 6, 5)}},
    "indexed": {"t": {"compressors": [BloscCodec(), GzipCodec()]}},
    "decoded": {"t": {"dtype": "i8", "scale_factor": 0.125, "_FillValue": -9}},
}
"""Encodings, each read in a different way."""


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def store_of(way: str) -> MemoryStore:
    dataset = kinds.numeric(kinds.make_dataset())[["t"]]
    return write_store(dataset, {"t": kinds.CHUNKS["t"]}, encoding=WAYS[way])


def fetch(source: Source, chunks: list[tuple[int, ...]]) -> tuple[Fetched, list[np.ndarray]]:
    variable = source.variables["t"]
    cuts = [kinds.whole_cut(variable, chunk) for chunk in chunks]
    outs = [np.empty([part.stop for part in cut], variable.stored_dtype) for cut in cuts]
    reads = [Read("t", chunk, cut) for chunk, cut in zip(chunks, cuts, strict=True)]
    return source.fetch(reads), outs


def check(source: Source, chunks: list[tuple[int, ...]], outs: list[np.ndarray]) -> None:
    variable, oracle = source.variables["t"], kinds.make_dataset()["t"].values
    for chunk, out in zip(chunks, outs, strict=True):
        place = tuple(slice(*kinds.span(variable, axis, i)) for axis, i in enumerate(chunk))
        values = out if variable.packing is None else variable.packing.unpack(out)
        np.testing.assert_array_equal(values, oracle[place])


CHUNKS = [(0, 0, 0), (0, 1, 0), (1, 1, 0)]
"""Chunks of one shard, but not all of them."""


def test_decoding_needs_no_store_that_was_waited_for(way: str):
    inner = store_of(way)
    store = CountingStore(LatencyStore(inner, 0.0))
    source = open_source(store)
    store.reset()
    fetched, outs = fetch(source, CHUNKS)
    num_reads = store.num_reads
    assert num_reads >= 1
    inner._store_dict.clear()
    outcome = fetched.decode(outs)
    check(source, CHUNKS, outs)
    assert store.num_reads == num_reads
    if way in ("direct", "sharded"):
        assert outcome.num_requests == num_reads


def test_nothing_is_asked_before_decoding_where_nothing_waits(way: str):
    store = CountingStore(store_of(way))
    source = open_source(store)
    store.reset()
    fetched, outs = fetch(source, CHUNKS)
    assert (store.num_reads, fetched.nbytes) == (0, 0)
    fetched.decode(outs)
    assert store.num_reads >= 1
    check(source, CHUNKS, outs)


class Watching(MemoryStore):
    """A store that counts, at each request, the chunks it gave that are still in memory."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store._store_dict, read_only=True)
        self._given: list[weakref.ref[np.ndarray]] = []
        self.most_alive = 0
        self.num_given = 0

    def get_sync(self, key: str, **kwargs: Any) -> Any:
        self.most_alive = max(self.most_alive, sum(ref() is not None for ref in self._given))
        found = super().get_sync(key, **kwargs)
        if found is None:
            return None
        array = np.frombuffer(bytearray(found.to_bytes()), "u1")
        self._given.append(weakref.ref(array))
        self.num_given += 1
        return type(found).from_array_like(array)


@pytest.mark.parametrize("way", ["direct", "sharded"])
def test_one_part_at_a_time_is_held_where_nothing_waits(way: str, monkeypatch: pytest.MonkeyPatch):
    # Join no ranges, so that every chunk of a shard is a request of its own.
    monkeypatch.setattr(shards.coalesce, "__defaults__", (0, 1))
    store = Watching(store_of(way))
    source = open_source(store)
    kinds.read(source, "t", (0, 0, 0))
    store.num_given = store.most_alive = 0
    fetched, outs = fetch(source, CHUNKS)
    fetched.decode(outs)
    assert (store.num_given, store.most_alive) == (len(CHUNKS), 0)
    check(source, CHUNKS, outs)


def test_what_is_decoded_of_what_is_held_goes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetched_chunks, "decoder", lambda: None)
    store = LatencyStore(store_of("direct"), 0.0)
    source = open_source(store)
    fetched, outs = fetch(source, CHUNKS)
    held = [weakref.ref(data) for piece in fetched._held for _, data in piece.chunks]
    alive = []
    array = source._arrays.get()["t"]
    decode = array.decode

    def watch(*args: Any) -> None:
        decode(*args)
        alive.append(sum(ref() is not None for ref in held))

    monkeypatch.setattr(array, "decode", watch)
    fetched.decode(outs)
    assert alive == [3, 2, 1]


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: LatencyStore(s, 0.0)], ids=["", "waits"])
def test_faults_name_the_chunk_in_either_stage(way: str, wrap: Any):
    for change, expected in [(truncate, ChunkError), (None, MissingChunkError)]:
        inner = store_of(way)
        key = "t/c/0/0/0"
        if change is None:
            del inner._store_dict[key]
        else:
            damaged = change(inner._store_dict[key].to_bytes())
            inner._store_dict[key] = default_buffer_prototype().buffer.from_bytes(damaged)
        source = open_source(wrap(inner), on_missing="raise")
        with pytest.raises(expected) as caught:
            kinds.read(source, "t", (0, 0, 0))
        assert (caught.value.key, caught.value.variable) == (key, "t")
        assert caught.value.chunk == (0, 0, 0)


def test_the_recorder_tells_what_is_held():
    source = SourceRecorder(open_source(LatencyStore(store_of("direct"), 0.0)))
    assert source.is_waiting("t")
    first, outs = fetch(source, [(0, 0, 0)])
    second, _ = fetch(source, [(1, 0, 0)])
    assert source.peak_held_nbytes == first.nbytes + second.nbytes > first.nbytes > 0
    first.decode(outs)
    assert source.peak_in_flight_nbytes == outs[0].nbytes
    # A fetched chunk that is dropped is not held.
    del second
    source.reset()
    third, _ = fetch(source, [(2, 0, 0)])
    assert source.peak_held_nbytes == third.nbytes
    assert source.num_reads == 1


@pytest.fixture(params=["compiled", "python"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read files with the compiled function, and without it."""
    if request.param == "python":
        monkeypatch.setattr(object_readers, "find_function", lambda *_: None)
    elif load_library()[0] is None:
        pytest.skip("nothing was compiled")
    return request.param


def test_files_give_what_zarr_gives(tmp_path: Path, reading: str):
    rng = np.random.default_rng(0)
    store = LocalStore(tmp_path)
    files = Files(str(tmp_path))
    prototype = default_buffer_prototype()
    for size in (0, 1, 5000):
        (tmp_path / f"{size}").write_bytes(rng.bytes(size))
        spans = [(int(a), int(a + n)) for a, n in rng.integers(0, 6000, (40, 2))]
        expected = [
            store.get_sync(f"{size}", byte_range=RangeByteRequest(*span)).to_bytes()
            for span in spans
        ]
        parts = [ObjectPiece(f"{size}", *span) for span in spans]
        ranges = [
            None if data is None else data.tobytes()
            for found in files.get_pieces(parts, sum(stop - start for start, stop in spans))
            for data in found
        ]
        assert ranges == expected
        whole = files.get(f"{size}")
        assert whole.tobytes() == store.get_sync(f"{size}", prototype=prototype).to_bytes()
        for nbytes in (1, 300, 7000):
            last = store.get_sync(f"{size}", byte_range=SuffixByteRequest(nbytes)).to_bytes()
            assert files.get_last(f"{size}", nbytes).tobytes() == last
    (tmp_path / "folder").mkdir()
    for key in ("absent", "folder", "5000/below"):
        assert files.get(key) is None
        assert files.get_last(key, 1) is None
        parts = [ObjectPiece(key, 0, 1), ObjectPiece(key, 1, 2)]
        assert [data for found in files.get_pieces(parts, 2) for data in found] == [None, None]
    keys, expected = ["1", "absent", "5000", "0"], [1, None, 5000, 0]
    for room, num_calls in ((10_000, 1), (4000, 3), (0, 3)):
        SCRATCH._buffers.clear()
        lists = []
        for found in files.get_pieces([ObjectPiece(key) for key in keys], room):
            lists.append([None if data is None else data.tobytes() for data in found])
        together = [data for own in lists for data in own]
        assert [None if data is None else len(data) for data in together] == expected
        assert together[2] == (tmp_path / "5000").read_bytes()
        assert len(lists) == (num_calls if reading == "compiled" else len(keys))


def test_a_file_that_comes_in_pieces_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(object_readers, "find_function", lambda *_: None)
    (tmp_path / "chunk").write_bytes(b"0123456789")

    def three_at_most(file: int, buffers: list[memoryview], start: int) -> int:
        data = b"0123456789"[start : start + min(3, len(buffers[0]))]
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr("os.preadv", three_at_most, raising=False)
    files = Files(str(tmp_path))
    assert files.get("chunk").tobytes() == b"0123456789"
    ((part,),) = files.get_pieces([ObjectPiece("chunk", 4, 12)], 8)
    assert part.tobytes() == b"456789"
    monkeypatch.undo()
    monkeypatch.delattr("os.preadv", raising=False)
    assert files.get_last("chunk", 4).tobytes() == b"6789"


@pytest.mark.parametrize(
    "encoding",
    [
        {"name": "default", "separator": "/"},
        {"name": "default", "separator": "."},
        {"name": "v2", "separator": "/"},
        {"name": "v2", "separator": "."},
        None,
    ],
    ids=str,
)
def test_keys_are_zarrs_own(encoding: dict[str, Any] | None):
    for path in ("a", "deep/er/a"):
        store = MemoryStore()
        more = {"dimension_names": ("y", "x"), "chunk_key_encoding": encoding}
        if encoding is None:
            more = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
        array = zarr.create_array(
            store,
            name=path,
            zarr_format=2 if encoding is None else 3,
            shape=(40, 3),
            chunks=(3, 1),
            dtype="i4",
            **more,
        )
        array[:] = 1
        counting = CountingStore(store)
        source = open_source(counting, group=path.rpartition("/")[0] or None)
        counting.reset()
        kinds.read(source, "a", (12, 2))
        assert list(counting.reads) == [f"{path}/{array.metadata.encode_chunk_key((12, 2))}"]
