"""Every touch of zarr's internals: chunk keys, bytes, codec chains, shard indexes.

zarr's public indexing decodes on one thread and copies twice. Here a chunk's bytes are fetched
through the store and decoded on the calling thread, into the caller's memory. What leans on
parts of zarr that may move is in this file alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store, SupportsGetSync
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.core.buffer import default_buffer_prototype
from zarr.core.chunk_grids import RegularChunkGrid
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.core.sync import sync
from zarr.storage import StorePath

from xloader.errors import UnsupportedDataError
from xloader.sources.base import Cut
from xloader.sources.cuts import shift, take
from xloader.sources.decoding import COMPRESSORS, CRC32C, Bytes, Scratch, decode

Metadata: TypeAlias = ArrayV2Metadata | ArrayV3Metadata

_STEP_OF_CODEC: Final[dict[type, str]] = {
    BloscCodec: "blosc",
    ZstdCodec: "zstd",
    GzipCodec: "gzip",
    Crc32cCodec: CRC32C,
}


@dataclass(frozen=True)
class Chain:
    """The codecs of one array, as our own decoding undoes them.

    Parameters
    ----------
    steps : tuple of str
        Names for `xloader.sources.decoding.decode`, in the order of decoding.
    stored_dtype : numpy.dtype
        Dtype of the decoded bytes, in the byte order stored.
    stored_shape : tuple of int
        Shape of the decoded chunk, before it is transposed back.
    axes : tuple of int
        The transposition that gives the array's own order of dimensions.
    """

    steps: tuple[str, ...]
    stored_dtype: np.dtype
    stored_shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the decoded chunk in bytes."""
        return int(np.prod(self.stored_shape, dtype=object)) * self.stored_dtype.itemsize

    @property
    def is_plain(self) -> bool:
        """Whether the decoded bytes are the chunk as NumPy lays it out."""
        return self.stored_dtype.isnative and self.axes == tuple(range(len(self.axes)))


def chain_of(metadata: Metadata) -> Chain | None:
    """Read the codec chain of an array; None where our own decoding does not know it.

    Codecs are recognised by their exact class, so that one which the user registered in the
    place of zarr's own is left to zarr.
    """
    if not isinstance(metadata, ArrayV3Metadata) or metadata.storage_transformers:
        return None
    if not isinstance(metadata.chunk_grid, RegularChunkGrid):
        return None
    codecs = list(metadata.codecs)
    shape = metadata.chunk_grid.chunk_shape
    axes = tuple(range(len(shape)))
    while codecs and type(codecs[0]) is TransposeCodec:
        order = cast(TransposeCodec, codecs.pop(0)).order
        axes = tuple(axes[i] for i in order)
    if not codecs or type(codecs[0]) is not BytesCodec:
        return None
    steps = tuple(_STEP_OF_CODEC.get(type(codec), "") for codec in reversed(codecs[1:]))
    if "" in steps or sum(step in COMPRESSORS for step in steps) > 1:
        return None
    dtype = np.dtype(metadata.dtype.to_native_dtype())
    endian = codecs[0].endian
    if endian is not None:
        dtype = dtype.newbyteorder(">" if endian.value == "big" else "<")
    return Chain(
        steps=steps,
        stored_dtype=dtype,
        stored_shape=tuple(shape[axis] for axis in axes),
        axes=tuple(int(axis) for axis in np.argsort(axes)),
    )


def chunk_shape_of(array: zarr.Array[Any]) -> tuple[int, ...]:
    """Shape of the smallest readable chunk of an array: the inner one where it is sharded.

    Raises
    ------
    UnsupportedDataError
        If the chunks are not all of one shape.
    """
    try:
        return tuple(int(size) for size in array.chunks)
    except NotImplementedError as error:
        raise UnsupportedDataError(
            f"array {array.path!r} has chunks of several shapes",
            given="a chunk grid that is not regular",
            allowed="Zarr's regular chunk grid",
            remedy="rewrite the array with chunks of one shape",
        ) from error


def codecs_in_words(array: zarr.Array[Any]) -> str:
    """The version and the codecs of an array: ``"zarr v3, bytes, zstd"``."""
    metadata = array.metadata
    names = [f"zarr v{metadata.zarr_format}"]
    if isinstance(metadata, ArrayV3Metadata):
        names.extend(str(codec.to_dict()["name"]) for codec in metadata.codecs)
    else:
        codecs = (*(metadata.filters or ()), metadata.compressor)
        names.extend(str(codec.get_config()["id"]) for codec in codecs if codec is not None)
    return ", ".join(names)


def metadata_in_json(array: zarr.Array[Any]) -> object:
    """Everything that says how an array is stored, as JSON would; no attributes."""
    described = dict(array.metadata.to_dict())
    for name in ("attributes", "consolidated_metadata"):
        described.pop(name, None)
    return json.loads(json.dumps(described, default=str))


class StoredArray:
    """One array of an open store: its chunks, by key.

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

    def key(self, chunk: tuple[int, ...]) -> str:
        """Key of the stored object that holds a chunk."""
        stored = tuple(i // n for i, n in zip(chunk, self._chunks_per_object, strict=True))
        key = self._metadata.encode_chunk_key(stored)
        return f"{self._path}/{key}" if self._path else key

    def fetch(self, chunk: tuple[int, ...]) -> Bytes | None:
        """Read the bytes of a chunk with one request; None if it is absent."""
        key, prototype = self.key(chunk), default_buffer_prototype()
        if isinstance(self._store, SupportsGetSync):
            buffer = self._store.get_sync(key, prototype=prototype)
        else:
            buffer = sync(self._store.get(key, prototype))
        return None if buffer is None else np.asarray(buffer.as_numpy_array(), np.uint8)

    def is_there(self, chunk: tuple[int, ...]) -> bool:
        """Whether a chunk is in the store: of a shard, whether its index lists it."""
        codec = self._metadata.codecs[0] if isinstance(self._metadata, ArrayV3Metadata) else None
        if isinstance(codec, ShardingCodec) and self._array.shards:
            getter = StorePath(self._store, self.key(chunk))
            index = sync(codec._load_shard_index_maybe(getter, self._chunks_per_object))
            return index is not None and index.get_chunk_slice(chunk) is not None
        return bool(sync(self._store.exists(self.key(chunk))))

    def decode(self, data: Bytes, cut: Cut, out: NDArray[Any], scratch: Scratch) -> None:
        """Decode the part ``cut`` of a fetched chunk into ``out``, on this thread."""
        chain = self.chain
        assert chain is not None, "decode() is for arrays whose chain is known"
        target = None
        # A cut increases, so one as large as the chunk is all of it.
        if chain.is_plain and out.flags.c_contiguous and out.shape == chain.stored_shape:
            target = out.reshape(-1).view(np.uint8)
        decoded = decode(data, chain.steps, chain.nbytes, target, scratch)
        if decoded is not target:
            stored = decoded.view(chain.stored_dtype).reshape(chain.stored_shape)
            out[...] = take(stored.transpose(chain.axes), cut)

    def fill(self, out: NDArray[Any]) -> None:
        """Write what an absent chunk stands for."""
        out[...] = self._metadata.fill_value

    def index(self, chunk: tuple[int, ...], cut: Cut, out: NDArray[Any]) -> None:
        """Read the part ``cut`` of a chunk through zarr's own indexing."""
        origin = tuple(i * size for i, size in zip(chunk, self._chunk_shape, strict=True))
        valid = tuple(
            min(size, end - start)
            for size, end, start in zip(self._chunk_shape, self._shape, origin, strict=True)
        )
        if all(isinstance(part, slice) and part.step in (None, 1) for part in cut):
            self._select(cast("tuple[slice, ...]", shift(cut, origin, valid)), out)
            return
        whole = np.empty(valid, out.dtype)
        self._select(tuple(slice(o, o + n) for o, n in zip(origin, valid, strict=True)), whole)
        out[...] = take(whole, cut)

    def _select(self, selection: tuple[slice, ...], out: NDArray[Any]) -> None:
        # zarr's basic indexing knows no strides in what it writes to but takes any NumPy view.
        buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
        self._array.get_basic_selection(selection, out=buffer)
