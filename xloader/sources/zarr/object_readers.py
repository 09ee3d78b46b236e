"""The objects of an open store, by key, each kind of store asked in its quickest way.

What a read gives may lie in memory that the calling thread reads into again: it has to be
decoded, or copied, before the thread reads the next. Only where reading waits is it kept.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore, ZipStore

from xloader.sources.attempts import Attempts, current
from xloader.sources.ordinary_files import OrdinaryFiles, check_mode, check_path
from xloader.sources.stores.retrying_store import plain
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.decode import SCRATCH
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
    from zarr.abc.buffer import Buffer
    from zarr.abc.store import ByteRequest

Span: TypeAlias = tuple[int, int]
"""The first byte, and the one behind the last."""

_STORED: Final = 2
"""Number of the scratch memory that stored bytes are read into: chunks decode in 0 and 1."""


_ABSENT: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""What is raised for an object that is not there."""

# Without waiting, so that a fifo opens at once and can be refused; files open as ever.
_READ_ONLY: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class Objects(Protocol):
    """Stored objects, read by key; None stands for one that is not there."""

    def get(self, key: str) -> Bytes | None:
        """All of an object."""
        ...

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """The end of an object, or all of it where it is shorter."""
        ...

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Parts of an object, each with one request; those past its end come short."""
        ...


class _Asking:
    """Objects whose store is waited for within the attempts of the read that is under way."""

    def get(self, key: str) -> Bytes | None:
        """All of an object."""
        return current().ask(key, lambda: self._get(key))

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """The end of an object, or all of it where it is shorter."""
        return current().ask(key, lambda: self._get_last(key, nbytes))

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Parts of an object, so that the first is decoded before the next takes memory."""
        attempts = current()
        return (attempts.ask(key, partial(self._get_range, key, *span)) for span in spans)

    def _get(self, key: str) -> Bytes | None:
        raise NotImplementedError

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        raise NotImplementedError

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        raise NotImplementedError


def is_waiting(store: Store) -> bool:
    """Whether reading a store mostly waits: it is asked in no other way than asynchronously."""
    store = plain(store)
    if not is_known():
        return not isinstance(innermost(store), LocalStore | MemoryStore | ZipStore)
    return not (is_synchronous(store) or isinstance(store, ZipStore))


def objects_of(store: Store) -> Objects:
    """The objects of an open store.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store. A kind of store that is derived from one of zarr's is asked as zarr asks it.
    """
    store = plain(store)
    if type(store) is LocalStore or type(store) is OrdinaryFiles:
        return Files(str(store.root))
    if type(store) is ZipStore:
        return Zipped(store)
    if is_synchronous(store):
        return Synchronous(cast("SupportsGetSync", store))
    return OfObstore(store) if type(store) is ObjectStore else Asynchronous(store)


class Files(_Asking):
    """The files of a directory, read into memory that each thread reuses.

    Parameters
    ----------
    root : str
        Path of the directory.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._prefix = os.path.join(root, "")

    def _get(self, key: str) -> Bytes | None:
        return self._get_range(key, 0, None)

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        return self._get_range(key, -nbytes, None)

    def _get_range(self, key: str, start: int, stop: int | None) -> Bytes | None:
        """Some bytes of a file, as a slice of all of them would be."""
        # Few calls: each lets other threads run, and has to wait for them afterwards.
        path = self._prefix + key
        try:
            file = _open(path)
            try:
                if stop is None or start < 0:
                    found = os.fstat(file)
                    check_mode(found.st_mode, path)
                    start, stop, _ = slice(start, stop).indices(found.st_size)
                return _read_into(file, start, SCRATCH.take(stop - start, _STORED))
            finally:
                os.close(file)
        except _ABSENT:
            if not os.path.isdir(self._root):
                # A store that is gone holds no fill values.
                raise
            return None
        except OSError:
            # A socket cannot be opened, and a fifo not be read at a place.
            check_path(path)
            raise


def _open(path: str) -> int:
    try:
        return os.open(path, _READ_ONLY)
    except BlockingIOError:
        # Another process holds a lease on the file, and gives it up to those who wait for it.
        check_path(path)
        return os.open(path, _READ_ONLY & ~os.O_NONBLOCK)


def _read_into(file: int, start: int, buffer: Bytes) -> Bytes:
    """Fill a buffer from a place of a file on: as much of it as there is."""
    filled = _read_at(file, buffer, start)
    # One call reads at most 2 GiB, and a file on a network may give less.
    while filled < buffer.size:
        more = _read_at(file, buffer[filled:], start + filled)
        if not more:
            return buffer[:filled]
        filled += more
    return buffer


def _read_at(file: int, buffer: Bytes, start: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer.data], start)
    os.lseek(file, start, os.SEEK_SET)
    data = os.read(file, buffer.size)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


class _OneByOne(_Asking):
    """Objects that come at once when asked for."""

    def __init__(self) -> None:
        # To make it, zarr goes through its settings.
        self._prototype = default_buffer_prototype()

    def _get(self, key: str) -> Bytes | None:
        return self._read(key, None)

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        return self._read(key, SuffixByteRequest(nbytes))

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        return self._read(key, RangeByteRequest(start, stop))

    def _read(self, key: str, byte_range: ByteRequest | None) -> Bytes | None:
        raise NotImplementedError


class Synchronous(_OneByOne):
    """The objects of a store that reads on the calling thread, as in memory.

    Parameters
    ----------
    store : SupportsGetSync
        The open store.
    """

    def __init__(self, store: SupportsGetSync) -> None:
        super().__init__()
        self._store = store

    def _read(self, key: str, byte_range: ByteRequest | None) -> Bytes | None:
        prototype = self._prototype
        return _as_bytes(self._store.get_sync(key, prototype=prototype, byte_range=byte_range))


class Zipped(_OneByOne):
    """The members of a zip file, which its own lock lets be read one at a time.

    Parameters
    ----------
    store : zarr.storage.ZipStore
        The open store.
    """

    def __init__(self, store: ZipStore) -> None:
        super().__init__()
        self._store = store

    def _read(self, key: str, byte_range: ByteRequest | None) -> Bytes | None:
        return _as_bytes(read_zip(self._store, key, byte_range))


class Asynchronous:
    """The objects of a store that is waited for, on zarr's own event loop.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The open store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prototype = default_buffer_prototype()

    def get(self, key: str) -> Bytes | None:
        """All of an object."""
        return next(self._get_all(key, [None]))

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """The end of an object."""
        return next(self._get_all(key, [SuffixByteRequest(nbytes)]))

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Parts of an object, side by side."""
        return self._get_all(key, [RangeByteRequest(*span) for span in spans])

    def _get_all(self, key: str, parts: Sequence[ByteRequest | None]) -> Iterator[Bytes | None]:
        attempts = current()
        found = attempts.ask(key, lambda: sync(self._gather(attempts, key, parts)))
        return map(_as_bytes, found)

    async def _gather(
        self, attempts: Attempts, key: str, parts: Sequence[ByteRequest | None]
    ) -> list[Buffer | None]:
        limit = asyncio.Semaphore(zarr.config.get("async.concurrency") or len(parts))

        async def get(part: ByteRequest | None) -> Buffer | None:
            async with limit:
                return await attempts.ask_async(
                    key, lambda: self._store.get(key, self._prototype, part)
                )

        return await asyncio.gather(*map(get, parts))


class OfObstore(_Asking):
    """The objects of an obstore store, which can be waited for without zarr's event loop.

    That loop is one thread for all requests of the process. obstore's own calls let other
    threads run while they wait, and cost a third of the processor time.

    Parameters
    ----------
    store : zarr.storage.ObjectStore
        The open store.
    """

    def __init__(self, store: ObjectStore[Any]) -> None:
        import obstore

        self._obstore = obstore
        self._inner = store.store
        self._by_zarr = Asynchronous(store)

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """The end of an object."""
        try:
            return super().get_last(key, nbytes)
        except self._obstore.exceptions.NotSupportedError:
            # zarr asks for the size first, as Azure's must be.
            return self._by_zarr.get_last(key, nbytes)

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Parts of an object: several side by side, as each is to be a request of its own."""
        if len(spans) != 1:
            return self._by_zarr.get_ranges(key, spans)
        return super().get_ranges(key, spans)

    def _get(self, key: str) -> Bytes | None:
        try:
            return _view(self._obstore.get(self._inner, key).bytes())
        except _ABSENT:
            return None

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        options: GetOptions = {"range": {"suffix": nbytes}}
        try:
            return _view(self._obstore.get(self._inner, key, options=options).bytes())
        except _ABSENT:
            return None

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        try:
            return _view(self._obstore.get_range(self._inner, key, start=start, end=stop))
        except _ABSENT:
            return None


def _as_bytes(buffer: Buffer | None) -> Bytes | None:
    return None if buffer is None else np.asarray(buffer.as_numpy_array(), np.uint8)


def _view(buffer: Any) -> Bytes:
    """The memory of a buffer that obstore gave, without a copy."""
    return np.frombuffer(buffer, np.uint8)
