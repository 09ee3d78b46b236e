"""Wrappers of any Zarr store that count its reads, delay them or make them fail."""

from __future__ import annotations

import asyncio
import copy
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from zarr.abc.store import Store
from zarr.storage import WrapperStore

from xloader.errors import OptionError
from xloader.sources.zarr.object_inventory import METADATA
from xloader.sources.zarr_adapter import SupportsGetSync, default_buffer_prototype, is_synchronous
from xloader.testing.counters import KeyCounter, SharedTally

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest

Fault = Exception | None | Callable[[bytes], bytes]
"""The way in which a read goes wrong.

An error is raised, None makes the key absent, and a function replaces the stored bytes.
"""


class _TappedStore(WrapperStore[Store]):
    """Base of the wrappers: calls two methods around every kind of read.

    Subclasses override `_ask`, called before each read, and `_answer`, called after it.
    ``get_sync`` exists only if the wrapped store reads synchronously, because zarr 3.1 relies on a
    store that has the method.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._bind()

    def _bind(self) -> None:
        """Offer ``get_sync`` if the wrapped store reads synchronously."""
        self.__dict__.pop("get_sync", None)
        if is_synchronous(self._store):
            self.__dict__["get_sync"] = self._get_sync

    def _with_store(self, store: Store) -> Self:
        # zarr makes read-only copies of a store. They must share the records of this one.
        twin = copy.copy(self)
        twin._store = store
        twin._bind()
        return twin

    def _ask(self, key: str, byte_range: ByteRequest | None) -> None:
        """Called before each read."""

    def _answer(self, key: str, buffer: Buffer | None) -> Buffer | None:
        """Called after each read. Returns what was read, or something in its place."""
        return buffer

    async def _pause(self) -> None:
        """Wait before an asynchronous request."""

    def _get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        self._ask(key, byte_range)
        assert isinstance(self._store, SupportsGetSync)
        buffer = self._store.get_sync(
            key, prototype=prototype or default_buffer_prototype(), byte_range=byte_range
        )
        return self._answer(key, buffer)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read one key, or a range of it.

        None if the key is absent.
        """
        await self._pause()
        self._ask(key, byte_range)
        return self._answer(key, await self._store.get(key, prototype, byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Read ranges of several keys. Each range is a read.

        None for an absent key.
        """
        await self._pause()
        ranges = list(key_ranges)
        for key, byte_range in ranges:
            self._ask(key, byte_range)
        buffers = await self._store.get_partial_values(prototype, ranges)
        return [self._answer(key, buffer) for (key, _), buffer in zip(ranges, buffers, strict=True)]

    async def get_ranges(self, key: str, byte_ranges: Any, **options: Any) -> AsyncIterator[Any]:
        """Read ranges of one key, where zarr has this method. Each request is a read."""
        # WrapperStore's method calls the wrapped store, so its reads would not be recorded.
        async for group in cast(Any, Store).get_ranges(self, key, byte_ranges, **options):
            yield group

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        await self._pause()
        pending = list(requests)
        for key, _, byte_range in pending:
            self._ask(key, byte_range)
        async for key, buffer in self._store._get_many(pending):
            yield key, self._answer(key, buffer)


class CountingStore(_TappedStore):
    """A wrapper that records every read of a store, however it is read.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to read from.
    log : str or os.PathLike, optional
        A file in which all processes that use the store count together. Without it, a copy in
        another process counts separately.

    Examples
    --------
    >>> import numpy as np, xarray as xr, zarr
    >>> from xloader.testing.data import write_store
    >>> store = CountingStore(write_store(xr.Dataset({"t": ("x", np.arange(4.0))}), {"t": (2,)}))
    >>> zarr.open_group(store, mode="r")["t"][:].tolist()
    [0.0, 1.0, 2.0, 3.0]
    >>> store.num_reads, store.reads["t/c/0"]
    (2, 1)
    """

    def __init__(self, store: Store, log: str | os.PathLike[str] | None = None) -> None:
        super().__init__(store)
        self._tally = KeyCounter() if log is None else SharedTally(os.fspath(log))

    @property
    def readers(self) -> dict[str, set[int]]:
        """Ids of the processes that read each chunk or shard, by key. Needs a log.

        Raises
        ------
        OptionError
            If the store was made without ``log``.
        """
        if not isinstance(self._tally, SharedTally):
            raise OptionError(
                "the store does not record who reads it", remedy="make it with log=, a file's path"
            )
        pids_by_key: dict[str, set[int]] = {}
        for pid, (key, _) in self._tally.lines():
            if is_chunk_key(key):
                pids_by_key.setdefault(key, set()).add(pid)
        return pids_by_key

    @property
    def reads(self) -> Counter[str]:
        """Number of reads of each chunk or shard, by key. Each range is a read."""
        return self._by_key(is_chunk=True)

    @property
    def metadata_reads(self) -> Counter[str]:
        """Number of reads of each key of metadata."""
        return self._by_key(is_chunk=False)

    @property
    def ranges(self) -> Counter[tuple[str, ByteRequest | None]]:
        """Number of reads of each part of a chunk or shard, by key and zarr's byte range.

        The byte range is None if the whole object was read.
        """
        items = self._tally.snapshot().items()
        return Counter({request: count for request, count in items if is_chunk_key(request[0])})

    @property
    def num_reads(self) -> int:
        """Number of reads of chunks or shards, absent ones included, without metadata."""
        return self.reads.total()

    def reset(self) -> None:
        """Set all counts to zero."""
        self._tally.reset()

    def _by_key(self, *, is_chunk: bool) -> Counter[str]:
        """Number of reads of each key, of chunks or of metadata."""
        counts: Counter[str] = Counter()
        for (key, _), n in self._tally.snapshot().items():
            if is_chunk_key(key) == is_chunk:
                counts[key] += n
        return counts

    def _ask(self, key: str, byte_range: ByteRequest | None) -> None:
        self._tally.add((key, byte_range))


class LatencyStore(_TappedStore):
    """A wrapper that delays every read, as a distant store does.

    It can only be read asynchronously.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to read from.
    seconds : float
        Delay of each request, in seconds.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        super().__init__(store)
        self.seconds = seconds

    _supports_sync_io = False

    def _bind(self) -> None:
        """Offer no ``get_sync``: a caller of it assumes that the read does not wait."""

    async def _pause(self) -> None:
        await asyncio.sleep(self.seconds)


class FaultyStore(_TappedStore):
    """A wrapper that makes reads of chosen keys fail, or loses or damages their bytes.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to read from.
    faults : mapping of str to (Exception, None or callable)
        By key: an error to raise, None for an absent key, or a function that takes the stored bytes
        and returns others, such as `truncate`.
    times : int, optional
        Number of reads of each key that go wrong. Later reads work. By default all go wrong.

    Examples
    --------
    >>> import numpy as np, xarray as xr, zarr
    >>> from xloader.testing.data import write_store
    >>> inner = write_store(xr.Dataset({"t": ("x", np.arange(4.0))}), {"t": (2,)})
    >>> store = FaultyStore(inner, {"t/c/0": None})
    >>> bool(np.isnan(zarr.open_group(store, mode="r")["t"][:2]).all()), store.num_faults
    (True, 1)
    """

    def __init__(
        self, store: Store, faults: Mapping[str, Fault], *, times: int | None = None
    ) -> None:
        super().__init__(store)
        self._faults = dict(faults)
        self._times = times
        self._tally = KeyCounter()

    @property
    def num_faults(self) -> int:
        """Number of reads that went wrong."""
        return self._tally.snapshot().total()

    def _answer(self, key: str, buffer: Buffer | None) -> Buffer | None:
        if key not in self._faults:
            return buffer
        with self._tally.lock:
            if self._times is not None and self._tally.counts[key] >= self._times:
                return buffer
            self._tally.counts[key] += 1
        fault = self._faults[key]
        if isinstance(fault, Exception):
            raise fault
        if fault is None or buffer is None:
            return None
        return type(buffer).from_bytes(fault(buffer.to_bytes()))


def truncate(data: bytes) -> bytes:
    """The first half of some bytes, as an interrupted copy leaves them."""
    return data[: len(data) // 2]


def garble(data: bytes) -> bytes:
    """As many bytes, all of them different from the original."""
    return bytes(byte ^ 0xA5 for byte in data)


def is_chunk_key(key: str) -> bool:
    """Whether a key holds a chunk or a shard, and not metadata.

    Examples
    --------
    >>> is_chunk_key("t2m/c/0/0"), is_chunk_key("t2m/zarr.json")
    (True, False)
    """
    return key.rpartition("/")[2] not in METADATA
