"""Whatever a store or a codec raises becomes one error that names the chunk."""

from __future__ import annotations

import gzip
import lzma
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from xloader.errors import ChunkError, CorruptChunkError, SourceAccessError, XloaderError
from xloader.sources.base import Read
from xloader.sources.stores.access import cause_of, told_of
from xloader.sources.stores.naming import Secrets
from xloader.sources.zarr.arrays import StoredArray
from xloader.sources.zarr.shards import DamagedShardError

_OF_CODECS: Final = (
    *(ArithmeticError, AssertionError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    *(zlib.error, lzma.LZMAError, gzip.BadGzipFile),
)
"""What codecs raise for damaged bytes. Each store's library has errors of its own."""


@dataclass(frozen=True)
class Blame:
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
            # The text of a store's own error may carry a signed URL, so only its kind is told.
            raise ChunkError(
                f"a chunk could not be read ({type(error).__name__})",
                chunk=read.chunk,
                remedy="see whether the store answers, and whether the object is whole: some "
                "stores fail where a part beyond an object's end is asked for",
                **place,
            ) from cause
        raise CorruptChunkError(
            f"the bytes of a chunk do not decode ({told_of(error, self.secrets)})",
            chunk=read.chunk,
            remedy="fetch or write this chunk again",
            **place,
        ) from cause
