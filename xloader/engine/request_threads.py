"""Threads that wait for stores, as many as there are requests at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from xloader.engine.threads import Threads
from xloader.sources.attempts import Abandoned


class RequestThreads:
    """Threads that each do one task at a time; more of them where all are busy.

    An executor of the standard library takes no tasks once the main thread has ended, though
    another one may still iterate.

    Parameters
    ----------
    name : str
        Of the threads, before their number.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = Threads(name)

    def __contains__(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def submit(self, task: Callable[[], None], num_busy: int) -> None:
        """Have a task done, which must not raise. The caller holds a lock.

        Parameters
        ----------
        task : callable
        num_busy : int
            Tasks that are not done yet, this one included.

        Raises
        ------
        RuntimeError
            If the system gives no thread.
        """
        if num_busy > len(self._threads):
            try:
                self._threads.begin(self._work)
            except RuntimeError:
                # Those that are there do it, later.
                if not self._threads:
                    raise
        self._tasks.put(task)

    def give_up(self, thread: threading.Thread) -> None:
        """Wait for a thread no more, which is stuck in its task."""
        self._threads.give_up(thread)

    def close(self) -> None:
        """Let the threads end once they have done what was submitted. The lock is held."""
        self._tasks.put(None)

    def join(self, until: float) -> bool:
        """Wait until they have ended, as `Threads.join` does.

        The lock is not held, and it is none of them that calls.
        """
        return self._threads.join(until)

    def _work(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                task()
                # It holds a batch, whose memory must not wait until there is another task.
                del task
        except Abandoned:
            return
        # It is meant for all threads.
        self._tasks.put(None)
