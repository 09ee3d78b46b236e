"""Records: which shards of a target are written, with the size and the digest of each.

Each section of shards adds one record, an object of its own, when all its shards are written. A
killed job leaves at most the shards of one section without a record; they are written again, with
the same bytes::

    target.zarr/xloader.records/3f2a9c51-000004.json   {"job": ..., "shards": {"t2m/c/3/0/0": ...}}
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.errors import TargetError
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.sources.open.from_zarr import WRITTEN_BY
from xloader.sources.stores.writable_store import WritableStore
from xloader.sources.stores.write_places import ZARR_MARKS

_PAUSE_SECONDS: Final = 0.05

_num_writing: Counter[str] = Counter()
_lock = threading.Lock()


def new_mark() -> bytes:
    """The bytes of a mark, other ones each time."""
    return uuid.uuid4().hex.encode()


@contextmanager
def writing(store: WritableStore, marks: Mapping[str, bytes]) -> Iterator[None]:
    """Write some objects of a target, if its marks are there."""
    with _lock:
        _num_writing[store.name] += 1
    try:
        for key, data in marks.items():
            if store.get(key) != data:
                raise TargetError(
                    f"a worker does not find at {store.name} what this call has begun there",
                    given=f"no {key}, or another one",
                    remedy="write to a URL or a folder that all share, or pass client=False",
                )
        yield
    finally:
        with _lock:
            _num_writing[store.name] -= 1


def remove_mark(store: WritableStore, key: str, tasks: ClusterTasks | None) -> None:
    """Remove a mark, and wait until no worker of a cluster writes to the target.

    `tasks`: the cluster; None where there is none.
    """
    store.remove(key)
    if tasks is not None:
        while any(tasks.ask_workers("asking who writes", _count_writing, store.name)):
            time.sleep(_PAUSE_SECONDS)


def _count_writing(name: str) -> int:
    """Number of sections that this process is writing to a target."""
    with _lock:
        return _num_writing[name]


FOLDER: Final = "xloader.records"
"""Where records, and what else only the job needs, lie in the target until it is complete."""


class ShardRecord(NamedTuple):
    """The size in bytes of a shard as it is stored, and its SHA-256 in hex."""

    nbytes: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> ShardRecord:
        """The record of some bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(eq=False)
class TargetRecords:
    """The records of one job."""

    store: WritableStore
    job: str
    prefix: str = ""
    marks: Mapping[str, bytes] = field(default_factory=dict)
    done: dict[str, ShardRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._token = uuid.uuid4().hex[:8]
        self._num_added = 0

    def apart(self) -> TargetRecords:
        """Records of the same job that know of no shard yet. Their names are their own."""
        return replace(self, done={})

    def load(self) -> None:
        """Read the records of all processes so far. Shards that are gone do not count."""
        if self.store.is_transaction:
            return
        for file in self.store.keys(self._folder):
            for key, record in self._read(file).items() if file.endswith(".json") else ():
                if key not in self.done and self.store.size_of(self.prefix + key) == record.nbytes:
                    self.done[key] = record

    def add(self, shards: Mapping[str, ShardRecord]) -> None:
        """Record that some shards are written."""
        self.done |= shards
        if self.store.is_transaction or not shards:
            return
        text = json.dumps({"job": self.job, "shards": shards})
        self.store.put(f"{self._folder}{self._token}-{self._num_added:06d}.json", text.encode())
        self._num_added += 1

    def find(self, keys: Iterable[str]) -> None:
        """Take the objects that are in a store that is complete for written."""
        for key in keys:
            nbytes = self.store.size_of(key)
            if nbytes is not None:
                self.done[key] = ShardRecord(nbytes, "")

    def written(self, array: TargetArray) -> NDArray[np.bool_]:
        """Which shards of an array are written."""
        flags = np.zeros(array.rechunking().grid, np.bool_)
        if self.done:
            for shard in np.ndindex(flags.shape):
                flags[shard] = array.key_of(shard) in self.done
        return flags

    def digest_of(self, keys: Iterable[str]) -> str:
        """One digest of some shards. Those of a store that was complete are read for it."""
        digest = hashlib.sha256()
        for key in sorted(keys):
            shard = self.done[key].digest or ShardRecord.of(self.store.get(key) or b"").digest
            digest.update(f"{key} {shard}\n".encode())
        return digest.hexdigest()

    def differs(self, key: str, stored: ShardRecord | None) -> bool:
        """Whether a shard is not in the store as it was recorded; if it is, its digest is kept."""
        nbytes, digest = self.done[key]
        if stored is None or stored.nbytes != nbytes or digest not in ("", stored.digest):
            return True
        self.done[key] = stored
        return False

    def read_back(self, keys: Iterable[str]) -> list[tuple[str, ShardRecord | None]]:
        """Read shards, and list what they are now; None for those that are gone."""
        stored = ((key, self.store.get(key)) for key in keys)
        return [(key, None if data is None else ShardRecord.of(data)) for key, data in stored]

    @property
    def _folder(self) -> str:
        return f"{FOLDER}/{self.job[:16]}/"

    def _read(self, key: str) -> dict[str, ShardRecord]:
        """The shards of one record; none if it is gone, damaged or another job's."""
        try:
            document = json.loads(self.store.get(key) or b"")
            if document["job"] != self.job:
                return {}
            return {name: ShardRecord(*entry) for name, entry in document["shards"].items()}
        except (ValueError, KeyError, TypeError):
            return {}


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

    def check(self, job: Mapping[str, Any], store: WritableStore) -> None:
        """Check that a job may go on with what lies there."""
        if self.job is None:
            return
        differing = [name for name, value in job.items() if self.job.get(name) != value]
        if {"chunks", "shards"} & set(differing):
            # The samples are told by the shards that they need.
            differing = [name for name in differing if name != "samples"]
        if differing:
            raise TargetError(
                f"{store.name} was begun with other arguments",
                given=f"other {', '.join(differing)}",
                remedy=f"call it as before, {_REMEDY}",
            )


def contents_of(
    store: WritableStore, *, overwrite: bool, tasks: ClusterTasks | None = None
) -> TargetContents:
    """Look at what lies at a target; remove it if it is to be overwritten."""
    # In this order, because a job that ends at this moment removes its mark last.
    is_begun = not store.is_transaction and store.get(BEGUN) is not None
    root = store.get("zarr.json")
    has_store = root is not None or any(store.get(mark) is not None for mark in ZARR_MARKS[1:])
    if overwrite and (has_store or is_begun):
        if not store.is_transaction:
            remove_mark(store, BEGUN, tasks)
        store.delete("")
        return TargetContents()
    if root is not None:
        attrs = json.loads(root).get("attributes", {})
        if isinstance(attrs.get(WRITTEN_BY), dict):
            written = attrs[WRITTEN_BY]
            return TargetContents(written["job"], written["is_complete"], written.get("digests"))
    if has_store or (not is_begun and not store.is_empty(besides=FOLDER)):
        raise TargetError(
            f"something else lies at {store.name} already",
            given="another Zarr store" if has_store else "files that are no Zarr store",
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
    mark = store.get(BEGUN)
    if mark is None:
        mark = new_mark()
        store.put(BEGUN, mark)
    return {BEGUN: mark}


def end(store: WritableStore, tasks: ClusterTasks | None) -> None:
    """Remove what only the job needed, when all is written."""
    if not store.is_transaction:
        remove_mark(store, BEGUN, tasks)
        store.delete(FOLDER)
    store.delete_partial()
