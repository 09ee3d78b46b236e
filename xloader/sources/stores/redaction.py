"""Removes credentials from names of stores, from options and from texts of errors.

Messages and logs may show the results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

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
