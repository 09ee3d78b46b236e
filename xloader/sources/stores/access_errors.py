"""The error for a store that does not answer or refuses access.

Every store library has errors of its own, and their texts may show credentials. This module turns
them into a `SourceAccessError` that says what to do and shows no credential.
"""

from __future__ import annotations

import re
from typing import Final

from xloader.errors import SourceAccessError
from xloader.sources.retries import is_timeout, linked_errors, status_of
from xloader.sources.stores.redaction import scrub

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
