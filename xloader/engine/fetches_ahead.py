"""Fetching chunks ahead of memory, where a store is waited for: many requests at a time.

::

    added    in the order in which the program loads blocks
    fetched  as the bytes in flight allow, on threads of their own
    decoded  once the blocks have memory: by native threads as far as they can, else in Python
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from xloader.compiled.library import address_of
from xloader.engine.assembly import EngineParts
from xloader.engine.block_reader import Bundle
from xloader.engine.plain_executor import Executor
from xloader.engine.program import Segment
from xloader.engine.python_loads import BlockRun, LoadTask, PythonLoads
from xloader.engine.tables import Tables
from xloader.engine.tally import Tally
from xloader.engine.threads import Deadlines, RequestThreads
from xloader.sources.base import StoredChunks
from xloader.sources.retries import Abandoned, Attempts

MOST_REQUESTS: Final = 64
"""Most bundles that are fetched at the same time."""


@dataclass(eq=False)
class _GivenBundle:
    """Chunks whose bytes were given to native threads, by their places in a bundle.

    `held_nbytes`, `flight_nbytes`: bytes that are counted until they are decoded. `num_alone`:
    chunks that are left to Python, less those that it has taken.
    """

    run: BlockRun
    bundle: Bundle
    stored: StoredChunks
    numbers: list[int]
    held_nbytes: int
    flight_nbytes: int
    num_alone: int = 0
    is_empty: bool = False


@dataclass(eq=False)
class FetchesAhead:
    """The coming loads of a run, and those of their chunks that are being fetched.

    The run's lock guards it, and all public methods but `join` take it. `most_nbytes`: most bytes
    in flight.
    """

    parts: EngineParts
    deadlines: Deadlines
    loads: PythonLoads
    executor: Executor
    tally: Tally
    lock: threading.RLock
    tables: Tables
    most_nbytes: int
    on_failed: Callable[[BaseException], None]
    _unlisted: deque[tuple[range, int, list[int]]] = field(default_factory=deque)
    _runs: dict[int, BlockRun] = field(default_factory=dict)
    _to_fetch: deque[tuple[BlockRun, Bundle]] = field(default_factory=deque)
    _given: dict[int, _GivenBundle] = field(default_factory=dict)
    _num_fetching: int = 0
    _in_flight_nbytes: int = 0
    _num_given: int = 0
    _num_first: int | None = 0
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._fetchers = RequestThreads("xloader-fetch")
        self._is_fetched = self.tables.is_fetched
        self._decoded_variables = self.tables.decoded_variables

    def add(self, segment: Segment) -> None:
        """Add the loads of the next segment. The executor knows of them."""
        rows = segment.loads
        wanted = np.flatnonzero(self._is_fetched[rows[:, 0]] & (rows[:, 5] == 0))
        # The blocks of one group that the same row is the first to need are fetched together.
        keys = np.stack([rows[wanted, 0], rows[wanted, 7], wanted - np.arange(len(wanted))])
        edges = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
        with self.lock:
            if not segment.first_load and self._num_first is not None:
                self._num_first = max(self._num_first, len(rows), 2 * self.parts.num_threads)
            for members in np.split(wanted, edges) if len(wanted) else ():
                first = segment.first_load + int(members[0])
                group, blocks = int(rows[members[0], 0]), rows[members, 1].tolist()
                self._unlisted.append((range(first, first + len(members)), group, blocks))
            self._fetch()

    def go_on(self) -> None:
        """Fetch without bounds on the number from now on: the first batch was taken."""
        with self.lock:
            self._num_first = None
            self._fetch()

    def take(self, last: int) -> LoadTask | None:
        """Take what can be decoded of the run of a load, which has memory, as all loads before it.

        None if another thread has taken all.
        """
        with self.lock:
            run = self._runs.get(last)
            if run is None:
                return None
            task = LoadTask(run, run.take_ready(last))
            for bundle in task.bundles:
                self._place(run, bundle)
            self._unlist(run)
            return task

    def take_alone(self, token: int, number: int) -> LoadTask:
        """Take a chunk that native threads could not decode, by its place among those given."""
        with self.lock:
            given = self._given[token]
            bundle, run = given.bundle.held([given.numbers[number]], given.stored), given.run
            given.held_nbytes -= bundle.held_nbytes
            given.flight_nbytes -= min(bundle.held_nbytes, bundle.room_nbytes)
            given.num_alone -= 1
            self._let_go_given(token)
            self._place(run, bundle)
            return LoadTask(run, [bundle])

    def let_go_empty(self) -> None:
        """Note that native threads have decoded bytes that they were given."""
        with self.lock:
            for token, num_alone in self.executor.take_empty().tolist():
                given = self._given[token]
                given.is_empty = True
                given.num_alone += num_alone
                self._let_go_given(token)
            self._fetch()

    def let_go(self, bundle: Bundle, held_nbytes: int) -> None:
        """Note that the bytes that were held for a bundle are decoded, or given up."""
        with self.lock:
            bundle.fetched = None
            self._in_flight_nbytes -= held_nbytes
            self.executor.add_flight(-min(held_nbytes, bundle.room_nbytes))
            self._fetch()

    def close(self) -> None:
        """Begin no more fetches."""
        with self.lock:
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
        with self.lock:
            self._unlisted.clear()
            self._to_fetch.clear()
            self._runs.clear()
            self._given.clear()

    # All of these with the lock, except `_fetch_one`

    def _place(self, run: BlockRun, bundle: Bundle) -> None:
        """Find where the blocks of a bundle are decoded to. They have memory."""
        for at, *_ in bundle.places:
            if not run.slots[at]:
                number = run.numbers[at]
                self.loads.give_memory(run, number, self.executor.find_load(number), None)

    def _unlist(self, run: BlockRun) -> None:
        """Forget a run that has no chunks left."""
        if not run.bundles:
            for number in run.numbers:
                del self._runs[number]

    def _let_go_given(self, token: int) -> None:
        """Let go of chunks that were given, once they are decoded and none is left to Python."""
        given = self._given[token]
        if given.is_empty and not given.num_alone:
            del self._given[token]
            self._in_flight_nbytes -= given.held_nbytes
            self.executor.add_flight(-given.flight_nbytes)

    def _pass_on(self, run: BlockRun, bundle: Bundle) -> None:
        """Have a fetched bundle decoded: by native threads as far as they can."""
        stored = None if bundle.fetched is None else bundle.fetched.stored
        if stored is None:
            self.executor.note_fetched(run.last_of(bundle))
            return
        chunks, left = [], []
        for at, data in enumerate(stored.data()):
            number, part, _ = bundle.places[at]
            if data is None or bundle.reads[at].variable not in self._decoded_variables:
                left.append(at)
            else:
                chunks.append((run.numbers[number], part, address_of(data), data.nbytes, at))
        # In the order of the blocks.
        rows = np.array(sorted(chunks), np.int64).reshape(-1, 5)
        token, self._num_given = self._num_given, self._num_given + 1
        held, flight = bundle.held_nbytes, min(bundle.held_nbytes, bundle.room_nbytes)
        given = _GivenBundle(run, bundle, stored, rows[:, 4].tolist(), held, flight)
        # Before C knows of the bytes, which must live as long as it may look at them.
        self._given[token] = given
        if not chunks or not self.executor.give_chunks(token, np.ascontiguousarray(rows[:, :4])):
            del self._given[token]
            self.executor.note_fetched(run.last_of(bundle))
            return
        run.bundles.remove(bundle)
        self.loads.num_requests += bundle.num_requests
        if left:
            rest = bundle.held(left, stored)
            given.held_nbytes -= rest.held_nbytes
            given.flight_nbytes -= min(rest.held_nbytes, rest.room_nbytes)
            run.bundles.append(rest)
            self.executor.note_fetched(run.last_of(rest))
        self._unlist(run)

    def _has_next(self) -> bool:
        """Whether blocks may be listed. Up to the first batch, no more are than it needs."""
        most = self._num_first
        return bool(self._unlisted) and (most is None or self._unlisted[0][0].start < most)

    def _list_next(self) -> None:
        numbers, group, blocks = self._unlisted.popleft()
        run = self.loads.begin(numbers, group, blocks)
        self._runs.update(dict.fromkeys(numbers, run))
        for bundle in run.bundles:
            if bundle.is_waiting:
                self._to_fetch.append((run, bundle))
            else:
                self.executor.note_fetched(run.last_of(bundle))

    def _may_fetch(self, bundle: Bundle) -> bool:
        if self._num_fetching >= MOST_REQUESTS:
            return False
        # A bundle larger than the limit is fetched when nothing else is in flight.
        nbytes = self._in_flight_nbytes + bundle.room_nbytes
        return nbytes <= self.most_nbytes or not self._in_flight_nbytes

    def _fetch(self) -> None:
        """List and fetch what there is room for."""
        while not self._is_closed:
            while not self._to_fetch and self._has_next():
                self._list_next()
            if not self._to_fetch or not self._may_fetch(self._to_fetch[0][1]):
                break
            run, bundle = self._to_fetch.popleft()
            self._in_flight_nbytes += bundle.room_nbytes
            self._num_fetching += 1
            self.executor.add_flight(bundle.room_nbytes)
            self.tally.mark(fetches=1)
            self._fetchers.submit(partial(self._fetch_one, run, bundle), self._num_fetching)

    def _fetch_one(self, run: BlockRun, bundle: Bundle) -> None:
        begin = time.perf_counter()
        fetched, error = None, None
        attempts = self.deadlines.begin(
            bundle.reads, bundle.num_hung, partial(self._on_left, run, bundle)
        )
        try:
            with attempts:
                fetched = self.parts.reader.fetch(bundle)
        except Abandoned:
            raise
        except BaseException as problem:
            error = problem
        self.deadlines.end(attempts)
        with self.lock:
            bundle.fetched, bundle.error = fetched, error
            bundle.fetch_seconds += time.perf_counter() - begin
            self._go_on(run, bundle, attempts)

    def _on_left(self, run: BlockRun, bundle: Bundle, attempts: Attempts) -> None:
        """Repeat a fetch whose thread was given up. Called by the thread of `Deadlines`."""
        with self.lock:
            self._fetchers.give_up(attempts.thread)
            self.loads.note_hung(bundle, attempts)
            self._go_on(run, bundle, attempts)

    def _go_on(self, run: BlockRun, bundle: Bundle, attempts: Attempts) -> None:
        """Continue after a fetch that succeeded, failed or was given up."""
        try:
            self._num_fetching -= 1
            self.tally.mark(fetches=-1)
            self.loads.count_attempts(bundle, attempts)
            held = bundle.held_nbytes
            self._in_flight_nbytes += held - bundle.room_nbytes
            self.executor.add_flight(min(held, bundle.room_nbytes) - bundle.room_nbytes)
            if not bundle.is_ready:
                self._to_fetch.appendleft((run, bundle))
            else:
                self.loads.count_fetched(bundle)
                self._pass_on(run, bundle)
            self.let_go_empty()
        except BaseException as problem:
            self.on_failed(problem)
