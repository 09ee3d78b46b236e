"""`WritableStore`: a store that a job writes, object by object.

Each object appears at one stroke: a file under another name is renamed, and object stores show an
upload when it is complete.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ZipStore

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import OptionError, UnsupportedDataError, XloaderError
from xloader.sources import zarr_adapter
from xloader.sources.stores.bounded_reads import RetryingStore, local_path
from xloader.sources.stores.locations import GivenPlace, UrlPlace, lies_in_memory, store_of
from xloader.sources.stores.redaction import access_error, cause_of, safe_name
from xloader.sources.stores.write_places import FULL_ERRNOS, full_error

_FULL_TEXT: Final = re.compile(r"no space left on device|os error 28|quota exceeded", re.IGNORECASE)

_PARTIAL: Final = re.compile(r"\.[0-9a-f]{32}\.partial$")
"""End of the names that zarr gives to files while they are written."""

_OTHER_FORMATS: Final = (".zip", ".nc", ".nc4", ".h5", ".hdf5", ".grib", ".grb", ".grib2", ".tif")
"""Ends of paths of files, where nobody expects a folder."""


class WritableStore:
    """A store that is written."""

    def __init__(self, store: Store, name: str, secrets: tuple[str, ...] = ()) -> None:
        self.name = name
        self.is_transaction = type(store).__module__.startswith("icechunk")
        self._secrets = secrets
        self._folder = store.root if isinstance(store, LocalStore) else None
        self.store = store

    @property
    def is_in_memory(self) -> bool:
        """Whether the objects lie in this process, where no other process finds them."""
        inner = zarr_adapter.innermost(self.store)
        return isinstance(inner, MemoryStore) or lies_in_memory(inner)

    @property
    def _is_absent(self) -> bool:
        """Whether there is no such folder: zarr would make it when it looks for something."""
        return self._folder is not None and not self._folder.exists()

    def put(self, key: str, data: bytes) -> None:
        """Write an object as a whole."""
        buffer = zarr_adapter.default_buffer_prototype().buffer.from_bytes(data)

        async def write() -> None:
            try:
                await self.store.set(key, buffer)
            except FileNotFoundError:
                # An equal job has just ended. It removes what killed ones have begun to write.
                await self.store.set(key, buffer)

        self._ask(write(), f"while writing {key}")

    def get(self, key: str) -> bytes | None:
        """Read an object; None if there is none."""
        if self._is_absent:
            return None
        prototype = zarr_adapter.default_buffer_prototype()
        buffer = self._ask(self.store.get(key, prototype), f"while reading {key}")
        return None if buffer is None else bytes(buffer.to_bytes())

    def size_of(self, key: str) -> int | None:
        """Size of an object in bytes; None if there is none."""

        async def measured() -> int | None:
            try:
                return await self.store.getsize(key)
            except FileNotFoundError:
                return None

        size: int | None = self._ask(measured(), f"while looking for {key}")
        return size

    def keys(self, prefix: str = "") -> list[str]:
        """The keys of all objects under a prefix, sorted."""
        return self._listed(self.store.list_prefix, prefix)

    def is_empty(self, besides: str) -> bool:
        """Whether no object lies in the store, unless in one folder."""
        return {name.strip("/") for name in self._listed(self.store.list_dir, "")} <= {besides}

    def _listed(self, names: Callable[[str], AsyncIterator[str]], prefix: str) -> list[str]:
        if self._is_absent:
            return []

        async def listed() -> list[str]:
            # Some stores begin to list when they are called, within the event loop.
            return [name async for name in names(prefix)]

        return sorted(self._ask(listed(), "while listing it"))

    def remove(self, key: str) -> None:
        """Remove one object, if it is there."""
        if not self._is_absent:
            self._ask(self.store.delete(key), f"while removing {key}")

    def delete(self, prefix: str) -> None:
        """Remove all objects under a folder; all of the store for an empty text."""
        if prefix:
            self._ask(self.store.delete_dir(prefix), f"while removing {prefix}")
        else:
            self._ask(self.store.clear(), "while removing what is there")

    def delete_partial(self, prefix: str = "") -> None:
        """Remove the files under a folder that killed processes had begun to write."""
        if self._folder is not None:
            for key in self.keys(prefix):
                if _PARTIAL.search(key):
                    self._ask(self.store.delete(key), f"while removing {key}")

    def _ask(self, request: Any, tried: str) -> Any:
        try:
            return zarr_adapter.sync(request)
        except XloaderError:
            raise
        except Exception as error:
            is_full = isinstance(error, OSError) and error.errno in FULL_ERRNOS
            if is_full or _FULL_TEXT.search(str(error)):
                raise full_error(self.name, tried) from cause_of(error, self._secrets)
            fault = access_error(error, self.name, self._secrets, tried)
            raise fault from cause_of(error, self._secrets)


def open_writable(
    target: object, storage_options: Mapping[str, Any] | None, retry_policy: RetryPolicy
) -> WritableStore:
    """Open a store to write it."""
    if storage_options and not (isinstance(target, str) and "://" in target):
        raise OptionError(
            "storage_options= are only for URLs",
            given=", ".join(map(str, storage_options)),
            remedy="leave them out, or pass the URL",
        )
    if isinstance(target, str | os.PathLike):
        path = local_path(target)
        if path.endswith(_OTHER_FORMATS):
            raise _unsuited(path)
        if "://" in path:
            return _at_url(path, storage_options, retry_policy)
        full = Path(path).expanduser().absolute()
        return WritableStore(LocalStore(full), str(full))
    icechunk = sys.modules.get("icechunk")
    if icechunk is not None and isinstance(target, icechunk.Session):
        target = target.store
    store = store_of(target, is_read_only=False)
    if store is None or isinstance(store, ZipStore):
        raise _unsuited(f"{type(target).__module__}.{type(target).__qualname__}")
    place = GivenPlace(store)
    if store.read_only:
        raise OptionError(
            "the target can only be read", given=place.name, remedy="open it for writing"
        )
    # GivenPlace would open a LocalStore with checks for reading; it is written as it was given.
    return WritableStore(_retried(store, retry_policy), place.name, place.secrets)


def _at_url(
    url: str, storage_options: Mapping[str, Any] | None, retry_policy: RetryPolicy
) -> WritableStore:
    place = UrlPlace(url, dict(storage_options or {}), retry_policy=retry_policy)
    try:
        store = place.open_plain().with_read_only(False)
    except ImportError as error:
        raise UnsupportedDataError(
            f"a library for this kind of URL is not installed ({error})", given=safe_name(url)
        ) from error
    except (ValueError, NotImplementedError) as error:
        fault = access_error(error, place.name, place.secrets, "while opening it for writing")
        raise fault from cause_of(error, place.secrets)
    return WritableStore(_retried(store, retry_policy), place.name, place.secrets)


def _retried(store: Store, retry_policy: RetryPolicy) -> Store:
    is_near = isinstance(store, LocalStore | MemoryStore)
    is_near |= type(store).__module__.startswith("icechunk")
    return store if is_near else RetryingStore(store, retry_policy)


def _unsuited(given: str) -> UnsupportedDataError:
    return UnsupportedDataError(
        "no Zarr store can be written there piece by piece",
        given=given,
        allowed="a path or URL of a folder, a store of zarr, obstore or fsspec that can be "
        "written, or a writable session of icechunk",
        remedy="of an icechunk.Repository, pass repository.writable_session('main')",
    )
