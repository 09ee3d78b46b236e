"""Loads that Python does: chunks that native threads cannot read or decode."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.engine.assembly import EngineParts
from xloader.engine.block_layout import BlockSlot
from xloader.engine.block_reader import Bundle
from xloader.engine.deadlines import Deadlines
from xloader.engine.executor import EVERY_CHUNK, LoadPlace
from xloader.sources.base import Outcome
from xloader.sources.retries import Attempts


@dataclass(frozen=True, eq=False)
class LoadTask:
    """Blocks of one group that a thread loads, or one chunk of one of them.

    `places`: where each of them is decoded to, and `slots` that of its variables. `bundles`: what
    is not read yet. `errors`: the first error of each block that has one, by its number here.
    """

    numbers: range
    places: Sequence[LoadPlace]
    slots: Sequence[Mapping[str, BlockSlot]]
    num_chunks: int
    bundles: list[Bundle]
    errors: dict[int, BaseException] = field(default_factory=dict)


class PythonLoads:
    """Reads chunks of one run, and counts what that took. Several threads may call it."""

    def __init__(
        self,
        parts: EngineParts,
        deadlines: Deadlines,
        add_flight: Callable[[int], None],
        *,
        is_skipping: bool,
    ) -> None:
        self._parts = parts
        self._deadlines = deadlines
        self._add_flight = add_flight
        self._is_skipping = is_skipping
        self._lock = threading.Lock()
        self.num_requests = self.num_retries = self.num_missing = 0
        self.fetch_seconds = self.decode_seconds = 0.0
        self.skipped: dict[tuple[str, tuple[int, ...]], None] = {}

    def begin(
        self,
        numbers: range,
        part: int,
        places: Sequence[LoadPlace],
        joints: Sequence[Sequence[NDArray[Any]] | None],
    ) -> LoadTask:
        """List what is to be read for some blocks, given the arrays of rows that are blocks."""
        group = self._parts.footprint.groups[places[0].group]
        blocks, reader = [group.index_of(place.block) for place in places], self._parts.reader
        slots = [
            self._slots(place, block, arrays)
            for place, block, arrays in zip(places, blocks, joints, strict=True)
        ]
        if part == EVERY_CHUNK:
            num, bundles = group.num_chunks_per_block, reader.bundles(group, blocks)
        else:
            num, bundles = 1, [reader.chunk(group, blocks[0], part)]
        return LoadTask(numbers, places, slots, num, bundles)

    def read(self, loads: LoadTask, num_hung: int, on_left: Callable[[Attempts], None]) -> None:
        """Read what is left. If the thread is given up, another may go on with the same."""
        while loads.bundles:
            bundle = loads.bundles[0]
            error = self._read(bundle, bundle.outs_in(loads.slots), num_hung, on_left)
            num_hung = 0
            if error is not None and self._is_skipping and len(bundle.reads) > 1:
                # One by one, so that only unreadable chunks are skipped.
                loads.bundles[:1] = bundle.singles()
                continue
            loads.bundles.pop(0)
            if error is None:
                continue
            if self._is_skipping:
                with self._lock:
                    self.skipped.update({(r.variable, r.chunk): None for r in bundle.reads})
            for number, _ in bundle.places:
                loads.errors.setdefault(number, error)

    def _slots(
        self, place: LoadPlace, block: tuple[int, ...], joints: Sequence[NDArray[Any]] | None
    ) -> Mapping[str, BlockSlot]:
        """Where each variable of a block is decoded to."""
        parts = self._parts
        if joints is not None:
            arrays = parts.fields.named(joints, parts.fields.batch_size)
            return parts.gatherer.rows_of(place.group, parts.gatherer.places(arrays), place.row)
        layout = parts.reader.layout(parts.footprint.groups[place.group], block)
        memory = (ctypes.c_uint8 * layout.nbytes).from_address(place.address)
        return layout.slots(np.ctypeslib.as_array(memory))

    def _read(
        self,
        bundle: Bundle,
        outs: list[NDArray[Any]],
        num_hung: int,
        on_left: Callable[[Attempts], None],
    ) -> BaseException | None:
        begin, outcome = time.perf_counter(), Outcome(0, 0)
        error: BaseException | None = None
        self._add_flight(bundle.room_nbytes)
        attempts = self._deadlines.begin(bundle.reads, num_hung, on_left)
        try:
            if num_hung > self._deadlines.retry_policy.max_retries:
                error = attempts.timeout_error(num_hung)
            else:
                with attempts:
                    outcome = self._parts.reader.fetch(bundle).decode(outs)
        except Exception as problem:
            error = problem
        finally:
            self._add_flight(-bundle.room_nbytes)
        self._deadlines.end(attempts)
        with self._lock:
            self.num_requests += attempts.num_requests or outcome.num_requests
            self.num_retries += attempts.num_retries + (num_hung > 0 and error is None)
            self.num_missing += outcome.num_missing
            self.fetch_seconds += outcome.fetch_seconds
            self.decode_seconds += time.perf_counter() - begin - outcome.fetch_seconds
        return error
