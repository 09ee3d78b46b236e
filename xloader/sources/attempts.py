"""Attempts at the requests of one read: what is waited for, since when, and what failed.

A thread that waits for a store may wait for ever. So while it waits, and only then, it may be
*abandoned*: another thread reads the same anew, and the first, should it ever come back, finds
itself abandoned before it has written anywhere. Whoever takes the one token of a wait out of its
list has the say: the thread that comes back, or the one that gives it up.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Final, TypeVar

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import ReadTimeoutError, XloaderError
from xloader.sources.base import Read
from xloader.sources.transient_errors import is_timeout, is_transient, told_pause

T = TypeVar("T")

_GRACE: Final = 0.2
"""Seconds that an event loop has to end a request by itself, before its thread is abandoned."""


class Abandoned(BaseException):
    """Ends the work of a thread that nobody waits for any more."""


class Attempts:
    """The attempts at one read, on one thread: all requests within it are theirs.

    Parameters
    ----------
    retry_policy : RetryPolicy
        How long an attempt may take, and how many there are.
    store : str
        Name of the source, for messages.
    read : Read, optional
        The first chunk that is read, for messages.
    num_hung : int, default 0
        Attempts at the same read that other threads were abandoned in.

    Attributes
    ----------
    thread : threading.Thread
        The one that reads.
    key : str
        Of the object that is asked for.
    on_given_up : callable, optional
        Called once the thread is abandoned.
    num_requests, num_retries : int
        Requests so far, and those among them that were made because one had failed.
    is_given_up : bool
        Whether the thread was abandoned.
    """

    __slots__ = (
        *("retry_policy", "store", "read", "num_hung", "thread", "key", "on_given_up"),
        *("num_requests", "num_retries", "is_given_up"),
        *("_num_failed", "_is_exhausted", "_waited", "_is_over", "_before"),
    )

    def __init__(
        self,
        retry_policy: RetryPolicy,
        store: str = "",
        read: Read | None = None,
        num_hung: int = 0,
    ) -> None:
        self.retry_policy = retry_policy
        self.store = store
        self.read = read
        self.num_hung = num_hung
        self.thread = threading.current_thread()
        self.key = ""
        self.on_given_up: Callable[[], None] | None = None
        self.num_requests = 0
        self.num_retries = 0
        self.is_given_up = False
        self._num_failed = 0
        self._is_exhausted = False
        # The token of the present wait, and when it began; together, as it may end meanwhile.
        self._waited: tuple[list[None], float | None] = ([], None)
        self._is_over = False

    def __enter__(self) -> Attempts:
        self._before = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._before)

    # The reading thread's side

    def ask(self, key: str, call: Callable[[], T]) -> T:
        """Wait for a store, and ask it again where it fails for a reason that may pass.

        Parameters
        ----------
        key : str
            Of the object that is asked for.
        call : callable
            Makes the request. What it gives must not lie where others look.

        Raises
        ------
        ReadTimeoutError
            If the last attempt took too long.
        Abandoned
            If this thread was given up.
        """
        self._num_failed, self._is_exhausted = 0, False
        while True:
            self.num_requests += 1
            num_counted, begin = self.num_requests, time.monotonic()
            try:
                return self.wait_for(key, call)
            except Exception as error:
                pause = self._pause_after(error, begin)
            finally:
                # `ask_async` counts what it asks for on behalf of the call.
                self.num_requests -= self.num_requests > num_counted
            self._wait(partial(time.sleep, pause), None)

    async def ask_async(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """The same within an event loop, for which a thread may wait in `ask`."""
        num_failed = 0
        while True:
            self.num_requests += 1
            if self.since is not None:
                self.key = key
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

    def wait_for(self, key: str, call: Callable[[], T]) -> T:
        """Wait for a store, or for another thread that does; see `ask`."""
        self.key = key
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
        """How long to wait before the next attempt; raises what is to be raised if none is."""
        if self._is_exhausted:
            raise error
        self._num_failed += 1
        num_failed = self._num_failed + self.num_hung
        if isinstance(error, XloaderError) or not is_transient(error):
            raise error
        if num_failed > self.retry_policy.max_retries:
            if not is_timeout(error):
                raise error
            # The store's own client may wait for less.
            taken, given = time.monotonic() - begin, self.retry_policy.read_timeout
            seconds = given if taken > 0.9 * given else round(taken, 1)
            # What is no chunk is told of by who asked for it.
            if self.read is None:
                raise TimeoutError(_show_attempts(num_failed, seconds)) from error
            raise self.timeout_error(num_failed, seconds) from error
        self.num_retries += 1
        told = told_pause(error)
        # At random, so that those who failed together do not come back together.
        return told if told is not None else self.retry_policy.pause_after(num_failed) * _jitter()

    def _move(self, since: float) -> None:
        """Let the present wait begin later: something came of it."""
        self._waited = self._waited[0], since

    # The side of whoever looks after it

    @property
    def since(self) -> float | None:
        """When the present attempt began, by `time.monotonic`; None where there is none."""
        return self._waited[1]

    @property
    def num_tried(self) -> int:
        """Attempts at the last request, if it failed for good."""
        return self.num_hung + self._num_failed

    @property
    def num_failed(self) -> int:
        """Attempts that have failed by now, were the present one to be given up."""
        return self.num_hung + self._num_failed + 1

    def abandon(self, before: float | None = None) -> bool:
        """Give the thread up, if it waits: whether it is given up now.

        Parameters
        ----------
        before : float, optional
            Only where the present attempt began by then.
        """
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
        """Let the thread wait for nothing more, once it has what it waits for."""
        self._is_over = True

    def timeout_error(self, num_attempts: int, seconds: float | None = None) -> ReadTimeoutError:
        """The error that a chunk did not come, after attempts of so many seconds."""
        read = self.read
        seconds = self.retry_policy.read_timeout if seconds is None else seconds
        if read is None:
            return ReadTimeoutError(
                f"{self} did not come: {_show_attempts(num_attempts, seconds)}",
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
    """The attempts of the read that this thread, or this task of an event loop, is at.

    Parameters
    ----------
    otherwise : RetryPolicy, optional
        What is asked for outside of any read, as metadata and labels are.
    """
    return _CURRENT.get() or Attempts(otherwise or RetryPolicy())


def _show_attempts(number: int, seconds: float) -> str:
    return f"{'one attempt' if number == 1 else f'{number} attempts'} of {seconds:g} s"


def _jitter() -> float:
    return 0.5 + 0.5 * random.random()
