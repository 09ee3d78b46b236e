"""Names, options and errors of stores, without the credentials in them.

Messages and logs may show the results. Every store library has errors of its own: `access_error`
turns them into a `SourceAccessError` that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from xloader.errors import SourceAccessError
from xloader.sources.retries import is_timeout, linked_errors, status_of

HIDDEN: Final = "***"
"""The text that replaces a credential."""

_URL: Final = re.compile(r"[A-Za-z][\w+.\-]*://[^\s'\"<>]+")
# A secret key may hold slashes. A port number and the slash after it are no secret.
_USER: Final = re.compile(r"^(?:[^/]*|[^/:]*:(?!\d+/)[^@]*)@")

_HARMLESS: Final = frozenset(
    {"bucket", "cache_storage", "endpoint", "endpoint_url", "fo", "mode", "prefix", "project"}
    | {"protocol", "region", "region_name", "remote_protocol", "target_protocol", "token_type"}
)
"""Store options whose values may be shown. All other texts among the options are hidden."""

_SHORTEST: Final = 4
"""Least number of characters of a text that is hidden.

Shorter texts are no credentials, and hiding them would garble words.
"""


_TEXT_SIZE: Final = 300
"""The most characters of a store's own message that an error quotes."""

_DENIED: Final = frozenset(
    {"PermissionError", "PermissionDeniedError", "UnauthenticatedError", "NoCredentialsError"}
    | {"PartialCredentialsError", "TokenRetrievalError", "DefaultCredentialsError", "RefreshError"}
)
"""Names of error classes that mean a lack of permission."""

_UNREACHABLE: Final = frozenset(
    {"ConnectionError", "ClientConnectorError", "ClientConnectionError", "EndpointConnectionError"}
    | {"HTTPClientError"}
)
"""Names of error classes that mean that the store cannot be reached."""

DENIED_REMEDY: Final = (
    "pass credentials in storage_options= (or to the store object), or anon=True for public data; "
    "some stores also answer like this if an object does not exist"
)
"""Advice for the user if a store refuses access."""


class Secrets(tuple[str, ...]):
    """Texts that must not be shown. Their ``repr`` does not show them either."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN


def safe_name(text: str) -> str:
    """Remove the user, the query and the fragment of a URL, which may hold credentials."""
    return "::".join(_safe_url(link) for link in text.split("::")) if "://" in text else text


def _safe_url(text: str) -> str:
    """One URL of a chain without credentials."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    return f"{scheme}://{_USER.sub('', re.split(r'[?#]', rest)[0])}"


def scrub(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Remove known credentials from a text, and what may be one from the URLs in it."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL.sub(lambda match: safe_name(match[0]), text)


def secrets_of(options: object) -> tuple[str, ...]:
    """Find every text among a store's options that may be a credential."""
    return tuple(dict.fromkeys(_texts(options)))


def secrets_of_url(url: str) -> tuple[str, ...]:
    """Find the user and the query of a URL, whole and in parts, as texts to hide."""
    texts: list[str] = []
    for link in url.split("::"):
        rest = link.partition("://")[2]
        place, _, query = rest.partition("?")
        if user := _USER.match(place):
            texts += [user[0][:-1], *re.split("[:/]", user[0][:-1])]
        if query:
            texts += [query, *(value.partition("=")[2] for value in re.split("[&#]", query))]
    return secrets_of(texts)


def _texts(options: object) -> Iterator[str]:
    """Yield the texts among options that may be credentials."""
    if isinstance(options, str):
        if len(options) >= _SHORTEST:
            yield options
    elif isinstance(options, bytes):
        yield from _texts(options.decode("latin-1"))
    elif isinstance(options, Mapping):
        for key, value in options.items():
            if key not in _HARMLESS:
                yield from _texts(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _texts(value)


def access_error(
    error: BaseException, name: str, secrets: tuple[str, ...] = (), tried: str = ""
) -> SourceAccessError:
    """Make the error for a store that could not be opened, whatever its library raised."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if is_denied(error):
        what, remedy = "the store refuses access", DENIED_REMEDY
    elif is_timeout(error):
        what = "the store does not answer in time"
        remedy = "check the URL and the network, or pass a longer read_timeout= to xloader.open"
    elif names & _UNREACHABLE or "error sending request" in str(error):
        what = "the store cannot be reached"
        remedy = "check the URL, the endpoint and the network"
    else:
        what = "the store cannot be opened"
        remedy = "check the URL, and the store's answer in this message"
    given = ", ".join(filter(None, (name, tried)))
    return SourceAccessError(f"{what} ({told_of(error, secrets)})", given=given, remedy=remedy)


def is_denied(error: BaseException) -> bool:
    """Whether a store refused access for lack of permission."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return status_of(error) in (401, 403) or not names.isdisjoint(_DENIED)


def told_of(error: BaseException, secrets: tuple[str, ...] = ()) -> str:
    """Class name and first line of an error's text, in one line without credentials."""
    # Libraries in Rust repeat the message below, at length. icechunk draws a box around it.
    text = _without_answer(str(error)).partition("\n\nDebug source")[0]
    lines = [line.strip(" x|") for line in text.splitlines()]
    text = scrub(next((line for line in lines if line), ""), secrets)[:_TEXT_SIZE]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def cause_of(error: BaseException, secrets: tuple[str, ...] = ()) -> BaseException | None:
    """The error to chain as a cause; None if the text of it or its causes holds a credential."""
    texts = (str(link) for link in linked_errors(error, with_contexts=True))
    return error if all(scrub(_without_answer(t), secrets) == t for t in texts) else None


def _without_answer(text: str) -> str:
    """A text up to the server's own answer, since S3 repeats a token that it refuses."""
    return re.split(r"<\?xml|<Error>|<html", text, maxsplit=1, flags=re.IGNORECASE)[0]
