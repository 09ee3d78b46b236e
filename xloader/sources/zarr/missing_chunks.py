"""Handling of chunks that are absent from the store: a warning, an error, or silence."""

from __future__ import annotations

import threading
from typing import Literal

from xloader.core.messages import warn_caller
from xloader.errors import MissingChunkError, MissingChunkWarning
from xloader.sources.base import Read
from xloader.sources.store_watch import Watch

OnMissing = Literal["warn", "raise", "fill"]


class Missing:
    """Counts absent chunks, and warns of them or raises. A pickled copy starts at zero."""

    def __init__(self, store: str, on_missing: OnMissing) -> None:
        self._store = store
        self._on_missing = on_missing
        self._lock = threading.Lock()
        self.count = 0

    def note(self, read: Read, key: str, watch: Watch) -> None:
        """Count an absent chunk, after a check that its array did not change."""
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
            warn_caller(
                f"chunk {read.chunk} of variable {read.variable!r} (key {key!r}) is absent from "
                f"{self._store} and is read as the fill value. Other absent chunks are read in the "
                "same way, and counted without a warning. xarray and zarr leave out chunks of the "
                'fill value alone, such as NaN over land. Pass on_missing="fill" if chunks are '
                'absent on purpose, or on_missing="raise" to get an error instead.',
                MissingChunkWarning,
            )

    def __reduce__(self) -> tuple[object, ...]:
        return Missing, (self._store, self._on_missing)
