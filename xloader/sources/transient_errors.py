"""Recognition of failures of a store that may pass, after which another attempt is worthwhile."""

from __future__ import annotations

import email.utils
import errno
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

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
    found = _STATUS_IN_TEXT.search(str(error)) if _is_obstores(error) else None
    return int(found[1]) if found else None


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
