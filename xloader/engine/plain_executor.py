"""The plain executor of a program: Python and NumPy alone, for machines without the library.

It does what ``executor.c`` does, by the same tables, in the simplest way. So it also tells what the
native one should do. It has no threads of its own: those of Python that ask for work open batches
and copy.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import address_of
from xloader.core.axis import Ints
from xloader.engine.assembly import EngineParts
from xloader.engine.block_layout import BlockSlot
from xloader.engine.buffers import Arrays, Buffer, allocate
from xloader.engine.field_places import Stack
from xloader.engine.native_executor import (
    DECODE_FETCHED,
    EVERY_CHUNK,
    FINISH_BATCH,
    IS_OVER,
    LOAD_CHUNK,
    MAKE_SEGMENT,
    MOST_WAIT_SECONDS,
    BlockMemory,
    Figures,
    Limits,
    LoadPlace,
    NativeExecutor,
    WorkItem,
)
from xloader.engine.program import COPY_COLUMNS, Segment
from xloader.engine.tables import Tables
from xloader.engine.tally import Gauge

_MOST_COPIES_AHEAD: Final = 1 << 16
"""Copies of batches that are not open, beyond which the program is not made further."""


@dataclass(eq=False)
class _Load:
    """A block that is loaded, or will be.

    `copies_left`: copies that are not made; with one more until it is loaded, and one more until no
    later segment can need it.
    """

    group: int
    block: int
    nbytes: int
    batch: int
    row: int
    read_nbytes: int
    buffer: Buffer | None = None
    slots: dict[str, BlockSlot] = field(default_factory=dict)
    chunks_left: int = 0
    copies_left: int = 2
    is_loaded: bool = False
    has_failed: bool = False
    waiting: list[tuple[Any, list[int]]] = field(default_factory=list)


@dataclass(eq=False)
class _Batch:
    """A batch, with the rows of `Segment.copies` that are made into it, and how many are left."""

    number: int
    copies: list[list[int]]
    left: int
    is_finished: bool
    slot: int = -1
    is_final: bool = False
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether it has memory."""
        return self.slot >= 0


class PlainBlocks(BlockMemory):
    """Memory of decoded blocks, of which at most ``capacity`` bytes are in use at a time.

    `take` does not check that: call `has_room` first. Its user holds a lock.
    """

    def __init__(self, capacity: int, tables: Tables) -> None:
        super().__init__(tables)
        self._capacity = capacity
        self.used_nbytes = 0
        self.buffers: dict[int, Buffer] = {}
        # Buffers that nothing needs, by their size.
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)

    def has_room(self, nbytes: int) -> bool:
        """Whether so many more bytes may be taken."""
        return self.used_nbytes + nbytes <= self._capacity

    def take(self, nbytes: int) -> Buffer:
        """A buffer of exactly so many bytes, a free one of that size if there is one."""
        self.used_nbytes += nbytes
        if self._free[nbytes]:
            buffer = self._free[nbytes].pop()
        else:
            free_nbytes = sum(size * len(buffers) for size, buffers in self._free.items())
            if self.used_nbytes + free_nbytes > self._capacity:
                self._free.clear()
            buffer = allocate(nbytes)
        self.buffers[address_of(buffer)] = buffer
        return buffer

    def view(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """The buffer of a block."""
        return self.buffers[address][:nbytes]

    def give_back(self, buffer: Buffer) -> None:
        """Take back the buffer of a block that nothing needs any more."""
        del self.buffers[address_of(buffer)]
        self.used_nbytes -= buffer.nbytes
        self._free[buffer.nbytes].append(buffer)


class PlainExecutor:
    """Carries out one program, as `NativeExecutor` does."""

    def __init__(
        self,
        blocks: PlainBlocks,
        limits: Limits,
        parts: EngineParts,
        slots: dict[int, list[NDArray[Any]]],
    ) -> None:
        self._blocks = blocks
        self._limits = limits
        self._parts = parts
        self._slots = slots
        self._stacks: list[list[Stack]] = [
            [stack for stack, _ in own]
            for group in range(len(parts.footprint.groups))
            for own in parts.places.stacks(group)
        ]
        self._changed = threading.Condition()
        self._loads: dict[int, _Load] = {}
        self._to_load: deque[int] = deque()
        self._next_load = self._num_first_loads = 0
        self._fetched: set[int] = set()
        self._to_decode: deque[int] = deque()
        self._batches: dict[int, _Batch] = {}
        self._to_open: deque[_Batch] = deque()
        self._to_finish: deque[int] = deque()
        self._free_slots: deque[int] = deque()
        self._num_taken = self._num_slots_used = 0
        self._is_complete = self._is_segment_under_way = self._is_closed = False
        self._reads: Counter[int] = Counter()
        self._nbytes: Counter[int] = Counter()
        self._num_copies_ahead = 0
        self._num_loading = 0
        self._working, self._is_awaited, self._since = Gauge(), False, time.perf_counter()
        self._copy_ns = self._peak_nbytes = self._flight_nbytes = 0
        self.num_reads = 0

    def start(self) -> int:
        """No threads are started; return how many will ask for work."""
        return self._limits.most_loading_hands

    def add(self, segment: Segment, *, is_last: bool) -> None:
        """Add the next segment of the program."""
        with self._changed:
            first = segment.batches[0].index if segment.batches else 0
            if not first:
                # Up to the first batch, no more are begun.
                num_busy = 2 * self._limits.most_loading_hands
                self._num_first_loads = max(len(segment.loads), num_busy)
            begin = 0
            rows = segment.copies.tolist()
            batches = []
            flags = zip(segment.copy_ends.tolist(), segment.is_finished.tolist(), strict=True)
            for number, (end, is_finished) in enumerate(flags, first):
                copies = rows[begin:end]
                batches.append(_Batch(number, copies, len(copies) + 1, bool(is_finished)))
                begin = end
            for number, row in enumerate(segment.loads.tolist(), segment.first_load):
                self._begin_load(number, row, first, batches)
            for batch in batches:
                for copy in batch.copies:
                    load = self._loads[copy[0]]
                    load.copies_left += 1
                    if not load.is_loaded:
                        load.waiting.append((batch, copy))
                self._batches[batch.number] = batch
            self._to_open.extend(batches)
            self._num_copies_ahead += len(rows)
            for number in segment.ends.tolist():
                self._count_down(number)
            self._is_complete, self._is_segment_under_way = is_last, False
            self._changed.notify_all()

    def give_slot(self, number: int, addresses: Sequence[int]) -> None:
        """Give memory for one more batch."""
        with self._changed:
            self._free_slots.append(number)
            self._changed.notify_all()

    def take(self, seconds: float) -> int | None:
        """Wait for the next batch, up to a time; see `NativeExecutor.take`."""
        with self._changed:
            self._mark(0)
            self._is_awaited = True
            self._changed.wait_for(lambda: self._is_closed or self._has_next(), seconds)
            self._mark(0)
            self._is_awaited = False
            if self._is_closed:
                return IS_OVER
            if not self._has_next():
                return None
            batch = self._batches.pop(self._num_taken)
            self._num_taken += 1
            self._num_slots_used -= 1
            self._changed.notify_all()
            self.num_reads = self._reads.total()
            return batch.slot

    def next_work(self, done: WorkItem | None) -> WorkItem | None:
        """Open batches, and wait for other work; None once the executor is closed."""
        waited_ns = 0
        with self._changed:
            self._num_loading -= done is not None and done.kind in (LOAD_CHUNK, DECODE_FETCHED)
            self._mark(-(done is not None))
        while True:
            with self._changed:
                while not (self._is_closed or self._can_open()):
                    item = self._next_item()
                    if item is not None:
                        self._mark(1)
                        return item._replace(waited_ns=waited_ns)
                    begin = time.perf_counter_ns()
                    self._changed.wait(MOST_WAIT_SECONDS)
                    waited_ns += time.perf_counter_ns() - begin
                if self._is_closed:
                    return None
                batch, due = self._open()
            for copy in due:
                self._copy(batch, copy)
            with self._changed:
                self._fill(batch)

    def note_fetched(self, number: int) -> None:
        """Note that chunks of a load were fetched; see `NativeExecutor.note_fetched`."""
        with self._changed:
            if number < self._next_load:
                self._to_decode.append(number)
                self._changed.notify_all()
            else:
                self._fetched.add(number)

    def give_chunks(self, token: int, chunks: Ints) -> bool:
        """Nothing is decoded here."""
        return False

    def take_empty(self) -> Ints:
        """Nothing is given here."""
        return np.zeros((0, 2), np.int64)

    def add_flight(self, nbytes: int) -> None:
        """Add to the bytes that are being read."""
        with self._changed:
            self._flight_nbytes += nbytes
            self._weigh()

    def find_load(self, number: int) -> LoadPlace:
        """Where a load is decoded to."""
        with self._changed:
            load = self._loads[number]
            slot = self._batches[load.batch].slot if load.batch >= 0 else -1
            address = 0 if load.buffer is None else address_of(load.buffer)
            return LoadPlace(load.group, load.block, load.row, address, slot)

    def chunks_done(self, number: int, num: int, *, has_failed: bool) -> None:
        """Note that some chunks of a block are loaded, or could not be."""
        with self._changed:
            load = self._loads[number]
            load.has_failed |= has_failed
            load.chunks_left -= num
            if load.chunks_left:
                return
            load.is_loaded = True
            self._nbytes[load.group] += load.read_nbytes
            # The batches that open from now on find the block loaded.
            due = [(batch, copy) for batch, copy in load.waiting if batch.is_open]
            if load.batch >= 0:
                batch = self._batches[load.batch]
                if load.has_failed:
                    batch.gaps.append((load.row, number))
                self._fill(batch)
        for batch, copy in due:
            self._copy(batch, copy)
        with self._changed:
            load.waiting = []
            self._count_down(number)

    def slot_of(self, batch: int) -> int:
        """The slot of a batch that Python finishes."""
        with self._changed:
            return self._batches[batch].slot

    def gaps(self, batch: int) -> Ints:
        """The rows of a batch that lack a block, each with the number of the load."""
        with self._changed:
            return np.array(self._batches[batch].gaps, np.int64).reshape(-1, 2)

    def batch_done(self, batch: int) -> None:
        """Note that Python has finished a batch."""
        with self._changed:
            self._batches[batch].is_final = True
            self._changed.notify_all()

    def figures(self) -> tuple[Figures, NDArray[np.int64], NDArray[np.int64]]:
        """Figures so far; see `NativeExecutor.figures`."""
        with self._changed:
            figures = Figures(
                copy_ns=self._copy_ns,
                peak_nbytes=self._peak_nbytes,
                flight_nbytes=self._flight_nbytes,
                num_threads=self._limits.most_loading_hands,
                num_working=self._working.num,
                awaited_ns=int(self._working.awaited_seconds * 1e9),
                unasked_ns=int(self._working.unasked_seconds * 1e9),
                peak_working=self._limits.most_loading_hands,
                num_ready=sum(batch.is_final for batch in self._batches.values()),
            )
            tables = self._blocks.tables.in_c
            reads = np.array([self._reads[d] for d in range(tables.num_demands)], np.int64)
            nbytes = np.array([self._nbytes[g] for g in range(tables.num_groups)], np.int64)
            return figures, reads, nbytes

    def give_up_reads(self, seconds: float) -> int:
        """Nothing is read here."""
        return 0

    def find_slow_read(self, seconds: float) -> None:
        """Nothing is read here."""

    def close(self) -> None:
        """Have all that wait go on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """There are no threads to wait for."""
        return True

    def keep_blocks(self) -> None:
        """Keep the blocks that stay in memory, and give back all others."""
        kept = self._blocks.kept
        for load in self._loads.values():
            if load.buffer is None:
                continue
            if self._blocks.tables.in_c.is_resident and load.is_loaded and not load.has_failed:
                kept[load.group, load.block] = address_of(load.buffer)
            else:
                self._blocks.give_back(load.buffer)
        self._loads.clear()

    def leave(self, held: object) -> None:
        """Nothing is freed but by Python."""

    # All of these with the lock, except `_copy`

    def _mark(self, change: int) -> None:
        """Count the time that threads were at work, and how many are from now on."""
        now = time.perf_counter()
        self._working.pass_time(now - self._since, is_awaited=self._is_awaited)
        self._working.change(change)
        self._since = now

    def _has_next(self) -> bool:
        batch = self._batches.get(self._num_taken)
        return batch is not None and batch.is_final

    def _begin_load(self, number: int, row: list[int], first: int, batches: list[_Batch]) -> None:
        group, block, nbytes, batch, at, address, read_nbytes, _ = row
        load = _Load(group, block, nbytes, -1 if batch < 0 else first + batch, at, read_nbytes)
        self._loads[number] = load
        load.chunks_left = self._parts.footprint.groups[group].num_chunks_per_block
        if address:
            load.buffer, load.is_loaded, load.copies_left = self._blocks.buffers[address], True, 1
            self._place(load)
            return
        if batch >= 0:
            batches[batch].left += 1
        self._to_load.append(number)

    def _place(self, load: _Load) -> None:
        """Find where the variables of a block lie in its memory."""
        group = self._parts.footprint.groups[load.group]
        block = group.index_of(load.block)
        assert load.buffer is not None
        load.slots = self._parts.reader.layout(group, block).slots(load.buffer)

    def _can_open(self) -> bool:
        return bool(self._to_open and self._free_slots)

    def _open(self) -> tuple[_Batch, list[list[int]]]:
        """Give the next batch memory, and find the copies whose blocks are loaded.

        The other copies are made when their blocks are.
        """
        batch = self._to_open.popleft()
        self._num_copies_ahead -= len(batch.copies)
        batch.slot = self._free_slots.popleft()
        self._num_slots_used += 1
        self._weigh()
        return batch, [copy for copy in batch.copies if self._loads[copy[0]].is_loaded]

    def _next_item(self) -> WorkItem | None:
        if self._to_finish:
            return WorkItem(FINISH_BATCH, self._to_finish.popleft(), 0)
        item = (
            self._next_load_item() if self._num_loading < self._limits.most_loading_hands else None
        )
        if item is not None:
            self._num_loading += 1
            return item
        num_threads, num_known = self._limits.most_loading_hands, self._limits.num_known
        is_short = len(self._to_open) <= num_threads or len(self._to_load) <= num_known
        is_short &= len(self._to_open) < 2 or self._num_copies_ahead < _MOST_COPIES_AHEAD
        if is_short and not (self._is_complete or self._is_segment_under_way):
            self._is_segment_under_way = True
            return WorkItem(MAKE_SEGMENT, 0, 0)
        return None

    def _next_load_item(self) -> WorkItem | None:
        if self._to_decode:
            return WorkItem(DECODE_FETCHED, self._to_decode.popleft(), EVERY_CHUNK)
        while self._to_load and self._may_load(self._to_load[0]):
            number = self._to_load.popleft()
            self._next_load = number + 1
            load = self._loads[number]
            tables = self._blocks.tables.arrays
            first, num = tables["groups"][load.group, :2].tolist()
            for demand in range(first, first + num):
                self._reads[demand] += int(tables["demands"][demand, 5])
            if not self._blocks.tables.is_fetched[load.group]:
                return WorkItem(LOAD_CHUNK, number, EVERY_CHUNK)
            if number in self._fetched:
                self._fetched.remove(number)
                return WorkItem(DECODE_FETCHED, number, EVERY_CHUNK)
        return None

    def _may_load(self, number: int) -> bool:
        """Give a load memory, if there is enough; or find that its batch is open."""
        if not self._num_taken and number >= self._num_first_loads:
            return False
        load = self._loads[number]
        if load.batch >= 0:
            return self._batches[load.batch].is_open
        if not self._blocks.has_room(load.nbytes):
            return False
        load.buffer = self._blocks.take(load.nbytes)
        self._place(load)
        self._weigh()
        return True

    def _weigh(self) -> None:
        batches = (self._num_slots_used + min(self._num_taken, 1)) * self._limits.batch_nbytes
        most = batches + self._blocks.used_nbytes + self._flight_nbytes
        self._peak_nbytes = max(self._peak_nbytes, most)

    def _count_down(self, number: int) -> None:
        load = self._loads[number]
        load.copies_left -= 1
        if load.copies_left:
            return
        del self._loads[number]
        if load.buffer is not None:
            self._blocks.give_back(load.buffer)
            load.slots, load.buffer = {}, None
        self._changed.notify_all()

    def _fill(self, batch: _Batch) -> None:
        batch.left -= 1
        if batch.left:
            return
        if batch.is_finished or batch.gaps:
            self._to_finish.append(batch.number)
        else:
            batch.is_final = True
        self._changed.notify_all()

    def _copy(self, batch: _Batch, copy: list[int]) -> None:
        """Copy a part of a block into its row, or note that the block is not there."""
        begin = time.perf_counter_ns()
        number, route, _, row = copy[: len(COPY_COLUMNS)]
        load = self._loads[number]
        if not load.has_failed:
            numbers = copy[len(COPY_COLUMNS) :]
            num_dims = len(numbers) // 3
            cuts = [numbers[i * num_dims : (i + 1) * num_dims] for i in range(3)]
            joints = self._slots[batch.slot]
            arrays = self._parts.fields.named(joints, self._parts.fields.batch_size)
            for stack in self._stacks[route]:
                copy_part(stack, load.slots, arrays, row, cuts)
        with self._changed:
            self._copy_ns += time.perf_counter_ns() - begin
            if load.has_failed:
                batch.gaps.append((row, number))
            self._fill(batch)
            self._count_down(number)


Executor = NativeExecutor | PlainExecutor
"""Carries out one program. Any thread may call it, also while others wait in it."""


def copy_part(
    stack: Stack,
    slots: dict[str, BlockSlot],
    arrays: Arrays,
    row: int,
    cuts: Sequence[Sequence[int]],
) -> None:
    """Copy what one row takes of a block, for variables that lie side by side."""
    stored = stack.stored
    taken: list[slice] = []
    placed: list[slice] = []
    for dim in stored.windowed:
        span = None if dim is None else stack.first.part.accesses[dim]
        if dim is None or span is None:
            taken.append(slice(None))
            placed.append(slice(None))
            continue
        low, size, begin = (cut[dim] for cut in cuts)
        taken.append(slice(begin, begin + (size - 1) * span[1] + 1, span[1]))
        placed.append(slice(low, low + size))
    view = stack.view(arrays)
    index: tuple[Any, ...] = (slice(None), row, ..., *placed)
    place: NDArray[Any] = view[index]
    joint, number = slots[stack.first.part.variable]
    values = joint[(slice(number, number + len(stack.targets)), *taken)]
    # A field may have dimensions that the variables lack: one value fills several elements.
    missing = (1,) * (place.ndim - values.ndim)
    values = values.reshape(len(values), *missing, *values.shape[1:])
    place[...] = values if stored.packing is None else stored.packing.unpack(values)
