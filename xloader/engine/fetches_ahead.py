"""Fetching chunks ahead of memory, where a store is waited for: many requests at a time.

::

    added      in the order in which the program loads blocks
    announced  where a cluster computes chunks: many more than are fetched, as they take no memory
    fetched    as the bytes in flight allow, on threads of their own
    decoded    by other threads, once the blocks have memory
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.engine.announcements import Announcements
from xloader.engine.assembly import EngineParts
from xloader.engine.block_reader import Bundle
from xloader.engine.deadlines import Deadlines
from xloader.engine.executor import Executor
from xloader.engine.program import Segment
from xloader.engine.python_loads import BlockRun, LoadTask, PythonLoads
from xloader.engine.tally import Tally
from xloader.engine.thread_group import RequestThreads
from xloader.sources.retries import Abandoned, Attempts

MOST_REQUESTS: Final = 64
"""Most bundles that are fetched at the same time."""


class FetchesAhead:
    """The coming loads of a run, and those of their chunks that are being fetched.

    The run's lock guards it, and all public methods but `join` take it.
    """

    def __init__(
        self,
        parts: EngineParts,
        deadlines: Deadlines,
        loads: PythonLoads,
        executor: Executor,
        tally: Tally,
        lock: threading.RLock,
        is_fetched: NDArray[np.bool_],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._parts = parts
        self._is_fetched = is_fetched
        self._deadlines = deadlines
        self._loads = loads
        self._executor = executor
        self._tally = tally
        self._lock = lock
        self._on_failed = on_failed
        self._fetchers = RequestThreads("xloader-fetch")
        self._announcements = Announcements(
            parts.reader,
            deadlines,
            lock,
            on_failed=on_failed,
            on_done=self._fetch,
            on_stuck=self._fetchers.give_up,
        )
        self._unlisted: deque[tuple[range, int, list[int]]] = deque()
        self._runs: dict[int, BlockRun] = {}
        self._to_fetch: deque[tuple[BlockRun, Bundle]] = deque()
        self._num_fetching = self._in_flight_nbytes = 0
        self._is_closed = False

    def add(self, segment: Segment) -> None:
        """Add the loads of the next segment. The executor knows of them."""
        rows = segment.loads
        wanted = np.flatnonzero(self._is_fetched[rows[:, 0]] & (rows[:, 5] == 0))
        # The blocks of one group that the same row is the first to need are fetched together.
        keys = np.stack([rows[wanted, 0], rows[wanted, 7], wanted - np.arange(len(wanted))])
        edges = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
        with self._lock:
            for members in np.split(wanted, edges) if len(wanted) else ():
                first = segment.first_load + int(members[0])
                group, blocks = int(rows[members[0], 0]), rows[members, 1].tolist()
                self._unlisted.append((range(first, first + len(members)), group, blocks))
            self._fetch()

    def take(self, last: int) -> LoadTask | None:
        """Take what can be decoded of the run of a load, which has memory, as all loads before it.

        None if another thread has taken all.
        """
        with self._lock:
            run = self._runs.get(last)
            if run is None:
                return None
            for number in range(run.numbers.start, last + 1):
                if not run.slots[number - run.numbers.start]:
                    self._loads.give_memory(run, number, self._executor.find_load(number), None)
            task = LoadTask(run, run.take_ready())
            if not run.bundles:
                for number in run.numbers:
                    del self._runs[number]
            return task

    def let_go(self, bundle: Bundle, held_nbytes: int) -> None:
        """Note that the bytes that were held for a bundle are decoded, or given up."""
        with self._lock:
            bundle.fetched = None
            self._in_flight_nbytes -= held_nbytes
            self._executor.add_flight(-min(held_nbytes, bundle.room_nbytes))
            self._fetch()

    def close(self) -> None:
        """Begin no more fetches."""
        with self._lock:
            if not self._is_closed:
                self._fetchers.close()
            self._is_closed = True

    def has(self, thread: threading.Thread) -> bool:
        """Whether the thread is one of those that fetch."""
        return thread in self._fetchers

    def give_up(self, thread: threading.Thread) -> None:
        """Do not wait any more for a stuck thread."""
        self._fetchers.give_up(thread)

    def join(self, until: float) -> bool:
        """Wait for the threads, up to a time of `time.monotonic`. Return whether all have ended."""
        return self._fetchers.join(until)

    def clear(self) -> None:
        """Forget all loads. No thread may work on them any more."""
        with self._lock:
            self._unlisted.clear()
            self._to_fetch.clear()
            self._runs.clear()
            self._announcements.clear()

    # All of these with the lock, except `_fetch_one`

    def _list_next(self) -> None:
        numbers, group, blocks = self._unlisted.popleft()
        run = self._loads.begin(numbers, group, blocks)
        self._runs.update(dict.fromkeys(numbers, run))
        for bundle in run.bundles:
            if bundle.is_waiting:
                self._to_fetch.append((run, bundle))
            else:
                self._executor.note_fetched(run.last_of(bundle))

    def _may_fetch(self, bundle: Bundle) -> bool:
        if self._num_fetching >= MOST_REQUESTS or not self._announcements.may_fetch(bundle):
            return False
        # Many blocks that are asked for together cost a cluster less than one by one.
        if self._num_fetching and not bundle.is_announced and self._announcements.concerns(bundle):
            return False
        # A bundle larger than the limit is fetched when nothing else is in flight.
        nbytes = self._in_flight_nbytes + bundle.room_nbytes
        return nbytes <= self._parts.in_flight_nbytes or not self._in_flight_nbytes

    def _fetch(self) -> None:
        """List and fetch what there is room for."""
        while not self._is_closed:
            num_waiting = len(self._to_fetch)
            while self._unlisted and (not self._to_fetch or self._announcements.lacks(num_waiting)):
                self._list_next()
                num_waiting = len(self._to_fetch)
            if not self._to_fetch or not self._may_fetch(self._to_fetch[0][1]):
                break
            run, bundle = self._to_fetch.popleft()
            self._announcements.begin_fetch(bundle)
            self._in_flight_nbytes += bundle.room_nbytes
            self._num_fetching += 1
            self._executor.add_flight(bundle.room_nbytes)
            self._tally.mark(fetches=1)
            self._submit(partial(self._fetch_one, run, bundle))
        if self._is_closed:
            return
        if bundles := self._announcements.choose(bundle for _, bundle in self._to_fetch):
            self._submit(partial(self._announcements.announce, bundles))

    def _submit(self, task: Callable[[], None]) -> None:
        self._fetchers.submit(task, self._num_fetching + self._announcements.is_under_way)

    def _fetch_one(self, run: BlockRun, bundle: Bundle) -> None:
        begin = time.perf_counter()
        fetched, error = None, None
        attempts = self._deadlines.begin(
            bundle.reads, bundle.num_hung, partial(self._on_left, run, bundle)
        )
        try:
            with attempts:
                fetched = self._parts.reader.fetch(bundle)
        except Abandoned:
            raise
        except BaseException as problem:
            error = problem
        self._deadlines.end(attempts)
        with self._lock:
            bundle.fetched, bundle.error = fetched, error
            bundle.fetch_seconds += time.perf_counter() - begin
            self._go_on(run, bundle, attempts)

    def _on_left(self, run: BlockRun, bundle: Bundle, attempts: Attempts) -> None:
        """Repeat a fetch whose thread was given up. Called by the thread of `Deadlines`."""
        with self._lock:
            self._fetchers.give_up(attempts.thread)
            self._loads.note_hung(bundle, attempts)
            self._go_on(run, bundle, attempts)

    def _go_on(self, run: BlockRun, bundle: Bundle, attempts: Attempts) -> None:
        """Continue after a fetch that succeeded, failed or was given up."""
        try:
            self._num_fetching -= 1
            bundle.announced = None
            self._tally.mark(fetches=-1)
            self._loads.count_attempts(bundle, attempts)
            held = bundle.held_nbytes
            self._in_flight_nbytes += held - bundle.room_nbytes
            self._executor.add_flight(min(held, bundle.room_nbytes) - bundle.room_nbytes)
            if not bundle.is_ready:
                self._to_fetch.appendleft((run, bundle))
            else:
                self._executor.note_fetched(run.last_of(bundle))
            self._fetch()
        except BaseException as problem:
            self._on_failed(problem)
