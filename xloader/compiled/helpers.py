"""Native threads that help with compiled calls, without ever taking Python's lock."""

from __future__ import annotations

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

    def start(self) -> int:
        """Start them. Return how many the system allowed."""
        start = find_function("xloader_start_helpers", (NUMBER, NUMBER))
        return start(self._address, self._num) if self._address and start is not None else 0

    def use(self) -> None:
        """Have them help with the calls of this thread, which calls `leave` before it ends."""
        _use(self._address)

    def leave(self) -> None:
        """Have nobody help with the calls of this thread any more."""
        _use(0)

    def close(self) -> None:
        """End them, and wait a short time for that. One that is stuck ends by itself."""
        end = find_function("xloader_end_helpers", (NUMBER,))
        address, self._address = self._address, 0
        if address and end is not None:
            end(address)


def waited_seconds() -> float:
    """Seconds that compiled calls of this thread have waited for helpers so far."""
    waited = find_function("xloader_waited_ns", (), keeps_lock=True)
    return 0.0 if waited is None else waited() * 1e-9


def _use(address: int) -> None:
    use = find_function("xloader_use_helpers", (NUMBER,))
    if use is not None:
        use(address)
