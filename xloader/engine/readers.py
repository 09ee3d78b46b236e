"""Threads that read for a caller who waits, and may be given up where a store does not answer."""

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
from xloader.engine.deadlines import Deadlines
from xloader.engine.request_threads import RequestThreads
from xloader.engine.threads import MOST_SECONDS
from xloader.errors import SlowReadWarning
from xloader.sources.attempts import Abandoned, Attempts
from xloader.sources.base import Read


class ReadTask(NamedTuple):
    """Something to be read.

    Parameters
    ----------
    reads : sequence of Read
        The chunks.
    do : callable
        Reads them. Given up while it waits for a store, it is called once more.
    """

    reads: Sequence[Read]
    do: Callable[[Attempts], object]


class Readers:
    """Threads that read for one caller at a time, begun as they are needed.

    They end with `close`, or when nobody holds this any more.

    Parameters
    ----------
    retry_policy : RetryPolicy
        How long reads are waited for.
    store : str
        Name of the source, for messages.

    Attributes
    ----------
    is_spoilt : bool
        Whether some thread was left that may still write to what it was given.
    """

    def __init__(self, retry_policy: RetryPolicy, store: str) -> None:
        self._calls: deque[_Call] = deque(maxlen=1)
        self._deadlines = Deadlines(retry_policy, store, partial(_tell, self._calls))
        self._helpers = RequestThreads("xloader-read")
        self.is_spoilt = False
        self._dismiss = weakref.finalize(self, _dismiss, self._deadlines, self._helpers)

    def do(self, tasks: Sequence[ReadTask], num_threads: int) -> None:
        """Do some tasks in any order, and return when nobody works on them any more.

        Parameters
        ----------
        tasks : sequence of ReadTask
        num_threads : int
            Tasks at a time at most.

        Raises
        ------
        BaseException
            The first that a task raised. Those that had not begun by then never do.
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
        """End the threads, of which none is at work but those that are stuck."""
        self._dismiss()
        until = time.monotonic() + MOST_SECONDS
        self._helpers.join(until)
        self._deadlines.join(until)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Call:
    """Some tasks under way."""

    def __init__(
        self, tasks: Sequence[ReadTask], deadlines: Deadlines, helpers: RequestThreads
    ) -> None:
        self._tasks = tasks
        self._deadlines = deadlines
        self._helpers = helpers
        # The task, and how many attempts at it have hung.
        self._todo = deque((number, 0) for number in range(len(tasks)))
        self._under_way: dict[Attempts, None] = {}
        self._lock = threading.Lock()
        self._is_stopped = False
        self.ended: SimpleQueue[str | BaseException | None] = SimpleQueue()

    def begin(self, num_threads: int) -> None:
        for number in range(min(max(num_threads, 1), len(self._tasks))):
            try:
                self._helpers.submit(self._work, number + 1)
            except RuntimeError:
                # The system gives no more threads: those that are there do it all.
                if not number:
                    raise
                return

    def wait(self) -> None:
        """Wait for all tasks; raises what one of them raised."""
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
                    # Else the error would hold this frame, and this frame the error.
                    del news

    def stop(self) -> bool:
        """Begin nothing more, and wait a little for what is being decoded: whether it ended."""
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
                # In one step, so that who stops this sees all that are at work.
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
        """Have a task done by another thread, if there is to be one more attempt."""
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
