"""Adapter to the parts of zarr that are not public. No other file uses them.

All other files use zarr's public names, or read the metadata documents that the Zarr
specification defines. All differences between zarr's releases are handled here:

=======  ===========================================================================
release  difference
=======  ===========================================================================
3.1.6    The oldest supported one: the first whose stores can be read synchronously.
3.2      Reads rectilinear chunk grids, if ``array.rectilinear_chunks`` is set.
3.3      Every wrapper of a store has ``get_sync``, even around a store without it.
3.4      Zip files open at their first read, and chunk sizes of 0 are read as 1.
=======  ===========================================================================
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import zarr
from numpy.typing import NDArray
from zarr.abc.store import RangeByteRequest as RangeByteRequest
from zarr.abc.store import Store
from zarr.abc.store import SuffixByteRequest as SuffixByteRequest
from zarr.abc.store import SupportsGetSync as SupportsGetSync
from zarr.buffer import default_buffer_prototype as default_buffer_prototype
from zarr.core.sync import sync as sync
from zarr.storage import StorePath, ZipStore

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer
    from zarr.abc.store import ByteRequest

_RECTILINEAR: Final = "array.rectilinear_chunks"


class _RectilinearSetting:
    """zarr's setting that allows rectilinear chunk grids, switched on while it is held.

    The setting is global. Several threads may hold it at once, and the last one restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_holders = 0
        self._stack = ExitStack()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Switch the setting on within this context, if zarr has it and it is off."""
        with self._lock:
            # A release without the setting raises ValueError, or needs no setting.
            if not self._num_holders and zarr.config.get(_RECTILINEAR, None) is False:
                with suppress(ValueError):
                    self._stack.enter_context(zarr.config.set({_RECTILINEAR: True}))
            self._num_holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_holders -= 1
                if not self._num_holders:
                    self._stack.close()


_SETTING: Final = _RectilinearSetting()
if hasattr(os, "register_at_fork"):
    # A thread of the parent that holds the setting does not exist in the child.
    os.register_at_fork(after_in_child=_SETTING.__init__)  # type: ignore[misc]


def allow_rectilinear_chunks() -> AbstractContextManager[None]:
    """A context in which zarr opens arrays with rectilinear chunk grids."""
    return _SETTING.held()


def array_of(store: Store, path: str, metadata: Any) -> zarr.Array[Any]:
    """The array at a path of an open store, made from metadata that were read before."""
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=StorePath(store, path)))


def is_synchronous(store: Store) -> bool:
    """Whether a store can be read on the calling thread, without an event loop."""
    # zarr's wrappers always have `get_sync`, and say by `_supports_sync_io` whether it works.
    if not isinstance(store, SupportsGetSync) or not getattr(store, "_supports_sync_io", True):
        return False
    inner = getattr(store, "_store", None)
    is_inner_synchronous = not isinstance(inner, Store) or is_synchronous(inner)
    return is_inner_synchronous and _reads_alike(store)


def _reads_alike(store: Store) -> bool:
    """Whether ``get_sync`` reads what ``get`` reads: a subclass may override ``get`` only."""
    if "get_sync" in getattr(store, "__dict__", {}):
        return True
    names = [vars(base).keys() & {"get", "get_sync"} for base in type(store).__mro__]
    return "get_sync" in next(filter(None, names), set())


def innermost(store: Any) -> Any:
    """The store inside all wrappers such as ``zarr.storage.WrapperStore``."""
    while isinstance(getattr(store, "_store", None), Store):
        store = store._store
    return store


def opened(store: Store) -> Store:
    """The store, opened now if it is a zip file: before 3.4, zarr cannot read one otherwise."""
    if isinstance(store, ZipStore) and hasattr(store, "_ensure_open"):
        sync(store._ensure_open())
    return store


def read_zip(store: ZipStore, key: str, byte_range: ByteRequest | None) -> Buffer | None:
    """Read a member of a zip file, on the calling thread where zarr has the parts for it.

    None if there is no such member.
    """
    prototype = default_buffer_prototype()
    if not (hasattr(store, "_lock") and hasattr(store, "_get")):
        return sync(store.get(key, prototype, byte_range))
    with store._lock:
        return store._get(key, prototype, byte_range)


def read_selection(array: zarr.Array[Any], selection: tuple[slice, ...], out: NDArray[Any]) -> None:
    """Read a selection through zarr's own indexing into an array of any strides."""
    # zarr's indexing has no argument for strides, but its buffer may wrap any NumPy view.
    buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
    array.get_basic_selection(selection, out=buffer)
