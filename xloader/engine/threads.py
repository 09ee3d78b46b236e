"""Threads that are joined within a time, and those among them that were given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

SOME_SECONDS: Final = 0.3
"""How long those that end something wait for threads that wait for a store."""

MOST_SECONDS: Final = 1.5
"""How long they wait for all others."""


class Threads:
    """The threads of one owner.

    Parameters
    ----------
    name : str
        Of the threads, before their number.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_begun = 0
        self._threads: list[threading.Thread] = []

    def __contains__(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def __len__(self) -> int:
        return len(self._threads)

    def begin(self, target: Callable[[], None]) -> None:
        """Start one more.

        Raises
        ------
        RuntimeError
            If the system gives no thread.
        """
        # Daemons: one that hangs in a read must not keep the interpreter from its end.
        thread = threading.Thread(
            target=target, name=f"{self._name}-{self._num_begun}", daemon=True
        )
        self._num_begun += 1
        # Listed before it runs, so that Ctrl-C in between leaves none behind.
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            raise

    def give_up(self, thread: threading.Thread) -> None:
        """Wait for a thread no more: it is stuck, and ends by itself if it ever comes back."""
        if thread in self._threads:
            self._threads.remove(thread)

    def join(self, until: float) -> bool:
        """Wait until all have ended, or the time has come: whether they have.

        Parameters
        ----------
        until : float
            The time, by `time.monotonic`.
        """
        for thread in list(self._threads):
            try:
                thread.join(max(0.0, until - time.monotonic()))
            except RuntimeError:
                # Ctrl-C came before it had started; it may start yet.
                continue
        return not any(thread.is_alive() for thread in self._threads)
