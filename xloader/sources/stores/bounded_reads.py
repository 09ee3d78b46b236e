"""Reads of whole objects that end: of ordinary files alone, up to a size, and retried.

Most stores tell the size of an object only in a request of its own, which would take as long as the
read. They are asked for one byte more than there can be, or tell the size in another way.

Opening a fifo waits until another process writes to it, perhaps for ever, and a device may have no
end. Fifos, sockets and devices are refused where a folder should have ordinary files.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

import zarr
from zarr.abc.store import Store
from zarr.api.asynchronous import open_array
from zarr.storage import LocalStore, ObjectStore, WrapperStore, ZipStore

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import SourceAccessError
from xloader.sources.retries import current
from xloader.sources.zarr_adapter import RangeByteRequest, size_in_zip

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest

MOST_OBJECT_NBYTES: Final = 2**43
"""An upper bound on the size of any stored object in bytes."""

_MOST_TIMES: Final = 16
_SPARE_NBYTES: Final = 1 << 22

_OWN: Final = frozenset({"zarr", "numcodecs", "builtins"})
"""Packages whose codecs read no more than their chunk. Without a serializer there is None."""

_WITH_RANGES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "http", "https", "file"})
"""Protocols of fsspec whose file systems read a part that reaches past the end of an object.
Others read what lies behind it, as references do, or fail.
"""


class DamagedObjectError(ValueError):
    """Raised for an object that is larger than it can be, or a shard whose index is impossible.

    It never leaves the source, which raises a `CorruptChunkError` with the chunk's name instead.
    """


def check_size(key: str, nbytes: int, most_nbytes: int) -> None:
    """Refuse an object that is too large, before memory is taken for it."""
    if nbytes > most_nbytes:
        raise DamagedObjectError(f"{nbytes} bytes at {key!r}, where at most {most_nbytes} can be")


def most_stored_nbytes(array: zarr.Array[Any] | zarr.AsyncArray[Any]) -> int:
    """The most bytes of a stored object of an array that xloader does not decode itself.

    Numbers that are written as text take up to 8 times as many bytes as decoded: 16 times as many
    are allowed, and 4 MiB for headers. A codec of another package may take its chunk out of a far
    larger record, as kerchunk's does for netCDF 3, which allows 4 GiB. Texts may have any length.
    """
    try:
        decoded = math.prod(array.shards or array.chunks) * array.dtype.itemsize
        codecs = (*array.filters, array.serializer, *array.compressors)
    # Only regular grids have one size.
    except Exception:
        return MOST_OBJECT_NBYTES
    if array.dtype.kind in ("O", "T"):
        return MOST_OBJECT_NBYTES
    is_foreign = not _OWN.issuperset(type(codec).__module__.partition(".")[0] for codec in codecs)
    return max(_MOST_TIMES * decoded + _SPARE_NBYTES, is_foreign << 32)


async def get_bounded(
    store: Store, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None, most: int
) -> Buffer | None:
    """Read an object of a store, or a part of it; None if it is absent."""
    if byte_range is not None:
        # The index of a shard may claim parts of any size.
        claimed = getattr(byte_range, "end", 0) - getattr(byte_range, "start", 0)
        check_size(key, claimed, most)
    elif most < MOST_OBJECT_NBYTES:
        check_size(key, told_size(store, key), most)
        if _reads_ranges(store):
            byte_range = RangeByteRequest(0, most + 1)
    buffer = await store.get(key, prototype, byte_range)
    check_size(key, 0 if buffer is None else len(buffer), most)
    return buffer


def told_size(store: Store, key: str) -> int:
    """The size of an object in bytes, where a store tells it without a request; else 0."""
    if isinstance(store, ZipStore):
        return size_in_zip(store, key)
    references: Any = getattr(getattr(store, "fs", None), "references", {})
    reference = references.get(f"{getattr(store, 'path', '')}/{key}".lstrip("/"))
    # A file's address, and the first byte and the size of what is its part.
    is_part = isinstance(reference, list | tuple) and len(reference) == 3
    return int(reference[2]) if is_part else 0


def _reads_ranges(store: Store) -> bool:
    """Whether a part of an object that reaches past its end can be asked for."""
    if type(store) is ObjectStore:
        return True
    return not _WITH_RANGES.isdisjoint(protocols_of(getattr(store, "fs", None)))


def protocols_of(fs: Any) -> tuple[str, ...]:
    """Protocols of an fsspec file system; none for anything else."""
    protocol = getattr(fs, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


class RetryingStore(WrapperStore[Store]):
    """A store over a network from which zarr and xarray read metadata and labels.

    Chunks are read without this wrapper, because each read of a chunk has retries of its own.
    """

    def __init__(
        self, store: Store, retry_policy: RetryPolicy, most_nbytes: int = MOST_OBJECT_NBYTES
    ) -> None:
        super().__init__(store)
        self._retry_policy = retry_policy
        self._most_nbytes = most_nbytes

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self._retry_policy, self._most_nbytes)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read an object, or a part of it, with retries; None if there is none."""
        most = self._most_nbytes
        return await current(self._retry_policy).ask_async(
            key, lambda: get_bounded(self._store, key, prototype, byte_range, most)
        )

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object as a whole. The request is retried, with the same bytes."""
        await current(self._retry_policy).ask_async(key, lambda: self._store.set(key, value))

    async def exists(self, key: str) -> bool:
        """Whether an object exists. The request is retried."""
        return await current(self._retry_policy).ask_async(key, lambda: self._store.exists(key))


def plain(store: Store) -> Store:
    """The store inside a `RetryingStore`, or the store itself if it is not wrapped."""
    return store._store if isinstance(store, RetryingStore) else store


def bounded(store: Store, most_nbytes: int) -> Store:
    """The same store, but with larger objects than ``most_nbytes`` bytes refused."""
    policy = store._retry_policy if isinstance(store, RetryingStore) else RetryPolicy()
    return RetryingStore(plain(store), policy, most_nbytes)


_KINDS: Final = {
    stat.S_IFIFO: "a fifo (a named pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


CHUNK_KEY: Final = re.compile(r"(?:c[./])?\d+(?:[./]\d+)*|c")
"""Keys of stored objects within their array: ``c/0/1`` of Zarr v3, ``0.1`` of v2, ``c`` or ``0``
of a single value.
"""

_CHUNK_KEY: Final = re.compile(rf"(?:^|/)(?:{CHUNK_KEY.pattern})$")
"""The end of a key that follows the path of an array."""

_SMALL_NBYTES: Final = 1 << 22
"""So many bytes are read of any object without a look at the metadata of its array."""


def local_path(path: str | os.PathLike[str]) -> str:
    """The path that a ``file:`` URL stands for; any other path or URL as it is."""
    text = os.fspath(path)
    # A path object has made one slash of several.
    bare_path = re.sub(r"^file:(//(localhost(?=/))?|(?=/))", "", text)
    return bare_path if bare_path == text or os.path.exists(bare_path) else unquote(bare_path)


def check_mode(mode: int, path: str) -> None:
    """Refuse fifos, sockets and devices."""
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise SourceAccessError(
            f"there is {kind} instead of a file",
            given=path,
            remedy="remove it, and fetch or write the file again",
        )


def check_path(path: str | os.PathLike[str]) -> int:
    """Refuse a path that leads to a fifo, a socket or a device.

    A path that cannot be looked up passes.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        # Opening the file raises an error that says what is wrong.
        return 0
    check_mode(status.st_mode, os.fspath(path))
    return status.st_size


class OrdinaryFiles(LocalStore):
    """zarr's store of a directory, but with fifos, sockets, devices and giant chunks refused.

    zarr reads metadata, coordinates, and the chunks that xloader does not decode itself through
    it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most_nbytes: dict[str, int] = {}

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Buffer | None:
        """Read an object as `LocalStore` does, after a check that it is an ordinary file."""
        byte_range = args[1] if args[1:] else kwargs.get("byte_range")
        await asyncio.to_thread(self._check, key, byte_range)
        return await super().get(key, *args, **kwargs)

    def get_sync(self, key: str, **kwargs: Any) -> Buffer | None:
        """Read an object on the calling thread, after the same check."""
        self._check(key, kwargs.get("byte_range"))
        return super().get_sync(key, **kwargs)

    async def exists(self, key: str) -> bool:
        """Whether there is a file. A fifo, a socket or a device raises, and is not absent."""
        await asyncio.to_thread(check_path, self.root / key)
        return await super().exists(key)

    def _check(self, key: str, byte_range: Any) -> None:
        """Refuse what is no ordinary file, and more bytes than a chunk of this array can have."""
        nbytes = check_path(self.root / key)
        # Indexes of shards may claim ranges of any size, for which memory is taken at once.
        nbytes = getattr(byte_range, "end", nbytes) - getattr(byte_range, "start", 0)
        if nbytes <= _SMALL_NBYTES:
            return
        path = _CHUNK_KEY.sub("", key)
        if path not in self._most_nbytes:
            # In a loop of its own: zarr's may be waiting for this very thread.
            with ThreadPoolExecutor(1) as pool:
                self._most_nbytes[path] = pool.submit(asyncio.run, self._find_most(path)).result()
        check_size(key, nbytes, self._most_nbytes[path])

    async def _find_most(self, path: str) -> int:
        """The most bytes of an object of an array; no limit where its metadata cannot be read."""
        # zarr itself tells what is wrong with the metadata.
        with suppress(Exception):
            files = LocalStore(self.root, read_only=True)
            return most_stored_nbytes(await open_array(store=files, path=path, mode="r"))
        return MOST_OBJECT_NBYTES


def with_ordinary_files(store: Store) -> Store:
    """The same store, with fifos, sockets and devices refused where it is a `LocalStore`.

    Any other store, subclasses of `LocalStore` included, is returned unchanged.
    """
    if type(store) is not LocalStore:
        return store
    return OrdinaryFiles(store.root, read_only=store.read_only)
