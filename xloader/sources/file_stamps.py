"""File stamps: modification time, size and inode, by which a changed file is noticed."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from typing import Final, NamedTuple


class Stamp(NamedTuple):
    """Modification time, size and inode of a file.

    `mtime_ns`: time of the last modification, in nanoseconds.
    """

    mtime_ns: int
    nbytes: int
    inode: int


_GET_GENERATION: Final = 0x80087601
"""Number of Linux's call ``FS_IOC_GETVERSION``, which gives a file's generation."""


def generation_of(path: str) -> int | None:
    """The generation of a file: it differs between files that had the same inode.

    A new file may get the inode of a deleted one. ext4, XFS and btrfs number the generations. None
    if the file cannot be opened, or if the system or the file system has no generations.
    """
    try:
        import fcntl

        with open(path, "rb") as file:
            answer = fcntl.ioctl(file, _GET_GENERATION, bytes(8))
    # The file is absent, the file system has no such call, or this is not a Unix system.
    except (OSError, ImportError):
        return None
    return int.from_bytes(answer, sys.byteorder)


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file, or None if the file does not exist."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(found.st_mtime_ns, found.st_size, found.st_ino)


@dataclass(frozen=True)
class StampedFiles:
    """Some files with the stamps that they had when a source was opened.

    It is pickled together with the source. `stamps`: None for a file that did not exist.
    """

    paths: tuple[str, ...]
    stamps: tuple[Stamp | None, ...]
    host: str

    @classmethod
    def now(cls, *paths: str) -> StampedFiles:
        """Take the stamps of some files."""
        return cls(paths, tuple(map(stamp_of, paths)), socket.gethostname())

    def here(self) -> StampedFiles:
        """These stamps on the machine that took them, new stamps on any other machine.

        Another machine may have its own copies of the files, with other stamps.
        """
        return self if self.host == socket.gethostname() else StampedFiles.now(*self.paths)
