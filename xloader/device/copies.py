"""Copies of finished batches to the device, begun as soon as each is finished.

A batch is copied as one piece into *staging* memory of the device. When the training loop asks for
it, its stream unpacks the fields from there into fresh tensors. So what the user gets is never
overwritten, and staging memory serves for one batch after the other.

Three waits keep the memory apart. None of them holds up the training loop::

    a slot is gathered into     after its copy is done       (a thread of this file waits)
    staging is copied into      after it was unpacked        (the stream of the copies waits)
    fields are unpacked         after the copy is done       (the stream of the consumer waits)
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

import torch

from xloader.device.hardware import Hardware, Mark
from xloader.device.pinned_slots import PinnedBlock, PinnedSlots, page_aligned
from xloader.engine.buffers import ArrayKind, Arrays
from xloader.engine.slot_layout import FieldBytes, SlotLayout, copy_fields, ranges_of
from xloader.engine.threads import Threads
from xloader.errors import ClosedError

Unpack = Callable[[FieldBytes, torch.Tensor], torch.Tensor]
"""Makes a fresh tensor of a field from its bytes on the device."""


class Staging(NamedTuple):
    """Memory of the device that batches are copied into, and the mark of its last reading."""

    memory: torch.Tensor
    read: Mark


class StagingPool:
    """Staging memory that is not in use. There is more of it only when all is in use."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._free: deque[Staging] = deque()
        weakref.finalize(self, _release_here, hardware, self._free, os.getpid()).atexit = False

    def take(self, nbytes: int) -> Staging:
        """Staging memory of at least this size. It may be overwritten after its mark only."""
        while True:
            try:
                staging = self._free.popleft()
            except IndexError:
                return Staging(self._hardware.allocate(nbytes), None)
            if staging.memory.numel() >= nbytes:
                return staging
            self._hardware.release(staging.read)

    def give_back(self, staging: Staging) -> None:
        """Keep staging memory for later."""
        self._free.append(staging)

    def clear(self) -> None:
        """Release all free staging memory."""
        _release_here(self._hardware, self._free, os.getpid())


def _release_here(hardware: Hardware, free: deque[Staging], pid: int) -> None:
    """Release staging memory, so that nothing else uses it before its last reading is done."""
    # A forked child must not touch the device.
    while free and os.getpid() == pid:
        hardware.release(free.popleft().read)


class SentBatch:
    """A batch in staging memory, or on its way there."""

    def __init__(
        self,
        hardware: Hardware,
        pool: StagingPool,
        staging: Staging,
        copied: Mark,
        places: tuple[FieldBytes, ...],
    ) -> None:
        self._hardware = hardware
        self._pool = pool
        self._staging = staging
        self.copied = copied
        self._places = places
        # Re-entrant, as a garbage collection may close the run on a thread that holds it.
        self._lock = threading.RLock()
        self._state: Literal["sent", "reading", "over"] = "sent"

    @property
    def nbytes(self) -> int:
        """Bytes of the fields, as they cross."""
        return sum(place.kind.nbytes for place in self._places)

    @property
    def is_over(self) -> bool:
        """Whether the staging memory has been given back."""
        return self._state == "over"

    @property
    def names(self) -> list[str]:
        """Names of the fields."""
        return [place.name for place in self._places]

    def receive(self, unpack: Unpack) -> list[torch.Tensor]:
        """Unpack the fields in the current stream of the calling thread, and free the staging."""
        with self._lock:
            if self._state != "sent":
                raise ClosedError(
                    "the iterator was closed while a batch was handed over",
                    remedy="iterate over the loader again; after loader.close(), make a new loader",
                )
            self._state = "reading"
        memory = self._staging.memory
        try:
            self._hardware.follow(self.copied)
            return [
                unpack(place, memory[place.offset : place.offset + place.kind.nbytes])
                for place in self._places
            ]
        finally:
            self._state = "over"
            # Marked first: the next copy must find the mark.
            self._pool.give_back(Staging(memory, self._hardware.mark()))

    def release(self) -> None:
        """Free the staging, unless the fields were unpacked. May be repeated."""
        with self._lock:
            if self._state != "sent":
                return
            self._state = "over"
        # Nobody reads it. The next copy into it must come after this one.
        self._pool.give_back(Staging(self._staging.memory, self.copied))


def send_bytes(
    hardware: Hardware, pool: StagingPool, memory: torch.Tensor, places: tuple[FieldBytes, ...]
) -> SentBatch:
    """Queue the copy of a batch into staging memory."""
    staging = pool.take(memory.numel())
    copied = staging.read
    try:
        for begin, end in ranges_of(places):
            copied = hardware.copy(memory[begin:end], staging.memory[begin:end], copied)
    except BaseException:
        pool.give_back(Staging(staging.memory, copied))
        raise
    return SentBatch(hardware, pool, staging, copied, places)


class PinnedScratch:
    """Pinned memory for a batch that was not gathered into a slot, such as a result of a map."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._block: PinnedBlock | None = None
        self._copied: Mark = None
        self._lock = threading.Lock()

    def copy(self, arrays: Arrays, pool: StagingPool) -> SentBatch:
        """Copy a batch into the memory, and from there to the device."""
        kinds = [ArrayKind(array.shape, array.dtype) for array in arrays.values()]
        nbytes = SlotLayout.of(kinds).nbytes
        # One batch at a time: with as many as there are workers, memory would exceed the budget.
        with self._lock:
            if self._copied is not None:
                self._hardware.wait(self._copied)
            block = self._block
            if block is None or block.buffer.nbytes < nbytes:
                self._block = block = PinnedBlock(self._hardware, page_aligned(nbytes))
            places = copy_fields(arrays, block.buffer)
            sent = send_bytes(self._hardware, pool, block.tensor[:nbytes], places)
            self._copied = sent.copied
            return sent

    def close(self) -> None:
        """Release the memory once its copy is done. Waits for no other thread."""
        self._block = None


class RunCopies:
    """The copies of one run."""

    def __init__(
        self,
        hardware: Hardware,
        slots: PinnedSlots | None,
        scratch: PinnedScratch,
        pool: StagingPool,
    ) -> None:
        self._hardware = hardware
        self._slots = slots
        self._scratch = scratch
        self._pool = pool
        self._under_way: SimpleQueue[tuple[Mark, list[Any]] | None] = SimpleQueue()
        self._sent: deque[SentBatch] = deque()
        # Re-entrant, as a garbage collection may close the run on a thread that holds it.
        self._lock = threading.RLock()
        self._is_closed = False
        self._num_to_free = 0
        self._fail: Callable[[BaseException], None]
        self._threads = Threads("xloader-copies")

    def start(self, wake: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Begin the run; see `Outbox.start`."""
        self._fail = fail
        if self._slots is not None:
            self._slots.on_room(wake)
            self._threads.begin(self._free_slots)

    def send(self, arrays: Arrays) -> SentBatch:
        """Queue the copy of a finished batch; see `Outbox.send`."""
        try:
            return self._send(arrays)
        except BaseException:
            # The user may keep the error, and with it this frame: the slot must come back.
            arrays.clear()
            raise

    def _send(self, arrays: Arrays) -> SentBatch:
        slot = None if self._slots is None else self._slots.find(arrays)
        scratched = None
        if slot is None:
            # Not under the lock, because this waits for earlier copies.
            scratched = self._scratch.copy(arrays, self._pool)
            arrays.clear()
        with self._lock:
            if self._is_closed:
                if scratched is not None:
                    scratched.release()
                raise ClosedError("the iterator is closed", remedy="iterate over the loader again")
            sent = scratched or self._send_slot(arrays, *slot)  # type: ignore[misc]
            # Batches are received about in the order in which they are sent.
            while self._sent and self._sent[0].is_over:
                self._sent.popleft()
            self._sent.append(sent)
            self._release_if_over(sent)
        return sent

    def _release_if_over(self, sent: SentBatch) -> None:
        """Free a batch if a garbage collection has closed the run within this call."""
        if self._is_closed:
            sent.release()

    def has(self, thread: threading.Thread) -> bool:
        """Whether the thread is the one that frees slots."""
        return thread in self._threads

    def close(self) -> None:
        """Free the staging of all batches that were not received. May be repeated."""
        with self._lock:
            self._is_closed = True
            sent = list(self._sent)
            self._sent.clear()
        for batch in sent:
            batch.release()
        self._under_way.put(None)

    def join(self, until: float) -> bool:
        """Wait until all copies are done or the time is over; see `Outbox.join`."""
        return self._threads.join(until)

    def _send_slot(
        self, arrays: Arrays, memory: torch.Tensor, places: tuple[FieldBytes, ...]
    ) -> SentBatch:
        """Queue the copy of a slot. The lock must be held: nothing is sent after the end."""
        assert self._slots is not None
        self._num_to_free += 1
        try:
            sent = send_bytes(self._hardware, self._pool, memory, places)
        except BaseException:
            self._num_to_free -= 1
            self._under_way.put(None)
            raise
        self._slots.begin_copy()
        # Slots are freed by a thread that waits for their copies, in the order of the copies.
        self._under_way.put((sent.copied, [arrays.pop(name) for name in list(arrays)]))
        return sent

    def _free_slots(self) -> None:
        while not self._is_done():
            copy = self._under_way.get()
            if copy is not None:
                self._free_slot(*copy)

    def _is_done(self) -> bool:
        """Whether the run is over, and all its slots are free."""
        with self._lock:
            return self._is_closed and not self._num_to_free

    def _free_slot(self, copied: Mark, arrays: list[Any]) -> None:
        assert self._slots is not None
        try:
            self._hardware.wait(copied)
        except BaseException as error:
            # After an error of a copy, CUDA does nothing more for this process.
            self._fail(error)
        arrays.clear()
        with self._lock:
            self._num_to_free -= 1
        self._slots.end_copy()
