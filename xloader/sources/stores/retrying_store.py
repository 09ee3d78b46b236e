"""A store whose requests are made again where they fail for a reason that may pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from zarr.abc.store import Store
from zarr.storage import WrapperStore

from xloader.core.retry_policy import RetryPolicy
from xloader.sources.attempts import current

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest


class RetryingStore(WrapperStore[Store]):
    """A store over a network, for what zarr and xarray read of it: metadata and labels.

    Chunks are asked for without it, within the attempts of their own reads.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store, which makes each request once.
    retry_policy : RetryPolicy
        How long requests outside of a read are waited for.
    """

    def __init__(self, store: Store, retry_policy: RetryPolicy) -> None:
        super().__init__(store)
        self._retry_policy = retry_policy

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self._retry_policy)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read an object, or a part of it."""
        attempts = current(self._retry_policy)
        return await attempts.ask_async(key, lambda: self._store.get(key, prototype, byte_range))

    async def exists(self, key: str) -> bool:
        """Whether there is an object."""
        attempts = current(self._retry_policy)
        return await attempts.ask_async(key, lambda: self._store.exists(key))


def plain(store: Store) -> Store:
    """What a store is without this wrapper."""
    return store._store if isinstance(store, RetryingStore) else store
