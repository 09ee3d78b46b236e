"""Attempts at reads of a store: retries, time limits, and the giving up of threads that hang.

A thread that waits for a store may wait for ever. Only while it waits can it be *abandoned*:
another thread then reads the same chunks again. If the abandoned thread returns from its wait,
`Abandoned` is raised in it before it has written anything. Each wait has a list with one token.
The thread that returns and the thread that abandons it both try to take the token, and the one
that gets it decides.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Final, TypeVar

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import ReadTimeoutError, XloaderError, show_attempts
from xloader.sources.base import Read
from xloader.sources.transient_errors import is_timeout, is_transient, told_pause

T = TypeVar("T")

_GRACE: Final = 0.2
"""Seconds that an event loop has to end a request itself, before its thread is abandoned."""


class Abandoned(BaseException):
    """Raised in a thread whose read was given up, to end the thread's work."""


class Attempts:
    """The attempts at one read, made on one thread.

    Used as a context manager: within it, `current` returns this object, so that every request is
    counted and retried as part of the read. `thread`: the thread that reads.
    """

    __slots__ = (
        *("retry_policy", "store", "reads", "num_hung", "thread", "on_given_up"),
        *("num_requests", "num_retries", "is_given_up", "_keys", "_num_there", "_awaited"),
        *("_num_failed", "_is_exhausted", "_waited", "_is_over", "_before"),
    )

    def __init__(
        self,
        retry_policy: RetryPolicy,
        store: str = "",
        reads: Sequence[Read] = (),
        num_hung: int = 0,
    ) -> None:
        self.retry_policy = retry_policy
        self.store = store
        self.reads = reads
        self.num_hung = num_hung
        self.thread = threading.current_thread()
        self._keys: Sequence[str] = ("",)
        self._num_there: Callable[[], int] = int
        self._awaited: Callable[[], int] = int
        self.on_given_up: Callable[[], None] | None = None
        self.num_requests = 0
        self.num_retries = 0
        self.is_given_up = False
        self._num_failed = 0
        self._is_exhausted = False
        # The token of the present wait and its start, in one tuple: other threads must never see
        # the token of one wait with the start of another.
        self._waited: tuple[list[None], float | None] = ([], None)
        self._is_over = False

    def __enter__(self) -> Attempts:
        self._before = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._before)

    # Called by the thread that reads

    def ask(self, key: str, call: Callable[[], T]) -> T:
        """Make a request that the thread waits for, and repeat it after failures that may pass.

        `call`: the memory that it returns must be visible to no other thread, because the thread
        may be abandoned meanwhile.
        """
        self._num_failed, self._is_exhausted = 0, False
        while True:
            self.num_requests += 1
            num_counted, begin = self.num_requests, time.monotonic()
            try:
                return self._wait_for((key,), call)
            except Exception as error:
                pause = self._pause_after(error, begin)
            finally:
                # Where `ask_async` made the requests of the call, it has counted them already.
                self.num_requests -= self.num_requests > num_counted
            self._wait(partial(time.sleep, pause), None)

    async def ask_async(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Make a request within an event loop, and repeat it as `ask` does.

        A thread may be waiting in `ask` for this request. Its time limit then starts anew with
        each attempt.
        """
        num_failed = 0
        while True:
            self.num_requests += 1
            if self.since is not None:
                self._keys = (key,)
                self._move(time.monotonic() + _GRACE)
            begin = time.monotonic()
            try:
                return await asyncio.wait_for(make(), self.retry_policy.read_timeout)
            except Exception as error:
                self._num_failed = num_failed
                try:
                    pause = self._pause_after(error, begin)
                except Exception:
                    self._is_exhausted = True
                    raise
                num_failed += 1
            if self.since is not None:
                self._move(self.since + pause)
            await asyncio.sleep(pause)

    def wait_for(
        self,
        key: str | Sequence[str],
        call: Callable[[], T],
        num_there: Callable[[], int] = int,
        awaited: Callable[[], int] = int,
    ) -> T:
        """Wait once for a store, or for another thread that waits for it, without a retry."""
        self._num_failed, self._is_exhausted = 0, False
        return self._wait_for((key,) if isinstance(key, str) else key, call, num_there, awaited)

    def _wait_for(
        self,
        keys: Sequence[str],
        call: Callable[[], T],
        num_there: Callable[[], int] = int,
        awaited: Callable[[], int] = int,
    ) -> T:
        self._keys, self._num_there, self._awaited = keys, num_there, awaited
        return self._wait(call, time.monotonic() + _GRACE)

    def _wait(self, call: Callable[[], T], since: float | None) -> T:
        token: list[None] = [None]
        self._waited = token, since
        if self._is_over:
            raise Abandoned
        try:
            return call()
        finally:
            self._waited = token, None
            try:
                token.pop()
            except IndexError:
                raise Abandoned from None

    def _pause_after(self, error: Exception, begin: float) -> float:
        """Seconds to wait before the next attempt; raises the final error if there is none."""
        if self._is_exhausted:
            raise error
        self._num_failed += 1
        num_failed = self._num_failed + self.num_hung
        if isinstance(error, XloaderError) or not is_transient(error):
            raise error
        if num_failed > self.retry_policy.max_retries:
            if not is_timeout(error):
                raise error
            # The store's own client may have a shorter time limit.
            taken, given = time.monotonic() - begin, self.retry_policy.read_timeout
            seconds = given if taken > 0.9 * given else round(taken, 1)
            # Without a chunk to name, the caller that asked for the metadata names it.
            if self.read is None:
                raise TimeoutError(f"{show_attempts(num_failed)} of {seconds:g} s") from error
            raise self.timeout_error(num_failed, seconds) from error
        self.num_retries += 1
        told = told_pause(error)
        # Random, so that threads that failed together do not all retry at the same moment.
        return told if told is not None else self.retry_policy.pause_after(num_failed) * _jitter()

    def _move(self, since: float) -> None:
        """Set a later start for the present wait, because the request made progress."""
        self._waited = self._waited[0], since

    # Called by the threads that supervise the reading one

    @property
    def read(self) -> Read | None:
        """The chunk that is waited for; None for metadata."""
        reads = self.reads
        return reads[min(self._awaited(), len(reads) - 1)] if reads else None

    @property
    def key(self) -> str:
        """Key of the object that is waited for."""
        keys = self._keys
        return keys[min(self._awaited(), len(keys) - 1)]

    @property
    def num_there(self) -> int | None:
        """Number of objects that have arrived; None if only one is waited for."""
        return self._num_there() if len(self._keys) > 1 else None

    @property
    def since(self) -> float | None:
        """When the present attempt began, by `time.monotonic`; None if no request is waited for."""
        return self._waited[1]

    @property
    def num_tried(self) -> int:
        """Number of attempts at the last request, if it failed for good."""
        return self.num_hung + self._num_failed

    @property
    def num_failed(self) -> int:
        """Number of failed attempts, with the present one counted as failed."""
        return self.num_hung + self._num_failed + 1

    def abandon(self, before: float | None = None) -> bool:
        """Abandon the thread if it is waiting."""
        token, since = self._waited
        if before is not None and (since is None or since > before):
            return False
        try:
            token.pop()
        except IndexError:
            return False
        self.is_given_up = True
        if self.on_given_up is not None:
            self.on_given_up()
        return True

    def end(self) -> None:
        """Let the thread finish its present wait, and raise `Abandoned` in any later one."""
        self._is_over = True

    def timeout_error(self, num_attempts: int, seconds: float | None = None) -> ReadTimeoutError:
        """The error to raise when a chunk, or metadata, did not arrive in time."""
        read = self.read
        seconds = self.retry_policy.read_timeout if seconds is None else seconds
        if read is None:
            return ReadTimeoutError(
                f"{self} did not arrive in {show_attempts(num_attempts)} of {seconds:g} s",
                seconds=seconds,
                attempts=num_attempts,
            )
        return ReadTimeoutError(
            seconds=seconds,
            attempts=num_attempts,
            store=self.store,
            variable=read.variable,
            chunk=read.chunk,
            key=self.key,
        )

    def __str__(self) -> str:
        what = "metadata"
        if self.read is not None:
            what = f"chunk {self.read.chunk} of variable {self.read.variable!r}"
        return f"{what} (key {self.key!r}) of {self.store}"


_CURRENT: Final[ContextVar[Attempts | None]] = ContextVar("xloader_attempts", default=None)


def current(otherwise: RetryPolicy | None = None) -> Attempts:
    """The attempts of the read that this thread, or this task of an event loop, is making."""
    return _CURRENT.get() or Attempts(otherwise or RetryPolicy())


def _jitter() -> float:
    return 0.5 + 0.5 * random.random()
