"""Loads that Python does: chunks that native threads cannot read or decode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.footprint import Group
from xloader.engine.assembly import EngineParts
from xloader.engine.block_layout import BlockSlot
from xloader.engine.block_reader import Bundle
from xloader.engine.native_executor import LoadPlace
from xloader.engine.threads import Deadlines
from xloader.errors import ChunkError, CorruptChunkError
from xloader.sources.base import Outcome
from xloader.sources.retries import Attempts


@dataclass(eq=False)
class BlockRun:
    """Successive loads of one group, whose chunks are read together.

    `bundles`: those that no thread has taken. `slots`: where the variables of each block lie; empty
    until it has memory.
    """

    numbers: range
    group: Group
    blocks: Sequence[tuple[int, ...]]
    bundles: list[Bundle]
    slots: list[Mapping[str, BlockSlot]] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = [{}] * len(self.blocks)

    def last_of(self, bundle: Bundle) -> int:
        """The number of the last load that a bundle belongs to."""
        return self.numbers[max(number for number, *_ in bundle.places)]

    def take_ready(self, last: int) -> list[Bundle]:
        """Take the bundles that are there, of the loads up to a number."""
        ready = [b for b in self.bundles if b.is_ready and self.last_of(b) <= last]
        self.bundles = [bundle for bundle in self.bundles if bundle not in ready]
        return ready


@dataclass(frozen=True, eq=False)
class LoadTask:
    """Bundles of a run of blocks that one thread decodes; those that it has not decoded yet."""

    run: BlockRun
    bundles: list[Bundle]


class PythonLoads:
    """Reads chunks of one run, and counts what that took. Any thread may call it."""

    def __init__(
        self,
        parts: EngineParts,
        deadlines: Deadlines,
        lock: threading.RLock,
        view: Callable[[int, int], NDArray[np.uint8]],
        add_flight: Callable[[int], None],
        let_go: Callable[[Bundle, int], None],
        *,
        is_skipping: bool,
    ) -> None:
        self._parts = parts
        self._deadlines = deadlines
        self._add_flight = add_flight
        self._let_go = let_go
        self._is_skipping = is_skipping
        self._lock = lock
        self._view = view
        self.num_requests = self.num_retries = self.num_missing = 0
        self.num_ahead = self.ahead_nbytes = 0
        self.fetch_seconds = self.decode_seconds = self.ahead_seconds = 0.0
        self.skipped: dict[tuple[str, tuple[int, ...]], None] = {}

    def begin(self, numbers: range, group: int, blocks: Sequence[int]) -> BlockRun:
        """List the chunks of some blocks, given their numbers in the program and in the group."""
        own = self._parts.footprint.groups[group]
        indices = [own.index_of(block) for block in blocks]
        bundles = self._parts.reader.bundles(own, indices)
        return BlockRun(numbers, own, indices, bundles)

    def begin_chunk(self, number: int, place: LoadPlace, part: int) -> BlockRun:
        """List one chunk of a block, given its number there."""
        group = self._parts.footprint.groups[place.group]
        block = group.index_of(place.block)
        bundles = [self._parts.reader.chunk(group, block, part)]
        return BlockRun(range(number, number + 1), group, [block], bundles)

    def give_memory(
        self, run: BlockRun, number: int, place: LoadPlace, joints: Sequence[NDArray[Any]] | None
    ) -> None:
        """Note where a block is decoded to: in memory of its own, or in a row of these arrays."""
        parts, at = self._parts, number - run.numbers.start
        if joints is not None:
            arrays = parts.fields.named(joints, parts.fields.batch_size)
            run.slots[at] = parts.places.rows_of(place.group, arrays, place.row)
            return
        layout = parts.reader.layout(run.group, run.blocks[at])
        run.slots[at] = layout.slots(self._view(place.address, layout.nbytes))

    def read(
        self,
        task: LoadTask,
        num_hung: int,
        on_left: Callable[[Attempts], None],
        on_read: Callable[[Bundle], None],
    ) -> None:
        """Read what is left of a task, and tell the bundles that are decoded or have failed.

        If the thread is given up, another one may go on.
        """
        run = task.run
        while task.bundles:
            bundle = task.bundles[0]
            begin = time.perf_counter()
            outcome = self._read(bundle, run, num_hung, on_left)
            num_hung = 0
            if self._is_read_again(bundle):
                continue
            is_skipped = self._is_skipping and isinstance(bundle.error, ChunkError)
            if is_skipped and len(bundle.reads) > 1:
                # One by one, so that only unreadable chunks are skipped.
                with self._lock:
                    self.num_requests += bundle.num_requests
                task.bundles[:1] = bundle.singles()
                continue
            task.bundles.pop(0)
            self._count(bundle, outcome, time.perf_counter() - begin)
            if is_skipped:
                with self._lock:
                    self.skipped.update({(r.variable, r.chunk): None for r in bundle.reads})
            on_read(bundle)

    def count_fetched(self, bundle: Bundle) -> None:
        """Count a bundle that was fetched ahead."""
        with self._lock:
            self.num_ahead += 1
            self.ahead_nbytes += bundle.nbytes
            self.ahead_seconds += bundle.fetch_seconds

    def note_hung(self, bundle: Bundle, attempts: Attempts) -> None:
        """Count an attempt that hung. After the last allowed one, set the bundle's error."""
        bundle.num_hung = attempts.num_failed
        if bundle.num_hung > self._deadlines.retry_policy.max_retries:
            bundle.error = attempts.timeout_error(bundle.num_hung)
            return
        with self._lock:
            self.num_retries += 1

    def count_attempts(self, bundle: Bundle, attempts: Attempts) -> None:
        """Count the requests and the retries of a read."""
        bundle.num_requests += attempts.num_requests
        with self._lock:
            self.num_retries += attempts.num_retries

    def _is_read_again(self, bundle: Bundle) -> bool:
        """Whether to fetch a bundle again, because its bytes did not decode. Mark it if so.

        They may have been cut short on a network. A bundle is fetched again at most once.
        """
        is_worth = bundle.is_waiting and isinstance(bundle.error, CorruptChunkError)
        if not is_worth or bundle.is_refetched or not self._deadlines.retry_policy.max_retries:
            return False
        bundle.error, bundle.is_refetched = None, True
        with self._lock:
            self.num_retries += 1
        return True

    def _read(
        self,
        bundle: Bundle,
        run: BlockRun,
        num_hung: int,
        on_left: Callable[[Attempts], None],
    ) -> Outcome:
        outcome, held = Outcome(0, 0), bundle.held_nbytes
        # The bytes of what was fetched ahead are counted there.
        nbytes = 0 if bundle.is_waiting else bundle.room_nbytes
        self._add_flight(nbytes)
        attempts = self._deadlines.begin(bundle.reads, num_hung, on_left)
        try:
            if bundle.error is None:
                with attempts:
                    fetched = bundle.fetched or self._parts.reader.fetch(bundle)
                    outcome = fetched.decode(bundle.outs_in(run.slots))
        except Exception as problem:
            bundle.error = problem
        finally:
            self._add_flight(-nbytes)
        self._deadlines.end(attempts)
        self.count_attempts(bundle, attempts)
        self._let_go(bundle, held)
        return outcome

    def _count(self, bundle: Bundle, outcome: Outcome, seconds: float) -> None:
        inside = 0.0 if bundle.is_waiting else outcome.fetch_seconds
        with self._lock:
            # If the source makes requests without `Attempts`, it counts them itself.
            self.num_requests += bundle.num_requests or outcome.num_requests
            self.num_missing += outcome.num_missing
            self.fetch_seconds += inside
            self.decode_seconds += seconds - inside
