"""The native executor of a program: threads that know nothing of Python, and never take its lock.

The words, limits and figures of both executors are here, too.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import ADDRESS, NUMBER, find_function
from xloader.core.axis import Ints
from xloader.engine.program import Segment
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


_NOTHING_YET, _NO_MEMORY = -1, -3
"""Answers in place of a slot, besides `IS_OVER`."""

_WAS_IDLE, _WAS_WORKING, _WAS_LOADING = range(3)
"""How C numbers the work that a thread has done before it asks for more."""

_MOST_EMPTY: Final = 64
"""Most tokens that are told at a time."""

_WRONG: Final = -1
"""The answer to a segment that is wrong."""

_SIGNATURES: Final = {
    "check_tables": (ADDRESS,),
    "make_blocks": (NUMBER,),
    "drop_blocks": (NUMBER,),
    "make_indexes": (ADDRESS,),
    "drop_indexes": (NUMBER,),
    "begin_run": (ADDRESS, NUMBER, NUMBER, ADDRESS),
    "start_run": (NUMBER,),
    "add_segment": (NUMBER, ADDRESS, NUMBER),
    "give_slot": (NUMBER, NUMBER, ADDRESS),
    "take_batch": (NUMBER, NUMBER, ADDRESS),
    "next_work": (NUMBER, NUMBER, NUMBER, ADDRESS),
    "note_fetched": (NUMBER, NUMBER),
    "give_chunks": (NUMBER, NUMBER, ADDRESS, NUMBER),
    "take_empty": (NUMBER, ADDRESS, NUMBER),
    "add_flight": (NUMBER, NUMBER),
    "find_load": (NUMBER, NUMBER, ADDRESS),
    "chunks_done": (NUMBER, NUMBER, NUMBER, NUMBER),
    "slot_of": (NUMBER, NUMBER),
    "gaps": (NUMBER, NUMBER, ADDRESS, NUMBER),
    "batch_done": (NUMBER, NUMBER),
    "run_figures": (NUMBER, ADDRESS, ADDRESS, ADDRESS),
    "give_up_reads": (NUMBER, NUMBER),
    "find_slow_read": (NUMBER, NUMBER, ADDRESS),
    "count_stuck": (NUMBER,),
    "close_run": (NUMBER,),
    "join_run": (NUMBER, NUMBER),
    "keep_blocks": (NUMBER, ADDRESS, NUMBER),
    "drop_run": (NUMBER,),
}


def _call(name: str, *arguments: int) -> int:
    """Call a function of the library, which must be there. Python's lock is free meanwhile."""
    function = find_function(f"xloader_{name}", _SIGNATURES[name])
    assert function is not None, "without the library, there is no native executor"
    answer: int = function(*arguments)
    return answer


class _SegmentInC(ctypes.Structure):
    """`SegmentRows` of ``program.h``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("first_load", "num_loads", "first_batch")),
        *((name, ctypes.c_int64) for name in ("num_batches", "num_copies", "num_ends")),
        *((name, ctypes.c_void_p) for name in ("loads", "copies", "copy_ends", "is_finished")),
        ("ends", ctypes.c_void_p),
    )


class NativeBlocks(BlockMemory):
    """Memory of decoded blocks and of the indexes of shards.

    `capacity`: the most bytes of blocks in use at a time.
    """

    is_native = True

    def __init__(self, capacity: int, tables: Tables) -> None:
        super().__init__(tables)
        self.capacity = capacity
        if not _call("check_tables", tables.address):
            raise AssertionError("the tables are wrong, which is a bug in xloader")
        self.blocks = _call("make_blocks", capacity)
        self.indexes = _call("make_indexes", tables.address)
        if not (self.blocks and self.indexes):
            raise MemoryError
        self._drop = weakref.finalize(self, _drop, os.getpid(), self.blocks, self.indexes)
        # At exit, threads may still be at work.
        self._drop.atexit = False

    def drop(self) -> None:
        """Release the memory, once no run uses it any more, unless an array does."""
        if not self.leases:
            self._drop()

    def spoil(self) -> None:
        """Note that a thread may still write to blocks: they are never released."""
        super().spoil()
        self._drop.detach()


def _drop(pid: int, blocks: int, indexes: int) -> None:
    # A forked child has none of the memory, and its parent's threads may have held a lock.
    if os.getpid() == pid:
        _call("drop_blocks", blocks)
        _call("drop_indexes", indexes)


class NativeExecutor:
    """Carries out one program on native threads. Any thread may call it, and others wait in it."""

    def __init__(self, blocks: NativeBlocks, limits: Limits) -> None:
        self._blocks = blocks
        self._tables = blocks.tables
        options = np.array(limits, np.int64)
        self._run = _call(
            "begin_run", self._tables.address, blocks.blocks, blocks.indexes, options.ctypes.data
        )
        if not self._run:
            raise MemoryError
        self.num_reads = 0
        # Not before all calls have returned, which refer to this object.
        self._leases = [blocks.lend()]
        self._free = weakref.finalize(self, _free, os.getpid(), self._run, self._leases)
        self._free.atexit = False

    def start(self) -> int:
        """Start the threads. Return how many the system allowed."""
        return _call("start_run", self._run)

    def add(self, segment: Segment, *, is_last: bool) -> None:
        """Add the next segment of the program."""
        rows = _SegmentInC(
            segment.first_load,
            len(segment.loads),
            0,
            len(segment.copy_ends),
            len(segment.copies),
            len(segment.ends),
            *(table.ctypes.data for table in segment.tables().values()),
        )
        rows.first_batch = segment.batches[0].index if segment.batches else 0
        answer = _call("add_segment", self._run, ctypes.addressof(rows), is_last)
        if answer == _WRONG:
            raise AssertionError("the program is wrong, which is a bug in xloader")
        if not answer:
            raise MemoryError

    def give_slot(self, number: int, addresses: Sequence[int]) -> None:
        """Give memory for one more batch: where each of its arrays begins."""
        given = np.array(addresses, np.int64)
        if not _call("give_slot", self._run, number, given.ctypes.data):
            raise MemoryError

    def take(self, seconds: float) -> int | None:
        """Wait for the next batch, up to a time. Return the number of its slot, or None after that.

        It is `IS_OVER` once the executor is closed.
        """
        told = ctypes.c_int64()
        slot = _call("take_batch", self._run, int(seconds * 1e9), ctypes.addressof(told))
        self.num_reads = told.value
        if slot == _NO_MEMORY:
            raise MemoryError
        return None if slot == _NOTHING_YET else slot

    def next_work(self, done: WorkItem | None) -> WorkItem | None:
        """Wait for work for Python, given what was just done; None once the executor is closed."""
        told = (ctypes.c_int64 * len(WorkItem._fields))()
        was = _WAS_IDLE if done is None else _WAS_WORKING
        if done is not None and done.kind in (LOAD_CHUNK, DECODE_FETCHED, DECODE_ALONE):
            was = _WAS_LOADING
        most_ns, waited_ns = int((MOST_WAIT_SECONDS or 0) * 1e9), 0
        while answer := _call("next_work", self._run, was, most_ns, ctypes.addressof(told)):
            waited_ns += told[-1]
            if answer != _NOTHING_YET:
                return WorkItem(*told)._replace(waited_ns=waited_ns)
            was = _WAS_IDLE
        return None

    def note_fetched(self, number: int) -> None:
        """Note that chunks of a load were fetched, and maybe of those before it.

        They are decoded once all these loads have memory, which is given in order.
        """
        _call("note_fetched", self._run, number)

    def give_chunks(self, token: int, chunks: Ints) -> bool:
        """Have stored bytes decoded once their blocks have memory. Return whether they will be.

        Each row: the number of the load and of the chunk there, the address and the size. They are
        in the order of the loads.
        """
        if not _call("give_chunks", self._run, token, chunks.ctypes.data, len(chunks)):
            raise MemoryError
        return True

    def take_empty(self) -> Ints:
        """The tokens of chunks whose bytes are no longer needed. Each is told once.

        With each, the number of those chunks that are left to Python.
        """
        pairs = np.empty((_MOST_EMPTY, 2), np.int64)
        return pairs[: _call("take_empty", self._run, pairs.ctypes.data, _MOST_EMPTY)]

    def add_flight(self, nbytes: int) -> None:
        """Add to the bytes that are being read, for a thread of Python."""
        _call("add_flight", self._run, nbytes)

    def find_load(self, number: int) -> LoadPlace:
        """Where a load is decoded to."""
        told = (ctypes.c_int64 * 5)()
        _call("find_load", self._run, number, ctypes.addressof(told))
        return LoadPlace(*told)

    def chunks_done(self, number: int, num: int, *, has_failed: bool) -> None:
        """Note that Python has loaded some chunks of a block, or could not."""
        if not _call("chunks_done", self._run, number, num, has_failed):
            raise MemoryError

    def slot_of(self, batch: int) -> int:
        """The slot of a batch that Python finishes."""
        return _call("slot_of", self._run, batch)

    def gaps(self, batch: int) -> Ints:
        """The rows of a batch that lack a block, each with the number of the load."""
        room = _call("gaps", self._run, batch, 0, 0)
        told = np.zeros((room, 2), np.int64)
        if room:
            _call("gaps", self._run, batch, told.ctypes.data, room)
        return told

    def batch_done(self, batch: int) -> None:
        """Note that Python has finished a batch."""
        _call("batch_done", self._run, batch)

    def figures(self) -> tuple[Figures, NDArray[np.int64], NDArray[np.int64]]:
        """Figures so far, the reads of each demand, and the decoded bytes of each group."""
        figures = (ctypes.c_int64 * len(Figures._fields))()
        reads = np.zeros(self._tables.in_c.num_demands + 1, np.int64)
        nbytes = np.zeros(self._tables.in_c.num_groups + 1, np.int64)
        _call(
            "run_figures",
            self._run,
            ctypes.addressof(figures),
            reads.ctypes.data,
            nbytes.ctypes.data,
        )
        return Figures(*figures), reads[:-1], nbytes[:-1]

    def give_up_reads(self, seconds: float) -> int:
        """Have Python do reads that take longer than a time. Return how many threads are stuck."""
        return _call("give_up_reads", self._run, int(seconds * 1e9))

    def find_slow_read(self, seconds: float) -> SlowRead | None:
        """A read that takes longer than a time, if there is one."""
        told = (ctypes.c_int64 * 3)()
        spent = _call("find_slow_read", self._run, int(seconds * 1e9), ctypes.addressof(told))
        return SlowRead(told[0], told[1], told[2], spent * 1e-9) if spent else None

    def close(self) -> None:
        """Have all threads end. Those of Python that wait for work go on. May be repeated."""
        _call("close_run", self._run)

    def join(self, seconds: float) -> bool:
        """Wait for the native threads to end. Return whether they have."""
        return not _call("join_run", self._run, int(max(seconds, 0.0) * 1e9))

    def keep_blocks(self) -> None:
        """Keep the blocks that stay in memory, and give back all others. All threads have ended."""
        kept = self._blocks.kept
        room = _call("keep_blocks", self._run, 0, 0)
        told = np.zeros((room, 4), np.int64)
        _call("keep_blocks", self._run, told.ctypes.data, room)
        kept.update(((row[0], row[1]), row[3]) for row in told.tolist())
        if not _call("count_stuck", self._run):
            self._leases.clear()

    def leave(self, held: object) -> None:
        """Never free what the run uses, nor an object, as a thread is still at work."""
        self._free.detach()
        _LEFT.append((self._blocks.lend(), held))


def _free(pid: int, run: int, leases: list[Lease]) -> None:
    # A forked child lacks the threads, and its parent's may have held a lock.
    if os.getpid() == pid and not _call("drop_run", run):
        _LEFT.extend(leases)


_LEFT: Final[list[object]] = []
"""Memory and tables of runs with a stuck thread. It may come back and look at them."""
