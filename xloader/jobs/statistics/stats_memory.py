"""The memory that statistics take, and how much of it is left for chunks at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.errors import MemoryBudgetError
from xloader.jobs.statistics.stats_sweep import VariableJob, waiting_nbytes

_FLUSH_NBYTES: Final = 1 << 26
_FLUSH_NODES: Final = 16
"""Statistics are written when they take so many bytes or nodes."""

_WORK_ITEMSIZE: Final = 10
_WEIGHTED_ITEMSIZE: Final = 26
"""Bytes for each element of a chunk at work, beside its values: with and without weights."""


class StatsMemory:
    """The memory that the statistics of some variables take.

    `work_nbytes`: most bytes that a thread takes for a chunk, and for merging its statistics.
    """

    def __init__(self, jobs: list[VariableJob]) -> None:
        self._jobs = jobs
        most = max(own.node_nbytes for own in jobs)
        self.flush_nbytes = min(_FLUSH_NBYTES, _FLUSH_NODES * most)
        self.work_nbytes = max(map(_work_nbytes, jobs))
        self.tree_nbytes = max(own.tree_nbytes for own in jobs)
        self.under_way_nbytes = max(own.tree_nbytes + waiting_nbytes(own) for own in jobs)
        self.max_chunk_nbytes = max(own.chunk_nbytes for own in jobs)

    def nodes_nbytes(self, wanted: Sequence[NDArray[np.bool_]]) -> int:
        """Bytes of the statistics of some pieces of each variable, merged as far as they go."""
        return sum(
            own.node_nbytes * _num_trees(own, pieces)
            for own, pieces in zip(self._jobs, wanted, strict=True)
        )

    def waiting_for_file_nbytes(self, wanted: Sequence[NDArray[np.bool_]]) -> int:
        """Most bytes of statistics that are done and wait for the next file."""
        return min(2 * self.flush_nbytes, self.nodes_nbytes(wanted))

    def most_read_nbytes(self, memory_nbytes: int, kept_nbytes: int, least_nbytes: int = 0) -> int:
        """Decoded bytes of chunks that may be read at a time."""
        check_memory(memory_nbytes, max(kept_nbytes + self.work_nbytes, least_nbytes))
        return (memory_nbytes - kept_nbytes) * self.max_chunk_nbytes // self.work_nbytes


def check_memory(memory_nbytes: int, least_nbytes: int, num_shares: int = 1) -> None:
    """Refuse a memory that is too small."""
    if least_nbytes <= memory_nbytes:
        return
    raise MemoryBudgetError(
        "the memory is too small for the statistics under way, the result and one chunk at work",
        given=f"memory={memory_nbytes} bytes",
        minimum_nbytes=least_nbytes,
        remedy="keep fewer dimensions, labels or quantiles",
        num_sharing=num_shares,
    )


def _num_trees(job: VariableJob, pieces: NDArray[np.bool_]) -> int:
    return len(np.unique(np.searchsorted(job.order.edges, np.flatnonzero(pieces), side="right")))


def _work_nbytes(job: VariableJob) -> int:
    """Bytes that a thread takes for the largest chunk, and for merging its statistics."""
    own, options = job.stored.stored_dtype.itemsize, job.options
    unpacked = 0 if job.stored.packing is None else job.stored.dtype.itemsize
    extra = _WORK_ITEMSIZE if options.weights is None else _WEIGHTED_ITEMSIZE
    if job.leads is not None or job.order.kept or options.quantiles:
        extra += _WEIGHTED_ITEMSIZE
    if options.quantiles and options.weights is not None:
        extra += _WEIGHTED_ITEMSIZE
    num_elements = -(-job.chunk_nbytes // own)
    return (2 * own + unpacked + extra) * num_elements + 2 * job.leaf_nbytes + job.node_nbytes
