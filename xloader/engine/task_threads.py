"""Threads that do tasks for a waiting caller. They can be given up if a store does not answer."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from xloader.core.messages import warn_caller
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.threads import MOST_SECONDS, Deadlines, RequestThreads
from xloader.errors import SlowReadWarning
from xloader.sources.base import Read
from xloader.sources.retries import Abandoned, Attempts


class ThreadTask(NamedTuple):
    """A task for one thread, mostly a read.

    Parameters
    ----------
    reads : sequence of Read
        The chunks that it reads, if any. Messages name the one that is waited for.
    do : callable
        Does the task. If its thread is given up while it waits for a store, another thread calls it
        again.
    """

    reads: Sequence[Read]
    do: Callable[[Attempts], object]


class TaskThreads:
    """Threads that do tasks for one caller at a time, started when they are needed.

    They end with `close`, or when this object is garbage collected.

    Parameters
    ----------
    retry_policy : RetryPolicy
        How long reads are waited for.
    store : str
        Name of the source, for messages.

    Attributes
    ----------
    is_spoilt : bool
        Whether a thread may still work on a task of the last call that failed.
    """

    def __init__(self, retry_policy: RetryPolicy, store: str) -> None:
        self._calls: deque[_Call] = deque(maxlen=1)
        self._deadlines = Deadlines(retry_policy, store, partial(_tell, self._calls))
        self._helpers = RequestThreads("xloader-task")
        self.is_spoilt = False
        self._dismiss = weakref.finalize(self, _dismiss, self._deadlines, self._helpers)

    def do(self, tasks: Sequence[ThreadTask], num_threads: int) -> None:
        """Do some tasks in any order, and return when all are done.

        After an error, tasks under way get a short time to end. If some do not, ``is_spoilt`` is
        set.

        Parameters
        ----------
        tasks : sequence of ThreadTask
            The tasks.
        num_threads : int
            Most tasks done at the same time.

        Raises
        ------
        ReadTimeoutError
            If the store did not answer the last attempt at a task.
        BaseException
            The first error that a task raised. Tasks that had not begun by then are not done.
        """
        self._deadlines.start()
        call = _Call(tasks, self._deadlines, self._helpers)
        self._calls.append(call)
        try:
            call.begin(num_threads)
            call.wait()
        except BaseException:
            self.is_spoilt = not call.stop()
            raise
        finally:
            self._calls.clear()

    def close(self) -> None:
        """End the threads. None of them may be at work, except those that are stuck."""
        self._dismiss()
        until = time.monotonic() + MOST_SECONDS
        self._helpers.join(until)
        self._deadlines.join(until)

    def __enter__(self) -> TaskThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Call:
    """The tasks of one call of `TaskThreads.do`."""

    def __init__(
        self, tasks: Sequence[ThreadTask], deadlines: Deadlines, helpers: RequestThreads
    ) -> None:
        self._tasks = tasks
        self._deadlines = deadlines
        self._helpers = helpers
        # The index of the task, and the number of attempts at it that hung.
        self._todo = deque((number, 0) for number in range(len(tasks)))
        self._under_way: dict[Attempts, None] = {}
        self._lock = threading.Lock()
        self._is_stopped = False
        self.ended: SimpleQueue[str | BaseException | None] = SimpleQueue()

    def begin(self, num_threads: int) -> None:
        """Start the tasks on up to `num_threads` threads."""
        for number in range(min(max(num_threads, 1), len(self._tasks))):
            try:
                self._helpers.submit(self._work, number + 1)
            except RuntimeError:
                # The system cannot start more threads. Those that exist do all tasks.
                if not number:
                    raise
                return

    def wait(self) -> None:
        """Wait for all tasks. Raise the first error of a task, and warn of slow reads."""
        num_left = len(self._tasks)
        while num_left:
            news = self.ended.get()
            if isinstance(news, str):
                warn_caller(news, SlowReadWarning)
            elif news is None:
                num_left -= 1
            else:
                try:
                    raise news
                finally:
                    # Otherwise the error would refer to this frame, and this frame to the error.
                    del news

    def stop(self) -> bool:
        """Begin no more tasks, and wait a short time for those under way.

        Threads that wait for a store are given up. Return whether no task is under way any more.
        """
        with self._lock:
            self._is_stopped = True
            self._todo.clear()
        until = time.monotonic() + MOST_SECONDS
        while self._under_way and time.monotonic() < until:
            for attempts in self._under_way.copy():
                attempts.end()
                if attempts.abandon():
                    self._let_go(attempts)
            with suppress(Empty):
                self.ended.get(timeout=0.01)
        return not self._under_way

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    return
                number, num_hung = self._todo.popleft()
                task = self._tasks[number]
                on_left = partial(self._on_left, number)
                attempts = self._deadlines.begin(task.reads, num_hung, on_left)
                # Under the same lock as above, so that `stop` sees every task that has begun.
                self._under_way[attempts] = None
            news: BaseException | None = None
            try:
                with attempts:
                    task.do(attempts)
            except Abandoned:
                raise
            except BaseException as error:
                news = error
                self._todo.clear()
            self._deadlines.end(attempts)
            self._under_way.pop(attempts, None)
            self.ended.put(news)
            del task, news

    def _on_left(self, number: int, attempts: Attempts) -> None:
        """Have another thread repeat a task, or end the call if it was the last attempt."""
        with self._lock:
            self._let_go(attempts)
            if self._is_stopped:
                return
            if attempts.num_failed > self._deadlines.retry_policy.max_retries:
                self._todo.clear()
                self.ended.put(attempts.timeout_error(attempts.num_failed))
                return
            self._todo.appendleft((number, attempts.num_failed))
            try:
                self._helpers.submit(self._work, len(self._under_way) + 1)
            except RuntimeError as error:
                self.ended.put(error)

    def _let_go(self, attempts: Attempts) -> None:
        self._helpers.give_up(attempts.thread)
        self._under_way.pop(attempts, None)


def _tell(calls: deque[_Call], notice: str) -> None:
    for call in list(calls):
        call.ended.put(notice)


def _dismiss(deadlines: Deadlines, helpers: RequestThreads) -> None:
    deadlines.close()
    for thread in deadlines.abandon():
        helpers.give_up(thread)
    helpers.close()
