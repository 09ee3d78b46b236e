"""Marks: objects of a target by which tasks of an earlier call notice that their job is over.

If a client of a cluster dies, its tasks may go on for a moment. The next call may have completed
the store meanwhile, or begun another one. So each task looks for the marks before it writes::

    task     count itself as writing | all marks are there? | write    | no longer writing
    client   remove a mark           | wait until no task is writing   | remove what the job needed
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from xloader.errors import TargetError
from xloader.jobs.cluster_tasks import ClusterTasks
from xloader.sources.stores.writable_store import WritableStore

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
                    allowed="a target that all workers reach, and that nothing else writes",
                    remedy="write to a folder that all machines share or to a URL, or pass "
                    "client=False",
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
