"""The contents of a target before a job begins, and whether the job may go on with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xloader.errors import TargetError
from xloader.jobs.cluster_tasks import ClusterTasks
from xloader.jobs.materialize.target_marks import new_mark, remove_mark
from xloader.jobs.materialize.target_records import FOLDER
from xloader.sources.open.from_zarr import WRITTEN_BY
from xloader.sources.stores.writable_store import WritableStore
from xloader.sources.stores.write_places import ZARR_MARKS

BEGUN: Final = f"{FOLDER}/begun.json"
"""The first object of a job: without it, a job killed at its first objects would look foreign.

It is the mark by which tasks on a cluster know that the job is not over."""

_REMEDY: Final = "choose another target, or pass overwrite=True to begin anew"


@dataclass(frozen=True)
class TargetContents:
    """The job that has made what lies at a target.

    `job`: what was asked of that job; None if nothing lies there, or too little to know.
    """

    job: Mapping[str, Any] | None = None
    is_complete: bool = False
    digests: Mapping[str, str] | None = None

    def check(self, asked: Mapping[str, Any], store: WritableStore) -> None:
        """Check that a job may go on with what lies there."""
        if self.job is None:
            return
        differing = [name for name, own in asked.items() if self.job.get(name) != own]
        if {"chunks", "shards"} & set(differing):
            # The samples are told by the shards that they need.
            differing = [name for name in differing if name != "samples"]
        if differing:
            raise TargetError(
                f"{store.name} was begun with other arguments",
                given=f"other {', '.join(differing)}",
                allowed="the samples and the options with which it was begun",
                remedy=f"call it as before, {_REMEDY}",
            )


def contents_of(
    store: WritableStore, *, overwrite: bool, tasks: ClusterTasks | None = None
) -> TargetContents:
    """Look at what lies at a target; remove it if it is to be overwritten."""
    # In this order, because a job that ends at this moment removes its mark last.
    is_begun = not store.is_transaction and store.get(BEGUN) is not None
    found = store.get("zarr.json")
    has_store = found is not None or any(store.get(mark) is not None for mark in ZARR_MARKS[1:])
    if overwrite and (has_store or is_begun):
        if not store.is_transaction:
            remove_mark(store, BEGUN, tasks)
        store.delete("")
        return TargetContents()
    if found is not None:
        attrs = json.loads(found).get("attributes", {})
        if isinstance(attrs.get(WRITTEN_BY), dict):
            own = attrs[WRITTEN_BY]
            return TargetContents(own["job"], own["is_complete"], own.get("digests"))
    if has_store or (not is_begun and not store.is_empty(besides=FOLDER)):
        raise TargetError(
            f"something else lies at {store.name} already",
            given="another Zarr store" if has_store else "files that are no Zarr store",
            allowed="a place where nothing lies, or a store that the same call has begun",
            remedy=_REMEDY if has_store else "choose another target, or remove what is there",
        )
    return TargetContents()


def begin(store: WritableStore, objects: Mapping[str, bytes], root: bytes) -> None:
    """Write the metadata and the labels; the object that makes them a store comes last."""
    if not store.is_transaction:
        store.put(BEGUN, new_mark())
    for key, data in objects.items():
        store.put(key, data)
    store.put("zarr.json", root)


def mark_of(store: WritableStore) -> dict[str, bytes]:
    """The mark of the job that writes a target. It is made if objects of a whole store are lost."""
    found = store.get(BEGUN)
    if found is None:
        found = new_mark()
        store.put(BEGUN, found)
    return {BEGUN: found}


def end(store: WritableStore, tasks: ClusterTasks | None) -> None:
    """Remove what only the job needed, when all is written."""
    if not store.is_transaction:
        remove_mark(store, BEGUN, tasks)
        store.delete(FOLDER)
    store.delete_partial()
