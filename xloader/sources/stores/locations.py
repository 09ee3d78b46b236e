"""Store locations: where a Zarr store is, and how each process opens it.

A location is a path, a URL or an open store of zarr, obstore, fsspec or icechunk. A source holds
one and pickles with it. In the process where it arrives, the location opens the store again.
Libraries that are not imported yet are not imported to recognise a store.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import cloudpickle
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore, ZipStore

from xloader.core.messages import warn_caller
from xloader.core.retry_policy import RetryPolicy
from xloader.errors import (
    OptionError,
    SourceNotFoundError,
    UnsupportedDataError,
    WorkersWarning,
    XloaderError,
)
from xloader.sources import zarr_adapter
from xloader.sources.stores import object_stores
from xloader.sources.stores.bounded_reads import (
    OrdinaryFiles,
    RetryingStore,
    with_ordinary_files,
)
from xloader.sources.stores.per_process import Home, PerProcess
from xloader.sources.stores.redaction import (
    access_error,
    cause_of,
    safe_name,
    scrub,
    secrets_of,
    secrets_of_url,
)

MOST_QUIET_NBYTES: Final = 64 * 2**20
"""64 MiB. A warning is raised if more data than this is copied into every process."""

_FORKABLE: Final = (LocalStore, MemoryStore, ZipStore)
"""Kinds of stores whose libraries still work in a forked child."""

_NEAR: Final = (*_FORKABLE, OrdinaryFiles)
"""Stores that read files or memory of this machine.

They are compared exactly, because a subclass may override methods.
"""


def pack(value: object, name: str, remedy: str) -> bytes:
    """Pickle a value into bytes, with an error that names the value if that fails."""
    try:
        data = _packed(value)
    except XloaderError:
        raise
    except Exception as error:
        value_type = type(value)
        bases = [base.__name__ for base in value_type.__mro__[1:-1] if base.__module__ != "abc"]
        of = f" (a kind of {bases[0]})" if bases else ""
        raise UnsupportedDataError(
            f"{name} cannot be sent to another process",
            given=f"{value_type.__module__}.{value_type.__qualname__}{of}: {error}",
            remedy=remedy,
        ) from error
    if len(data) > MOST_QUIET_NBYTES:
        warn_caller(
            f"{name} is in memory: {len(data) / 2**20:.0f} MiB are copied to each process that "
            "receives it. Write it to disk and open it from there.",
            WorkersWarning,
        )
    return data


def _packed(value: object) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except XloaderError:
        raise
    except Exception:
        # By value, as lambdas and classes of notebooks need it.
        return bytes(cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL))


@dataclass(frozen=True)
class PathPlace:
    """A directory or a zip file on this machine."""

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
        """Open the directory, or open the zip file with a new file handle."""
        if is_zip(self.path):
            return zarr_adapter.opened(ZipStore(self.path, mode="r"))
        return OrdinaryFiles(self.path, read_only=True)

    def patient(self, retry_policy: RetryPolicy) -> PathPlace:
        """Return the location itself: it is on this machine and needs no retries."""
        return self


@dataclass(frozen=True)
class UrlPlace:
    """A URL with options for fsspec."""

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
        """The URL without credentials. For references, also the file that holds them."""
        references = self.options.get("fo")
        if self.url.startswith("reference://") and references is not None:
            file = safe_name(references) if isinstance(references, str) else "a mapping"
            return f"{safe_name(self.url)} of {file}"
        return safe_name(self.url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may show.

        These are all texts among the options except those known to be harmless, the user and the
        query of the URL, and, if obstore opens the URL, the credentials in the environment.
        """
        of_machine = object_stores.secrets() if self._is_obstores else ()
        return secrets_of(self.options) + secrets_of_url(self.url) + of_machine

    def by_fsspec(self) -> UrlPlace:
        """The same URL, opened by fsspec if obstore would open it."""
        return replace(self, is_fsspec=True) if self._is_obstores else self

    def patient(self, retry_policy: RetryPolicy) -> UrlPlace:
        """The same URL with another retry policy."""
        return replace(self, retry_policy=retry_policy)

    @property
    def _is_obstores(self) -> bool:
        """Whether obstore is tried first for the URL."""
        return not (self.is_fsspec or self.options) and object_stores.is_known(self.url)

    def open_store(self) -> Store:
        """Open the URL with a new client, as a store that retries requests."""
        self.home.check(self.name)
        return RetryingStore(self.open_plain(), self.retry_policy)

    def open_plain(self) -> Store:
        """Open the URL without retries, by obstore where it can and by fsspec elsewhere."""
        if self._is_obstores:
            store = object_stores.open_url(self.url, self.retry_policy.read_timeout)
            if store is not None:
                return store
        from zarr.storage import FsspecStore

        options = dict(self.options)
        if self.url.startswith("reference://"):
            # The file system of the data must be asynchronous, as the one of the references is.
            options["remote_options"] = {
                "asynchronous": True,
                **(options.get("remote_options") or {}),
            }
        return FsspecStore.from_url(self.url, storage_options=options, read_only=True)


class GivenPlace:
    """A store that is open already.

    Its own process uses the store itself. For other processes, the store is pickled.
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
        store = zarr_adapter.opened(with_ordinary_files(store))
        self.secrets = secrets_of(_options_of(store))
        # The store's own text, without credentials and memory addresses.
        text = re.sub(r" object at 0x[0-9a-f]+", "", str(store)).removeprefix("object_store://")
        self.name = name or scrub(text, self.secrets)
        self.version = version
        self.is_frozen = is_frozen
        self.retry_policy = RetryPolicy()
        self._is_in_memory = is_in_memory or lies_in_memory(store)
        self._packed: bytes | None = None
        self._home = None if isinstance(zarr_adapter.innermost(store), _FORKABLE) else Home()
        # An open zip file has one read position, which a forked child would share.
        self.is_forkable = isinstance(zarr_adapter.innermost(store), LocalStore | MemoryStore)
        self._store = PerProcess(lambda: store, self.name, is_forkable=self.is_forkable)
        self._store.get()

    def open_store(self) -> Store:
        """Return the store.

        It retries its requests, unless it reads files or memory of this machine.
        """
        if self._home is not None:
            self._home.check(self.name)
        store = self._store.get()
        # Files and memory of this machine need no retries.
        return store if type(store) in _NEAR else RetryingStore(store, self.retry_policy)

    def patient(self, retry_policy: RetryPolicy) -> GivenPlace:
        """Set the retry policy, and return the location itself."""
        self.retry_policy = retry_policy
        return self

    def _unpack(self) -> Store:
        """Unpickle the store in the process where the location arrived."""
        assert self._packed is not None, "only what was packed is unpacked"
        store: Store = pickle.loads(self._packed)
        # Otherwise the data would be in memory twice.
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
        opened_there = {"_store": None, "_packed": packed, "is_forkable": False}
        return {**self.__dict__, **opened_there, "_home": home, "_is_in_memory": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._store = PerProcess(self._unpack, self.name)


StoreLocation: TypeAlias = PathPlace | UrlPlace | GivenPlace
"""The place where a store is. It pickles, and opens the store in any process."""


def is_zip(path: str) -> bool:
    """Whether a path is the name of a zip file and not of a directory."""
    return path.endswith(".zip") and not os.path.isdir(path)


def _options_of(store: Store) -> object:
    """Options of an open store that may hold credentials."""
    inner = zarr_adapter.innermost(store)
    if isinstance(inner, ObjectStore):
        options = getattr(inner.store, "config", None), getattr(inner.store, "client_options", None)
        return [dict(group) for group in options if group]
    return getattr(getattr(inner, "fs", None), "storage_options", None)


def lies_in_memory(store: Store) -> bool:
    """Whether a store's values are in this process and do not pickle with the store."""
    if isinstance(store, ObjectStore):
        return type(store.store).__name__ == "MemoryStore"
    fs = getattr(store, "fs", None)
    # The protocol is a text or a tuple of texts.
    return "memory" in getattr(getattr(fs, "sync_fs", fs), "protocol", ())


def _copy_of_memory(store: Store) -> MemoryStore:
    """Copy all objects of a store into a memory store that pickles."""

    async def read() -> dict[str, Any]:
        """All objects of the store by key."""
        prototype = zarr_adapter.default_buffer_prototype()
        keys = [key async for key in store.list()]
        return {key: await store.get(key, prototype) for key in keys}

    return MemoryStore(zarr_adapter.sync(read()), read_only=True)


def place_of(source: object, versions: Mapping[str, Any]) -> StoreLocation | None:
    """The location of a store that is open already; None if the object is not a store."""
    icechunk = sys.modules.get("icechunk")
    if icechunk is not None and isinstance(source, icechunk.Repository):
        return _place_of_repository(source, versions)
    refuse_versions(versions)
    if icechunk is not None and isinstance(source, icechunk.Session):
        return _place_of_session(source)
    if icechunk is not None and isinstance(source, icechunk.IcechunkStore):
        return _place_of_session(source.session)
    store = store_of(source, is_read_only=True)
    return None if store is None else GivenPlace(store)


def store_of(source: object, *, is_read_only: bool) -> Store | None:
    """A store of zarr as it is, or one around a store of obstore or fsspec; None for all else."""
    if isinstance(source, Store):
        return source
    obstores = getattr(sys.modules.get("obstore.store"), "__dict__", {})
    kinds = tuple(kind for name, kind in obstores.items() if re.fullmatch(r"[A-Z]\w+Store", name))
    if isinstance(source, kinds):
        return ObjectStore(source, read_only=is_read_only)
    fsspec = sys.modules.get("fsspec")
    if fsspec is not None and isinstance(source, fsspec.FSMap):
        from zarr.storage import FsspecStore

        return FsspecStore.from_mapper(source, read_only=is_read_only)
    return None


def place_at(url: str, options: Mapping[str, Any] | None) -> StoreLocation:
    """The location of a path or URL."""
    if "://" not in url:
        return PathPlace(url)
    place = UrlPlace(url, dict(options or {}))
    # fsspec's memory file system exists in this process only.
    return GivenPlace(place.open_plain(), place.name) if url.startswith("memory://") else place


def refuse_versions(versions: Mapping[str, Any]) -> None:
    """Raise an error if a version is given for a source that has no versions."""
    if versions:
        raise OptionError(
            "only an icechunk repository can be opened at a version",
            given=", ".join(versions),
            remedy="pass the repository itself, not a session of it",
        )


def _place_of_repository(repository: Any, versions: Mapping[str, Any]) -> StoreLocation:
    """The location of a repository's store at one version, by default branch ``main``."""
    if len(versions) > 1:
        raise OptionError("a repository is opened at only one version", given=", ".join(versions))
    where, version = _where_of(repository), dict(versions) or {"branch": "main"}
    try:
        session = repository.readonly_session(**version)
    # icechunk raises one class of error for everything.
    except Exception as error:
        if "not found" not in str(error):
            raise access_error(error, f"icechunk {where}") from cause_of(error)
        known = [f"branch={name!r}" for name in sorted(repository.list_branches())]
        known += [f"tag={name!r}" for name in sorted(repository.list_tags())]
        raise SourceNotFoundError(
            "the repository has no such version",
            given=", ".join(f"{name}={value!r}" for name, value in version.items()),
            allowed=", ".join(known),
        ) from error
    is_in_memory = re.search("in-?memory", repr(repository.storage), re.IGNORECASE) is not None
    return _place_of_session(session, where, is_in_memory=is_in_memory)


def _place_of_session(
    session: Any, where: str = "", *, is_in_memory: bool = False
) -> StoreLocation:
    """The location of a session's store. Uncommitted changes are named as such."""
    name = f"icechunk {where}".rstrip() + f", snapshot {session.snapshot_id}"
    if session.has_uncommitted_changes:
        changed = " with uncommitted changes"
        return GivenPlace(session.store, name + changed, session.snapshot_id + changed)
    if not session.read_only:
        # A copy does not see what the owner writes later, and it pickles.
        session = session.fork()
    return GivenPlace(
        session.store, name, session.snapshot_id, is_frozen=True, is_in_memory=is_in_memory
    )


def _where_of(repository: Any) -> str:
    """Path or bucket of a repository's storage, for messages."""
    storage = scrub(repr(repository.storage))
    # icechunk 1 writes "path=...", and icechunk 2 "path: ...".
    pieces = re.findall(r"\b(?:path|bucket|prefix|account|container)(?:=|: )([^,)\s]+)", storage)
    return "/".join(piece for piece in pieces if piece != "None")
