"""Arrays of an open Zarr store: keys, bytes, chunks.

zarr's public indexing decodes on one thread and copies twice. Here a chunk's bytes are fetched
through the store and decoded on the calling thread, into the caller's memory.

Parts of zarr that may move (``zarr.core`` and what begins with an underscore) are used in this
file, in `codecs` and `codec_chains`, and in `stores.places` and `stores.openers`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import (
    ByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
    SupportsGetSync,
)
from zarr.codecs import ShardingCodec
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.config import config
from zarr.core.metadata import ArrayV3Metadata
from zarr.core.sync import sync
from zarr.storage import StorePath, ZipStore

from xloader.errors import UnsupportedDataError
from xloader.sources.base import Cut
from xloader.sources.cuts import shift, take
from xloader.sources.zarr.codec_chains import chain_of
from xloader.sources.zarr.codecs import Metadata
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.decoding import Scratch
from xloader.sources.zarr.indexes import IndexCache
from xloader.sources.zarr.shards import Part, ShardReader, Span


def chunk_shape_of(array: zarr.Array[Any]) -> tuple[int, ...]:
    """Shape of the smallest readable chunk of an array: the inner one where it is sharded.

    Raises
    ------
    UnsupportedDataError
        If the chunks are not all of one shape, or hold nothing.
    """
    try:
        shape = tuple(int(size) for size in array.chunks)
    except NotImplementedError as error:
        raise UnsupportedDataError(
            f"array {array.path!r} has chunks of several shapes",
            given="a chunk grid that is not regular",
            allowed="Zarr's regular chunk grid",
            remedy="rewrite the array with chunks of one shape",
        ) from error
    if min(shape, default=1) < 1:
        raise UnsupportedDataError(
            f"array {array.path!r} has chunks that hold nothing",
            given=f"chunks of shape {shape}",
            allowed="chunks of 1 element or more along each dimension",
            remedy="rewrite the array",
        )
    return shape


def check_keys(array: zarr.Array[Any]) -> None:
    """Refuse an array whose chunks would be looked for outside of its store.

    Raises
    ------
    UnsupportedDataError
        If its path, or what it makes of it, leads elsewhere.
    """
    first = array.metadata.encode_chunk_key((0,) * array.ndim)
    key = f"{array.path}/{first}" if array.path else first
    parts = key.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or not {"\\", "\0"}.isdisjoint(key):
        raise UnsupportedDataError(
            f"array {array.path!r} has chunks with keys that may leave the store",
            given=f"key {key!r}",
            allowed='names without "..", ".", backslashes and NUL',
            remedy="rename the array",
        )


def metadata_in_json(array: zarr.Array[Any]) -> object:
    """Everything that says how an array is stored, as JSON would; no attributes."""
    described = dict(array.metadata.to_dict())
    for name in ("attributes", "consolidated_metadata"):
        described.pop(name, None)
    return json.loads(json.dumps(described, default=str))


def is_waiting(store: Store) -> bool:
    """Whether reading a store mostly waits: it is asked in no other way than asynchronously."""
    return not isinstance(store, SupportsGetSync | ZipStore)


class _StoredObjects:
    """The objects of a store, by key: synchronously where the store can, else side by side."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._getter = store if isinstance(store, SupportsGetSync) else None

    def get(self, key: str) -> Bytes | None:
        return self._fetch(key, None)

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        return self._fetch(key, SuffixByteRequest(nbytes))

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        requests = [RangeByteRequest(start, stop) for start, stop in spans]
        if self._getter is not None or len(requests) == 1:
            # One after the other, so that the first is decoded before the next takes memory.
            yield from (self._fetch(key, request) for request in requests)
            return
        prototype = default_buffer_prototype()
        asked = [(key, prototype, request) for request in requests]
        limit = config.get("async.concurrency")
        yield from map(_as_bytes, sync(concurrent_map(asked, self._store.get, limit=limit)))

    def _fetch(self, key: str, byte_range: ByteRequest | None) -> Bytes | None:
        prototype = default_buffer_prototype()
        if self._getter is not None:
            return _as_bytes(self._getter.get_sync(key, prototype=prototype, byte_range=byte_range))
        return _as_bytes(sync(self._store.get(key, prototype, byte_range)))


def _as_bytes(buffer: Buffer | None) -> Bytes | None:
    return None if buffer is None else np.asarray(buffer.as_numpy_array(), np.uint8)


class StoredArray:
    """One array of an open store: its chunks, by index.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The open store.
    path : str
        Path of the array within the store.
    metadata : ArrayV2Metadata or ArrayV3Metadata
        The array's metadata as it was when the source was opened: it is not read again.
    """

    def __init__(self, store: Store, path: str, metadata: Metadata) -> None:
        self._store = store
        self._path = path
        self._metadata = metadata
        self._array: zarr.Array[Any] = zarr.Array(
            zarr.AsyncArray(metadata=metadata, store_path=StorePath(store, path))
        )
        self._shape = metadata.shape
        self._chunk_shape = chunk_shape_of(self._array)
        self._chunks_per_object = tuple(
            outer // inner
            for outer, inner in zip(
                self._array.shards or self._chunk_shape, self._chunk_shape, strict=True
            )
        )
        self.chain = chain_of(metadata)
        self._objects = _StoredObjects(store)
        self._shards: ShardReader | None = None
        if self.chain is not None and self.chain.sharding is not None:
            self._shards = ShardReader(self._objects, self.chain, IndexCache.of_process())

    def key(self, chunk: tuple[int, ...]) -> str:
        """Key of the stored object that holds a chunk."""
        stored = tuple(i // n for i, n in zip(chunk, self._chunks_per_object, strict=True))
        key = self._metadata.encode_chunk_key(stored)
        return f"{self._path}/{key}" if self._path else key

    def fetch(self, chunks: Sequence[tuple[int, ...]]) -> Iterator[Part]:
        """Read the bytes of chunks: of one shard, or each with a request of its own.

        Yields
        ------
        Part
            Together they hold every chunk once.
        """
        if self._shards is None:
            for number, chunk in enumerate(chunks):
                data = self._objects.get(self.key(chunk))
                yield Part([(number, data)], 1, 0 if data is None else data.nbytes)
            return
        num_there = self._num_there(chunks[0])
        yield from self._shards.read(self.key(chunks[0]), chunks, num_there)

    def forget(self, chunk: tuple[int, ...]) -> None:
        """Read the index of a chunk's shard again, the next time that it is needed."""
        if self._shards is not None:
            self._shards.forget(self.key(chunk))

    def is_there(self, chunk: tuple[int, ...]) -> bool:
        """Whether a chunk is in the store: of a shard, whether its index lists it."""
        if self._shards is not None:
            return self._shards.is_there(self.key(chunk), chunk)
        codec = self._metadata.codecs[0] if isinstance(self._metadata, ArrayV3Metadata) else None
        if isinstance(codec, ShardingCodec) and self._array.shards:
            getter = StorePath(self._store, self.key(chunk))
            index = sync(codec._load_shard_index_maybe(getter, self._chunks_per_object))
            return index is not None and index.get_chunk_slice(chunk) is not None
        return bool(sync(self._store.exists(self.key(chunk))))

    def decode(self, data: Bytes, cut: Cut, out: NDArray[Any], scratch: Scratch) -> None:
        """Decode the part ``cut`` of a fetched chunk into ``out``, on this thread."""
        assert self.chain is not None, "decode() is for arrays whose chain is known"
        self.chain.decode_into(data, cut, out, scratch)

    def fill(self, out: NDArray[Any]) -> None:
        """Write what an absent chunk stands for: zeros where the array does not say."""
        fill_value = self._metadata.fill_value
        out[...] = 0 if fill_value is None else fill_value

    def shape_of(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """How many elements of a chunk lie within the array, along each dimension."""
        return tuple(
            min(size, end - i * size)
            for size, end, i in zip(self._chunk_shape, self._shape, chunk, strict=True)
        )

    def index(self, chunk: tuple[int, ...], cut: Cut, out: NDArray[Any]) -> None:
        """Read the part ``cut`` of a chunk through zarr's own indexing."""
        origin = tuple(i * size for i, size in zip(chunk, self._chunk_shape, strict=True))
        valid = self.shape_of(chunk)
        if all(isinstance(part, slice) and part.step in (None, 1) for part in cut):
            self._select(cast("tuple[slice, ...]", shift(cut, origin, valid)), out)
            return
        whole = np.empty(valid, out.dtype)
        self._select(tuple(slice(o, o + n) for o, n in zip(origin, valid, strict=True)), whole)
        out[...] = take(whole, cut)

    def _num_there(self, chunk: tuple[int, ...]) -> int:
        """How many chunks of a chunk's shard lie within the array."""
        return math.prod(
            min(n, -(-end // size) - i // n * n)
            for i, n, end, size in zip(
                chunk, self._chunks_per_object, self._shape, self._chunk_shape, strict=True
            )
        )

    def _select(self, selection: tuple[slice, ...], out: NDArray[Any]) -> None:
        # zarr's basic indexing knows no strides in what it writes to but takes any NumPy view.
        buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
        self._array.get_basic_selection(selection, out=buffer)
