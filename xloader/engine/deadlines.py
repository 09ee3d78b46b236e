"""Looks after reads under way: tells of those that take long, gives up those that take too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from xloader.core.retry_policy import RetryPolicy
from xloader.engine.threads import Threads
from xloader.sources.attempts import Attempts
from xloader.sources.base import Read

LONG_SECONDS = 30.0
"""A read that takes longer is told of."""

Left = Callable[[Attempts], None]
"""Called for a read whose thread was given up."""


class Deadlines:
    """Looks after the reads of one owner, on a thread of its own.

    Parameters
    ----------
    retry_policy : RetryPolicy
    store : str
        Name of the source, for messages.
    on_long : callable
        Called with the words for a read that takes long, once for each attempt.
    """

    def __init__(
        self, retry_policy: RetryPolicy, store: str, on_long: Callable[[str], None]
    ) -> None:
        self.retry_policy = retry_policy
        self._store = store
        self._on_long = on_long
        self._under_way: dict[Attempts, Left] = {}
        self._told: dict[Attempts, float] = {}
        self._is_closed = threading.Event()
        self._threads = Threads("xloader-deadline")

    def has(self, thread: threading.Thread) -> bool:
        """Whether it is the thread that looks."""
        return thread in self._threads

    def begin(self, reads: Sequence[Read], num_hung: int, on_left: Left) -> Attempts:
        """Read some chunks on this thread, within what is returned; `end` is to follow.

        Parameters
        ----------
        reads : sequence of Read
        num_hung : int
            Attempts at them that other threads were given up in.
        on_left : callable
            Called, on another thread, if this one is given up.
        """
        attempts = Attempts(self.retry_policy, self._store, next(iter(reads), None), num_hung)
        self._under_way[attempts] = on_left
        if self._is_closed.is_set():
            attempts.end()
        return attempts

    def end(self, attempts: Attempts) -> None:
        """Look after a read no more."""
        self._under_way.pop(attempts, None)

    def start(self) -> None:
        """Begin to look, if that has not begun."""
        if not self._threads:
            self._threads.begin(self._look)

    def close(self) -> None:
        """Let nobody begin to wait for a store any more."""
        self._is_closed.set()
        # A read that begins meanwhile sees that by itself.
        for attempts in self._under_way.copy():
            attempts.end()

    def abandon(self) -> list[threading.Thread]:
        """Give up all threads that wait for a store, and say which they are."""
        return [own.thread for own in self._under_way.copy() if own.abandon()]

    def join(self, until: float) -> None:
        """Wait until it looks no more, as `Threads.join` does."""
        if threading.current_thread() not in self._threads:
            self._threads.join(until)

    def _look(self) -> None:
        timeout = self.retry_policy.read_timeout
        pause = 0.0
        while not self._is_closed.wait(pause):
            now = time.monotonic()
            # No read that begins from now on is due before that.
            pause = min(timeout, LONG_SECONDS)
            for attempts, on_left in list(self._under_way.copy().items()):
                since = attempts.since
                if since is None:
                    continue
                if now - since >= timeout:
                    if attempts.abandon(now - timeout):
                        self._under_way.pop(attempts, None)
                        on_left(attempts)
                    continue
                pause = min(pause, since + timeout - now)
                pause = min(pause, self._tell(attempts, since, now))
            pause = max(pause, 0.001)

    def _tell(self, attempts: Attempts, since: float, now: float) -> float:
        """Tell of a read that takes long; the seconds until it does."""
        if now - since < LONG_SECONDS:
            return since + LONG_SECONDS - now
        if self._told.get(attempts) != since:
            self._told = {a: s for a, s in self._told.items() if a in self._under_way}
            self._told[attempts] = since
            self._on_long(f"{attempts} has not come for {now - since:.0f} s")
        return LONG_SECONDS
