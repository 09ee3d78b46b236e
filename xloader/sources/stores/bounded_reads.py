"""Reads of whole objects that end: of ordinary files alone, up to a size, and retried.

Opening a fifo waits until another process writes to it, perhaps for ever, and a device may have no
end. Fifos, sockets and devices are refused where a folder should have ordinary files.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import SourceAccessError
from xloader.sources.retries import current

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest

MOST_OBJECT_NBYTES: Final = 2**43
"""An upper bound on the size of any stored object in bytes."""


class DamagedObjectError(ValueError):
    """Raised for an object that is larger than it can be, or a shard whose index is impossible.

    It never leaves the source, which raises a `CorruptChunkError` with the chunk's name instead.
    """


def check_size(key: str, nbytes: int, most_nbytes: int) -> None:
    """Refuse an object that is too large, before memory is taken for it."""
    if nbytes > most_nbytes:
        raise DamagedObjectError(f"{nbytes} bytes at {key!r}, where at most {most_nbytes} can be")


class RetryingStore(WrapperStore[Store]):
    """A store over a network from which zarr and xarray read metadata and labels.

    Chunks are read without this wrapper, because each read of a chunk has retries of its own.
    """

    def __init__(self, store: Store, retry_policy: RetryPolicy) -> None:
        super().__init__(store)
        self._retry_policy = retry_policy

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self._retry_policy)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read an object, or a part of it, with retries; None if there is none."""
        return await current(self._retry_policy).ask_async(
            key, lambda: self._store.get(key, prototype, byte_range)
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


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path that leads to a fifo, a socket or a device.

    A path that cannot be looked up passes.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        # Opening the file raises an error that says what is wrong.
        return
    check_mode(status.st_mode, os.fspath(path))


class OrdinaryFiles(LocalStore):
    """zarr's store of a directory, but with fifos, sockets and devices refused.

    zarr reads metadata, coordinates, and the chunks that xloader does not decode itself through
    it.
    """

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Buffer | None:
        """Read an object as `LocalStore` does, after a check that it is an ordinary file."""
        await asyncio.to_thread(check_path, self.root / key)
        return await super().get(key, *args, **kwargs)

    def get_sync(self, key: str, **kwargs: Any) -> Buffer | None:
        """Read an object on the calling thread, after the same check."""
        check_path(self.root / key)
        return super().get_sync(key, **kwargs)

    async def exists(self, key: str) -> bool:
        """Whether there is a file. A fifo, a socket or a device raises, and is not absent."""
        await asyncio.to_thread(check_path, self.root / key)
        return await super().exists(key)


def with_ordinary_files(store: Store) -> Store:
    """The same store, with fifos, sockets and devices refused where it is a `LocalStore`.

    Any other store, subclasses of `LocalStore` included, is returned unchanged.
    """
    if type(store) is not LocalStore:
        return store
    return OrdinaryFiles(store.root, read_only=store.read_only)
