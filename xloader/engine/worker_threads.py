"""Threads that share a list of tasks with the thread that calls them."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from xloader.engine.request_threads import RequestThreads
from xloader.engine.thread_group import MOST_SECONDS


class WorkerThreads:
    """Helper threads of one caller at a time, started when they are needed.

    They end with `close`, or when this object is garbage collected.

    Parameters
    ----------
    name : str
        Prefix of the threads' names; a number follows.

    Examples
    --------
    >>> crew, found = WorkerThreads("xloader-example"), []
    >>> crew.do([partial(found.append, number) for number in range(3)], num_threads=2)
    >>> crew.close()
    >>> sorted(found)
    [0, 1, 2]
    """

    def __init__(self, name: str) -> None:
        self._helpers = RequestThreads(name)
        # The threads refer to the helpers, not to this object. So it can be collected, which ends
        # them.
        self._dismiss = weakref.finalize(self, self._helpers.close)

    def do(self, tasks: Sequence[Callable[[], None]], num_threads: int) -> None:
        """Do some tasks in any order, and return when no thread works on them any more.

        Parameters
        ----------
        tasks : sequence of callable
            The tasks, called without arguments.
        num_threads : int
            Most tasks done at the same time. The calling thread is one of the threads.

        Raises
        ------
        BaseException
            The first error that a task raised. Tasks that had not begun by then are not done.
        """
        todo = deque(tasks)
        errors: list[BaseException] = []
        ended: SimpleQueue[None] = SimpleQueue()
        num_helpers = 0
        try:
            for number in range(1, min(num_threads, len(tasks))):
                try:
                    self._helpers.submit(partial(_help, todo, errors, ended), number)
                except RuntimeError:
                    # The system cannot start a thread. The caller does the remaining tasks itself.
                    break
                num_helpers = number
            _work(todo, errors)
        finally:
            todo.clear()
            for _ in range(num_helpers):
                ended.get()
        if errors:
            try:
                raise errors[0]
            finally:
                # Otherwise the error would refer to this frame, and this frame to the error.
                errors.clear()

    def close(self) -> None:
        """End the helper threads. None of them may be at work."""
        self._dismiss()
        self._helpers.join(time.monotonic() + MOST_SECONDS)


def _work(todo: deque[Callable[[], None]], errors: list[BaseException]) -> None:
    while True:
        try:
            task = todo.popleft()
        except IndexError:
            return
        try:
            task()
        except BaseException as error:
            errors.append(error)
            todo.clear()


def _help(
    todo: deque[Callable[[], None]], errors: list[BaseException], ended: SimpleQueue[None]
) -> None:
    _work(todo, errors)
    ended.put(None)
