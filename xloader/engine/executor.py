"""What the two executors share, which carry out a program: words, limits, figures, memory."""

from __future__ import annotations

import ctypes
import sysconfig
import weakref
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.engine.tables import Tables

LOAD_CHUNK, FINISH_BATCH, MAKE_SEGMENT, DECODE_FETCHED, DECODE_ALONE, LET_GO = range(6)
"""Kinds of work for Python, as ``executor.c`` numbers them."""

EVERY_CHUNK: Final = -1
"""In place of the number of a chunk: all chunks of the block."""

IS_OVER: Final = -2
"""In place of the number of a slot: the executor is closed."""

MOST_WAIT_SECONDS: Final = 0.01 if sysconfig.get_config_var("Py_GIL_DISABLED") else None
"""Seconds after which a thread of Python that waits runs for a moment. A free-threaded Python frees
arrays, and with them the memory of batches, only while the thread that has made them runs."""


class WorkItem(NamedTuple):
    """Work for Python: its kind, the number of a batch or load, and a chunk of the block or all.

    `DECODE_ALONE` has the token of chunks that were given, and the place of one among them.

    `num`: how many loads, from that one on. `waited_ns`: nanoseconds without anything to do.
    """

    kind: int
    number: int
    part: int
    num: int = 1
    waited_ns: int = 0


class LoadPlace(NamedTuple):
    """Where a block is decoded to: memory of its own, or else a row of a batch in a slot.

    `address`: of its own memory; 0 if it has none. `slot`: below 0 if it has memory of its own.
    """

    group: int
    block: int
    row: int
    address: int
    slot: int


class SlowRead(NamedTuple):
    """A read under way: the group, the block, the number of the chunk there, and its seconds."""

    group: int
    block: int
    part: int
    seconds: float


class Figures(NamedTuple):
    """Counts of a run, and nanoseconds summed over its threads, in the order of ``executor.c``."""

    num_requests: int = 0
    read_ns: int = 0
    decode_ns: int = 0
    copy_ns: int = 0
    cpu_ns: int = 0
    awaited_ns: int = 0
    unasked_ns: int = 0
    peak_nbytes: int = 0
    flight_nbytes: int = 0
    num_threads: int = 0
    num_ready: int = 0
    num_working: int = 0
    peak_working: int = 0
    num_loading: int = 0


class Limits(NamedTuple):
    """The limits that an executor keeps, in the order of `Options` of ``executor.c``.

    `batch_nbytes`: of each batch under way. `in_flight_nbytes`: most bytes of chunks being read.
    `num_cores`: most threads that compute. `num_held`: batches that the consumer has. `num_known`:
    the program is made further where fewer loads than that wait. `most_scratch`: threads that may
    decode fetched chunks by way of memory as large as the chunk. `most_loading_hands`: threads of
    Python that load at a time.
    """

    batch_nbytes: int
    in_flight_nbytes: int
    most_chunk_nbytes: int
    num_cores: int
    num_held: int
    num_known: int
    most_scratch: int
    most_loading_hands: int


class BlockMemory:
    """Memory of decoded blocks, which outlives a run: what both kinds of it have.

    `kept`: the address of each block that stays in memory between runs, by group and block.
    `leases`: those of runs that are not over, and of arrays in Python.
    `is_spoilt`: whether a thread of an ended run may still write to blocks. `is_native`: whether
    native threads use it.
    """

    is_native = False

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.kept: dict[tuple[int, int], int] = {}
        self.is_spoilt = False
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()

    def view(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Memory of a block as an array, which keeps all of it from being released.

        The traceback of an error may hold such arrays for as long as somebody looks at it.
        """
        memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        memory.lease = self.lend()
        return np.ctypeslib.as_array(memory)

    def lend(self) -> Lease:
        """Keep the memory from being released as long as the lease exists."""
        lease = Lease(self)
        self.leases.add(lease)
        return lease

    def drop(self) -> None:
        """Release the memory, once no run uses it any more, unless an array does."""

    def spoil(self) -> None:
        """Note that a thread may still write to blocks: they are never released."""
        self.is_spoilt = True


@dataclass(frozen=True, eq=False)
class Lease:
    """Keeps the memory of blocks while a thread may write to it, or an array is a view of it."""

    memory: BlockMemory
