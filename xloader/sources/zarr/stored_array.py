"""Arrays of an open Zarr store: the keys, the stored bytes and the values of their chunks.

zarr's public indexing decodes on one thread and copies twice. Here the bytes of a chunk are
fetched through the store and decoded on the calling thread, into the caller's memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Final, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from xloader.errors import UnsupportedDataError
from xloader.sources import zarr_adapter
from xloader.sources.base import ChunkFiles, ShardFiles
from xloader.sources.chunk_sizes import Cut, shift, take
from xloader.sources.retries import current
from xloader.sources.store_watch import Watch
from xloader.sources.zarr.codec_chain import Bytes, CastView, Chain, Checked, Scratch, Sharding
from xloader.sources.zarr.compiled_decoding import decoder
from xloader.sources.zarr.object_readers import Files, Objects, reads_together
from xloader.sources.zarr.parse_codecs import Metadata, chain_of, sharding_of
from xloader.sources.zarr.shards import IndexCache, Located, Numbered, Shard, ShardReader
from xloader.sources.zarr.stored_grid import StoredGrid

_MOST_SHARDS: Final = 1 << 10
"""Most shards of an array whose keys and layouts are remembered."""


def check_keys(array: zarr.Array[Any]) -> None:
    """Refuse an array whose chunks would have keys that lead out of its store."""
    key = _key_encoder(array.path, array.metadata)((0,) * array.ndim)
    parts = key.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or not {"\\", "\0"}.isdisjoint(key):
        raise UnsupportedDataError(
            f"array {array.path!r} has chunk keys that may point outside the store",
            given=f"key {key!r}",
            allowed='names without "..", ".", backslashes and NUL',
            remedy="rename the array",
        )


def metadata_in_json(array: zarr.Array[Any]) -> object:
    """An array's metadata as JSON holds them, without attributes."""
    described = dict(array.metadata.to_dict())
    for name in ("attributes", "consolidated_metadata"):
        described.pop(name, None)
    return json.loads(json.dumps(described, default=str))


def _key_encoder(path: str, metadata: Metadata) -> Callable[[tuple[int, ...]], str]:
    """Make the function that gives the key of a stored object from its index."""
    prefix = f"{path}/" if path else ""
    if metadata.zarr_format == 3 and metadata.to_dict()["chunk_key_encoding"]["name"] == "default":
        # Four times as fast as zarr's own method, which would be called for each chunk.
        separator = str(_separator_of(metadata))
        return lambda index: prefix + separator.join(("c", *map(str, index)))
    return lambda index: prefix + metadata.encode_chunk_key(index)


def _separator_of(metadata: Metadata) -> str | None:
    """The text between the numbers of a chunk's index in its key; None if that is unknown."""
    if metadata.zarr_format == 2:
        return str(metadata.dimension_separator)
    encoding = metadata.to_dict()["chunk_key_encoding"]
    known = {"default": "/", "v2": "."}
    if encoding["name"] not in known:
        return None
    return str(encoding.get("configuration", {}).get("separator", known[encoding["name"]]))


@dataclass(eq=False, repr=False)
class StoredArray:
    """One array of an open store, with its chunks by index.

    `key_of_object`: gives the key of a stored object from its index.
    """

    store: Store
    path: str
    _metadata: Metadata
    grid: StoredGrid
    watch: Watch
    objects: Objects

    def __post_init__(self) -> None:
        self.key_of_object = _key_encoder(self.path, self._metadata)
        self._chain_of = cache(partial(chain_of, self._metadata))
        self._sharding_of = cache(partial(sharding_of, self._metadata))
        grid, key_of, sharding_of_sizes = self.grid, self.key_of_object, self._sharding_of

        # Without `self`, which a cache that it holds would keep alive, and its open store.
        @lru_cache(_MOST_SHARDS)
        def shard_at(index: tuple[int, ...]) -> Shard:
            sharding = sharding_of_sizes(grid.chunks_per_object(index))
            assert sharding is not None, "all shards of an array are stored in one way"
            return Shard(key_of(index), grid.first_chunk(index), sharding)

        self._shard_at = shard_at
        self._shards: ShardReader | None = None
        if self.grid.is_sharded and self._first_sharding is not None:
            chain = self._chain_of(self.grid.largest_shape)
            self._shards = ShardReader(self.objects, chain, IndexCache.of_process())

    @property
    def is_sharded(self) -> bool:
        """Whether the chunks lie in shards whose indexes xloader itself reads."""
        return self._shards is not None

    @cached_property
    def _array(self) -> zarr.Array[Any]:
        return zarr_adapter.array_of(self.store, self.path, self._metadata)

    @property
    def _first_sharding(self) -> Sharding | None:
        """Layout of the chunks in the first shard."""
        return self._sharding_of(self.grid.chunks_per_object((0,) * len(self.grid.shape)))

    def key(self, chunk: tuple[int, ...]) -> str:
        """Key of the stored object that holds a chunk."""
        return self.key_of_object(self.grid.object_of(chunk))

    def files(self) -> ChunkFiles | None:
        """How native threads read the chunks, which must be at most compressed; or decode them."""
        compiled, chain = decoder(), self._chain_of(self.grid.largest_shape)
        separator = _separator_of(self._metadata)
        root = self.objects.prefix if isinstance(self.objects, Files) else None
        if compiled is None:
            return None
        if chain is None or chain.simple is None or not chain.simple.dtype.isnative:
            return None
        codec = compiled.codecs.get(chain.simple.compressor)
        if codec is None:
            return None
        sizes = self.grid.inner_shape or self.grid.object_sizes
        if root is None or separator is None or not reads_together():
            return ChunkFiles(None, "", codec, tuple(compiled.addresses), sizes)
        shards = None
        if self.grid.is_sharded and (shards := self._shard_files(chain)) is None:
            return None
        first = self.key_of_object((0,) * len(self.grid.shape))
        # All but the index, which ends the key.
        num_last = len(separator.join("0" * len(self.grid.shape)))
        prefix = root + first[: len(first) - num_last] if self.grid.shape else root + first
        return ChunkFiles(prefix, separator, codec, tuple(compiled.addresses), sizes, shards)

    def _shard_files(self, chain: Chain) -> ShardFiles | None:
        """How the chunks lie in shards; None if shards differ, or their index is compressed."""
        grid = self.grid
        sharding = self._first_sharding
        if sharding is None or not all(isinstance(size, int) for size in grid.object_sizes):
            return None
        counts, index = sharding.chunks_per_shard, sharding.index_chain
        is_plain = index.turns == (CastView(np.dtype("<u8"), (*counts, 2)),)
        if not is_plain or index.steps not in ((), (Checked("crc32c"),)):
            return None
        return ShardFiles(
            counts,
            grid.object_counts,
            sharding.index_chain.stored_nbytes,
            sharding.is_at_start,
            sharding.is_checked,
            chain.stored_nbytes if chain.is_fixed_size else 1,
        )

    def locate(self, chunks: Sequence[Numbered]) -> Located:
        """Find chunks of one shard by its index; see `ShardReader.locate`."""
        assert self._shards is not None, "locate() is for arrays with shards"
        index = self.grid.object_of(chunks[0][1])
        num_within = partial(self.grid.num_chunks_within, index)
        return self._shards.locate(self._shard_at(index), chunks, num_within)

    def forget(self, chunk: tuple[int, ...]) -> None:
        """Drop the index of a chunk's shard, so that it is read again when it is next needed."""
        if self._shards is not None:
            self._shards.forget(self.key(chunk))

    def is_there(self, chunk: tuple[int, ...]) -> bool:
        """Whether a chunk is in the store; for a chunk of a shard, whether the index lists it."""
        if self._shards is not None:
            return self._shards.is_there(self._shard_at(self.grid.object_of(chunk)), chunk)
        key = self.key(chunk)
        return current().ask(key, lambda: bool(zarr_adapter.sync(self.store.exists(key))))

    def decode(
        self, data: Bytes, chunk: tuple[int, ...], cut: Cut, out: NDArray[Any], scratch: Scratch
    ) -> None:
        """Decode a part of a fetched chunk on the calling thread."""
        self.chain(chunk).decode_into(data, cut, out, scratch)

    def chain(self, chunk: tuple[int, ...]) -> Chain:
        """The codec chain of a chunk, for arrays whose chain is known."""
        chain = self._chain_of(self.grid.stored_shape(chunk))
        assert chain is not None, "chain() is for arrays whose chain is known"
        return chain

    def fill(self, out: NDArray[Any]) -> None:
        """Write the values of an absent chunk: the fill value, or zeros if there is none."""
        fill_value = self._metadata.fill_value
        out[...] = 0 if fill_value is None else fill_value

    def index(self, chunk: tuple[int, ...], cut: Cut, out: NDArray[Any]) -> None:
        """Read a part of a chunk through zarr's own indexing."""
        origin, valid = self.grid.origin_of(chunk), self.grid.shape_of(chunk)
        is_slices = all(isinstance(kept, slice) and kept.step in (None, 1) for kept in cut)
        if is_slices:
            selection = cast("tuple[slice, ...]", shift(cut, origin, valid))
        else:
            selection = tuple(slice(o, o + n) for o, n in zip(origin, valid, strict=True))
        shape = out.shape if is_slices else valid

        def read() -> NDArray[Any]:
            """Read the elements into an array of their own."""
            # Not into ``out``: this thread may be abandoned here, and return after another has
            # written to ``out``.
            values = np.empty(shape, out.dtype)
            zarr_adapter.read_selection(self._array, selection, values)
            return values

        values = current().ask(self.key(chunk), read)
        out[...] = values if is_slices else take(values, cut)
