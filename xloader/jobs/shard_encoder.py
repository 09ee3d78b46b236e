"""Encodes the shards of an array as zarr does."""

from __future__ import annotations

from typing import Any

import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from xloader.jobs.target_arrays import TargetArray
from xloader.sources import zarr_adapter

Index = tuple[int, ...]
"""Index of a shard, or of a source chunk, along each dimension."""


class ShardEncoder:
    """Encodes the shards of an array as zarr does, in memory. Many threads may use it.

    Parameters
    ----------
    array : TargetArray
        The array.
    metadata : bytes
        Its ``zarr.json``.
    """

    def __init__(self, array: TargetArray, metadata: bytes) -> None:
        buffer = zarr_adapter.default_buffer_prototype().buffer
        self._held: dict[str, Any] = {"zarr.json": buffer.from_bytes(metadata)}
        # A shard of fill values is written too: an absent one would count as missing.
        with zarr.config.set({"array.write_empty_chunks": True}):
            self._array = zarr.open_array(MemoryStore(self._held), mode="r+")
        self._objects, self._shape = array.objects, array.shape

    def key_of(self, shard: Index) -> str:
        """The key of a shard within its array."""
        return str(self._array.metadata.encode_chunk_key(shard))

    def encode(self, shard: Index, values: NDArray[Any]) -> bytes:
        """The stored bytes of a shard, given its elements that lie inside the array."""
        parts = zip(shard, self._objects, self._shape, strict=True)
        place = tuple(slice(n * size, min((n + 1) * size, end)) for n, size, end in parts)
        self._array[place or ...] = values
        return bytes(self._held.pop(self.key_of(shard)).to_bytes())
