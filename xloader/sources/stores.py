"""Places: where a Zarr store lies, and how to open it in this process and in others."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, ObjectStore, ZipStore

from xloader.errors import ForkError, OptionError, SourceNotFoundError
from xloader.sources.access import access_error, cause_of
from xloader.sources.handles import PerProcess
from xloader.sources.naming import safe_name, scrub, secrets_of
from xloader.sources.pickling import pack, unpack

_LOADED_IN: Final = os.getpid()
"""The process that first imported this file: a forked child has its parent's number here."""

_NATIVE: Final = frozenset({"icechunk", "obstore"})
"""Libraries whose threads do not outlive a fork: every later call waits for ever."""


class Place(Protocol):
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
    def is_shared(self) -> bool:
        """Whether the store is one that this process already has open."""
        ...

    def open_store(self) -> Store:
        """Open the store, or give it back where it is open."""
        ...


@dataclass(frozen=True)
class PathPlace:
    """A directory, or a zip file, on this machine."""

    path: str

    secrets = ()
    version = ""
    is_shared = False

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def open_store(self) -> Store:
        """Open the directory, or the zip file with a handle of its own."""
        if is_zip(self.path):
            return _open_zip(ZipStore(self.path, mode="r"))
        return LocalStore(self.path, read_only=True)


@dataclass(frozen=True)
class UrlPlace:
    """A URL that fsspec knows, with its options."""

    url: str
    options: Mapping[str, Any] = field(repr=False)

    version = ""
    is_shared = False

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
        """All texts among the options but those known to be harmless."""
        return secrets_of(self.options)

    def open_store(self) -> Store:
        """Open the URL with a client of its own."""
        from zarr.storage import FsspecStore

        options = dict(self.options)
        if self.url.startswith("reference://"):
            # What is referred to has to be read in the same way as the references.
            options["remote_options"] = {
                "asynchronous": True,
                **(options.get("remote_options") or {}),
            }
        return FsspecStore.from_url(self.url, storage_options=options, read_only=True)


class GivenPlace:
    """A store that is open already: it stays in its process, and travels packed.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The open store.
    name : str, optional
        The place, for messages; by default what the store calls itself.
    version : str, optional
        Which of its versions the store shows.
    """

    is_shared = True

    def __init__(self, store: Store, name: str = "", version: str = "") -> None:
        self.secrets = secrets_of(_options_of(store))
        self.name = name or _name_of(store, self.secrets)
        self.version = version
        self._packed: bytes | None = None
        self._packed_in = 0
        self._store = PerProcess(lambda: _open_zip(store), self.name)
        self._store.get()

    def open_store(self) -> Store:
        """Give the store back.

        Raises
        ------
        ForkError
            If this process was forked from the one that has the store open.
        """
        if self._packed_in == _LOADED_IN != os.getpid():
            raise ForkError(
                f"{self.name} was packed for another process and opened in a fork of its own, "
                "where its library would wait for ever",
                given=f"packed in process {self._packed_in}, opened in process {os.getpid()}",
                remedy='start workers with "forkserver" or "spawn"',
            )
        return self._store.get()

    def _unpack(self) -> Store:
        assert self._packed is not None, "only what was packed is unpacked"
        store: Store = unpack(self._packed)
        # Memory is not to be held twice.
        self._packed = None
        return store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        store = self._store.get()
        is_native = _library_of(store) in _NATIVE
        packed = pack(
            _copy_of_memory(store) if _lies_in_memory(store) else store,
            self.name,
            "commit the session's changes and open a read-only session"
            if _library_of(store) == "icechunk"
            else "open the data by its path or URL, or give the store a __getstate__",
        )
        return {
            "name": self.name,
            "version": self.version,
            "secrets": self.secrets,
            "_packed": packed,
            "_packed_in": os.getpid() if is_native else 0,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._store = PerProcess(self._unpack, self.name)


def place_of(source: object, versions: Mapping[str, Any]) -> Place | None:
    """Find the place of a store that is open already.

    Parameters
    ----------
    source : object
        A zarr store, an obstore store, an fsspec mapping, or a session, store or repository of
        icechunk.
    versions : mapping
        ``branch``, ``tag`` or ``snapshot_id``: what a repository is to be opened at.

    Returns
    -------
    Place or None
        None where it is no store.

    Raises
    ------
    OptionError
        If a version is asked of what has none, or more than one is asked for.
    """
    icechunk = sys.modules.get("icechunk")
    if icechunk is not None and isinstance(source, icechunk.Repository):
        return _place_of_repository(source, versions)
    refuse_versions(versions)
    if icechunk is not None and isinstance(source, icechunk.Session):
        return _place_of_session(source)
    if icechunk is not None and isinstance(source, icechunk.IcechunkStore):
        return _place_of_session(source.session)
    if isinstance(source, Store):
        return GivenPlace(source)
    if _is_obstore(source):
        return GivenPlace(ObjectStore(source, read_only=True))  # type: ignore[type-var]
    fsspec = sys.modules.get("fsspec")
    if fsspec is not None and isinstance(source, fsspec.FSMap):
        from zarr.storage import FsspecStore

        return GivenPlace(FsspecStore.from_mapper(source, read_only=True))
    return None


def place_at(url: str, options: Mapping[str, Any] | None) -> Place:
    """The place of an absolute path or a URL."""
    if "://" not in url:
        return PathPlace(url)
    place = UrlPlace(url, dict(options or {}))
    # What fsspec holds in memory is in this process alone.
    return GivenPlace(place.open_store(), place.name) if url.startswith("memory://") else place


def is_zip(path: str) -> bool:
    """Whether a path is that of a zip file."""
    return path.endswith(".zip") and not os.path.isdir(path)


def refuse_versions(versions: Mapping[str, Any]) -> None:
    """Raise if a version is asked of a source that has none."""
    if versions:
        raise OptionError(
            "only a repository of icechunk is opened at a version",
            given=", ".join(versions),
            allowed="an icechunk.Repository",
            remedy="pass the repository itself, not a session of it",
        )


def _place_of_repository(repository: Any, versions: Mapping[str, Any]) -> Place:
    if len(versions) > 1:
        raise OptionError(
            "a repository is opened at one version",
            given=", ".join(versions),
            allowed="branch=, tag= or snapshot_id=, one of them",
        )
    where, asked = _where_of(repository), dict(versions) or {"branch": "main"}
    try:
        session = repository.readonly_session(**asked)
    # icechunk has one class of error for everything.
    except Exception as error:
        if "not found" not in str(error):
            raise access_error(error, f"icechunk {where}") from cause_of(error)
        known = [f"branch={name!r}" for name in sorted(repository.list_branches())]
        known += [f"tag={name!r}" for name in sorted(repository.list_tags())]
        raise SourceNotFoundError(
            "the repository has no such version",
            given=", ".join(f"{name}={value!r}" for name, value in asked.items()),
            allowed=", ".join(known),
        ) from error
    return _place_of_session(session, where)


def _place_of_session(session: Any, where: str = "") -> Place:
    name = f"icechunk {where}".rstrip() + f", snapshot {session.snapshot_id}"
    if session.has_uncommitted_changes:
        changed = " with uncommitted changes"
        return GivenPlace(session.store, name + changed, session.snapshot_id + changed)
    if not session.read_only:
        # A copy: what its owner writes from now on is not seen here, and it travels.
        session = session.fork()
    return GivenPlace(session.store, name, session.snapshot_id)


def _where_of(repository: Any) -> str:
    told = scrub(repr(repository.storage))
    found = re.findall(r"\b(?:path|bucket|prefix|account|container)=([^,)\s]+)", told)
    return "/".join(part for part in found if part != "None")


def _is_obstore(source: object) -> bool:
    stores = sys.modules.get("obstore.store")
    return stores is not None and isinstance(
        source,
        tuple(kind for name, kind in vars(stores).items() if re.fullmatch(r"[A-Z]\w+Store", name)),
    )


def _open_zip(store: Store) -> Store:
    # Other stores open at their first use; a zip file that is read before it is opened fails.
    if isinstance(store, ZipStore):
        sync(store._ensure_open())
    return store


def _innermost(store: Any) -> Any:
    """The store that wrappers lie around."""
    while isinstance(getattr(store, "_store", None), Store):
        store = store._store
    return store


def _library_of(store: Store) -> str:
    inner = _innermost(store)
    inner = inner.store if isinstance(inner, ObjectStore) else inner
    return type(inner).__module__.partition(".")[0]


def _options_of(store: Store) -> object:
    inner = _innermost(store)
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
    async def read() -> dict[str, Any]:
        prototype = default_buffer_prototype()
        keys = [key async for key in store.list()]
        return {key: await store.get(key, prototype) for key in keys}

    return MemoryStore(sync(read()), read_only=True)
