"""Native threads that help with compiled calls, without ever taking Python's lock."""

from __future__ import annotations

import os
import time
import weakref

from xloader.compiled.library import NUMBER, find_function


class Helpers:
    """Native threads that help some threads of Python with their compiled calls.

    A call that reads, decodes or copies several things shares them with the helpers that are idle.
    So a few threads of Python keep many cores busy, and seldom wait for Python's lock.

    Parameters
    ----------
    num : int
        How many there are to be. Where the library was not compiled, there are none.
    """

    def __init__(self, num: int) -> None:
        make = find_function("xloader_make_helpers", ()) if num else None
        self._num = num
        self._address = 0 if make is None else make()
        if self._address:
            # Not before: another thread may be about to call `use`.
            weakref.finalize(self, _drop, self._address, os.getpid()).atexit = False

    def start(self) -> int:
        """Start them. Return how many the system allowed."""
        start = find_function("xloader_start_helpers", (NUMBER, NUMBER))
        return start(self._address, self._num) if self._address and start is not None else 0

    def use(self) -> None:
        """Have them help with the calls of this thread, which calls `leave` before it ends."""
        _call("use", self._address)

    def leave(self) -> None:
        """Have nobody help with the calls of this thread any more."""
        _call("use", 0)

    def close(self, until: float) -> None:
        """End them, and wait for that until a time. A stuck one ends by itself. May be repeated.

        Parameters
        ----------
        until : float
            The end of the wait, by `time.monotonic`.
        """
        end = find_function("xloader_end_helpers", (NUMBER, NUMBER))
        if self._address and end is not None:
            end(self._address, int(max(0.0, until - time.monotonic()) * 1e9))


def waited_seconds() -> float:
    """Seconds that compiled calls of this thread have waited for helpers so far."""
    waited = find_function("xloader_waited_ns", (), keeps_lock=True)
    return 0.0 if waited is None else waited() * 1e-9


def _drop(address: int, pid: int) -> None:
    # In a forked child, a helper may have held their lock at the fork.
    if os.getpid() == pid:
        _call("drop", address)


def _call(verb: str, address: int) -> None:
    function = find_function(f"xloader_{verb}_helpers", (NUMBER,))
    if function is not None:
        function(address)
