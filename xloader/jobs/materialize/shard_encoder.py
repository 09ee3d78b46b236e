"""Encodes the shards of an array: by the libraries of the usual codecs, or through zarr.

zarr encodes each chunk by way of an event loop, which takes as long as the compression itself. So
shards with the usual codecs are put together here, as the Zarr specification defines them::

    chunk 0 | chunk 1 | ... | index: offset and size of each chunk | checksum of the index
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import zarr
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.sources import zarr_adapter
from xloader.sources.zarr.plain_decoding import checksum

Index = tuple[int, ...]
"""Index of a shard, or of a source chunk, along each dimension."""

_Codec = Callable[[Any], Any]

_ABSENT: Final = np.iinfo(np.uint64).max
"""Offset and size in the index of a chunk that lies beyond the end of the array."""

_lock = threading.Lock()

_SHUFFLES: Final = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


class ShardEncoder:
    """Encodes the shards of an array. Many threads may use it."""

    def __init__(self, array: TargetArray, metadata: bytes) -> None:
        buffer = zarr_adapter.default_buffer_prototype().buffer
        self._held: dict[str, Any] = {"zarr.json": buffer.from_bytes(metadata)}
        # A shard of fill values is written too: an absent one would count as missing.
        # The settings of zarr are those of the process, in which other tasks may set them too.
        with _lock, zarr.config.set({"array.write_empty_chunks": True}):
            self._array = zarr.open_array(MemoryStore(self._held), mode="r+")
        self._objects, self._shape, self._chunks = array.objects, array.shape, array.chunks
        self._is_sharded = array.shards is not None
        self._codecs = _codecs_of(json.loads(metadata)) if array.dims else None
        self._dtype = self._array.dtype.newbyteorder("<")
        self._fill = np.asarray(self._array.metadata.fill_value, self._dtype)

    def key_of(self, shard: Index) -> str:
        """The key of a shard within its array."""
        return str(self._array.metadata.encode_chunk_key(shard))

    def encode(self, shard: Index, values: NDArray[Any]) -> bytes:
        """The stored bytes of a shard, given its elements that lie inside the array."""
        if self._codecs is not None:
            return self._shard_of(values) if self._is_sharded else self._chunk_of(values)
        parts = zip(shard, self._objects, self._shape, strict=True)
        place = tuple(slice(n * size, min((n + 1) * size, end)) for n, size, end in parts)
        self._array[place or ...] = values
        return bytes(self._held.pop(self.key_of(shard)).to_bytes())

    def _chunk_of(self, values: NDArray[Any]) -> bytes:
        """The stored bytes of a chunk, whose elements beyond the array are fill values."""
        if values.shape != self._chunks:
            whole = np.full(self._chunks, self._fill, self._dtype)
            whole[tuple(map(slice, values.shape))] = values
            values = whole
        encoded: Any = np.ascontiguousarray(values, self._dtype)
        for codec in self._codecs or ():
            encoded = codec(encoded)
        return bytes(encoded) if isinstance(encoded, bytes) else np.asarray(encoded).tobytes()

    def _shard_of(self, values: NDArray[Any]) -> bytes:
        """The stored bytes of a shard."""
        pairs = zip(self._objects, self._chunks, strict=True)
        grid = tuple(size // chunk for size, chunk in pairs)
        index = np.full((*grid, 2), _ABSENT, "<u8")
        parts: list[bytes] = []
        offset = 0
        for place in itertools.product(*map(range, grid)):
            cells = zip(place, self._chunks, strict=True)
            chunk = values[tuple(slice(n * size, (n + 1) * size) for n, size in cells)]
            if chunk.size:
                parts.append(self._chunk_of(chunk))
                index[place] = offset, len(parts[-1])
                offset += len(parts[-1])
        parts.append(_with_crc32c(index.tobytes()))
        return b"".join(parts)


def _codecs_of(metadata: Mapping[str, Any]) -> list[_Codec] | None:
    """The codecs of chunks, as functions; None if zarr must encode them."""
    codecs: Sequence[Mapping[str, Any]] = metadata["codecs"]
    if codecs[0]["name"] == "sharding_indexed":
        sharding = codecs[0]["configuration"]
        names = [codec["name"] for codec in sharding["index_codecs"]]
        if len(codecs) > 1 or sharding.get("index_location", "end") != "end":
            return None
        if names != ["bytes", "crc32c"] or not _is_little(sharding["index_codecs"][0]):
            return None
        codecs = sharding["codecs"]
    if codecs[0]["name"] != "bytes" or not _is_little(codecs[0]):
        return None
    functions = [_codec_of(codec["name"], codec.get("configuration", {})) for codec in codecs[1:]]
    known = [codec for codec in functions if codec is not None]
    return known if len(known) == len(functions) else None


def _is_little(codec: Mapping[str, Any]) -> bool:
    return bool(codec.get("configuration", {}).get("endian", "little") == "little")


def _codec_of(name: str, options: Mapping[str, Any]) -> _Codec | None:
    if name == "zstd":
        zstd: _Codec = Zstd(options["level"], options.get("checksum", False)).encode
        return zstd
    if name == "blosc" and options["shuffle"] in _SHUFFLES:
        shuffle = _SHUFFLES[options["shuffle"]]
        numbers = (options["clevel"], shuffle, options.get("blocksize", 0))
        blosc: _Codec = Blosc(options["cname"], *numbers).encode
        return blosc
    return _with_crc32c if name == "crc32c" else None


def _with_crc32c(data: Any) -> bytes:
    body = data if isinstance(data, bytes) else np.asarray(data).tobytes()
    return body + checksum("crc32c", np.frombuffer(body, np.uint8)).to_bytes(4, "little")
