"""Time limits of reads under way: warns of slow reads, and gives up threads that wait too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from xloader.core.retry_policy import RetryPolicy
from xloader.engine.thread_group import Threads
from xloader.sources.base import Read
from xloader.sources.retries import Attempts

LONG_SECONDS = 30.0
"""Seconds after which a read under way is reported as slow."""

Left = Callable[[Attempts], None]
"""Called with the attempts at a read whose thread was given up."""


class Deadlines:
    """Time limits of the reads of one owner, checked by a thread of its own.

    Parameters
    ----------
    retry_policy : RetryPolicy
        How long an attempt may take, and how many attempts there are.
    store : str
        Name of the source, for messages.
    on_long : callable
        Called with a message about a slow read, once for each attempt.
    """

    def __init__(
        self, retry_policy: RetryPolicy, store: str, on_long: Callable[[str], None]
    ) -> None:
        self.retry_policy = retry_policy
        self._store = store
        self._on_long = on_long
        self._under_way: dict[Attempts, Left] = {}
        self._told: dict[Attempts, float] = {}
        # The start of the wait, the number of objects that have arrived, and when that was seen.
        self._arrived: dict[Attempts, tuple[float, int, float]] = {}
        self._is_closed = threading.Event()
        self._threads = Threads("xloader-deadline")

    def has(self, thread: threading.Thread) -> bool:
        """Whether the given thread is the one that checks the time limits."""
        return thread in self._threads

    def begin(self, reads: Sequence[Read], num_hung: int, on_left: Left) -> Attempts:
        """Put a time limit on a read that the calling thread is about to do.

        The caller reads within the returned context manager, and then calls `end`.

        Parameters
        ----------
        reads : sequence of Read
            The chunks to read. Messages name the one that is waited for.
        num_hung : int
            Number of earlier attempts at them whose threads were given up.
        on_left : callable
            Called on another thread, with the attempts, if the calling thread is given up.

        Returns
        -------
        Attempts
            The attempts at the read.
        """
        attempts = Attempts(self.retry_policy, self._store, reads, num_hung)
        self._under_way[attempts] = on_left
        if self._is_closed.is_set():
            attempts.end()
        return attempts

    def end(self, attempts: Attempts) -> None:
        """Remove the time limit of a read.

        Parameters
        ----------
        attempts : Attempts
            The object that `begin` returned.
        """
        self._under_way.pop(attempts, None)
        self._arrived.pop(attempts, None)

    def start(self) -> None:
        """Start the thread that checks the time limits, if there is none.

        Raises
        ------
        RuntimeError
            If the system cannot start another thread.
        """
        if not self._threads:
            self._threads.begin(self._look)

    def close(self) -> None:
        """Stop checking, and let no thread begin another wait for a store."""
        self._is_closed.set()
        # A read that begins meanwhile is ended in `begin`.
        for attempts in self._under_way.copy():
            attempts.end()

    def abandon(self) -> list[threading.Thread]:
        """Give up all threads that wait for a store at this moment, and return them."""
        return [own.thread for own in self._under_way.copy() if own.abandon()]

    def join(self, until: float) -> None:
        """Wait until the checking thread has ended, unless it is the caller.

        Parameters
        ----------
        until : float
            The end of the wait, by `time.monotonic`.
        """
        if threading.current_thread() not in self._threads:
            self._threads.join(until)

    def _look(self) -> None:
        timeout = self.retry_policy.read_timeout
        pause = 0.0
        while not self._is_closed.wait(pause):
            now = time.monotonic()
            # A read that begins after this cannot be due earlier.
            pause = min(timeout, LONG_SECONDS)
            for attempts, on_left in list(self._under_way.copy().items()):
                since = self._since(attempts, now)
                if since is None:
                    continue
                if attempts.num_there is not None:
                    # To see arrivals soon: a hang is found within 1.25 times the limit after one.
                    pause = min(pause, timeout / 4)
                if now - since >= timeout:
                    if attempts.abandon(now - timeout):
                        self._under_way.pop(attempts, None)
                        on_left(attempts)
                    continue
                pause = min(pause, since + timeout - now)
                pause = min(pause, self._tell(attempts, since, now))
            pause = max(pause, 0.001)

    def _since(self, attempts: Attempts, now: float) -> float | None:
        """When the present attempt began; of several objects, when one was last seen to arrive."""
        since, num_there = attempts.since, attempts.num_there
        if since is None or not num_there:
            return since
        known = self._arrived.get(attempts)
        if known is None or known[:2] != (since, num_there):
            known = self._arrived[attempts] = (since, num_there, now)
        return known[2]

    def _tell(self, attempts: Attempts, since: float, now: float) -> float:
        """Report a slow read, once for each attempt. Return the seconds until the next check."""
        if now - since < LONG_SECONDS:
            return since + LONG_SECONDS - now
        if self._told.get(attempts) != since:
            self._told = {a: s for a, s in self._told.items() if a in self._under_way}
            self._told[attempts] = since
            self._on_long(f"{attempts} has not arrived after {now - since:.0f} s")
        return LONG_SECONDS
