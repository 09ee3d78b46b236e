"""Finds the `StoreLocation` of a store that is open already, or of a path or URL.

Stores of zarr, obstore, fsspec and icechunk are recognised. Libraries that are not imported yet are
not imported for this.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from zarr.abc.store import Store
from zarr.storage import ObjectStore

from xloader.errors import OptionError, SourceNotFoundError
from xloader.sources.stores.access_errors import access_error, cause_of
from xloader.sources.stores.locations import GivenPlace, PathPlace, StoreLocation, UrlPlace
from xloader.sources.stores.redaction import scrub


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
    if _is_obstore(source):
        return ObjectStore(source, read_only=is_read_only)  # type: ignore[type-var]
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
            allowed="an icechunk.Repository",
            remedy="pass the repository itself, not a session of it",
        )


def _place_of_repository(repository: Any, versions: Mapping[str, Any]) -> StoreLocation:
    """The location of a repository's store at one version, by default branch ``main``."""
    if len(versions) > 1:
        raise OptionError(
            "a repository can be opened at only one version",
            given=", ".join(versions),
            allowed="one of branch=, tag= and snapshot_id=",
        )
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


def _is_obstore(source: object) -> bool:
    """Whether an object is a store of obstore."""
    stores = sys.modules.get("obstore.store")
    return stores is not None and isinstance(
        source,
        tuple(cls for name, cls in vars(stores).items() if re.fullmatch(r"[A-Z]\w+Store", name)),
    )
