"""Whatever a store or a codec raises becomes one error that names the chunk."""

from __future__ import annotations

import gzip
import lzma
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from xloader.errors import ChunkError, CorruptChunkError, SourceAccessError, XloaderError
from xloader.sources.attempts import current
from xloader.sources.base import Read
from xloader.sources.stores.access_errors import DENIED_REMEDY, cause_of, is_denied, told_of
from xloader.sources.stores.redaction import Secrets
from xloader.sources.transient_errors import is_transient, status_of
from xloader.sources.zarr.shards import DamagedShardError
from xloader.sources.zarr.stored_array import StoredArray

_OF_CODECS: Final = (
    *(ArithmeticError, AssertionError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    *(zlib.error, lzma.LZMAError, gzip.BadGzipFile),
)
"""What codecs raise for damaged bytes. Each store's library has errors of its own."""


@dataclass(frozen=True)
class ChunkErrors:
    """Turns what was raised into an error that names the chunk.

    Parameters
    ----------
    store : str
        Where chunks are looked for.
    secrets : Secrets
        Texts that no error may tell.
    """

    store: str
    secrets: Secrets

    def tell(
        self, error: Exception, read: Read, array: StoredArray, *, is_decoding: bool
    ) -> NoReturn:
        """Raise the error that a read has failed with.

        Parameters
        ----------
        error : Exception
            What was raised.
        read : Read
            What was read.
        array : StoredArray
            The array that holds it.
        is_decoding : bool
            Whether the chunk was decoded, beside being fetched or not.

        Raises
        ------
        StoreChangedError
            If the array is no longer what was opened, which is why the chunk does not decode.
        CorruptChunkError
            If the chunk does not decode.
        ChunkError
            If it cannot be read.
        """
        if isinstance(error, MemoryError):
            raise error
        if isinstance(error, XloaderError) and not isinstance(error, SourceAccessError):
            raise error
        # A shard that was written anew has another index.
        array.forget(read.chunk)
        place = {
            "store": self.store,
            "variable": read.variable,
            "key": array.key(read.chunk),
        }
        if isinstance(error, SourceAccessError):
            told = f"a chunk could not be read: {error.what}"
            raise ChunkError(told, chunk=read.chunk, remedy=error.remedy, **place) from error
        cause = cause_of(error, self.secrets)
        is_of_codecs = is_decoding and isinstance(error, _OF_CODECS)
        is_damaged = is_of_codecs or isinstance(error, DamagedShardError)
        if is_damaged or isinstance(error, FileNotFoundError | NotADirectoryError):
            # Where the store does not answer, the chunk's own error says enough.
            with suppress(SourceAccessError):
                array.watch.look()
        if not is_damaged:
            told, remedy = _told_of_store(error)
            raise ChunkError(told, chunk=read.chunk, remedy=remedy, **place) from cause
        raise CorruptChunkError(
            f"the bytes of a chunk do not decode ({told_of(error, self.secrets)})",
            chunk=read.chunk,
            remedy="fetch or write this chunk again",
            **place,
        ) from cause


def _told_of_store(error: Exception) -> tuple[str, str]:
    """What happened to a chunk that the store did not give, and what to do about it."""
    # The text of a store's own error may carry a signed URL, so only its kind is told.
    told, status = type(error).__name__, status_of(error)
    if status is not None:
        told += f", HTTP status {status}"
    if is_denied(error):
        return f"the store does not let this reader have a chunk ({told})", DENIED_REMEDY
    if is_transient(error):
        tried = current().num_tried
        attempts = "one attempt" if tried == 1 else f"{tried} attempts"
        return (
            f"a chunk could not be read in {attempts} ({told})",
            "try again once the store answers, or pass a larger max_retries=",
        )
    remedy = (
        "see whether the store answers, and whether the object is whole: some stores fail where "
        "a part beyond an object's end is asked for"
    )
    return f"a chunk could not be read ({told})", remedy
