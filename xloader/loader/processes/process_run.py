"""A run carried out by worker processes. To the loader it is like a run on threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from xloader.compiled.library import address_of
from xloader.core.messages import warn_caller
from xloader.engine.buffers import Lease, leased
from xloader.engine.job import Collated, Delivery, Outbox, Signal
from xloader.engine.parcels import unpack
from xloader.engine.skipped_rows import warn_of_skipped
from xloader.engine.step_needs import BatchRows
from xloader.engine.tally import Tally
from xloader.engine.thread_group import MOST_SECONDS
from xloader.errors import ClosedError, ForkError
from xloader.loader.processes.process_messages import (
    BeginRun,
    Ended,
    EndRun,
    Failed,
    Finished,
    GrantSlot,
    Warned,
)
from xloader.loader.processes.process_team import ProcessTeam


class SlotTable:
    """Which slots of a team are free. It lives as long as the team.

    Parameters
    ----------
    num_slots : int
        Number of slots.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.returned: deque[Lease] = deque()
        self._held: dict[int, int] = {}
        self._free = deque(range(num_slots))

    @property
    def num_held(self) -> int:
        """Number of slots whose batches the user still has."""
        self._take_back()
        return len(self._held)

    def take_free(self) -> list[int]:
        """All free slots, which are then in use."""
        self._take_back()
        taken = list(self._free)
        self._free.clear()
        return taken

    def hold(self, slot: int, address: int) -> None:
        """Note that the user gets the batch of a slot."""
        self._held[address] = slot

    def free(self, slot: int) -> None:
        """Note that a slot is free."""
        self._free.append(slot)

    def end_run(self) -> None:
        """Note that no process uses a slot any more."""
        self._take_back()
        held = set(self._held.values())
        self._free = deque(slot for slot in range(self.num_slots) if slot not in held)

    def close(self) -> None:
        """Let go of the memory: an iterator that the user has kept refers to the table."""
        self._free.clear()
        self._held.clear()
        self.returned.clear()

    def _take_back(self) -> None:
        while self.returned:
            slot = self._held.pop(address_of(self.returned.popleft().buffer), None)
            if slot is not None:
                self._free.append(slot)


class ProcessRun:
    """One epoch, or the remainder of one, made by the processes of a team.

    Parameters
    ----------
    team : ProcessTeam
        The processes.
    table : SlotTable
        The slots of the team.
    begin : BeginRun
        The steps to carry out.
    num_steps : int
        Number of steps.
    on_end : callable
        Called with the blocks that each process keeps in memory, once all have ended the run.
    outbox : Outbox, optional
        Sends finished batches to a device.

    Attributes
    ----------
    tally : Tally
        The counts of all processes together.
    """

    def __init__(
        self,
        team: ProcessTeam,
        table: SlotTable,
        begin: BeginRun,
        num_steps: int,
        on_end: Callable[[list[frozenset[tuple[int, int]]]], None],
        outbox: Outbox | None = None,
    ) -> None:
        self.tally = Tally()
        self._team = team
        self._table = table
        self._begin = begin
        self._num_steps = num_steps
        self._on_end = on_end
        self._outbox = outbox
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._settling = threading.RLock()
        self._ready = Signal()
        self._all_ended = threading.Event()
        self._batches: dict[int, Finished] = {}
        self._sent: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}
        self._failure: BaseException | None = None
        self._warnings: deque[Warned] = deque()
        self._tallies: dict[int, Tally] = {}
        self._ended: dict[int, Ended] = {}
        self._next = 0
        self._num_granted = 0
        self._is_closed = False
        self._has_begun = False
        self._is_settled = False
        self._has_told_of_skipped = False
        self._begun = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether the run was closed."""
        return self._is_closed

    @property
    def is_settled(self) -> bool:
        """Whether no process works for the run, so that another one may use the slots."""
        return self._is_settled or not self._has_begun

    def take(self) -> Delivery | None:
        """The next batch; None after the last one. Errors are those of a run on threads.

        Raises
        ------
        WorkersError
            If a process has died.
        """
        if os.getpid() != self._pid:
            raise ForkError(
                "an iterator was used after a fork, in a child process that lacks its workers",
                given=f"process {os.getpid()}, iterator made in process {self._pid}",
                remedy="make the loader in the child process",
            )
        begin = time.perf_counter()
        with self._lock:
            if not self._is_closed:
                self._start()
                self._grant()
        while not self._is_ready():
            self._ready.wait()
            self._warn()
        self._warn()
        with self._lock:
            self.tally.wait_seconds += time.perf_counter() - begin
            self._add_up()
            if self._is_closed:
                raise ClosedError(
                    "the iterator is closed",
                    remedy="iterate over the loader again; after loader.close(), make a new loader",
                )
            if self._next == self._num_steps:
                return None
            finished = self._batches.pop(self._next, None)
            if finished is None:
                error = self._errors.get(self._next, self._failure)
                assert error is not None
                raise error
            self.tally.num_ready = len(self._batches)
            sent = self._sent.pop(self._next, None)
            self._next += 1
            if sent is not None:
                self._grant()
            delivery = self._delivery(finished, sent)
        if delivery.first_error is not None and not self._has_told_of_skipped:
            self._has_told_of_skipped = True
            warn_of_skipped(delivery.num_skipped, delivery.first_error)
        return delivery

    def close(self) -> None:
        """End the run in all processes. It may be called more than once, from any thread."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._is_closed = True
            self._ready.notify()
        if self._has_begun:
            self._team.tell(EndRun(self._begin.run), "was ending an iteration")
            # On the thread that listens, where a garbage collection may call this, nobody would
            # hear the processes' answers: a later call waits for them.
            if not self._team.is_listening_here:
                self._settle()

    def _settle(self) -> None:
        """Wait until no process works for the run. If one is stuck, end them all."""
        with self._settling:
            if self._is_settled:
                return
            until = time.monotonic() + MOST_SECONDS
            if self._outbox is not None:
                self._outbox.close()
            has_ended = self._all_ended.wait(MOST_SECONDS) and self._team.is_usable
            if self._outbox is not None:
                self._outbox.join(until)
            self._team.listener = None
            with self._lock:
                self._batches.clear()
                self._sent.clear()
                if has_ended:
                    self._table.end_run()
                    self._on_end([self._ended[at].loaded for at in range(self._team.num)])
                self._add_up()
                self._is_settled = True
            if not has_ended:
                # The next run gets new processes.
                self._team.close(is_stuck=True)

    def _start(self) -> None:
        if self._has_begun or self._is_closed:
            return
        self._has_begun, self._begun = True, time.perf_counter()
        self._team.listener = self._hear
        if self._outbox is not None:
            self._outbox.start(self._on_room, self._fail)
        self._failure = self._failure or self._team.take_error()
        epoch = f"was making the first batch of epoch {self._begin.epoch}"
        self._team.tell(self._begin, epoch)

    def _grant(self) -> None:
        # Copies to a device free slots before anybody has asked for their batches.
        most = min(self._next + self._table.num_slots, self._num_steps)
        for slot in self._table.take_free():
            if self._num_granted == most:
                self._table.free(slot)
                continue
            self._num_granted += 1
            self._team.tell(GrantSlot(self._begin.run, slot))

    def _on_room(self) -> None:
        """Grant slots whose copies to the device are done: the consumer may be waiting already."""
        with self._lock:
            if not self._is_closed:
                self._grant()

    def _is_ready(self) -> bool:
        with self._lock:
            is_ready = (
                self._is_closed
                or self._failure is not None
                or self._next in self._batches
                or self._next in self._errors
                or self._next == self._num_steps
            )
            if not is_ready:
                self._ready.begin()
            return is_ready

    def _warn(self) -> None:
        while self._warnings:
            warned = self._warnings.popleft()
            warn_caller(warned.message, warned.category)  # type: ignore[arg-type]

    # Messages of the processes, on a thread of the team

    def _hear(self, number: int, message: Any) -> None:
        with self._lock:
            try:
                self._note(number, message)
            except BaseException as error:
                self._fail(error)
            self._ready.notify()

    def _note(self, number: int, message: Any) -> None:
        if isinstance(message, Warned):
            self._warnings.append(message)
        elif isinstance(message, BaseException):
            self._failure = message
            self._all_ended.set()
        elif message.run != self._begin.run:
            return
        elif isinstance(message, Finished):
            self._tallies[number] = message.tally
            did = f"had last finished batch {message.step} of epoch {self._begin.epoch}"
            self._team.note(number, did)
            self._batches[message.step] = message
            if self._outbox is not None and not self._is_closed:
                self._send(message, self._outbox)
        elif isinstance(message, Failed):
            where = f"worker process {number + 1} of {self._team.num}"
            self._errors.setdefault(message.step, message.error.restored(where))
        elif isinstance(message, Ended):
            self._tallies[number] = message.tally
            self._ended[number] = message
            if len(self._ended) == self._team.num:
                self._all_ended.set()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
            self._ready.notify()

    def _add_up(self) -> None:
        slots_nbytes = min(self._table.num_slots, self._num_steps) * self._team.slot_nbytes
        waited = self.tally.wait_seconds / max(time.perf_counter() - self._begun, 1e-9)
        self.tally.add_up(self._tallies.values(), min(waited, 1.0), slots_nbytes)
        if len(self._tallies) == self._team.num:
            num_threads = sum(tally.num_threads for tally in self._tallies.values())
            self.tally.num_threads = num_threads or self.tally.num_threads

    # Batches

    def _send(self, finished: Finished, outbox: Outbox) -> None:
        """Start to copy a batch to the device. Its slot is free once that is done."""
        fields, slot = self._fields_of(finished)
        if finished.rows.ids is None:
            ids, is_padding = slot.ids.copy(), slot.is_replaced.copy()
            rows = finished.rows._replace(ids=ids, is_padding=is_padding)
            self._batches[finished.step] = finished._replace(rows=rows)
        del slot
        self._sent[finished.step] = outbox.send(fields)

    def _fields_of(self, finished: Finished) -> tuple[Any, Any]:
        """The batch in its slot, which is free again once nothing refers to the batch."""
        buffer = self._team.buffers[finished.slot]
        is_kept = self._table.num_held >= min(2, self._table.num_slots - 1)
        self._table.hold(finished.slot, address_of(buffer))
        memory = leased(buffer, self._table.returned)
        if is_kept and self._outbox is None:
            # The user keeps batches. The processes must not wait for their slots.
            memory = memory.copy()
        slot = self._team.slot(memory)
        if finished.rows.parcel is None:
            return self._team.fields.named(slot.gathered, finished.rows.num_rows), slot
        return unpack(finished.rows.parcel, slot.extra), slot

    def _delivery(self, finished: Finished, sent: Any) -> Delivery:
        fields: Any = {}
        rows = finished.rows
        ids, is_padding = rows.ids, rows.is_padding
        if sent is None:
            fields, slot = self._fields_of(finished)
            if ids is None:
                ids, is_padding = slot.ids.copy(), slot.is_replaced.copy()
        assert ids is not None
        assert is_padding is not None
        num_own, times = rows.num_own, rows.occurrences
        return Delivery(
            BatchRows(
                index=finished.step,
                ids=ids[:num_own],
                num_regions=finished.num_regions,
                occurrences=times,
                last_occurrence=0 if times is None else int(times[-1]),
            ),
            {} if rows.is_collated else fields,
            ids,
            is_padding,
            rows.nans,
            int(np.count_nonzero(is_padding[:num_own])),
            sent,
            Collated(fields, rows.nbytes) if rows.is_collated else None,
            None if rows.first_error is None else rows.first_error.restored(),
        )
