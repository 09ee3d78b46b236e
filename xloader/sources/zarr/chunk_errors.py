"""Chunks that are absent, and errors of chunks that cannot be read."""

from __future__ import annotations

import gzip
import lzma
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from xloader.core.messages import warn_caller
from xloader.errors import (
    ChunkError,
    ChunkWarning,
    CorruptChunkError,
    MissingChunkError,
    SourceAccessError,
    XloaderError,
    show_attempts,
)
from xloader.sources.base import Read
from xloader.sources.retries import current, is_transient, status_of
from xloader.sources.store_watch import Watch
from xloader.sources.stores.bounded_reads import DamagedObjectError
from xloader.sources.stores.redaction import DENIED_REMEDY, Secrets, cause_of, is_denied, told_of
from xloader.sources.zarr.stored_array import StoredArray

OnMissing = Literal["warn", "raise", "fill"]


_OF_CODECS: Final = (
    *(ArithmeticError, AssertionError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    *(zlib.error, lzma.LZMAError, gzip.BadGzipFile),
)
"""Errors that codecs raise for damaged bytes. The libraries of stores raise others."""


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
                ChunkWarning,
            )

    def __reduce__(self) -> tuple[object, ...]:
        return Missing, (self._store, self._on_missing)


@dataclass(frozen=True)
class ChunkErrors:
    """Turns the error of a failed read into an error that names the chunk."""

    store: str
    secrets: Secrets

    def tell(
        self, error: Exception, read: Read, array: StoredArray, *, is_decoding: bool
    ) -> NoReturn:
        """Raise the error for a failed read.

        A `MemoryError` and xloader's own errors, except `SourceAccessError`, are raised unchanged.
        """
        if isinstance(error, MemoryError):
            raise error
        if isinstance(error, XloaderError) and not isinstance(error, SourceAccessError):
            raise error
        # The shard may have been written again, with another index.
        array.forget(read.chunk)
        place = {"store": self.store, "variable": read.variable, "key": array.key(read.chunk)}
        if isinstance(error, SourceAccessError):
            what = f"a chunk could not be read: {error.what}"
            raise ChunkError(what, chunk=read.chunk, remedy=error.remedy, **place) from error
        cause = cause_of(error, self.secrets)
        is_of_codecs = is_decoding and isinstance(error, _OF_CODECS)
        # A server answers 416 where an object ends before the part that was asked for.
        is_too_short = status_of(error) == 416
        is_damaged = is_of_codecs or is_too_short or isinstance(error, DamagedObjectError)
        if is_damaged or isinstance(error, FileNotFoundError | NotADirectoryError):
            # If the store does not answer, the error of the chunk is raised below.
            with suppress(SourceAccessError):
                array.watch.look()
        if not is_damaged:
            what, remedy = _store_fault(error)
            raise ChunkError(what, chunk=read.chunk, remedy=remedy, **place) from cause
        raise CorruptChunkError(
            f"the bytes of a chunk do not decode ({told_of(error, self.secrets)})",
            chunk=read.chunk,
            remedy="fetch or write this chunk again",
            **place,
        ) from cause


def _store_fault(error: Exception) -> tuple[str, str]:
    """A description of why the store did not give a chunk, and the remedy for the user."""
    # The text of a store's own error may contain a signed URL, so only its class is shown.
    reason, status = type(error).__name__, status_of(error)
    if status is not None:
        reason += f", HTTP status {status}"
    if is_denied(error):
        return f"the store refuses access to a chunk ({reason})", DENIED_REMEDY
    if is_transient(error):
        return (
            f"a chunk could not be read in {show_attempts(current().num_tried)} ({reason})",
            "try again once the store answers, or pass a larger max_retries= to xloader.open",
        )
    remedy = (
        "check that the store answers, and that the object is complete: some stores fail if a part "
        "beyond an object's end is requested"
    )
    return f"a chunk could not be read ({reason})", remedy
