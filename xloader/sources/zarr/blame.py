"""Whatever a store or a codec raises becomes one error that names the chunk."""

from __future__ import annotations

import gzip
from dataclasses import dataclass

from xloader.errors import ChunkError, CorruptChunkError, XloaderError
from xloader.sources.stores.access import cause_of
from xloader.sources.stores.naming import Secrets
from xloader.sources.zarr.arrays import StoredArray
from xloader.sources.zarr.shards import DamagedShardError


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
        Whether the chunk's bytes are there, so that what fails is their decoding.
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
        # gzip's error for damaged data is an OSError too.
        is_failed_read = isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile)
        is_decoding = self.is_decoding or isinstance(error, DamagedShardError)
        if is_failed_read or not is_decoding:
            # The text of a store's own error may carry a signed URL, so only its kind is told.
            raise ChunkError(
                f"a chunk could not be read ({type(error).__name__})", chunk=self.chunk, **place
            ) from cause_of(error, self.secrets)
        raise CorruptChunkError(
            f"the bytes of a chunk do not decode ({type(error).__name__}: {error})",
            chunk=self.chunk,
            remedy="fetch or write this chunk again",
            **place,
        ) from error
