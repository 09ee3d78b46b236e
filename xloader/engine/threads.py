"""Threads that are joined within a time limit, and given up where a store does not answer."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from xloader.core.messages import warn_caller
from xloader.core.retry_policy import RetryPolicy
from xloader.errors import ChunkWarning
from xloader.sources.base import Read
from xloader.sources.retries import Abandoned, Attempts

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
                warn_caller(news, ChunkWarning)
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
    # The call may end meanwhile.
    with suppress(IndexError):
        calls[0].ended.put(notice)


def _dismiss(deadlines: Deadlines, helpers: RequestThreads) -> None:
    deadlines.close()
    for thread in deadlines.abandon():
        helpers.give_up(thread)
    helpers.close()
