"""Refusal of fifos, sockets and devices where a store should have ordinary files.

Opening a fifo waits until another process writes to it, perhaps for ever. A device may have no
end. Both are refused before they are read.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from zarr.abc.store import Store
from zarr.api.asynchronous import open_array
from zarr.storage import LocalStore

from xloader.errors import SourceAccessError
from xloader.sources.stores.bounded_reads import MOST_OBJECT_NBYTES, check_size, most_stored_nbytes
from xloader.sources.stores.stored_objects import CHUNK_KEY

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer

_KINDS: Final = {
    stat.S_IFIFO: "a fifo (a named pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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
            allowed="ordinary files, and links to them",
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
