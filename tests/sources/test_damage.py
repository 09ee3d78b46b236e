"""A damaged chunk raises one error that names the chunk, and allocates no large memory."""

from __future__ import annotations

import bz2
import gzip
import os
import traceback
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import LocalStore, ObjectStore

import xloader
from tests.sources import kinds
from xloader.errors import ChunkError, CorruptChunkError, UnsupportedDataError
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr import codec_chain, object_readers
from xloader.sources.zarr.codec_chain import (
    Compressed,
    Scratch,
    decode,
    zstd_content_size,
)
from xloader.testing import FaultyStore, garble, truncate, write_store

CODECS: dict[str, dict[str, Any]] = {
    "none": {"compressors": []},
    "blosc": {"compressors": [BloscCodec()]},
    "zstd": {"compressors": [ZstdCodec()]},
    "gzip": {"compressors": [GzipCodec()]},
    "crc32c": {"compressors": [Crc32cCodec()]},
    "zstd-crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "v2-none": {"compressors": None},
    "v2-lz4": {"compressors": numcodecs.LZ4()},
    "v2-zlib": {"compressors": numcodecs.Zlib()},
    "v2-bz2": {"compressors": numcodecs.BZ2()},
    "v2-zlib-crc32": {"filters": [numcodecs.CRC32()], "compressors": numcodecs.Zlib()},
    "v2-adler32": {"filters": [numcodecs.Adler32()], "compressors": None},
    "v2-fletcher32": {"filters": [numcodecs.Fletcher32()], "compressors": None},
    "v2-shuffle-lz4": {"filters": [numcodecs.Shuffle(8)], "compressors": numcodecs.LZ4()},
    "v2-shuffle": {"filters": [numcodecs.Shuffle(8)], "compressors": None},
    "v2-delta": {"filters": [numcodecs.Delta("<f8")], "compressors": numcodecs.Zlib()},
}
UNCHECKED = ("none", "v2-none", "v2-shuffle")
"""Chunks without a checksum: any bytes of the right size decode to some values."""
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": truncate,
    "garbled": garble,
    "empty": lambda data: b"",
    "one-byte": lambda data: data[:1],
    "one-short": lambda data: data[:-1],
    "page": lambda data: b"<html>not found</html>",
}
SHAPE = (64, 32)


def key_of(codecs: str) -> str:
    return "a/1.0" if codecs.startswith("v2") else "a/c/1/0"


def make_store(
    codecs: str, shape: tuple[int, int] = SHAPE, chunks: tuple[int, int] = (32, 32)
) -> zarr.abc.store.Store:
    values = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    dataset = xr.Dataset({"a": (("x", "y"), values)})
    zarr_format = 2 if codecs.startswith("v2") else 3
    encoding = {"a": CODECS[codecs]}
    return write_store(dataset, {"a": chunks}, zarr_format=zarr_format, encoding=encoding)


def refuse(store: zarr.abc.store.Store, key: str) -> CorruptChunkError:
    source = open_source(store)
    assert source.path_of("a").startswith("direct")
    for cut in [(slice(0, 32), slice(0, 32)), (slice(3, 9), slice(0, 32, 2))]:
        with pytest.raises(CorruptChunkError) as caught:
            kinds.read(source, "a", (1, 0), cut)
    error = caught.value
    assert (error.variable, error.chunk, error.key) == ("a", (1, 0), key)
    assert error.store == source.name
    assert "'a'" in str(error)
    assert key in str(error)
    kinds.read(source, "a", (0, 0))
    return error


@pytest.mark.ends(every=4)
@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_error(codecs: str, damage: str):
    if damage == "garbled" and codecs in UNCHECKED:
        pytest.skip("bytes without a checksum are values, whatever they are")
    key = key_of(codecs)
    refuse(FaultyStore(make_store(codecs), {key: DAMAGES[damage]}), key)


@pytest.mark.ends(every=2)
@pytest.mark.parametrize("codecs", ["gzip", "v2-zlib"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("library", ["zlib", "isal.isal_zlib"])
def test_each_library_for_zlib_finds_damage(
    codecs: str, damage: str, library: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(codec_chain, "ZLIB", pytest.importorskip(library))
    store, key = make_store(codecs), key_of(codecs)
    expected = np.arange(np.prod(SHAPE), dtype="f8").reshape(SHAPE)
    np.testing.assert_array_equal(kinds.read_all(open_source(store), "a"), expected)
    refuse(FaultyStore(store, {key: DAMAGES[damage]}), key)


@pytest.mark.ends(every=4)
@pytest.mark.parametrize("codecs", CODECS)
def test_a_chunk_of_another_size_is_damage(codecs: str):
    store, key = make_store(codecs), key_of(codecs)
    for shape in ((32, 31), (32, 33), (64, 32)):
        other = make_store(codecs, shape=shape, chunks=shape)
        stored = other.get_sync(key.replace("1", "0")).to_bytes()
        refuse(FaultyStore(store, {key: lambda _, stored=stored: stored}), key)


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


class StoreLibraryError(Exception):
    """An error like those of obstore, icechunk, aiohttp and botocore, which are no OSError."""


@pytest.mark.parametrize("kind", ["zarr-direct-local", "zarr-unknown-chain"])
@pytest.mark.parametrize("error", [StoreLibraryError, OSError])
def test_a_store_that_fails_is_no_damage_on_any_path(
    tmp_path: Path, kind: str, error: type[Exception]
):
    opened = kinds.KINDS[kind](tmp_path, kinds.make_dataset())
    key = "t/c/0/0/0"
    raised = error("GET https://host/a?sig=canary failed")
    store = FaultyStore(LocalStore(opened.source.name, read_only=True), {key: raised})
    with pytest.raises(ChunkError, match=f"could not be read .*'{key}'.*is complete") as caught:
        kinds.read(open_source(store), "t", (0, 0, 0))
    assert type(caught.value) is ChunkError
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_damage_that_tells_a_url_tells_no_secret(tmp_path: Path):
    opened = kinds.KINDS["zarr-unknown-chain"](tmp_path, kinds.make_dataset())
    raised = ValueError("https://host/a?sig=canary is no chunk")
    store = LocalStore(opened.source.name, read_only=True)
    source = open_source(FaultyStore(store, {"t/c/0/0/0": raised}))
    with pytest.raises(CorruptChunkError, match="https://host/a is no chunk") as caught:
        kinds.read(source, "t", (0, 0, 0))
    assert "canary" not in "".join(traceback.format_exception(caught.value))


NBYTES = 32 * 32 * 8
BOMB = bytes(64 * 2**20)


@pytest.mark.parametrize(
    ("codecs", "make_bomb"),
    [
        ("blosc", lambda: numcodecs.blosc.compress(BOMB, b"zstd", 9)),
        ("zstd", lambda: numcodecs.zstd.compress(BOMB)),
        ("zstd", lambda: numcodecs.zstd.compress(bytes(NBYTES)) + numcodecs.zstd.compress(BOMB)),
        ("zstd", lambda: b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + bytes(20)),
        ("gzip", lambda: gzip.compress(BOMB)),
        ("gzip", lambda: gzip.compress(bytes(NBYTES)) + gzip.compress(BOMB)),
        ("v2-zlib", lambda: zlib.compress(BOMB)),
        ("v2-bz2", lambda: bz2.compress(BOMB)),
        ("v2-bz2", lambda: bz2.compress(bytes(NBYTES)) + bz2.compress(BOMB)),
        ("v2-lz4", lambda: numcodecs.lz4.compress(BOMB)),
        ("v2-lz4", lambda: (2**31 - 1).to_bytes(4, "little") + bytes(20)),
        ("v2-zlib-crc32", lambda: zlib.compress(BOMB)),
    ],
    ids=[
        *("blosc", "zstd", "zstd-second-frame", "zstd-lying-header", "gzip"),
        *(
            "gzip-second-member",
            "zlib",
            "bz2",
            "bz2-second-stream",
            "lz4",
            "lz4-lying-header",
            "zlib-in-chain",
        ),
    ],
)
def test_a_bomb_is_an_error_and_no_allocation(codecs: str, make_bomb: Callable[[], bytes]):
    bomb = make_bomb()
    faulty = FaultyStore(make_store(codecs), {key_of(codecs): lambda data: bomb})
    source = open_source(faulty)
    out = np.empty((32, 32))
    tracemalloc.start()
    with pytest.raises(CorruptChunkError):
        kinds.read_into(source, "a", (1, 0), (slice(0, 32), slice(0, 32)), out)
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_nbytes < 8 * 2**20


@pytest.mark.parametrize("size", [2**30, 2**43])
@pytest.mark.parametrize("way", ["compiled", "python", "obstore"])
def test_a_file_of_any_size_is_an_error_and_no_allocation(
    way: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = xr.Dataset({"a": (("x", "y"), np.arange(2048.0).reshape(SHAPE))})
    write_store(dataset, {"a": (32, 32)}, tmp_path, encoding={"a": {"compressors": [ZstdCodec()]}})
    os.truncate(tmp_path / "a/c/1/0", size)
    store: Any = tmp_path
    if way == "python":
        monkeypatch.setattr(object_readers, "find_function", lambda *_: None)
    elif way == "obstore":
        local = pytest.importorskip("obstore.store").LocalStore(str(tmp_path))
        store = ObjectStore(local, read_only=True)
    source = open_source(store)
    kinds.read(source, "a", (0, 0))
    tracemalloc.start()
    with pytest.raises(CorruptChunkError, match="bytes at 'a/c/1/0', where at most") as caught:
        kinds.read(source, "a", (1, 0))
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.chunk == (1, 0)
    assert peak_nbytes < 8 * 2**20
    kinds.read(source, "a", (0, 0))


@pytest.mark.parametrize("codecs", [name for name in CODECS if name != "v2-delta"])
def test_chunks_that_no_codec_makes_smaller_are_read(codecs: str, tmp_path: Path):
    values = np.random.default_rng(0).integers(0, 2**63, SHAPE).view("f8")
    dataset = xr.Dataset({"a": (("x", "y"), np.where(np.isfinite(values), values, 0.0))})
    zarr_format = 2 if codecs.startswith("v2") else 3
    # Many chunks of a few bytes, of which headers and checksums take more than the values.
    for chunks in ((32, 32), (1, 1)):
        encoding, path = {"a": CODECS[codecs]}, tmp_path / f"{chunks[0]}.zarr"
        dataset = dataset.isel(x=slice(2 * chunks[0]), y=slice(chunks[1]))
        write_store(dataset, {"a": chunks}, path, zarr_format=zarr_format, encoding=encoding)
        source = open_source(path)
        np.testing.assert_array_equal(kinds.read_all(source, "a"), dataset["a"].values)


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


zstd = numcodecs.zstd.compress
ODD_FORMS: dict[str, tuple[str, bytes]] = {
    "plain": ("", b"abcdefgh"),
    "zstd in frames": ("zstd", zstd(b"ab") + zstd(b"cdefgh")),
    "zstd, a last frame of one": ("zstd", zstd(b"abcdefg") + zstd(b"h")),
    "zstd, an empty last frame": ("zstd", zstd(b"abcdefgh") + zstd(b"")),
    "zstd after a frame of metadata": (
        "zstd",
        b"\x50\x2a\x4d\x18\x03\x00\x00\x00xyz" + zstd(b"abcdefgh"),
    ),
    # Magic number, descriptor 0 (no size, no checksum), window size, one raw last block.
    "zstd without a declared size": (
        "zstd",
        b"\x28\xb5\x2f\xfd\x00\x58" + (1 | 8 << 3).to_bytes(3, "little") + b"abcdefgh",
    ),
    "gzip in members, padded": ("gzip", gzip.compress(b"abc") + gzip.compress(b"defgh") + bytes(9)),
    "bz2 in streams with a tail": ("bz2", bz2.compress(b"abc") + bz2.compress(b"defgh") + b"none"),
    "zlib with a tail": ("zlib", zlib.compress(b"abcdefgh") + b"more"),
}
"""Eight bytes in forms that libraries allow and few writers make."""


@pytest.mark.parametrize("form", ODD_FORMS)
def test_odd_forms_of_compressed_bytes(form: str):
    codec, data = ODD_FORMS[form]
    steps = [Compressed(codec)] if codec else []
    assert decode(as_array(data), steps, 8, None, Scratch()).tobytes() == b"abcdefgh"
    out = np.empty(8, np.uint8)
    assert decode(as_array(data), steps, 8, out, Scratch()).tobytes() == b"abcdefgh"
    assert not steps or out.tobytes() == b"abcdefgh"
    for wrong in (7, 9):
        with pytest.raises((ValueError, RuntimeError)):
            decode(as_array(data), steps, wrong, None, Scratch())


def test_blosc_is_not_read_past_its_end():
    data = numcodecs.blosc.compress(np.arange(100), b"zstd", 5)
    with pytest.raises(ValueError, match="stored bytes"):
        decode(as_array(data[:-1]), [Compressed("blosc")], 800, None, Scratch())
    padded = decode(as_array(data + b"more"), [Compressed("blosc")], 800, None, Scratch())
    assert padded.view("i8").tolist() == list(range(100))


def test_zstd_declares_sizes_of_every_width():
    for size in (0, 5, 255, 256, 300, 65535, 65536 + 255, 65536 + 256, 10**6):
        assert zstd_content_size(as_array(zstd(bytes(size)))) == size
    assert zstd_content_size(as_array(ODD_FORMS["zstd without a declared size"][1])) is None


def test_scratch_is_reused_by_its_thread():
    scratch = Scratch()
    assert not np.shares_memory(scratch.take(100, 0), scratch.take(100, 1))
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
    data = bytearray(path.read_bytes())
    at = data.find(dataset["a"].values[40:48].tobytes()[:64])
    assert at > 0
    data[at + 100] ^= 0xFF
    path.write_bytes(bytes(data))
    # Open the source after the damage, because a file that changes later raises another error.
    source = open_source(path)
    with pytest.raises(CorruptChunkError, match=r"'a\.nc'") as caught:
        kinds.read(source, "a", (5, 0))
    assert caught.value.chunk == (5, 0)
    np.testing.assert_array_equal(kinds.read(source, "a", (0, 0)), dataset["a"].values[:8])


def test_damaged_labels_are_no_fault_of_the_address(tmp_path: Path) -> None:
    labels = np.arange(40.0)
    xr.Dataset({"t": ("x", labels)}, {"x": labels}).to_zarr(
        tmp_path / "a.zarr", zarr_format=3, consolidated=False
    )
    (chunk,) = (tmp_path / "a.zarr" / "x" / "c").iterdir()
    chunk.write_bytes(b"no labels")
    with pytest.raises(UnsupportedDataError, match=r"labels of .*a.zarr cannot be decoded"):
        xloader.open(tmp_path / "a.zarr").sel(x=slice(3, 9))
