"""Readers of the objects of an open store by key, one class for each kind of store.

Each kind of store is read in its quickest way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore, ZipStore

from xloader.sources.retries import Attempts, current
from xloader.sources.stores.bounded_reads import (
    MOST_OBJECT_NBYTES,
    check_size,
    get_bounded,
    told_size,
)
from xloader.sources.stores.ordinary_files import OrdinaryFiles
from xloader.sources.stores.retrying_store import plain
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.file_objects import Files
from xloader.sources.zarr.object_protocol import ABSENT, Asking, ObjectPiece, Objects
from xloader.sources.zarr_adapter import (
    RangeByteRequest,
    SuffixByteRequest,
    SupportsGetSync,
    default_buffer_prototype,
    innermost,
    is_known,
    is_synchronous,
    read_zip,
    sync,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest


def is_waiting(store: Store) -> bool:
    """Whether reading a store mostly waits, because it can only be read asynchronously."""
    store = plain(store)
    if not is_known():
        return not isinstance(innermost(store), LocalStore | MemoryStore | ZipStore)
    return not (is_synchronous(store) or isinstance(store, ZipStore))


def is_in_files(store: Store) -> bool:
    """Whether the objects of a store are ordinary files, and read as such."""
    return type(plain(store)) in (LocalStore, OrdinaryFiles)


def objects_of(store: Store) -> Objects:
    """Make the reader for the objects of an open store."""
    store = plain(store)
    if is_in_files(store):
        return Files(str(cast("LocalStore", store).root))
    if type(store) is ZipStore:
        return _OneByOne(store, partial(read_zip, store))
    if is_synchronous(store):
        reader = cast("SupportsGetSync", store)
        return _OneByOne(store, partial(_get_sync, reader, default_buffer_prototype()))
    return OfObstore(store) if type(store) is ObjectStore else Asynchronous(store)


class _OneByOne(Asking):
    """The objects of a store that is read with one direct call for each piece, without a wait."""

    def __init__(
        self, store: Store, read: Callable[[str, ByteRequest | None], Buffer | None]
    ) -> None:
        self._store = store
        self._read = read

    def _get(self, key: str, most: int) -> Bytes | None:
        check_size(key, told_size(self._store, key), most)
        data = _as_bytes(self._read(key, None))
        check_size(key, 0 if data is None else data.size, most)
        return data

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        return _as_bytes(self._read(key, SuffixByteRequest(nbytes)))

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        return _as_bytes(self._read(key, RangeByteRequest(start, stop)))


class Asynchronous(Objects):
    """The objects of an asynchronous store, read on zarr's own event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prototype = default_buffer_prototype()

    def get(self, key: str, most_nbytes: int = MOST_OBJECT_NBYTES) -> Bytes | None:
        """Read a whole object."""
        return next(self._get_all(key, [None], most_nbytes))

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object."""
        return next(self._get_all(key, [SuffixByteRequest(nbytes)]))

    def get_pieces(
        self, pieces: Sequence[ObjectPiece], room_nbytes: int
    ) -> Iterator[list[Bytes | None]]:
        """Read pieces of objects, those of one object concurrently."""
        for key, group in groupby(pieces, key=lambda piece: piece.key):
            members = list(group)
            yield list(self._get_all(key, list(map(_request, members)), members[0].most_nbytes))

    def _get_all(
        self, key: str, pieces: Sequence[ByteRequest | None], most: int = MOST_OBJECT_NBYTES
    ) -> Iterator[Bytes | None]:
        attempts = current()
        buffers = attempts.ask(key, lambda: sync(self._gather(attempts, key, pieces, most)))
        return map(_as_bytes, buffers)

    async def _gather(
        self, attempts: Attempts, key: str, pieces: Sequence[ByteRequest | None], most: int
    ) -> list[Buffer | None]:
        limit = asyncio.Semaphore(zarr.config.get("async.concurrency") or len(pieces))

        async def get(piece: ByteRequest | None) -> Buffer | None:
            """Read one piece of the object, once fewer requests than the limit are under way."""
            async with limit:
                return await attempts.ask_async(
                    key, lambda: get_bounded(self._store, key, self._prototype, piece, most)
                )

        return await asyncio.gather(*map(get, pieces))


class OfObstore(Asking):
    """The objects of an obstore store, read without zarr's event loop where possible.

    That loop is one thread for all requests of the process. obstore's own calls let other threads
    run while they wait, and need a third of the processor time.
    """

    def __init__(self, store: ObjectStore[Any]) -> None:
        import obstore

        self._obstore = obstore
        self._inner = store.store
        self._by_zarr = Asynchronous(store)

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object."""
        try:
            return super().get_last(key, nbytes)
        except self._obstore.exceptions.NotSupportedError:
            # Azure cannot read the last bytes of an object. zarr then requests its size first.
            return self._by_zarr.get_last(key, nbytes)

    def get_pieces(
        self, pieces: Sequence[ObjectPiece], room_nbytes: int
    ) -> Iterator[list[Bytes | None]]:
        """Read pieces of objects: a single one directly, several of one through zarr."""
        for _, group in groupby(pieces, key=lambda piece: piece.key):
            members = list(group)
            if len(members) == 1:
                yield from super().get_pieces(members, room_nbytes)
            else:
                yield from self._by_zarr.get_pieces(members, room_nbytes)

    def _get(self, key: str, most: int) -> Bytes | None:
        with suppress(*ABSENT):
            answer = self._obstore.get(self._inner, key)
            # Known from the head of the answer, before the bytes come.
            check_size(key, answer.meta["size"], most)
            return _view(answer.bytes())
        return None

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        options: GetOptions = {"range": {"suffix": nbytes}}
        with suppress(*ABSENT):
            return _view(self._obstore.get(self._inner, key, options=options).bytes())
        return None

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        with suppress(*ABSENT):
            return _view(self._obstore.get_range(self._inner, key, start=start, end=stop))
        return None


def _get_sync(
    store: SupportsGetSync, prototype: BufferPrototype, key: str, byte_range: ByteRequest | None
) -> Buffer | None:
    return store.get_sync(key, prototype=prototype, byte_range=byte_range)


def _request(piece: ObjectPiece) -> ByteRequest | None:
    assert piece.stop is not None or not piece.start, "the end of a piece is known, or it is all"
    return None if piece.stop is None else RangeByteRequest(piece.start, piece.stop)


def _as_bytes(buffer: Buffer | None) -> Bytes | None:
    return None if buffer is None else np.asarray(buffer.as_numpy_array(), np.uint8)


def _view(buffer: Any) -> Bytes:
    """The memory of a buffer from obstore as an array, without a copy."""
    return np.frombuffer(buffer, np.uint8)
