"""Readers of the objects of an open store by key, one class for each kind of store.

Each kind of store is read in its quickest way. Where reading does not wait, the bytes that a
read returns may lie in a buffer that the calling thread reuses. They must be decoded or copied
before the same thread reads again.
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

from xloader.sources.ordinary_files import OrdinaryFiles, check_mode, check_path
from xloader.sources.retries import Attempts, current
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
"""The first byte of a range, and the byte after its last."""

_STORED: Final = 2
"""Number of the scratch buffer for stored bytes. Chunks are decoded in buffers 0 and 1."""


_ABSENT: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors that are raised for an absent object."""

# With O_NONBLOCK a fifo opens at once, and can be refused. Ordinary files are not affected.
_READ_ONLY: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class Objects(Protocol):
    """Interface: stored objects, read by key. Each result is None for an absent object."""

    def get(self, key: str) -> Bytes | None:
        """Read a whole object.

        Parameters
        ----------
        key : str
            Key of the object.

        Returns
        -------
        numpy.ndarray of uint8 or None
            Its bytes, or None if it is absent.
        """
        ...

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object, or all of it if it is shorter.

        Parameters
        ----------
        key : str
            Key of the object.
        nbytes : int
            Number of bytes.

        Returns
        -------
        numpy.ndarray of uint8 or None
            The bytes, or None if the object is absent.
        """
        ...

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Read parts of an object, each with one request.

        Parameters
        ----------
        key : str
            Key of the object.
        spans : sequence of (int, int)
            First byte and end of each part. A part that reaches past the object's end comes back
            shorter.

        Returns
        -------
        iterator of (numpy.ndarray of uint8 or None)
            The bytes of each part, in the order given.
        """
        ...


class _Asking:
    """Base class whose requests are retried as part of the read that is being made."""

    def get(self, key: str) -> Bytes | None:
        """Read a whole object."""
        return current().ask(key, lambda: self._get(key))

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object, or all of it if it is shorter."""
        return current().ask(key, lambda: self._get_last(key, nbytes))

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Read parts of an object, each only when the iterator reaches it, to save memory."""
        attempts = current()
        return (attempts.ask(key, partial(self._get_range, key, *span)) for span in spans)

    def _get(self, key: str) -> Bytes | None:
        raise NotImplementedError

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        raise NotImplementedError

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        raise NotImplementedError


def is_waiting(store: Store) -> bool:
    """Whether reading a store mostly waits, because it can only be read asynchronously."""
    store = plain(store)
    if not is_known():
        return not isinstance(innermost(store), LocalStore | MemoryStore | ZipStore)
    return not (is_synchronous(store) or isinstance(store, ZipStore))


def objects_of(store: Store) -> Objects:
    """Make the reader for the objects of an open store.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store. A subclass of one of zarr's stores is read through its own methods, because it
        may read from elsewhere.
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
    """The files of a directory, read into a buffer that each thread reuses.

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
        """Read some bytes of a file. The arguments are those of a slice of all its bytes."""
        # Few system calls: each releases the GIL, and waits for other threads to get it back.
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
                # If the whole store is gone, its chunks must not be read as fill values.
                raise
            return None
        except OSError:
            # Opening a socket fails, and so does reading a fifo at an offset: name those clearly.
            check_path(path)
            raise


def _open(path: str) -> int:
    try:
        return os.open(path, _READ_ONLY)
    except BlockingIOError:
        # Another process holds a lease on the file. It releases it for an open that waits.
        check_path(path)
        return os.open(path, _READ_ONLY & ~os.O_NONBLOCK)


def _read_into(file: int, start: int, buffer: Bytes) -> Bytes:
    """Fill a buffer from an offset of a file on; shorter if the file ends before."""
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
    """Base class for stores that are read with one direct call for each part, without a wait."""

    def __init__(self) -> None:
        # Made once, because zarr looks it up in its settings.
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
    """The objects of a store that reads on the calling thread, such as one in memory.

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
    """The members of a zip file. The store's lock lets one thread read at a time.

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
    """The objects of an asynchronous store, read on zarr's own event loop.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The open store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prototype = default_buffer_prototype()

    def get(self, key: str) -> Bytes | None:
        """Read a whole object."""
        return next(self._get_all(key, [None]))

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object."""
        return next(self._get_all(key, [SuffixByteRequest(nbytes)]))

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Read parts of an object concurrently."""
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
            """Read one part of the object, once fewer requests than the limit are under way."""
            async with limit:
                return await attempts.ask_async(
                    key, lambda: self._store.get(key, self._prototype, part)
                )

        return await asyncio.gather(*map(get, parts))


class OfObstore(_Asking):
    """The objects of an obstore store, read without zarr's event loop where possible.

    That loop is one thread for all requests of the process. obstore's own calls let other threads
    run while they wait, and need a third of the processor time.

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
        """Read the end of an object."""
        try:
            return super().get_last(key, nbytes)
        except self._obstore.exceptions.NotSupportedError:
            # Azure cannot read the last bytes of an object. zarr then requests its size first.
            return self._by_zarr.get_last(key, nbytes)

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Read parts of an object: a single one directly, several concurrently through zarr."""
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
    """The memory of a buffer from obstore as an array, without a copy."""
    return np.frombuffer(buffer, np.uint8)
