"""Watches, which notice that a store or a file changed after it was opened.

A watch looks after values were read and before they are delivered. If it finds no change, all
values read before the look are valid. An array that was not read since the last look needs no
new one.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from xloader.errors import SourceAccessError, StoreChangedError

_GET_GENERATION: Final = 0x80087601
"""Number of Linux's call ``FS_IOC_GETVERSION``, which gives a file's generation."""

LOOK_SECONDS: Final = 5.0
"""Least time between two looks at one array, if a look needs a request."""

_LATEST: Final[list[object]] = [None]
"""A list of one: the token of the latest read in this process."""


class Stamp(NamedTuple):
    """Modification time, size and inode of a file.

    `mtime_ns`: time of the last modification, in nanoseconds.
    """

    mtime_ns: int
    nbytes: int
    inode: int


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
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


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


def latest_read() -> object:
    """A token that is replaced at each read that any watch of this process notes."""
    return _LATEST[0]


class Watch:
    """Base class of all watches. By itself it watches nothing and never finds a change."""

    def __init__(self, store: str, *, is_near: bool = True) -> None:
        self.store = store
        self.is_near = is_near
        # Tokens instead of a counter: several threads set them, and no note may be lost.
        self._read: object = None
        self._checked: object = None
        self.looked_at = -float("inf")
        self._change = ""

    @property
    def is_unchecked(self) -> bool:
        """Whether something was read since the last look."""
        return self._read is not self._checked

    @property
    def is_old(self) -> bool:
        """Whether the last look is at least `LOOK_SECONDS` ago."""
        return time.monotonic() - self.looked_at >= LOOK_SECONDS

    def note_read(self) -> None:
        """Note that values were read. Call it after the read and before they are used."""
        self._read = object()
        # Set last: a thread that sees the new token must also see this watch as unchecked.
        _LATEST[0] = self._read

    def look(self, *, is_missed: bool = False) -> None:
        """Compare the store with what was opened."""
        read = self._read
        if not self._change:
            self._change = self._compare(is_missed=is_missed)
        if self._change:
            raise StoreChangedError(
                f"the store changed after it was opened: {self._change}",
                given=self.store,
                remedy="open the store again, and make a new loader",
            )
        self._checked, self.looked_at = read, time.monotonic()

    def look_for_missing(self, *, is_news: bool, is_meant: bool) -> None:
        """Look for a change before an absent chunk is replaced by the fill value.

        A store that does not answer raises nothing here: reading its chunks will raise.
        """
        if is_news or self.is_near or self.is_old:
            # If the store does not answer, reading its chunks will say so.
            with suppress(SourceAccessError):
                self.look(is_missed=not is_meant)

    def _compare(self, *, is_missed: bool) -> str:
        """Describe what changed since the opening; empty if nothing did."""
        return ""

    def __reduce__(self) -> tuple[object, ...]:
        # Tokens of reads and looks are valid in this process only.
        return Watch, (self.store,)


class FileWatch(Watch):
    """Watch of whole files, such as netCDF and zip files, which must not be written again."""

    def __init__(self, store: str, files: StampedFiles) -> None:
        super().__init__(store)
        self._opened = files
        self._files = files.here()

    def _compare(self, *, is_missed: bool) -> str:
        for path, stamp in zip(self._files.paths, self._files.stamps, strict=True):
            now = stamp_of(path)
            if now != stamp:
                return f"file {path} " + ("is gone" if now is None else "was written again")
        return ""

    def __reduce__(self) -> tuple[object, ...]:
        return FileWatch, (self.store, self._opened)
