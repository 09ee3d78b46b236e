"""Arrays of an open Zarr store: keys, bytes, chunks.

zarr's public indexing decodes on one thread and copies twice. Here a chunk's bytes are fetched
through the store and decoded on the calling thread, into the caller's memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from xloader.errors import UnsupportedDataError
from xloader.sources import zarr_adapter
from xloader.sources.attempts import current
from xloader.sources.base import Cut
from xloader.sources.chunk_slices import shift, take
from xloader.sources.store_watch import Watch
from xloader.sources.zarr.allowed_codecs import Metadata
from xloader.sources.zarr.codec_chain import Chain, Sharding
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.decode import Scratch
from xloader.sources.zarr.object_readers import objects_of
from xloader.sources.zarr.parse_codecs import chain_of, sharding_of
from xloader.sources.zarr.shard_indexes import IndexCache
from xloader.sources.zarr.shards import Shard, ShardPart, ShardReader
from xloader.sources.zarr.stored_grid import StoredGrid


def check_keys(array: zarr.Array[Any]) -> None:
    """Refuse an array whose chunks would be looked for outside of its store.

    Raises
    ------
    UnsupportedDataError
        If its path, or what it makes of it, leads elsewhere.
    """
    key = _key_encoder(array.path, array.metadata)((0,) * array.ndim)
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
    """Make the function from the index of a stored object to its key."""
    prefix = f"{path}/" if path else ""
    # Where a release has it no longer, keys are for messages alone.
    encode = getattr(metadata, "encode_chunk_key", lambda index: ".".join(map(str, index)))
    if metadata.zarr_format == 3:
        encoding = metadata.to_dict()["chunk_key_encoding"]
        if encoding["name"] == "default":
            # Four times as fast as zarr's own, and there is one call for each chunk.
            separator = encoding.get("configuration", {}).get("separator", "/")
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
    grid : StoredGrid
        How the array is cut into chunks.
    watch : Watch
        Tells whether the metadata are still those.
    """

    def __init__(
        self, store: Store, path: str, metadata: Metadata, grid: StoredGrid, watch: Watch
    ) -> None:
        self.watch = watch
        self._store = store
        self._path = path
        self._metadata = metadata
        self._grid = grid
        self._encode = _key_encoder(path, metadata)
        self._chains: dict[tuple[int, ...], Chain | None] = {}
        self._shardings: dict[tuple[int, ...], Sharding | None] = {}
        self._shards: ShardReader | None = None
        if zarr_adapter.is_known():
            self._objects = objects_of(store)
            self._shards = self._make_shard_reader()

    @property
    def is_sharded(self) -> bool:
        """Whether chunks lie in shards whose indexes are read here."""
        return self._shards is not None

    @cached_property
    def _array(self) -> zarr.Array[Any]:
        return zarr_adapter.array_of(self._store, self._path, self._metadata)

    def _make_shard_reader(self) -> ShardReader | None:
        first = (0,) * len(self._grid.shape)
        if not self._grid.is_sharded or self._sharding_of(first) is None:
            return None
        chain = self._chain_of(self._grid.largest_shape)
        return ShardReader(self._objects, chain, IndexCache.of_process())

    def _chain_of(self, shape: tuple[int, ...]) -> Chain | None:
        """The codec chain of chunks of a shape."""
        try:
            return self._chains[shape]
        except KeyError:
            chain = self._chains[shape] = chain_of(self._metadata, shape)
            return chain

    def _sharding_of(self, shard: tuple[int, ...]) -> Sharding | None:
        """How the chunks of a shard are found, by its index in the array."""
        sizes = self._grid.chunks_per_object(shard)
        if sizes not in self._shardings:
            self._shardings[sizes] = sharding_of(self._metadata, sizes)
        return self._shardings[sizes]

    def _shard_of(self, chunk: tuple[int, ...]) -> Shard:
        """The shard that holds a chunk."""
        index = self._grid.object_of(chunk)
        sharding = self._sharding_of(index)
        assert sharding is not None, "all shards of an array are stored in one way"
        return Shard(self._encode(index), self._grid.first_chunk(index), sharding)

    def key(self, chunk: tuple[int, ...]) -> str:
        """Key of the stored object that holds a chunk."""
        return self._encode(self._grid.object_of(chunk))

    def get(self, chunk: tuple[int, ...]) -> Bytes | None:
        """Read the bytes of a chunk that is an object of its own; None where it is absent."""
        return self._objects.get(self._encode(chunk))

    def get_of_shard(self, chunks: Sequence[tuple[int, ...]]) -> Iterator[ShardPart]:
        """Read the bytes of chunks of one shard.

        Yields
        ------
        Part
            Together they hold every chunk once.
        """
        assert self._shards is not None, "get_of_shard() is for arrays with shards"
        index = self._grid.object_of(chunks[0])
        num_within = partial(self._grid.num_chunks_within, index)
        return self._shards.read(self._shard_of(chunks[0]), chunks, num_within)

    def forget(self, chunk: tuple[int, ...]) -> None:
        """Read the index of a chunk's shard again, the next time that it is needed."""
        if self._shards is not None:
            self._shards.forget(self.key(chunk))

    def is_there(self, chunk: tuple[int, ...]) -> bool:
        """Whether a chunk is in the store: of a shard, whether its index lists it."""
        if self._shards is not None:
            return self._shards.is_there(self._shard_of(chunk), chunk)
        if not (zarr_adapter.is_known() and self._grid.is_known):
            # Only what is public is used then, and zarr has no public way to ask.
            return True
        key = self.key(chunk)
        return current().ask(key, lambda: bool(zarr_adapter.sync(self._store.exists(key))))

    def decode(
        self, data: Bytes, chunk: tuple[int, ...], cut: Cut, out: NDArray[Any], scratch: Scratch
    ) -> None:
        """Decode the part ``cut`` of a fetched chunk into ``out``, on this thread."""
        chain = self._chain_of(self._grid.stored_shape(chunk))
        assert chain is not None, "decode() is for arrays whose chain is known"
        chain.decode_into(data, cut, out, scratch)

    def fill(self, out: NDArray[Any]) -> None:
        """Write what an absent chunk stands for: zeros where the array does not say."""
        fill_value = self._metadata.fill_value
        out[...] = 0 if fill_value is None else fill_value

    def shape_of(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """How many elements of a chunk lie within the array, along each dimension."""
        return self._grid.shape_of(chunk)

    def index(self, chunk: tuple[int, ...], cut: Cut, out: NDArray[Any]) -> None:
        """Read the part ``cut`` of a chunk through zarr's own indexing."""
        origin, valid = self._grid.origin_of(chunk), self._grid.shape_of(chunk)
        is_slices = all(isinstance(part, slice) and part.step in (None, 1) for part in cut)
        if is_slices:
            selection = cast("tuple[slice, ...]", shift(cut, origin, valid))
        else:
            selection = tuple(slice(o, o + n) for o, n in zip(origin, valid, strict=True))
        shape = out.shape if is_slices else valid

        def read() -> NDArray[Any]:
            # Not into ``out``: whoever waits here may be given up, and come back later.
            values = np.empty(shape, out.dtype)
            zarr_adapter.read_selection(self._array, selection, values)
            return values

        values = current().ask(self.key(chunk), read)
        out[...] = values if is_slices else take(values, cut)
