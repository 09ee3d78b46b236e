"""Handles: open stores and files, one for each process, never carried over a fork or a pickle."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from xloader.errors import ForkError

T = TypeVar("T")

_LOADED_IN: Final = os.getpid()
"""The process that first imported this file: a forked child has its parent's number here."""


def _fork_error(what: str, pid: int) -> ForkError:
    return ForkError(
        f"{what} was opened before this process was forked, "
        "and its handle would hang or read garbage here",
        given=f"opened in process {pid}, used in process {os.getpid()}",
        remedy=(
            'start workers with "forkserver" or "spawn" (for a DataLoader: '
            'multiprocessing_context="forkserver") and guard the script with '
            'if __name__ == "__main__":'
        ),
    )


class Home:
    """The process in which a library is at work that no fork of that process may use.

    Opening a handle anew does not help there: the threads that obstore and icechunk wait for
    do not outlive a fork, and a child that uses fsspec takes away its parent's connections. It
    travels with what it guards, and knows a fork where it arrives.

    Examples
    --------
    >>> Home().check("a store")
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, what: str) -> None:
        """Raise in a fork of the process.

        Raises
        ------
        ForkError
            If this process was forked from the one in which the library is at work.
        """
        if self._pid == _LOADED_IN != os.getpid():
            raise _fork_error(what, self._pid)

    def __getstate__(self) -> int:
        return os.getpid()

    def __setstate__(self, pid: int) -> None:
        # A process of its own is a new home.
        self._pid = pid if pid == _LOADED_IN else os.getpid()


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
    is_remade : bool, default False
        Whether a forked child may open a handle of its own: true of plain files.

    Examples
    --------
    >>> handle = PerProcess(list, "a list")
    >>> handle.get() is handle.get()
    True
    """

    def __init__(
        self,
        make: Callable[[], T],
        what: str,
        *,
        is_forkable: bool = False,
        is_remade: bool = False,
    ) -> None:
        self._make = make
        self._what = what
        self._is_forkable = is_forkable
        self._is_remade = is_remade
        self._opened: tuple[int, T] | None = None
        self._locks: dict[int, threading.Lock] = {}

    def get(self) -> T:
        """Return the handle of this process, opening it at the first call.

        Raises
        ------
        ForkError
            If the handle was opened before this process was forked, and cannot be made anew.
        """
        opened = self._opened
        if opened is None or (self._is_remade and opened[0] != os.getpid()):
            opened = self._open()
        pid, handle = opened
        if pid != os.getpid() and not self._is_forkable:
            raise _fork_error(self._what, pid)
        return handle

    def _open(self) -> tuple[int, T]:
        pid = os.getpid()
        # One for each process: what another thread held while forking is never released here.
        with self._locks.setdefault(pid, threading.Lock()):
            if self._opened is None or (self._is_remade and self._opened[0] != pid):
                self._opened = (pid, self._make())
            return self._opened

    def __getstate__(self) -> tuple[Callable[[], T], str, bool, bool]:
        return self._make, self._what, self._is_forkable, self._is_remade

    def __setstate__(self, state: tuple[Callable[[], T], str, bool, bool]) -> None:
        make, what, is_forkable, is_remade = state
        self.__init__(make, what, is_forkable=is_forkable, is_remade=is_remade)  # type: ignore[misc]
