"""A damaged shard raises one error that names the chunk; nothing large is fetched or allocated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from google_crc32c import value as crc32c
from zarr.abc.store import Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from tests.sources import kinds, servers, store_kinds
from tests.sources.test_shards import (
    CHUNK_NBYTES,
    INDEX_NBYTES,
    KEY,
    NUM_CHUNKS,
    decode,
    make_store,
    put_files,
    ranges_of_the_first,
    read,
    without_get_sync,
)
from xloader.errors import ChunkError, CorruptChunkError
from xloader.sources.open.open_source import open_source
from xloader.testing import CountingStore, FaultyStore, garble, truncate


def rewrite(store: MemoryStore, change: Callable[[bytes], bytes], key: str = KEY) -> None:
    buffer = default_buffer_prototype().buffer
    store._store_dict[key] = buffer.from_bytes(change(store._store_dict[key].to_bytes()))


def with_entry(chunk: int, offset: int, nbytes: int, *, location: str, is_checked: bool) -> Any:
    """Change one entry of a shard index and keep its checksum valid."""

    def change(data: bytes) -> bytes:
        size = NUM_CHUNKS * 16 + 4 * is_checked
        cut = size if location == "start" else len(data) - size
        index, rest = (data[:cut], data[cut:]) if location == "start" else (data[cut:], data[:cut])
        entries = np.frombuffer(index[: NUM_CHUNKS * 16], "<u8").reshape(NUM_CHUNKS, 2).copy()
        entries[chunk] = offset, nbytes
        index = entries.tobytes()
        if is_checked:
            index += crc32c(index).to_bytes(4, "little")
        return index + rest if location == "start" else rest + index

    return change


def refuse(store: Store, chunk: int = 3) -> CorruptChunkError:
    """Expect an error for the chunk alone, with its neighbour, and in the whole shard."""
    for chunks in ([chunk], [chunk - 1, chunk], list(range(NUM_CHUNKS))):
        source = open_source(store)
        assert source.path_of("a").startswith("direct")
        with pytest.raises(CorruptChunkError) as caught:
            decode(source, chunks)
        assert caught.value.key == KEY
        assert caught.value.chunk[0] in chunks
        assert kinds.read_into(source, "a", (8,), (slice(0, 100),), np.empty(100, "i4"))
    return caught.value


@pytest.mark.ends(every=4)
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        (2**40, CHUNK_NBYTES),
        (2**63 + 5, CHUNK_NBYTES),
        (2**64 - 1, CHUNK_NBYTES),
        (0, 2**40),
        (0, 2**64 - 1),
        (200, CHUNK_NBYTES + 1),
        (200, CHUNK_NBYTES - 1),
        (200, 0),
        (NUM_CHUNKS * CHUNK_NBYTES + 200, CHUNK_NBYTES),
    ],
    ids=[
        *("far", "negative", "half-absent", "huge", "absent-half", "long", "short", "empty"),
        "past-the-end",
    ],
)
def test_an_index_that_points_nowhere(location: str, is_checked: bool, offset: int, nbytes: int):
    store, _ = make_store(location=location, is_checked=is_checked)
    rewrite(store, with_entry(3, offset, nbytes, location=location, is_checked=is_checked))
    refuse(store)


@pytest.mark.parametrize(("offset", "nbytes"), [(2**62, 100), (2**64 - 2, 100), (0, 2**44)])
def test_no_file_is_read_where_none_can_be(tmp_path: Path, offset: int, nbytes: int):
    store, _ = make_store(codecs=[ZstdCodec()])
    rewrite(store, with_entry(3, offset, nbytes, location="end", is_checked=True))
    put_files(store, tmp_path)
    with pytest.raises(CorruptChunkError, match=r"gives chunk \(3,\)"):
        decode(open_source(tmp_path), [3])


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("way", ["memory", "files"])
def test_a_shard_may_hold_more_than_its_chunks(way: str, location: str, tmp_path: Path):
    store, values = make_store(location=location)
    # What an earlier writer left between the chunks and the index at the end, or behind all.
    at = None if location == "start" else -(NUM_CHUNKS * 16 + 4)
    for size in (100, 10**6):
        dead = bytes(size)
        rewrite(store, lambda data, dead=dead: data[:at] + dead + (data[at:] if at else b""))
        put_files(store, tmp_path)
        read(open_source(store if way == "memory" else tmp_path), list(range(NUM_CHUNKS)), values)


@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "unchecked"])
def test_chunks_do_not_lie_in_an_index_at_the_start(is_checked: bool):
    store, _ = make_store(location="start", is_checked=is_checked)
    rewrite(store, with_entry(3, 60, CHUNK_NBYTES, location="start", is_checked=is_checked))
    refuse(store)


def test_chunks_do_not_lie_in_an_unchecked_index_at_the_end():
    store, values = make_store(is_checked=False)
    # The range reaches into the index, but ends before the object does.
    inside = NUM_CHUNKS * CHUNK_NBYTES - 300
    rewrite(store, with_entry(3, inside, CHUNK_NBYTES, location="end", is_checked=False))
    refuse(store)
    # The last chunk ends where the index begins, and is intact.
    read(open_source(store), [7], values)


@pytest.mark.ends(every=4)
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("codecs", [[], [ZstdCodec()]], ids=["plain", "zstd"])
@pytest.mark.parametrize(
    "damage",
    [truncate, garble, lambda data: b"", lambda data: data[:10], lambda data: data[:-1]],
    ids=["truncated", "garbled", "empty", "ten-bytes", "one-short"],
)
def test_a_damaged_shard(location: str, codecs: list[Any], damage: Callable[[bytes], bytes]):
    store, _ = make_store(location=location, codecs=codecs)
    rewrite(store, damage)
    refuse(store, chunk=7)


@pytest.mark.parametrize("wrap", [lambda store: store, without_get_sync], ids=["sync", "async"])
def test_a_flipped_bit_of_an_index_is_told_and_nothing_is_fetched(
    wrap: Callable[[Store], Store],
):
    inner, _ = make_store()
    rewrite(inner, lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
    store = CountingStore(wrap(inner))
    source = open_source(store)
    with pytest.raises(CorruptChunkError, match="index of the shard does not decode"):
        decode(source, [3])
    assert set(ranges_of_the_first(store)) == {SuffixByteRequest(INDEX_NBYTES)}


def test_one_damaged_chunk_leaves_its_neighbours():
    store, values = make_store(codecs=[Crc32cCodec()])
    at = 3 * (CHUNK_NBYTES + 4) + 9
    rewrite(store, lambda data: data[:at] + b"\xff" + data[at + 1 :])
    source = open_source(store)
    with pytest.raises(CorruptChunkError, match="checksum") as caught:
        decode(source, [2, 3, 4])
    assert caught.value.chunk == (3,)
    read(source, [2, 4], values)


def test_after_a_failure_the_index_is_read_again():
    store, values = make_store(codecs=[ZstdCodec()])
    source = open_source(store)
    read(source, [3], values)
    # The shard is written again, with its chunks at other offsets.
    other, new_values = make_store(codecs=[ZstdCodec(level=9)], skip=(0, 1))
    store._store_dict[KEY] = other._store_dict[KEY]
    with pytest.raises(CorruptChunkError):
        decode(source, [3])
    read(source, [3], new_values)


def test_a_failed_request_names_the_chunk_and_tells_no_secret():
    inner, values = make_store()
    store = FaultyStore(inner, {KEY: PermissionError("signed ?sig=canary")}, times=1)
    source = open_source(store)
    with pytest.raises(ChunkError, match="PermissionError") as caught:
        decode(source, [3, 4])
    assert not isinstance(caught.value, CorruptChunkError)
    assert (caught.value.key, caught.value.chunk) == (KEY, (3,))
    assert "canary" not in str(caught.value)
    read(source, [3, 4], values)


@pytest.mark.ends(every=3)
@pytest.mark.parametrize("kind", ["obstore-local", "obstore-http", "fsspec-http"])
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    "damage",
    [truncate, lambda data: b"", lambda data: b"<html>not found</html>" * 20],
    ids=["truncated", "empty", "page"],
)
def test_a_damaged_shard_of_an_object_store(
    kind: str, location: str, damage: Callable[[bytes], bytes]
):
    pytest.importorskip("obstore" if kind.startswith("obstore") else "aiohttp")
    store, _ = make_store(location=location)
    rewrite(store, damage)
    root, url = servers.http_server()
    name = store_kinds.unique("damaged.zarr")
    put_files(store, root / name)
    # Plain HTTP offers no listing.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(root / name))
    source = open_source(open_object_store(kind, root / name, f"{url}/{name}"))
    # Some requests reach beyond the object's end, and each store answers these in its own way.
    for chunks in ([7], [6, 7], list(range(NUM_CHUNKS))):
        with pytest.raises(ChunkError, match=KEY) as caught:
            decode(source, chunks)
        assert (caught.value.key, caught.value.chunk[0] in chunks) == (KEY, True)
    assert kinds.read_into(source, "a", (8,), (slice(0, 100),), np.empty(100, "i4"))


def open_object_store(kind: str, path: Path, url: str) -> object:
    if kind == "fsspec-http":
        return url
    from obstore.store import HTTPStore, LocalStore

    if kind == "obstore-local":
        return LocalStore(str(path))
    return HTTPStore.from_url(url, client_options={"allow_http": True})
