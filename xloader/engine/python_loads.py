"""Loads that Python does: chunks that native threads cannot read or decode."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.footprint import Group
from xloader.engine.assembly import EngineParts
from xloader.engine.block_layout import BlockSlot
from xloader.engine.block_reader import Bundle
from xloader.engine.deadlines import Deadlines
from xloader.engine.executor import EVERY_CHUNK, LoadPlace
from xloader.sources.base import Outcome
from xloader.sources.retries import Attempts


class PythonLoads:
    """Reads chunks of one run, and counts what that took. Several threads may call it."""

    def __init__(self, parts: EngineParts, deadlines: Deadlines, *, is_skipping: bool) -> None:
        self._parts = parts
        self._deadlines = deadlines
        self._is_skipping = is_skipping
        self._lock = threading.Lock()
        self.num_requests = self.num_retries = self.num_missing = 0
        self.fetch_seconds = self.decode_seconds = 0.0
        self.skipped: dict[tuple[str, tuple[int, ...]], None] = {}

    def load(
        self,
        part: int,
        place: LoadPlace,
        joints: Sequence[NDArray[Any]] | None,
        num_hung: int,
        on_left: Callable[[Attempts], None],
    ) -> tuple[int, BaseException | None]:
        """Read one chunk of a block, or all. Return how many there are, and the first error."""
        group = self._parts.footprint.groups[place.group]
        block = group.index_of(place.block)
        slots = self._slots(group, block, place, joints)
        reader = self._parts.reader
        if part == EVERY_CHUNK:
            bundles, num = reader.bundles(group, [block]), group.num_chunks_per_block
        else:
            bundles, num = [reader.chunk(group, block, part)], 1
        error: BaseException | None = None
        while bundles:
            bundle = bundles.pop(0)
            problem = self._read(bundle, slots, num_hung, on_left)
            if problem is not None and self._is_skipping and len(bundle.reads) > 1:
                # One by one, so that only unreadable chunks are skipped.
                bundles[:0] = bundle.singles()
                continue
            if problem is not None and self._is_skipping:
                with self._lock:
                    self.skipped.update({(r.variable, r.chunk): None for r in bundle.reads})
            error = error or problem
        return num, error

    def _slots(
        self,
        group: Group,
        block: tuple[int, ...],
        place: LoadPlace,
        joints: Sequence[NDArray[Any]] | None,
    ) -> dict[str, BlockSlot]:
        """Where each variable of a block is decoded to."""
        parts = self._parts
        if joints is not None:
            arrays = parts.fields.named(joints, parts.fields.batch_size)
            return parts.gatherer.rows_of(place.group, parts.gatherer.places(arrays), place.row)
        layout = parts.reader.layout(group, block)
        memory = (ctypes.c_uint8 * layout.nbytes).from_address(place.address)
        return layout.slots(np.ctypeslib.as_array(memory))

    def _read(
        self,
        bundle: Bundle,
        slots: dict[str, BlockSlot],
        num_hung: int,
        on_left: Callable[[Attempts], None],
    ) -> BaseException | None:
        begin, outcome = time.perf_counter(), Outcome(0, 0)
        error: BaseException | None = None
        attempts = self._deadlines.begin(bundle.reads, num_hung, on_left)
        try:
            if num_hung > self._deadlines.retry_policy.max_retries:
                error = attempts.timeout_error(num_hung)
            else:
                with attempts:
                    outcome = self._parts.reader.fetch(bundle).decode(bundle.outs_in(slots))
        except Exception as problem:
            error = problem
        self._deadlines.end(attempts)
        with self._lock:
            self.num_requests += attempts.num_requests or outcome.num_requests
            self.num_retries += attempts.num_retries + (num_hung > 0 and error is None)
            self.num_missing += outcome.num_missing
            self.fetch_seconds += outcome.fetch_seconds
            self.decode_seconds += time.perf_counter() - begin - outcome.fetch_seconds
        return error
