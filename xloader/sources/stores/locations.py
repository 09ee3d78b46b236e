"""Places: where a Zarr store lies, and how to open it in this process and in others."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore, ZipStore

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import UnsupportedDataError
from xloader.sources import zarr_adapter
from xloader.sources.ordinary_files import OrdinaryFiles, with_ordinary_files
from xloader.sources.per_process import Home, PerProcess
from xloader.sources.stores import object_stores
from xloader.sources.stores.pickling import pack, unpack
from xloader.sources.stores.redaction import safe_name, scrub, secrets_of, secrets_of_url
from xloader.sources.stores.retrying_store import RetryingStore

_FORKABLE: Final = (LocalStore, MemoryStore, ZipStore)
"""Stores that a forked child may open anew."""

_NEAR: Final = (*_FORKABLE, OrdinaryFiles)
"""Stores of this machine, none of whose methods a user has overridden."""


class StoreLocation(Protocol):
    """Where a store lies; pickles with a source and opens the store where it arrives."""

    @property
    def name(self) -> str:
        """The place, for messages; never a credential."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may tell."""
        ...

    @property
    def version(self) -> str:
        """Which of the store's versions is read; empty where it has only one."""
        ...

    @property
    def is_frozen(self) -> bool:
        """Whether what is read cannot change, as a snapshot."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether the store is one that this process already has open."""
        ...

    @property
    def is_forkable(self) -> bool:
        """Whether a forked child may open the store anew, whatever its parent did with it."""
        ...

    def open_store(self) -> Store:
        """Open the store, or give it back where it is open."""
        ...

    def by_fsspec(self) -> StoreLocation:
        """The same place, opened by fsspec if it is a URL that another library opened."""
        ...

    def patient(self, retry_policy: RetryPolicy) -> StoreLocation:
        """The same place, whose metadata and labels are waited for so long over a network."""
        ...


class _OneWay:
    """A place that is opened in one way only."""

    def by_fsspec(self) -> Self:
        """The place itself."""
        return self

    def patient(self, retry_policy: RetryPolicy) -> Self:
        """The place itself, which is on this machine."""
        return self


@dataclass(frozen=True)
class PathPlace(_OneWay):
    """A directory, or a zip file, on this machine."""

    path: str

    secrets = ()
    version = ""
    is_frozen = False
    is_shared = False
    is_forkable = True

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def open_store(self) -> Store:
        """Open the directory, or the zip file with a handle of its own."""
        if is_zip(self.path):
            return _open_zip(ZipStore(self.path, mode="r"))
        return OrdinaryFiles(self.path, read_only=True)


@dataclass(frozen=True)
class UrlPlace:
    """A URL, with the options of fsspec.

    Parameters
    ----------
    url : str
        The URL.
    options : mapping
        What fsspec is given; with any option, fsspec opens the URL.
    is_fsspec : bool, default False
        Whether fsspec opens the URL also where obstore could.
    retry_policy : RetryPolicy
        How long metadata and labels are waited for.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)
    is_fsspec: bool = False
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy, compare=False)
    home: Home = field(default_factory=Home, init=False, repr=False, compare=False)

    version = ""
    is_frozen = False
    is_shared = False
    is_forkable = False

    @property
    def name(self) -> str:
        """The URL without credentials; of references, what holds them."""
        references = self.options.get("fo")
        if self.url.startswith("reference://") and references is not None:
            told = safe_name(references) if isinstance(references, str) else "a mapping"
            return f"{safe_name(self.url)} of {told}"
        return safe_name(self.url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """All texts among the options but those known to be harmless, and the URL's own."""
        of_machine = object_stores.secrets() if self._is_obstores else ()
        return secrets_of(self.options) + secrets_of_url(self.url) + of_machine

    def by_fsspec(self) -> UrlPlace:
        """The same URL, opened by fsspec if it was obstore that opened it."""
        return replace(self, is_fsspec=True) if self._is_obstores else self

    def patient(self, retry_policy: RetryPolicy) -> UrlPlace:
        """The same URL with another patience."""
        return replace(self, retry_policy=retry_policy)

    @property
    def _is_obstores(self) -> bool:
        return not (self.is_fsspec or self.options) and object_stores.is_known(self.url)

    def open_store(self) -> Store:
        """Open the URL with a client of its own.

        Raises
        ------
        ForkError
            If this process was forked from one that has the URL open.
        """
        self.home.check(self.name)
        return RetryingStore(self.open_plain(), self.retry_policy)

    def open_plain(self) -> Store:
        """Open the URL by the library for it."""
        if self._is_obstores:
            store = object_stores.open_url(self.url, self.retry_policy.read_timeout)
            if store is not None:
                return store
        from zarr.storage import FsspecStore

        options = dict(self.options)
        if self.url.startswith("reference://"):
            # What is referred to has to be read in the same way as the references.
            options["remote_options"] = {
                "asynchronous": True,
                **(options.get("remote_options") or {}),
            }
        return FsspecStore.from_url(self.url, storage_options=options, read_only=True)


class GivenPlace(_OneWay):
    """A store that is open already: it stays in its process, and travels packed.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The open store.
    name : str, optional
        The place, for messages; by default what the store calls itself.
    version : str, optional
        Which of its versions the store shows.
    is_frozen : bool, default False
        Whether that version cannot change.
    is_in_memory : bool, default False
        Whether its values are known to lie in this process alone.
    """

    is_shared = True

    def __init__(
        self,
        store: Store,
        name: str = "",
        version: str = "",
        *,
        is_frozen: bool = False,
        is_in_memory: bool = False,
    ) -> None:
        store = with_ordinary_files(store)
        self.secrets = secrets_of(_options_of(store))
        self.name = name or _name_of(store, self.secrets)
        self.version = version
        self.is_frozen = is_frozen
        self.retry_policy = RetryPolicy()
        self._is_in_memory = is_in_memory or _lies_in_memory(store)
        self._packed: bytes | None = None
        self._home = None if isinstance(zarr_adapter.innermost(store), _FORKABLE) else Home()
        # A zip file that is open has one place to read at, which a child would share.
        self.is_forkable = isinstance(zarr_adapter.innermost(store), LocalStore | MemoryStore)
        self._store = PerProcess(lambda: _open_zip(store), self.name, is_forkable=self.is_forkable)
        self._store.get()

    def open_store(self) -> Store:
        """Give the store back.

        Raises
        ------
        ForkError
            If this process was forked from the one that has the store open.
        """
        if self._home is not None:
            self._home.check(self.name)
        store = self._store.get()
        # What reads this machine's files or memory by itself needs no patience.
        return store if type(store) in _NEAR else RetryingStore(store, self.retry_policy)

    def patient(self, retry_policy: RetryPolicy) -> GivenPlace:
        """The same place, just made, with another patience."""
        self.retry_policy = retry_policy
        return self

    def _unpack(self) -> Store:
        assert self._packed is not None, "only what was packed is unpacked"
        store: Store = unpack(self._packed)
        # Memory is not to be held twice.
        self._packed = None
        return store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        store, home = self._store.get(), self._home
        if self._is_in_memory:
            store, home = _copy_of_memory(store), None
        packed = pack(
            store,
            self.name,
            "commit the session's changes and open a read-only session"
            if type(store).__module__.startswith("icechunk")
            else "open the data by its path or URL, or give the store a __getstate__",
        )
        return {
            "name": self.name,
            "version": self.version,
            "is_frozen": self.is_frozen,
            "secrets": self.secrets,
            "patience": self.retry_policy,
            "_packed": packed,
            "_home": home,
            "_is_in_memory": False,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._store = PerProcess(self._unpack, self.name)


def is_zip(path: str) -> bool:
    """Whether a path is that of a zip file."""
    return path.endswith(".zip") and not os.path.isdir(path)


def _open_zip(store: Store) -> Store:
    # Other stores open at their first use; a zip file that is read before it is opened fails.
    if isinstance(store, ZipStore):
        zarr_adapter.open_zip(store)
    return store


def _options_of(store: Store) -> object:
    inner = zarr_adapter.innermost(store)
    if isinstance(inner, ObjectStore):
        options = getattr(inner.store, "config", None), getattr(inner.store, "client_options", None)
        return [dict(part) for part in options if part]
    return getattr(getattr(inner, "fs", None), "storage_options", None)


def _name_of(store: Store, secrets: tuple[str, ...]) -> str:
    told = re.sub(r" object at 0x[0-9a-f]+", "", str(store))
    return scrub(told.removeprefix("object_store://"), secrets)


def _lies_in_memory(store: Store) -> bool:
    """Whether a store's values are in this process, and yet do not pickle with it."""
    if isinstance(store, ObjectStore):
        return type(store.store).__name__ == "MemoryStore"
    fs = getattr(store, "fs", None)
    return "memory" in _protocols(getattr(fs, "sync_fs", fs))


def _protocols(fs: Any) -> tuple[str, ...]:
    protocol = getattr(fs, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _copy_of_memory(store: Store) -> MemoryStore:
    if not zarr_adapter.is_known():
        raise UnsupportedDataError(
            "a store in memory cannot be sent to another process with this release of zarr",
            given=f"{type(store).__name__}, zarr {zarr.__version__}",
            allowed="stores that are opened by a path or URL",
            remedy="write the data to disk, or install an older zarr or a newer xloader",
        )

    async def read() -> dict[str, Any]:
        prototype = zarr_adapter.default_buffer_prototype()
        keys = [key async for key in store.list()]
        return {key: await store.get(key, prototype) for key in keys}

    return MemoryStore(zarr_adapter.sync(read()), read_only=True)
