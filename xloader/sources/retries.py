"""Attempts at reads of a store: retries, time limits, and the giving up of threads that hang.

A thread that waits for a store may wait for ever. Only while it waits can it be *abandoned*:
another thread then reads the same chunks again. If the abandoned thread returns from its wait,
`Abandoned` is raised in it before it has written anything. Each wait has a list with one token.
The thread that returns and the thread that abandons it both try to take the token, and the one
that gets it decides.
"""

from __future__ import annotations

import asyncio
import email.utils
import errno
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import ReadTimeoutError, XloaderError, show_attempts
from xloader.sources.base import Read

_ERRNOS: Final = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET}
    | {errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.ENETDOWN, errno.ENETRESET}
    | {errno.ENETUNREACH, errno.EPIPE, errno.ESTALE, errno.ETIMEDOUT}
)
_NAMES: Final = frozenset(
    # aiohttp, and through it fsspec, gcsfs and adlfs
    {"ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError"}
    # botocore and urllib3, and through them s3fs
    | {"ConnectionClosedError", "ConnectTimeoutError", "EndpointConnectionError"}
    | {"HTTPClientError", "IncompleteRead", "IncompleteReadError", "ProtocolError"}
    | {"ReadTimeoutError", "ResponseStreamingError"}
    # azure
    | {"IncompleteReadError", "ServiceRequestError", "ServiceResponseError"}
)
"""Names of error classes whose libraries need not be installed. Subclasses count as well."""

_TIMEOUTS: Final = frozenset({"ConnectTimeoutError", "ReadTimeoutError"})
"""The classes among them for which no answer came in time."""

_TEXTS: Final = re.compile(
    r"error sending request|request or response body error|error decoding response body"
    r"|end of file before message length|operation timed out|connection closed before message"
)
"""Texts of obstore's errors that may pass. These errors have no class of their own."""

_TIMED_OUT: Final = re.compile(r"operation timed out|kind: Timeout\b")
"""Texts of obstore's errors for which no answer came in time."""

_STATUS_IN_TEXT: Final = re.compile(r"non-2xx status code: (\d{3})")

_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524})
"""HTTP status codes of failures that may pass."""

_LONGEST_TOLD: Final = 600.0
"""The longest pause, in seconds, that is granted to a store that asks for one."""

_GRACE: Final = 0.2
"""Seconds that an event loop has to end a request itself, before its thread is abandoned."""

_CURRENT: Final[ContextVar[Attempts | None]] = ContextVar("xloader_attempts", default=None)


def linked_errors(error: BaseException, *, with_contexts: bool = False) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from, each once.

    By default, only causes are followed, which ``raise ... from`` sets. A library names in this
    way why a request failed. A context is merely an error that was being handled at that time. It
    may be one that was overcome, so it must not decide whether to try again.
    """
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            links += [link.__cause__, link.__context__ if with_contexts else None]


def is_transient(error: BaseException) -> bool:
    """Whether an error of a store, or of its library, may pass."""
    links = list(linked_errors(error))
    for link in links:
        # Names come first: aiohttp's error for a short body is raised from one with a status.
        if not _NAMES.isdisjoint(kind.__name__ for kind in type(link).__mro__):
            return True
        status = _own_status(link)
        if status is not None:
            return status in _PASSING
        if isinstance(link, TimeoutError | ConnectionError):
            return True
        if _is_obstores(link) and _TEXTS.search(str(link)):
            return True
    return any(isinstance(link, OSError) and link.errno in _ERRNOS for link in links)


def is_timeout(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that no answer came in time."""
    return any(
        isinstance(link, TimeoutError)
        or not _TIMEOUTS.isdisjoint(kind.__name__ for kind in type(link).__mro__)
        or (_is_obstores(link) and _TIMED_OUT.search(str(link)))
        for link in linked_errors(error)
    )


def status_of(error: BaseException) -> int | None:
    """The HTTP status in an error or in one that it was raised from; None if there is none."""
    return next((s for link in linked_errors(error) if (s := _own_status(link)) is not None), None)


def _own_status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        given = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return given if isinstance(given, int) else None
    for name in ("status", "status_code", "code"):
        given = getattr(error, name, None)
        if isinstance(given, str) and given.isdigit():
            given = int(given)
        if isinstance(given, int) and 100 <= given < 600:
            return given
    match = _STATUS_IN_TEXT.search(str(error)) if _is_obstores(error) else None
    return int(match[1]) if match else None


def told_pause(error: BaseException) -> float | None:
    """Seconds to wait that the store asked for in its header ``Retry-After``, 600 at most.

    None if there is no such header. obstore's errors never have it, because obstore does not pass
    headers on.
    """
    for link in linked_errors(error):
        given = _retry_after(link)
        if given is None:
            continue
        try:
            seconds = float(given)
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(given).timestamp() - time.time()
            except ValueError:
                continue
        # This order of arguments makes NaN a pause of 0 seconds: ``max(0.0, nan)`` is 0.0.
        return seconds if 0.0 <= seconds <= _LONGEST_TOLD else max(0.0, min(seconds, _LONGEST_TOLD))
    return None


def _retry_after(error: BaseException) -> str | None:
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    else:
        headers = getattr(error, "headers", None) or getattr(response, "headers", None)
    if not isinstance(headers, Mapping):
        return None
    return next((str(v) for k, v in headers.items() if str(k).lower() == "retry-after"), None)


def _is_obstores(error: BaseException) -> bool:
    return type(error).__module__.startswith("obstore")


T = TypeVar("T")


class Abandoned(BaseException):
    """Raised in a thread whose read was given up, to end the thread's work."""


@dataclass(eq=False, repr=False)
class Attempts:
    """The attempts at one read, made on one thread.

    Used as a context manager: within it, `current` returns this object, so that every request is
    counted and retried as part of the read. `thread`: the thread that reads.
    """

    retry_policy: RetryPolicy
    store: str = ""
    reads: Sequence[Read] = ()
    num_hung: int = 0
    thread: threading.Thread = field(default_factory=threading.current_thread)
    on_given_up: Callable[[], None] | None = None
    num_requests: int = 0
    num_retries: int = 0
    is_given_up: bool = False
    _keys: Sequence[str] = ("",)
    _num_there: Callable[[], int] = int
    _awaited: Callable[[], int] = int
    _num_failed: int = 0
    _is_exhausted: bool = False
    # The token of the present wait and its start, in one tuple: other threads must never see the
    # token of one wait with the start of another.
    _waited: tuple[list[None], float | None] = field(default_factory=lambda: ([], None))
    _is_over: bool = False

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
            self._keys, self._num_there, self._awaited = (key,), int, int
            try:
                return self._wait(call, time.monotonic() + _GRACE)
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
        self._keys = (key,) if isinstance(key, str) else key
        self._num_there, self._awaited = num_there, awaited
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
        pause = told_pause(error)
        if pause is not None:
            return pause
        # Random, so that threads that failed together do not all retry at the same moment.
        return self.retry_policy.pause_after(num_failed) * random.uniform(0.5, 1.0)

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
        what = f"{self} did not arrive in {show_attempts(num_attempts)} of {seconds:g} s"
        place = {} if read is None else read.place(self.store, self.key)
        return ReadTimeoutError(
            what if read is None else "", seconds=seconds, attempts=num_attempts, **place
        )

    def __str__(self) -> str:
        what = "metadata"
        if self.read is not None:
            what = f"chunk {self.read.chunk} of variable {self.read.variable!r}"
        return f"{what} (key {self.key!r}) of {self.store}"


def current(otherwise: RetryPolicy | None = None) -> Attempts:
    """The attempts of the read that this thread, or this task of an event loop, is making."""
    return _CURRENT.get() or Attempts(otherwise or RetryPolicy())
