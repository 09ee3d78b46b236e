"""What may be said of a place: its name without credentials, and an error's text likewise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

HIDDEN: Final = "***"
"""What stands in the place of a credential."""

_URL: Final = re.compile(r"[A-Za-z][\w+.\-]*://[^\s'\"<>]+")
# A secret key may hold slashes; the number of a port and the slash after it are no secret.
_USER: Final = re.compile(r"^(?:[^/]*|[^/:]*:(?!\d+/)[^@]*)@")

_HARMLESS: Final = frozenset(
    {"bucket", "cache_storage", "endpoint", "endpoint_url", "fo", "mode", "prefix", "project"}
    | {"protocol", "region", "region_name", "remote_protocol", "target_protocol", "token_type"}
)
"""Options of stores whose values may be told; every other text among them is hidden."""

_SHORTEST: Final = 4
"""A text shorter than this is no credential, and would tear words apart if it were hidden."""


class Secrets(tuple[str, ...]):
    """Texts that must not be told; nor does its own repr tell them.

    Examples
    --------
    >>> Secrets(["hunter2"])
    ***
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN


def safe_name(text: str) -> str:
    """Take what may be a credential out of a path or URL: the user, the query, the fragment.

    Parameters
    ----------
    text : str
        A path, which is left as it is, or a URL, chained with ``::`` or not.

    Examples
    --------
    >>> safe_name("https://me:secret@host/era5.zarr?sig=abc")
    'https://host/era5.zarr'
    """
    return "::".join(_safe_url(part) for part in text.split("::")) if "://" in text else text


def _safe_url(text: str) -> str:
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    return f"{scheme}://{_USER.sub('', re.split(r'[?#]', rest)[0])}"


def scrub(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Take what may be a credential out of any text: of its URLs, and the secrets that are known.

    Parameters
    ----------
    text : str
        Such as the message of a store's own error.
    secrets : tuple of str
        Texts to hide, as `secrets_of` finds them.

    Examples
    --------
    >>> scrub("403 for https://host/a.zarr?sig=abc (token hunter2)", ("hunter2",))
    '403 for https://host/a.zarr (token ***)'
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL.sub(lambda match: safe_name(match[0]), text)


def secrets_of(options: object) -> tuple[str, ...]:
    """Find every text among a store's options that may be a credential.

    Parameters
    ----------
    options : mapping, sequence or value
        The options, nested as they may be.

    Examples
    --------
    >>> secrets_of({"secret": "hunter2", "client_kwargs": {"region_name": "eu-west-1"}})
    ('hunter2',)
    """
    return tuple(dict.fromkeys(_texts(options)))


def secrets_of_url(url: str) -> tuple[str, ...]:
    """Find what `safe_name` takes out of a URL, as texts.

    Examples
    --------
    >>> secrets_of_url("https://me:hunter2@host/a.zarr?sig=abcd")
    ('me:hunter2', 'hunter2', 'sig=abcd', 'abcd')
    """
    found: list[str] = []
    for part in url.split("::"):
        rest = part.partition("://")[2]
        place, _, query = rest.partition("?")
        if user := _USER.match(place):
            found += [user[0][:-1], *re.split("[:/]", user[0][:-1])]
        if query:
            found += [query, *(value.partition("=")[2] for value in re.split("[&#]", query))]
    return secrets_of(found)


def _texts(options: object) -> Iterator[str]:
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
