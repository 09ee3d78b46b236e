"""Arrays of an open Zarr store: keys, bytes, chunks.

zarr's public indexing decodes on one thread and copies twice. Here a chunk's bytes are fetched
through the store and decoded on the calling thread, into the caller's memory.

Parts of zarr that may move (``zarr.core`` and what begins with an underscore) are used in this
file, in `codecs` and `codec_chains`, and in `stores.places` and `stores.openers`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.codecs import ShardingCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding
from zarr.core.metadata import ArrayV3Metadata
from zarr.core.sync import sync
from zarr.storage import StorePath

from xloader.errors import UnsupportedDataError
from xloader.sources.base import Cut
from xloader.sources.cuts import shift, take
from xloader.sources.zarr.codec_chains import chain_of
from xloader.sources.zarr.codecs import Metadata
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.decoding import Scratch
from xloader.sources.zarr.indexes import IndexCache
from xloader.sources.zarr.objects import objects_of
from xloader.sources.zarr.shards import Part, ShardReader


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


def _key_encoder(path: str, metadata: Metadata) -> Callable[[tuple[int, ...]], str]:
    """What makes the key of a chunk of its index, or of a shard of its own."""
    prefix = f"{path}/" if path else ""
    encode = metadata.encode_chunk_key
    if isinstance(metadata, ArrayV3Metadata):
        encoding = metadata.chunk_key_encoding
        if type(encoding) is not DefaultChunkKeyEncoding:
            return lambda index: prefix + encode(index)
        separator = encoding.separator
        return lambda index: prefix + separator.join(("c", *map(str, index)))
    return lambda index: prefix + encode(index)


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
        self._is_joint = any(n != 1 for n in self._chunks_per_object)
        self._encode = _key_encoder(path, metadata)
        self._objects = objects_of(store)
        self._shards: ShardReader | None = None
        if self.chain is not None and self.chain.sharding is not None:
            self._shards = ShardReader(self._objects, self.chain, IndexCache.of_process())

    @property
    def is_sharded(self) -> bool:
        """Whether chunks lie in shards that are read here."""
        return self._shards is not None

    def key(self, chunk: tuple[int, ...]) -> str:
        """Key of the stored object that holds a chunk."""
        if not self._is_joint:
            return self._encode(chunk)
        return self._encode(
            tuple(i // n for i, n in zip(chunk, self._chunks_per_object, strict=True))
        )

    def get(self, chunk: tuple[int, ...]) -> Bytes | None:
        """Read the bytes of a chunk that is an object of its own; None where it is absent."""
        return self._objects.get(self.key(chunk))

    def get_of_shard(self, chunks: Sequence[tuple[int, ...]]) -> Iterator[Part]:
        """Read the bytes of chunks of one shard.

        Yields
        ------
        Part
            Together they hold every chunk once.
        """
        assert self._shards is not None, "get_of_shard() is for arrays with shards"
        return self._shards.read(self.key(chunks[0]), chunks, partial(self._num_there, chunks[0]))

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
