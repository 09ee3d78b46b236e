"""File stamps: modification time, size and inode, to notice that a file has changed."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from typing import Final, NamedTuple


class Stamp(NamedTuple):
    """Modification time, size and inode of a file.

    Parameters
    ----------
    mtime_ns : int
        Time of the last modification, in nanoseconds.
    nbytes : int
        Size in bytes.
    inode : int
        Number of the file in its file system. Some file systems reuse the number of a deleted file.
    """

    mtime_ns: int
    nbytes: int
    inode: int


_GET_GENERATION: Final = 0x80087601
"""Linux's ``FS_IOC_GETVERSION``."""


def generation_of(path: str) -> int | None:
    """Which of the files with the same inode a file is; None if the file system does not say.

    A new file may get the inode of a deleted one. ext4, XFS and btrfs number them.
    """
    try:
        import fcntl

        with open(path, "rb") as file:
            answer = fcntl.ioctl(file, _GET_GENERATION, bytes(8))
    # No such file, no such call, or another system.
    except (OSError, ImportError):
        return None
    return int.from_bytes(answer, sys.byteorder)


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file, or None if the file does not exist.

    Examples
    --------
    >>> stamp_of("/nowhere") is None
    True
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(found.st_mtime_ns, found.st_size, found.st_ino)


@dataclass(frozen=True)
class StampedFiles:
    """Some files with their stamps at opening; pickles with a source.

    Parameters
    ----------
    paths : tuple of str
    stamps : tuple of (Stamp or None)
        None for a file that did not exist.
    host : str
        Name of the machine on which the stamps were taken.
    """

    paths: tuple[str, ...]
    stamps: tuple[Stamp | None, ...]
    host: str

    @classmethod
    def now(cls, *paths: str) -> StampedFiles:
        """Take the stamps of some files."""
        return cls(paths, tuple(map(stamp_of, paths)), socket.gethostname())

    def here(self) -> StampedFiles:
        """These stamps, or new ones on another machine, which may have its own copies."""
        return self if self.host == socket.gethostname() else StampedFiles.now(*self.paths)
