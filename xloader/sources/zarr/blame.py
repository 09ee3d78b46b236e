"""Whatever a store or a codec raises becomes one error that names the chunk."""

from __future__ import annotations

import gzip
import lzma
import zlib
from dataclasses import dataclass
from typing import Final

from xloader.errors import ChunkError, CorruptChunkError, XloaderError
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
    """Turns what is raised within into an error that names the chunk.

    Parameters
    ----------
    store, variable : str
        Where the chunk is looked for.
    chunk : tuple of int
        Its index along each dimension.
    array : StoredArray
        The array that holds it.
    is_decoding : bool
        Whether the chunk is decoded within; it may be fetched within, too.
    secrets : Secrets
        Texts that no error may tell.
    """

    store: str
    variable: str
    chunk: tuple[int, ...]
    array: StoredArray
    is_decoding: bool
    secrets: Secrets

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, XloaderError | MemoryError):
            return
        # A shard that was written anew has another index.
        self.array.forget(self.chunk)
        place = {
            "store": self.store,
            "variable": self.variable,
            "key": self.array.key(self.chunk),
        }
        cause = cause_of(error, self.secrets)
        is_of_codecs = self.is_decoding and isinstance(error, _OF_CODECS)
        if not is_of_codecs and not isinstance(error, DamagedShardError):
            # The text of a store's own error may carry a signed URL, so only its kind is told.
            raise ChunkError(
                f"a chunk could not be read ({type(error).__name__})",
                chunk=self.chunk,
                remedy="see whether the store answers, and whether the object is whole: some "
                "stores fail where a part beyond an object's end is asked for",
                **place,
            ) from cause
        raise CorruptChunkError(
            f"the bytes of a chunk do not decode ({told_of(error, self.secrets)})",
            chunk=self.chunk,
            remedy="fetch or write this chunk again",
            **place,
        ) from cause
