"""A digest of the code of a function, by which a later process knows the function again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import CodeType


def code_digest(code: CodeType) -> str:
    """SHA-256 of the instructions, names and constants of a function and of those within it.

    The code of functions that it calls, and the values that it refers to, are not part of it.
    """
    return hashlib.sha256(repr(list(_parts(code))).encode()).hexdigest()


def _parts(code: CodeType) -> Iterator[object]:
    yield code.co_code
    yield code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _parts(value)
        else:
            # A set has another order in each process.
            yield sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
