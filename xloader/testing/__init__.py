"""Tools for tests: stores that count, delay and fail, and generated datasets.

xloader's own tests use them, and so can yours. To test how often data is read, use a store that
records reads, never a clock::

    store = CountingStore(write_store(dataset, chunks))
    loader = xloader.open(store).window(time=3).loader(batch_size=4)
    for batch in loader: ...
    assert store.num_reads == loader.explain().num_reads

`datasets` needs hypothesis, which is imported only when it is called.
"""

from __future__ import annotations

from xloader.testing.data import datasets, write_store
from xloader.testing.pretend import pretend_codec, pretend_disk
from xloader.testing.recorder import SourceRecorder
from xloader.testing.stores import (
    CountingStore,
    FaultyStore,
    LatencyStore,
    garble,
    is_chunk_key,
    truncate,
)
from xloader.testing.waves import tutorial_store

__all__ = [
    "CountingStore",
    "FaultyStore",
    "LatencyStore",
    "SourceRecorder",
    "datasets",
    "garble",
    "is_chunk_key",
    "pretend_codec",
    "pretend_disk",
    "truncate",
    "tutorial_store",
    "write_store",
]
