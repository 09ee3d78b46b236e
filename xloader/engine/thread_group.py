"""Groups of threads that are joined within a time limit. A stuck thread can be given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from xloader.sources.retries import Abandoned

SOME_SECONDS: Final = 0.3
"""Seconds that closing waits for all threads. Then threads that wait for a store are given up."""

MOST_SECONDS: Final = 1.5
"""Seconds that closing waits in all, counted from its start, for threads that do not wait for a
store."""


class Threads:
    """The threads of one owner.

    Parameters
    ----------
    name : str
        Prefix of the threads' names; a number follows.
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
        """Start one more thread.

        Parameters
        ----------
        target : callable
            The function that the thread runs.

        Raises
        ------
        RuntimeError
            If the system cannot start another thread.
        """
        # Daemons: a thread that hangs in a read must not keep the interpreter from exiting.
        thread = threading.Thread(
            target=target, name=f"{self._name}-{self._num_begun}", daemon=True
        )
        self._num_begun += 1
        # Listed before it runs, so that Ctrl-C in between cannot leave an unlisted thread behind.
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            raise

    def give_up(self, thread: threading.Thread) -> None:
        """Take a stuck thread off the list, so that `join` does not wait for it.

        It ends by itself if its call ever returns.
        """
        if thread in self._threads:
            self._threads.remove(thread)

    def join(self, until: float) -> bool:
        """Wait until all threads have ended or the time is over.

        Parameters
        ----------
        until : float
            The end of the wait, by `time.monotonic`.

        Returns
        -------
        bool
            Whether all threads have ended.
        """
        for thread in list(self._threads):
            try:
                thread.join(max(0.0, until - time.monotonic()))
            except RuntimeError:
                # Ctrl-C came before this thread had started. It may still start.
                continue
        return not any(thread.is_alive() for thread in self._threads)


class RequestThreads(Threads):
    """Threads that each do one task at a time. Another one is started when all are busy.

    Call `join` after `close`, without holding a lock that a task needs, and from none of these
    threads.

    An executor of the standard library is no alternative. It takes no tasks once the main thread
    has ended, and another thread may still be iterating then.

    Parameters
    ----------
    name : str
        Prefix of the threads' names; a number follows.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

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
        if num_busy > len(self):
            try:
                self.begin(self._work)
            except RuntimeError:
                # The threads that exist do the task later.
                if not self:
                    raise
        self._tasks.put(task)

    def close(self) -> None:
        """Let the threads end once all submitted tasks are done. Submit nothing afterwards."""
        self._tasks.put(None)

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
