"""Damaged chunks: one error that names the chunk, and nothing large allocated on the way."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from tests.sources import kinds
from xloader.errors import CorruptChunkError
from xloader.sources.compressors import zstd_content_size
from xloader.sources.decoding import Compressed, Scratch, decode
from xloader.sources.opening import open_source
from xloader.testing import FaultyStore, garble, truncate, write_store

CODECS = {
    "none": [],
    "blosc": [BloscCodec()],
    "zstd": [ZstdCodec()],
    "gzip": [GzipCodec()],
    "crc32c": [Crc32cCodec()],
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": truncate,
    "garbled": garble,
    "empty": lambda data: b"",
    "one-byte": lambda data: data[:1],
    "one-short": lambda data: data[:-1],
    "page": lambda data: b"<html>not found</html>",
}
SHAPE = (64, 32)


def make_store(codecs: list) -> tuple[zarr.abc.store.Store, np.ndarray]:
    values = np.arange(np.prod(SHAPE), dtype="f8").reshape(SHAPE)
    dataset = xr.Dataset({"a": (("x", "y"), values)})
    return write_store(dataset, {"a": (32, 32)}, encoding={"a": {"compressors": codecs}}), values


def refuse(store: zarr.abc.store.Store) -> CorruptChunkError:
    source = open_source(store)
    assert source.path_of("a").startswith("direct")
    for cut in [(slice(0, 32), slice(0, 32)), (slice(3, 9), slice(0, 32, 2))]:
        with pytest.raises(CorruptChunkError) as caught:
            kinds.read(source, "a", (1, 0), cut)
    error = caught.value
    assert (error.variable, error.chunk, error.key) == ("a", (1, 0), "a/c/1/0")
    assert error.store == source.name
    assert "'a'" in str(error)
    assert "a/c/1/0" in str(error)
    kinds.read(source, "a", (0, 0))
    return error


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_error(codecs: str, damage: str):
    if (codecs, damage) == ("none", "garbled"):
        pytest.skip("bytes without a checksum are values, whatever they are")
    store, _ = make_store(CODECS[codecs])
    refuse(FaultyStore(store, {"a/c/1/0": DAMAGES[damage]}))


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("shape", [(32, 31), (32, 33), (16, 32), (64, 32)])
def test_a_chunk_of_another_size_is_damage(codecs: str, shape: tuple[int, int]):
    store, _ = make_store(CODECS[codecs])
    other = xr.Dataset({"a": (("x", "y"), np.ones(shape))})
    encoding = {"a": {"compressors": CODECS[codecs]}}
    stored = write_store(other, {"a": shape}, encoding=encoding).get_sync("a/c/0/0").to_bytes()
    refuse(FaultyStore(store, {"a/c/1/0": lambda data: stored}))


@pytest.mark.parametrize("kind", ["zarr-sharded", "zarr-v2", "zarr-packed", "zarr-unknown-chain"])
@pytest.mark.parametrize("damage", ["truncated", "garbled", "empty"])
def test_damage_on_the_other_paths(tmp_path: Path, kind: str, damage: str):
    opened = kinds.KINDS[kind](tmp_path, kinds.make_dataset())
    for key in ("t/c/0/0/0", "t/0.0.0"):
        stored = Path(opened.source.name) / key
        if stored.exists():
            stored.write_bytes(DAMAGES[damage](stored.read_bytes()))
            break
    with pytest.raises(CorruptChunkError, match=f"'{key}'") as caught:
        kinds.read(opened.source, "t", (0, 0, 0))
    assert caught.value.__cause__ is not None


NBYTES = 32 * 32 * 8
BOMB = bytes(256 * 2**20)


@pytest.mark.parametrize(
    ("codecs", "make_bomb"),
    [
        ("blosc", lambda: numcodecs.blosc.compress(BOMB, b"zstd", 9)),
        ("zstd", lambda: numcodecs.zstd.compress(BOMB)),
        ("zstd", lambda: numcodecs.zstd.compress(bytes(NBYTES)) + numcodecs.zstd.compress(BOMB)),
        ("zstd", lambda: b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + bytes(20)),
        ("gzip", lambda: gzip.compress(BOMB)),
    ],
    ids=["blosc", "zstd", "zstd-second-frame", "zstd-lying-header", "gzip"],
)
def test_a_bomb_is_an_error_and_no_allocation(codecs: str, make_bomb: Callable[[], bytes]):
    store, _ = make_store(CODECS[codecs])
    bomb = make_bomb()
    faulty = FaultyStore(store, {"a/c/1/0": lambda data: bomb})
    source = open_source(faulty)
    out = np.empty((32, 32))
    tracemalloc.start()
    with pytest.raises(CorruptChunkError):
        source.read("a", (1, 0), (slice(0, 32), slice(0, 32)), out)
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_nbytes < 8 * 2**20


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(
    "frames",
    [
        [b"ab", b"cdefgh"],
        [b"abcdefg", b"h"],
        [b"abcdefgh", b""],
    ],
)
def test_zstd_in_several_frames(frames: list[bytes]):
    data = as_array(b"".join(numcodecs.zstd.compress(part) for part in frames))
    whole = b"".join(frames)
    out = np.empty(len(whole), np.uint8)
    decode(data, [Compressed("zstd")], out.size, out, Scratch())
    assert out.tobytes() == whole
    for wrong in (out.size - 1, out.size + 1):
        with pytest.raises((ValueError, RuntimeError)):
            decode(data, [Compressed("zstd")], wrong, None, Scratch())


def test_zstd_after_a_frame_of_metadata():
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00xyz"
    data = as_array(skipped + numcodecs.zstd.compress(b"abcdefgh"))
    assert decode(data, [Compressed("zstd")], 8, None, Scratch()).tobytes() == b"abcdefgh"
    with pytest.raises(ValueError, match="end before"):
        decode(data, [Compressed("zstd")], 9, None, Scratch())


def test_zstd_without_a_declared_size():
    # Magic, a descriptor of 0 (no size, no checksum), a window byte; then one raw, last block.
    last_raw_block = (1 | 8 << 3).to_bytes(3, "little") + b"abcdefgh"
    data = as_array(b"\x28\xb5\x2f\xfd\x00\x58" + last_raw_block)
    assert zstd_content_size(data) is None
    assert decode(data, [Compressed("zstd")], 8, None, Scratch()).tobytes() == b"abcdefgh"
    for wrong in (7, 9):
        with pytest.raises((ValueError, RuntimeError)):
            decode(data, [Compressed("zstd")], wrong, None, Scratch())


def test_blosc_is_not_read_past_its_end():
    data = numcodecs.blosc.compress(np.arange(100), b"zstd", 5)
    with pytest.raises(ValueError, match="stored bytes"):
        decode(as_array(data[:-1]), [Compressed("blosc")], 800, None, Scratch())
    padded = decode(as_array(data + b"more"), [Compressed("blosc")], 800, None, Scratch())
    assert padded.view("i8").tolist() == list(range(100))


@pytest.mark.parametrize("size", [0, 5, 255, 256, 300, 65535, 65536 + 255, 65536 + 256, 10**6])
def test_zstd_declares_sizes_of_every_width(size: int):
    assert zstd_content_size(as_array(numcodecs.zstd.compress(bytes(size)))) == size


def test_gzip_in_several_members_and_padded():
    data = as_array(gzip.compress(b"abc") + gzip.compress(b"defgh") + bytes(10))
    assert decode(data, [Compressed("gzip")], 8, None, Scratch()).tobytes() == b"abcdefgh"
    for wrong in (7, 9):
        with pytest.raises(ValueError, match=r"gzip|where the chunk"):
            decode(data, [Compressed("gzip")], wrong, None, Scratch())


def test_scratch_is_reused_by_its_thread():
    scratch = Scratch()
    first = scratch.take(100)
    assert scratch.take(60).base is first.base
    assert scratch.take(200).size == 200
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(scratch.take, 200).result()
    assert not np.shares_memory(theirs, scratch.take(200))


def test_a_damaged_file_is_one_error(tmp_path: Path):
    path = tmp_path / "a.nc"
    rng = np.random.default_rng(0)
    dataset = xr.Dataset({"a": (("x", "y"), rng.normal(size=(64, 512)))})
    dataset.to_netcdf(
        path, engine="netcdf4", encoding={"a": {"chunksizes": (8, 512), "fletcher32": True}}
    )
    source = open_source(path)
    data = bytearray(path.read_bytes())
    at = data.find(dataset["a"].values[40:48].tobytes()[:64])
    assert at > 0
    data[at + 100] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptChunkError, match=r"'a\.nc'") as caught:
        kinds.read(source, "a", (5, 0))
    assert caught.value.chunk == (5, 0)
    np.testing.assert_array_equal(kinds.read(source, "a", (0, 0)), dataset["a"].values[:8])
