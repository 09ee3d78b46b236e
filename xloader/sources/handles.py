"""Handles: open stores and files, one for each process, never carried over a fork or a pickle."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from xloader.errors import ForkError

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Something that is opened at first use in each process, and dropped when pickled.

    Parameters
    ----------
    make : callable
        Opens the handle. It has to pickle where the handle's owner is to be pickled.
    what : str
        What is opened, for messages.
    is_forkable : bool, default False
        Whether the handle may be used in a forked child: true of plain memory only.

    Examples
    --------
    >>> handle = PerProcess(list, "a list")
    >>> handle.get() is handle.get()
    True
    """

    def __init__(self, make: Callable[[], T], what: str, *, is_forkable: bool = False) -> None:
        self._make = make
        self._what = what
        self._is_forkable = is_forkable
        self._opened: tuple[int, T] | None = None
        self._lock = (os.getpid(), threading.Lock())

    def get(self) -> T:
        """Return the handle of this process, opening it at the first call.

        Raises
        ------
        ForkError
            If the handle was opened before this process was forked.
        """
        opened = self._opened
        if opened is None:
            opened = self._open()
        pid, handle = opened
        if pid != os.getpid() and not self._is_forkable:
            raise ForkError(
                f"{self._what} was opened before this process was forked, "
                "and its handle would hang or read garbage here",
                given=f"opened in process {pid}, used in process {os.getpid()}",
                remedy=(
                    'start workers with "forkserver" or "spawn" (for a DataLoader: '
                    'multiprocessing_context="forkserver") and guard the script with '
                    'if __name__ == "__main__":'
                ),
            )
        return handle

    def drop(self) -> None:
        """Forget the handle; the next use opens another."""
        self._opened = None

    def _open(self) -> tuple[int, T]:
        pid = os.getpid()
        if self._lock[0] != pid:
            # A lock that another thread held while forking would never be released here.
            self._lock = (pid, threading.Lock())
        with self._lock[1]:
            if self._opened is None:
                self._opened = (pid, self._make())
            return self._opened

    def __getstate__(self) -> tuple[Callable[[], T], str, bool]:
        return self._make, self._what, self._is_forkable

    def __setstate__(self, state: tuple[Callable[[], T], str, bool]) -> None:
        make, what, is_forkable = state
        self.__init__(make, what, is_forkable=is_forkable)  # type: ignore[misc]
