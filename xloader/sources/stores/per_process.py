"""Handles of open stores and files: one per process, never sent to another by a pickle.

A handle that crosses a fork would hang or read garbage. A forked child may therefore use a
handle of its parent only where the handle is declared safe, as plain memory is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, TypeVar

from xloader.errors import ForkError

T = TypeVar("T")

_LOADED_IN: Final = os.getpid()
"""Id of the process that first imported this file. A forked child inherits its parent's."""


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
    """The process that uses a library which cannot be used in any fork of that process.

    A new handle in the fork does not help: the threads that obstore and icechunk wait for do not
    survive a fork, and a child that uses fsspec takes away its parent's connections. A `Home` is
    pickled with the object that it guards. It still raises in a fork that unpickles it.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, what: str) -> None:
        """Raise an error if this process is a fork of the home process."""
        if self._pid == _LOADED_IN != os.getpid():
            raise _fork_error(what, self._pid)

    def __getstate__(self) -> int:
        return os.getpid()

    def __setstate__(self, pid: int) -> None:
        # A process that is no fork of the home may use the library itself.
        self._pid = pid if pid == _LOADED_IN else os.getpid()


@dataclass(eq=False, repr=False)
class PerProcess(Generic[T]):
    """A handle that each process opens at first use, and that is dropped when pickled."""

    _make: Callable[[], T]
    _what: str
    _: KW_ONLY
    is_forkable: bool = False
    is_remade: bool = False
    _opened: tuple[int, T] | None = None
    _locks: dict[int, threading.Lock] = field(default_factory=dict)

    def get(self) -> T:
        """Return the handle of this process, and open it at the first call."""
        opened = self._opened
        if opened is None or (self.is_remade and opened[0] != os.getpid()):
            opened = self._open()
        pid, handle = opened
        if pid != os.getpid() and not self.is_forkable:
            raise _fork_error(self._what, pid)
        return handle

    def _open(self) -> tuple[int, T]:
        pid = os.getpid()
        # One lock per process: a lock that another thread held at the fork is never released here.
        with self._locks.setdefault(pid, threading.Lock()):
            if self._opened is None or (self.is_remade and self._opened[0] != pid):
                self._opened = (pid, self._make())
            return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_locks": {}}
