"""The mosaics that a function makes, for a caller that must know what they keep in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

_NOTED: Final[ContextVar[weakref.WeakSet[Any] | None]] = ContextVar("xloader.mosaics", default=None)


@contextmanager
def noted_mosaics() -> Iterator[weakref.WeakSet[Any]]:
    """Collect the mosaics that are made in this thread, within the ``with`` block."""
    noted: weakref.WeakSet[Any] = weakref.WeakSet()
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def note_mosaic(mosaic: Any) -> None:
    """Tell of a new mosaic, where somebody collects them."""
    noted = _NOTED.get()
    if noted is not None:
        noted.add(mosaic)
