"""Records: which shards of a target are written, with the size and the digest of each.

Each section of shards adds one record, an object of its own, when all its shards are written. A
killed job leaves at most the shards of one section without a record; they are written again, with
the same bytes::

    target.zarr/xloader.records/3f2a9c51-000004.json   {"job": ..., "shards": {"t2m/c/3/0/0": ...}}
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from xloader.jobs.materialize.target_marks import writing
from xloader.sources.stores.writable_store import WritableStore

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


ReadBack = Callable[[Iterable[str]], Iterable[tuple[str, ShardRecord | None]]]
"""Gives the size and the digest of shards as they are in the store now, by key."""


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

    def writing(self) -> AbstractContextManager[None]:
        """Context in which shards are written and recorded, if the marks are there."""
        return writing(self.store, self.marks)

    def load(self) -> None:
        """Read the records of all processes so far. Shards that are gone do not count."""
        if self.store.is_transaction:
            return
        known = dict(self.done)
        for key in self.store.keys(self._folder):
            if key.endswith(".json"):
                known |= self._read(key)
        for key, record in known.items():
            if key in self.done or self.store.size_of(self.prefix + key) == record.nbytes:
                self.done[key] = record

    def add(self, shards: Mapping[str, ShardRecord]) -> None:
        """Record that some shards are written."""
        self.done |= shards
        if self.store.is_transaction or not shards:
            return
        text = json.dumps({"job": self.job, "shards": shards})
        self.store.put(f"{self._folder}{self._token}-{self._num_added:06d}.json", text.encode())
        self._num_added += 1

    def has_all(self, groups: Iterable[Iterable[str]]) -> bool:
        """Whether all shards of some groups are written."""
        return all(key in self.done for keys in groups for key in keys)

    def find(self, keys: Iterable[str]) -> None:
        """Take the objects that are in a store that is complete for written."""
        for key in keys:
            nbytes = self.store.size_of(self.prefix + key)
            if nbytes is not None:
                self.done[key] = ShardRecord(nbytes, "")

    def digest_of(self, keys: Iterable[str]) -> str:
        """One digest of some shards. Those of a store that was complete are read for it."""
        found = {}
        for key in keys:
            found[key] = self.done[key]
            if not found[key].digest:
                found[key] = ShardRecord.of(self.store.get(self.prefix + key) or b"")
        return digest_of(found)

    def check(
        self, keys: Iterable[str], *, is_whole: bool, read: ReadBack | None = None
    ) -> list[str]:
        """The shards that are not in the store as they were recorded."""
        if not is_whole:
            sizes = ((key, self.store.size_of(self.prefix + key)) for key in keys)
            return [key for key, size in sizes if size != self.done[key].nbytes]
        wrong = []
        for key, own in (read or self.read_back)(keys):
            if own is None or not _is_same(own, self.done[key]):
                wrong.append(key)
            else:
                # Of a store that was complete, the digest was not known.
                self.done[key] = own
        return wrong

    def read_back(self, keys: Iterable[str]) -> Iterator[tuple[str, ShardRecord | None]]:
        """Read shards, and yield what they are now; None for those that are gone."""
        for key in keys:
            data = self.store.get(self.prefix + key)
            yield key, None if data is None else ShardRecord.of(data)

    @property
    def _folder(self) -> str:
        return f"{FOLDER}/{self.job[:16]}/"

    def _read(self, key: str) -> dict[str, ShardRecord]:
        """The shards of one record; none if it is gone, damaged or another job's."""
        try:
            found = json.loads(self.store.get(key) or b"")
            if found["job"] != self.job:
                return {}
            return {name: ShardRecord(*own) for name, own in found["shards"].items()}
        except (ValueError, KeyError, TypeError):
            return {}


def _is_same(found: ShardRecord, record: ShardRecord) -> bool:
    return found.nbytes == record.nbytes and record.digest in ("", found.digest)


def digest_of(records: Mapping[str, ShardRecord]) -> str:
    """One digest of many shards: of their keys and digests, sorted by key."""
    digest = hashlib.sha256()
    for key in sorted(records):
        digest.update(f"{key} {records[key].digest}\n".encode())
    return digest.hexdigest()
