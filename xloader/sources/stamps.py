"""Stamps of files: a cheap way to see that a file is no longer the one that was opened."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import NamedTuple


class Stamp(NamedTuple):
    """What a system says of a file, without reading it.

    Parameters
    ----------
    mtime_ns : int
        When it was last written, in nanoseconds.
    nbytes : int
        Its size.
    inode : int
        Its number in its file system. Some systems give the number of a deleted file again.
    """

    mtime_ns: int
    nbytes: int
    inode: int


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file; None where there is none.

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
    """Files and their stamps as they were opened; pickles with a source.

    Parameters
    ----------
    paths : tuple of str
    stamps : tuple of (Stamp or None)
        None for a file that was not there.
    host : str
        The machine on which they were taken.
    """

    paths: tuple[str, ...]
    stamps: tuple[Stamp | None, ...]
    host: str

    @classmethod
    def now(cls, *paths: str) -> StampedFiles:
        """Stamp some files."""
        return cls(paths, tuple(map(stamp_of, paths)), socket.gethostname())

    def here(self) -> StampedFiles:
        """The same, or what is here by now on another machine, which may have files of its own."""
        return self if self.host == socket.gethostname() else StampedFiles.now(*self.paths)
