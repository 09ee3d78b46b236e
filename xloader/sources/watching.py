"""Watches: whether what is read is still what was opened.

A watch is looked at after reads and before their values are delivered. What was read before a look
that found nothing is sound; what is read after it has to be looked at again. So a watch costs
nothing for arrays that are not read, however many there are.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from xloader.errors import SourceAccessError, StoreChangedError
from xloader.sources.stamps import StampedFiles, stamp_of

LOOK_SECONDS: Final = 5.0
"""Time between two looks at one array where a look is a request."""


_LATEST: Final[list[object]] = [None]
"""The token of the latest read in this process."""


def latest_read() -> object:
    """What is another object after each read that any watch takes note of."""
    return _LATEST[0]


class Watch:
    """Watches nothing, as where nothing can change: what all watches have in common.

    Parameters
    ----------
    store : str
        Where what is watched lies, for messages.
    is_near : bool, default True
        Whether a look costs microseconds, and no request.

    Examples
    --------
    >>> watch = Watch("memory")
    >>> watch.note_read()
    >>> watch.is_unchecked
    True
    >>> watch.look()
    >>> watch.is_unchecked
    False
    """

    def __init__(self, store: str, *, is_near: bool = True) -> None:
        self._store = store
        self.is_near = is_near
        # Tokens and no counter: several threads set them, and none may lose another's note.
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
        """Whether the last look was longer ago than two looks should lie apart."""
        return time.monotonic() - self.looked_at >= LOOK_SECONDS

    def note_read(self) -> None:
        """Note that values have been read. Called after the read, before they are used."""
        self._read = object()
        # In this order: who sees the latest read sees its watch as unchecked.
        _LATEST[0] = self._read

    def look(self, *, is_missed: bool = False) -> None:
        """Compare what is stored with what was opened.

        Parameters
        ----------
        is_missed : bool, default False
            Whether a chunk was looked for in vain, and should be there.

        Raises
        ------
        StoreChangedError
            If it changed. So says every later look, too: some values may be kept that were read
            after the change.
        SourceAccessError
            If the store does not answer.
        """
        read = self._read
        if not self._change:
            self._change = self._compare(is_missed=is_missed)
        if self._change:
            raise StoreChangedError(
                f"the store changed after it was opened: {self._change}",
                given=self._store,
                allowed="a store that stays as it is while it is read",
                remedy="open the store again, and make a new loader",
            )
        self._checked, self.looked_at = read, time.monotonic()

    def look_for_missing(self, *, is_news: bool, is_meant: bool) -> None:
        """Look before an absent chunk is read as the fill value.

        Parameters
        ----------
        is_news : bool
            Whether the user is about to be told. Other absent chunks are worth no request.
        is_meant : bool
            Whether the user said that chunks may be absent.

        Raises
        ------
        StoreChangedError
            If the store changed.
        """
        if is_news or self.is_near or self.is_old:
            # A store that does not answer now is told of where its chunks are read.
            with suppress(SourceAccessError):
                self.look(is_missed=not is_meant)

    def _compare(self, *, is_missed: bool) -> str:
        """What changed, in words; empty where nothing did."""
        return ""


class FileWatch(Watch):
    """Watches files that are opened whole, such as netCDF and zip files: none may be rewritten.

    Parameters
    ----------
    store : str
        Name of the source, for messages.
    files : StampedFiles
        The files as they were opened.
    """

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
        # What was read and seen in this process says nothing in another.
        return FileWatch, (self._store, self._opened)
