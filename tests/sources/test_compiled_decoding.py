"""Chunks read and decoded by compiled calls are those of the ordinary way, values and errors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import pytest
import xarray as xr
import zarr
from numcodecs.zstd import compress
from zarr.codecs import BloscCodec, ZstdCodec

import xloader
from xloader.errors import CorruptChunkError
from xloader.sources.base import Read
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr import fetched_chunks, object_readers
from xloader.sources.zarr.codec_chain import SCRATCH, CastView, Chain, Compressed
from xloader.sources.zarr.compiled_decoding import Decoder, decoder
from xloader.sources.zarr.fetched_chunks import ShardChunks
from xloader.sources.zarr.object_readers import Files, ObjectPiece
from xloader.sources.zarr.shards import FetchedPiece
from xloader.testing import truncate, write_store

SHAPE = (6, 8, 10)
CHUNK = (4, 5, 6)
CODECS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {"compressors": ZstdCodec()},
    "blosc": {"compressors": BloscCodec(cname="lz4", shuffle="shuffle")},
}


@pytest.fixture(autouse=True)
def library() -> Decoder:
    found = decoder()
    if found is None:
        pytest.skip("nothing was compiled")
    return found


@pytest.fixture
def calls(library: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of chunks that each compiled call decoded."""
    counts: list[int] = []

    class Counting(Decoder):
        def decode(self, chunks: Any) -> list[bool]:
            done = super().decode(chunks)
            counts.append(sum(done))
            return done

    counting = Counting(library.function, library.codecs, library.addresses)
    monkeypatch.setattr(fetched_chunks, "decoder", lambda: counting)
    return counts


def read_all(path: Path, cut: Any = None) -> np.ndarray:
    """Read the chunks of an array at once, each into a part of one array."""
    source = open_source(path)
    values = np.full(SHAPE, 101, source.variables["a"].stored_dtype)
    reads, outs = [], []
    for at in np.ndindex(*(-(-n // c) for n, c in zip(SHAPE, CHUNK, strict=True))):
        place = tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, CHUNK, strict=True))
        size = values[place].shape
        reads.append(Read("a", at, tuple(slice(0, n) for n in size)))
        outs.append(values[place])
    outcome = source.fetch(reads).decode(outs)
    assert outcome.num_missing == 0
    return values


def write(path: Path, dtype: str, **codecs: Any) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 100, SHAPE).astype(dtype)
    array = zarr.create_group(path).create_array(
        "a", shape=SHAPE, chunks=CHUNK, dtype=dtype, dimension_names=("x", "y", "z"), **codecs
    )
    array[...] = values
    return values


@pytest.mark.parametrize("codec", ["raw", "zstd", "blosc"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_parts_of_chunks(codec: str, step: int, tmp_path: Path, calls: list[int]) -> None:
    values = write(tmp_path, "f4", **CODECS[codec])
    source = open_source(tmp_path)
    cut = (slice(1, 4, step), slice(0, 5), slice(5, 6))
    for out in (np.zeros((3, 5, 1), "f4")[::step], np.zeros((1, 5, 3), "f4").T[::step]):
        source.fetch([Read("a", (0, 1, 0), (cut[0], slice(0, 3), cut[2]))]).decode([out[:, :3]])
        np.testing.assert_array_equal(out[:, :3], values[1:4:step, 5:8, 5:6])
    assert sum(calls) == 2


def test_numcodecs_still_offers_the_functions(library: Decoder) -> None:
    """They are not part of its public interface. Without them chunks are decoded one by one."""
    assert library.codecs == {"": 0, "zstd": 1, "blosc": 2}


@pytest.mark.parametrize("name", ["zstd", "blosc"])
def test_replaced_functions_are_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    module = {"zstd": numcodecs.zstd, "blosc": numcodecs.blosc}[name]
    original, sizes = module.decompress, []
    values = write(tmp_path, "f4", **CODECS[name])

    def decompress(data: Any, out: Any = None) -> Any:
        sizes.append(out.nbytes)
        return original(data, out)

    monkeypatch.undo()
    monkeypatch.setattr(module, "decompress", decompress)
    np.testing.assert_array_equal(read_all(tmp_path), values)
    assert len(sizes) == 8


@pytest.mark.parametrize("codec", ["raw", "zstd", "blosc"])
def test_damage_is_told_as_in_the_ordinary_way(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "f4", **CODECS[codec])
    chunk = tmp_path / "a" / "c" / "1" / "0" / "1"
    chunk.write_bytes(truncate(chunk.read_bytes()))
    with pytest.raises(CorruptChunkError) as compiled:
        read_all(tmp_path)
    monkeypatch.setattr(fetched_chunks, "decoder", lambda: None)
    monkeypatch.setattr(object_readers, "find_function", lambda *_: None)
    with pytest.raises(CorruptChunkError) as ordinary:
        read_all(tmp_path)
    assert str(compiled.value) == str(ordinary.value)
    assert compiled.value.chunk == (1, 0, 1)


@pytest.mark.parametrize("extra", [b"", b"x", compress(b"")])
@pytest.mark.parametrize("parts", [[400], [100, 300], [100, 0, 300], [300], [401], [100, 301]])
def test_zstd_frames_must_fill_the_chunk(library: Decoder, parts: list[int], extra: bytes) -> None:
    """Several frames are allowed, and nothing is written past the chunk."""
    values = np.arange(450, dtype="u1")
    frames, begin = b"", 0
    for size in parts:
        frames += compress(values[begin : begin + size].tobytes())
        begin += size
    data = np.frombuffer(frames + extra, "u1")
    chain = Chain((Compressed("zstd"),), 400, (CastView(np.dtype("u1"), (400,)),))
    memory = np.zeros(450, "u1")
    (is_done,) = library.decode([(data, chain, (slice(0, 400),), memory[:400])])
    is_right = begin == 400 and extra != b"x"
    assert is_done == is_right
    assert not memory[400:].any()
    if is_right:
        np.testing.assert_array_equal(memory[:400], values[:400])


def test_threads_decompress_with_contexts_of_their_own(library: Decoder) -> None:
    """Contexts of zstd are used again, by any thread, and after damaged chunks too."""
    chain = Chain((Compressed("zstd"),), 80_000, (CastView(np.dtype("i8"), (10_000,)),))
    whole = (slice(0, 10_000),)

    def decode(number: int) -> bool:
        values = np.random.default_rng(number).integers(0, 50, 10_000)
        good = np.frombuffer(compress(values.tobytes()), "u1")
        outs = [np.zeros(10_000, "i8") for _ in range(3)]
        chunks = [(good, outs[0]), (good[:-100], outs[1]), (good, outs[2])]
        done = library.decode([(data, chain, whole, out) for data, out in chunks])
        is_right = all(np.array_equal(out, values) for out in (outs[0], outs[2]))
        return is_right and done == [True, False, True]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(decode, range(400)))


@pytest.mark.parametrize("at", [4, 12])
@pytest.mark.parametrize("size", [0, 1, 399, 401, 2**31 - 1, 2**32 - 1])
def test_headers_of_blosc_are_not_believed(library: Decoder, at: int, size: int) -> None:
    packed = bytearray(numcodecs.blosc.compress(bytes(range(200)) * 2, b"lz4", 5, 1))
    stored = len(packed)
    packed[at : at + 4] = size.to_bytes(4, "little")
    chain = Chain((Compressed("blosc"),), 400, (CastView(np.dtype("u1"), (400,)),))
    memory = np.zeros(450, "u1")
    data = np.frombuffer(bytes(packed), "u1")
    (is_done,) = library.decode([(data, chain, (slice(0, 400),), memory[:400])])
    if at == 4 or size > stored:
        assert not is_done
    assert not memory[400:].any()


def test_small_chunks_are_read_and_decoded_together(
    executor: str, tmp_path: Path, calls: list[int]
) -> None:
    """The chunks that one sample needs first take one compiled call of Python, or none."""
    data = np.arange(64 * 20, dtype="f4").reshape(64, 20)
    ds = xr.Dataset({name: (("time", "x"), data + n) for n, name in enumerate("abcd")})
    write_store(ds, dict.fromkeys("abcd", (1, 5)), tmp_path / "s.zarr")
    samples = xloader.open(tmp_path / "s.zarr").window(time=1)
    with samples.loader(batch_size=3, output="numpy") as loader:
        assert loader.explain().num_reads == 64 * 4 * 4
        for batch in loader:
            for n, name in enumerate("abcd"):
                np.testing.assert_array_equal(batch[name][:, 0], data[batch.ids] + n)
        assert loader.report().num_reads == 64 * 4 * 4
        assert loader.report().num_requests == 64 * 4 * 4
    assert calls == ([] if executor == "native" else [16] * 64)


def test_chunks_that_are_not_compressed_take_no_scratch_memory(library: Decoder) -> None:
    """A short file is damage, however large its chunk should be."""
    chain = Chain((), 2**50, (CastView(np.dtype("u1"), (2**50,)),))
    chunk = (np.zeros(10, "u1"), chain, (slice(5, 8),), np.zeros(3, "u1"))
    assert library.decode([chunk]) == [False]


def test_the_first_chunk_of_a_shard_that_has_not_arrived_is_named() -> None:
    class Errors:
        def tell(self, error: Exception, read: Read, *_: Any, **__: Any) -> None:
            raise KeyError(read.chunk) from error

    def parts() -> Iterator[FetchedPiece]:
        yield FetchedPiece([(1, None)], 1)
        raise OSError

    reads = [Read("a", (number,), (slice(0, 1),)) for number in range(2)]
    chunks = ShardChunks([None] * 2, reads, Errors())
    arriving = chunks._timed(parts())
    next(arriving)
    with pytest.raises(KeyError, match="0"):
        next(arriving)


def test_a_buffer_is_freed_before_a_larger_one_takes_its_place(tmp_path: Path) -> None:
    sizes = [2**20, 2**22]
    for size in sizes:
        (tmp_path / f"{size}").write_bytes(bytes(size))
    SCRATCH._buffers.clear()
    files = Files(str(tmp_path))
    take, alive = SCRATCH.take, []

    def watch(nbytes: int, number: int = 0) -> Any:
        old = SCRATCH._buffers.get(number)
        ref = None if old is None else weakref.ref(old)
        del old
        found = take(nbytes, number)
        alive.append(ref is not None and ref() is not None and ref().size < found.size)
        return found

    with mock.patch.object(
        object_readers, "SCRATCH", SimpleNamespace(take=watch, size=SCRATCH.size)
    ):
        for found in files.get_pieces([ObjectPiece(f"{size}") for size in sizes], 0):
            del found
    assert len(alive) > 2
    assert not any(alive)
