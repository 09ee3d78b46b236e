"""Ordinary files, and what may lie in their place: fifos, sockets and devices.

To open a fifo waits for somebody to write into it, perhaps for ever, and a device may have no
end. A store holds neither, so both are refused before they are read.
"""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from zarr.abc.store import Store
from zarr.storage import LocalStore

from xloader.errors import SourceAccessError

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer

_KINDS: Final = {
    stat.S_IFIFO: "a fifo (a named pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_mode(mode: int, path: str) -> None:
    """Refuse whatever is neither a file nor a directory.

    Parameters
    ----------
    mode : int
        ``st_mode``, as ``os.stat`` gives it.
    path : str
        What has it, for the error.

    Raises
    ------
    SourceAccessError
        If it is a fifo, a socket or a device.

    Examples
    --------
    >>> check_mode(os.stat(os.devnull).st_mode, os.devnull)
    Traceback (most recent call last):
    xloader.errors.SourceAccessError: there is a device in the place of a file. Given: ...
    """
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise SourceAccessError(
            f"there is {kind} in the place of a file",
            given=path,
            allowed="ordinary files, and links to them",
            remedy="remove it, and fetch or write the file again",
        )


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse as `check_mode` does, whatever a path leads to; one that leads nowhere passes."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        # Whoever opens it says what is wrong with it.
        return
    check_mode(mode, os.fspath(path))


class OrdinaryFiles(LocalStore):
    """zarr's store of a directory, which reads nothing but ordinary files.

    zarr reads metadata, coordinates and what we do not decode ourselves through it.
    """

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Buffer | None:
        """As zarr's own, once the file is known to be one; so are the other methods."""
        await asyncio.to_thread(check_path, self.root / key)
        return await super().get(key, *args, **kwargs)

    def get_sync(self, key: str, **kwargs: Any) -> Buffer | None:
        """Read on the calling thread."""
        check_path(self.root / key)
        return super().get_sync(key, **kwargs)

    async def exists(self, key: str) -> bool:
        """Whether there is a file: what only stands in its place is not absent."""
        await asyncio.to_thread(check_path, self.root / key)
        return await super().exists(key)


def with_ordinary_files(store: Store) -> Store:
    """The same store, which reads ordinary files alone where it is zarr's own of a directory."""
    if type(store) is not LocalStore:
        return store
    return OrdinaryFiles(store.root, read_only=store.read_only)
