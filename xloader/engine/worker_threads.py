"""Threads that do some tasks together with their caller."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from xloader.engine.request_threads import RequestThreads
from xloader.engine.threads import MOST_SECONDS


class WorkerThreads:
    """Helpers of one caller at a time, begun as they are needed.

    They end with `close`, or when nobody holds the crew any more.

    Parameters
    ----------
    name : str
        Of the threads, before their number.

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
        # The threads hold on to the helpers, and must not to what makes them end.
        self._dismiss = weakref.finalize(self, self._helpers.close)

    def do(self, tasks: Sequence[Callable[[], None]], num_threads: int) -> None:
        """Do some tasks in any order, and return when nobody works on them any more.

        Parameters
        ----------
        tasks : sequence of callable
        num_threads : int
            Tasks at a time at most, the caller's own included.

        Raises
        ------
        BaseException
            The first that a task raised. Those that had not begun by then never do.
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
                    # The system gives no thread: the caller does it all.
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
                # Else the error would hold this frame, and this frame the error.
                errors.clear()

    def close(self) -> None:
        """End the helpers, of which none is at work."""
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
