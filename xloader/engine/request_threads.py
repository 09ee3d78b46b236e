"""Threads that wait for stores: as many as there are requests at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from xloader.engine.thread_group import Threads
from xloader.sources.retries import Abandoned


class RequestThreads:
    """Threads that each do one task at a time. Another one is started when all are busy.

    An executor of the standard library is no alternative. It takes no tasks once the main thread
    has ended, and another thread may still be iterating then.

    Parameters
    ----------
    name : str
        Prefix of the threads' names; a number follows.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = Threads(name)

    def __contains__(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def submit(self, task: Callable[[], None], num_busy: int) -> None:
        """Have a task done by one of the threads. Only one thread may call this at a time.

        Parameters
        ----------
        task : callable
            The task, called without arguments. It must not raise, except `Abandoned`.
        num_busy : int
            Number of tasks that are not done yet, including this one.

        Raises
        ------
        RuntimeError
            If there is no thread, and the system cannot start one.
        """
        if num_busy > len(self._threads):
            try:
                self._threads.begin(self._work)
            except RuntimeError:
                # The threads that exist do the task later.
                if not self._threads:
                    raise
        self._tasks.put(task)

    def give_up(self, thread: threading.Thread) -> None:
        """Take a stuck thread off the list, so that `join` does not wait for it."""
        self._threads.give_up(thread)

    def close(self) -> None:
        """Let the threads end once all submitted tasks are done. Submit nothing afterwards."""
        self._tasks.put(None)

    def join(self, until: float) -> bool:
        """Wait until the threads have ended, as `Threads.join` does.

        Call it after `close`, without holding a lock that a task needs, and from none of these
        threads.

        Parameters
        ----------
        until : float
            The end of the wait, by `time.monotonic`.

        Returns
        -------
        bool
            Whether all threads have ended.
        """
        return self._threads.join(until)

    def _work(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                task()
                # The task refers to a batch. Its memory must be free before the next task comes.
                del task
        except Abandoned:
            return
        # One None ends all threads: each puts it back for the next.
        self._tasks.put(None)
