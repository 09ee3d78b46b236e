"""Chunks that are not in the store: warned about once, refused, or passed over."""

from __future__ import annotations

import threading
import warnings
from typing import Literal

from xloader.errors import MissingChunkError, MissingChunkWarning
from xloader.sources.base import Read
from xloader.sources.store_watch import Watch

OnMissing = Literal["warn", "raise", "fill"]


class Missing:
    """What is done about absent chunks; a pickled copy counts anew.

    Parameters
    ----------
    store : str
        Where they are missed, for messages.
    on_missing : {"warn", "raise", "fill"}
        Whether to warn of the first of them, to raise, or neither.
    """

    def __init__(self, store: str, on_missing: OnMissing) -> None:
        self._store = store
        self._on_missing = on_missing
        self._lock = threading.Lock()
        self.count = 0

    def note(self, read: Read, key: str, watch: Watch) -> None:
        """Count an absent chunk, which lies under ``key``, unless its array changed.

        Raises
        ------
        StoreChangedError
            If the array is no longer what was opened: so it may well be absent.
        MissingChunkError
            If absent chunks are to be refused.
        """
        watch.look_for_missing(
            is_news=self._on_missing == "raise" or not self.count,
            is_meant=self._on_missing == "fill",
        )
        with self._lock:
            self.count += 1
            is_first = self.count == 1
        if self._on_missing == "raise":
            raise MissingChunkError(
                "a chunk is absent from the store",
                store=self._store,
                variable=read.variable,
                chunk=read.chunk,
                key=key,
                remedy='restore it, or open with on_missing="fill" to read the fill value',
            )
        if self._on_missing == "warn" and is_first:
            warnings.warn(
                f"chunk {read.chunk} of variable {read.variable!r} (key {key!r}) is absent from "
                f"{self._store} and is read as the fill value; so is any other, which is "
                'counted without a warning. Pass on_missing="fill" if this is meant, or '
                'on_missing="raise" to stop at it.',
                MissingChunkWarning,
                stacklevel=3,
            )

    def __reduce__(self) -> tuple[object, ...]:
        return Missing, (self._store, self._on_missing)
