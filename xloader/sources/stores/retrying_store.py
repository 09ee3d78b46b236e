"""A Zarr store that repeats a request which failed for a reason that may pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from zarr.abc.store import Store
from zarr.storage import WrapperStore

from xloader.core.retry_policy import RetryPolicy
from xloader.sources.retries import current
from xloader.sources.stores.bounded_reads import MOST_OBJECT_NBYTES, get_bounded

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest


class RetryingStore(WrapperStore[Store]):
    """A store over a network from which zarr and xarray read metadata and labels.

    Chunks are read without this wrapper, because each read of a chunk has retries of its own.
    """

    def __init__(
        self, store: Store, retry_policy: RetryPolicy, most_nbytes: int = MOST_OBJECT_NBYTES
    ) -> None:
        super().__init__(store)
        self._retry_policy = retry_policy
        self._most_nbytes = most_nbytes

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self._retry_policy, self._most_nbytes)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read an object, or a part of it, with retries; None if there is none."""
        most = self._most_nbytes
        return await current(self._retry_policy).ask_async(
            key, lambda: get_bounded(self._store, key, prototype, byte_range, most)
        )

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object as a whole. The request is retried, with the same bytes."""
        await current(self._retry_policy).ask_async(key, lambda: self._store.set(key, value))

    async def exists(self, key: str) -> bool:
        """Whether an object exists. The request is retried."""
        return await current(self._retry_policy).ask_async(key, lambda: self._store.exists(key))


def plain(store: Store) -> Store:
    """The store inside a `RetryingStore`, or the store itself if it is not wrapped."""
    return store._store if isinstance(store, RetryingStore) else store


def bounded(store: Store, most_nbytes: int) -> Store:
    """The same store, but with larger objects than ``most_nbytes`` bytes refused."""
    policy = store._retry_policy if isinstance(store, RetryingStore) else RetryPolicy()
    return RetryingStore(plain(store), policy, most_nbytes)
