"""The mosaics that a function makes, for a caller that must know what they keep in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol


class WaitingPredictions(Protocol):
    """Something that keeps predictions in memory before it writes them."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""

    def flush(self) -> None:
        """Write them."""


_NOTED: Final[ContextVar[weakref.WeakSet[WaitingPredictions] | None]] = ContextVar(
    "xloader.mosaics", default=None
)


@contextmanager
def noted_mosaics() -> Iterator[weakref.WeakSet[WaitingPredictions]]:
    """Collect the mosaics that are made in this thread, within the ``with`` block."""
    noted: weakref.WeakSet[WaitingPredictions] = weakref.WeakSet()
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def note_mosaic(mosaic: WaitingPredictions) -> None:
    """Tell of a new mosaic, where somebody collects them."""
    noted = _NOTED.get()
    if noted is not None:
        noted.add(mosaic)
