"""Loading blocks. Bytes are fetched ahead, memory is given in order, and chunks are decoded.

::

    added      in the order of the first row that needs each
    announced  where a cluster computes chunks: many more than are fetched, as they take no memory
    fetched    ahead of memory, if the store has to be waited for: many requests at a time,
               limited in number and by the bytes in flight
    given      memory, strictly in order: from the pool, or in a row of a batch
    decoded    by the workers

The plan reserves enough memory for every moment of the epoch. So the first block in the queue
always gets memory once the rows before it are gathered. Blocks are fetched ahead in the same order,
so that a block with memory never waits for others to make room in flight.

A thread that waits too long for a store is given up, and another thread repeats the read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from xloader.engine.announcements import Announcements
from xloader.engine.block_memory import BlockMemory
from xloader.engine.block_reader import MOST_SMALL_NBYTES, Bundle
from xloader.engine.block_table import LoadedBlock
from xloader.engine.deadlines import Deadlines
from xloader.engine.job import Job, RunLock, Task
from xloader.engine.load_claims import NOTHING, Claim, Done, Load
from xloader.engine.open_trays import OpenTray
from xloader.engine.read_room import ReadRoom
from xloader.engine.tally import Tally
from xloader.engine.thread_group import RequestThreads
from xloader.errors import CorruptChunkError
from xloader.sources.retries import Abandoned, Attempts

MOST_REQUESTS = 64
"""Most bundles that are fetched at the same time."""

_CLAIM_NBYTES = 1 << 20
"""Small chunks are claimed several at a time, up to this many bytes, to take the lock less
often."""


class BlockLoads:
    """The blocks of a run that are being read. The run's lock guards it.

    Parameters
    ----------
    job : Job
        The work of the run.
    tally : Tally
        Counts the reads.
    read_room : ReadRoom
        The memory for reads. What they took is noted there.
    run_lock : RunLock
        The lock of the run.
    deadlines : Deadlines
        Gives up threads that wait too long.
    on_loaded : callable
        Called once for each loaded block, with its tray. The lock is held.
    on_stuck : callable
        Called with a worker thread that was given up. The lock is held.
    """

    def __init__(
        self,
        job: Job,
        tally: Tally,
        read_room: ReadRoom,
        run_lock: RunLock,
        deadlines: Deadlines,
        *,
        on_loaded: Callable[[LoadedBlock, OpenTray], None],
        on_stuck: Callable[[threading.Thread], None],
    ) -> None:
        self._job = job
        self._tally = tally
        self._read_room = read_room
        self._run_lock = run_lock
        self._deadlines = deadlines
        self._on_loaded = on_loaded
        self._on_stuck = on_stuck
        self._without_memory: deque[Load] = deque()
        self._to_fetch: deque[tuple[Load, Bundle]] = deque()
        self._to_decode: deque[tuple[Load, Bundle]] = deque()
        self._announcements = Announcements(
            job.parts.reader,
            deadlines,
            run_lock.lock,
            on_failed=run_lock.fail,
            on_done=self._fetch_more,
            on_stuck=self.give_up,
        )
        self._num_fetching = 0
        self._in_flight_nbytes = 0
        self._is_closed = False
        self._fetchers = RequestThreads("xloader-fetch") if job.parts.reader.is_waiting else None
        self._memory = BlockMemory(job.pool, tally, read_room)

    @property
    def is_idle(self) -> bool:
        """Whether no block waits for memory or for being fetched."""
        return not self._without_memory and not self._to_fetch

    @property
    def can_fetch(self) -> bool:
        """Whether more blocks could be fetched ahead now, if there were any."""
        if self._fetchers is None or self._is_closed:
            return False
        has_room = not self._to_fetch and self._has_room(0)
        return has_room or self._announcements.lacks(len(self._to_fetch))

    def add(self, blocks: list[LoadedBlock], tray: OpenTray) -> None:
        """Queue blocks to be loaded.

        Parameters
        ----------
        blocks : list of LoadedBlock
            Blocks of one group that the same row is the first to need, or that are rows themselves.
        tray : OpenTray
            The tray of the rows.
        """
        load = Load(blocks, tray)
        self._without_memory.append(load)
        if self._fetchers is not None:
            self._list(load)
            self._to_fetch.extend((load, b) for b in load.bundles if b.is_waiting)
            self._fetch()

    def has_task(self) -> bool:
        """Give memory to the first blocks, and return whether there is something to decode."""
        self._give_memory()
        return bool(self._to_decode) and self._memory.may_read(self._to_decode[0][1])

    def next_task(self) -> Task | None:
        """A task for the calling worker that decodes chunks; None if there is nothing to decode."""
        if not self.has_task():
            return None
        load, bundle = self._to_decode.popleft()
        claimed, nbytes = [(load, bundle)], bundle.nbytes
        most = len(self._to_decode) // self._tally.num_threads
        while len(claimed) <= most and nbytes + self._to_decode[0][1].nbytes <= _CLAIM_NBYTES:
            if not self._memory.may_read(self._to_decode[0][1]):
                break
            claimed.append(self._to_decode.popleft())
            nbytes += claimed[-1][1].nbytes
        # The thread reads one bundle after the other, so the largest one counts.
        own = (self._read_room.nbytes_of(b) for _, b in claimed if not b.is_waiting)
        largest = max(own, default=0)
        self._weigh(largest)
        return partial(self._decode, Claim(claimed, largest))

    def close(self) -> None:
        """Begin no more fetches. The lock must be held."""
        if self._fetchers is not None and not self._is_closed:
            self._fetchers.close()
        # The queues stay as they are: a garbage collection may call this in the middle of a change.
        self._is_closed = True

    def has(self, thread: threading.Thread) -> bool:
        """Whether the thread is one of those that fetch ahead."""
        return self._fetchers is not None and thread in self._fetchers

    def give_up(self, thread: threading.Thread) -> None:
        """Do not wait any more for a stuck thread that fetches ahead."""
        if self._fetchers is not None:
            self._fetchers.give_up(thread)

    def join(self, until: float) -> bool:
        """Wait until all threads that fetch ahead have ended. The lock must not be held.

        Parameters
        ----------
        until : float
            The end of the wait, by `time.monotonic`.

        Returns
        -------
        bool
            Whether they have ended.
        """
        return self._fetchers is None or self._fetchers.join(until)

    def clear(self) -> None:
        """Empty the queues. No thread may work on them any more."""
        for waiting in (self._without_memory, self._to_fetch, self._to_decode):
            waiting.clear()
        self._announcements.clear()

    def _list(self, load: Load, num_shares: int = 1) -> None:
        """List the bundles of a load, for several threads to share."""
        begins = [block.begin for block in load.blocks]
        group = self._job.parts.footprint.groups[begins[0].group]
        # The next load of rows waits until another tray is open, so this one is for all threads.
        if load.blocks[0].is_row:
            num_shares = self._tally.num_threads
        load.bundles = self._job.parts.reader.bundles(
            group, [begin.block for begin in begins], num_shares
        )
        for block in load.blocks:
            block.num_reads_left = group.num_chunks_per_block

    def _give_memory(self) -> None:
        """Give memory to the first blocks in the queue, as far as there is enough."""
        pool, num_threads = self._job.pool, self._tally.num_threads
        while self._without_memory and len(self._to_decode) < num_threads:
            load, used_nbytes = self._without_memory[0], pool.used_nbytes
            if not load.take_memory(self._job, self._memory):
                return
            self._weigh(0)
            self._without_memory.popleft()
            if not load.bundles:
                nbytes = pool.used_nbytes - used_nbytes
                num_idle = num_threads - self._tally.workers.num
                # One thread would read this alone, while others wait for memory: they share it.
                is_shared = nbytes <= MOST_SMALL_NBYTES and not pool.has_room(nbytes)
                self._list(load, max(num_idle, 1) if is_shared else 1)
            self._to_decode.extend((load, b) for b in load.bundles if b.is_ready)

    def _weigh(self, flight_nbytes: int) -> None:
        """Add to the bytes in flight, and update the peak of memory in use."""
        self._tally.flight_nbytes += flight_nbytes
        self._tally.weigh(self._job.pool)

    # Fetching ahead

    def _may_fetch(self, bundle: Bundle) -> bool:
        return self._has_room(bundle.room_nbytes) and self._announcements.may_fetch(bundle)

    def _has_room(self, nbytes: int) -> bool:
        if self._num_fetching >= MOST_REQUESTS or self._is_closed:
            return False
        # A bundle larger than the limit is fetched when nothing else is in flight.
        is_within = self._in_flight_nbytes + nbytes <= self._job.parts.in_flight_nbytes
        return is_within or not self._in_flight_nbytes

    def _fetch(self) -> None:
        while self._to_fetch and self._may_fetch(self._to_fetch[0][1]):
            load, bundle = self._to_fetch.popleft()
            self._announcements.begin_fetch(bundle)
            self._in_flight_nbytes += bundle.room_nbytes
            self._num_fetching += 1
            self._weigh(bundle.room_nbytes)
            self._tally.mark(fetches=1)
            self._submit(partial(self._fetch_one, load, bundle))
        if self._is_closed:
            return
        if bundles := self._announcements.choose(bundle for _, bundle in self._to_fetch):
            self._submit(partial(self._announcements.announce, bundles))

    def _submit(self, task: Callable[[], None]) -> None:
        """Have a thread do a task that may wait."""
        assert self._fetchers is not None
        self._fetchers.submit(task, self._num_fetching + self._announcements.is_under_way)

    def _fetch_more(self) -> None:
        """Fetch what there is room for, and have more found out if there is more room."""
        self._fetch()
        if self.can_fetch:
            # There may be room to fetch more, once it is known what comes next.
            self._run_lock.work.notify()

    def _fetch_one(self, load: Load, bundle: Bundle) -> None:
        begin = time.perf_counter()
        fetched, error = None, None
        attempts = self._deadlines.begin(
            bundle.reads, bundle.num_hung, partial(self._on_left_fetch, load, bundle)
        )
        try:
            with attempts:
                fetched = self._job.parts.reader.fetch(bundle)
        except Abandoned:
            raise
        except BaseException as problem:
            error = problem
        self._deadlines.end(attempts)
        with self._run_lock.lock:
            bundle.fetched, bundle.error = fetched, error
            bundle.fetch_seconds += time.perf_counter() - begin
            self._go_on(load, bundle, attempts)

    def _on_left_fetch(self, load: Load, bundle: Bundle, attempts: Attempts) -> None:
        """Repeat a fetch whose thread was given up. Called by the thread of `Deadlines`."""
        with self._run_lock.lock:
            assert self._fetchers is not None
            self._fetchers.give_up(attempts.thread)
            self._note_hung(bundle, attempts)
            self._go_on(load, bundle, attempts)

    def _go_on(self, load: Load, bundle: Bundle, attempts: Attempts) -> None:
        """Continue after a fetch that succeeded, failed or was given up. The lock must be held."""
        try:
            self._on_fetched(load, bundle, attempts)
        except BaseException as problem:
            self._run_lock.fail(problem)

    def _on_fetched(self, load: Load, bundle: Bundle, attempts: Attempts) -> None:
        self._num_fetching -= 1
        bundle.announced = None
        self._tally.mark(fetches=-1)
        self._count_requests(bundle, attempts)
        held = bundle.held_nbytes
        self._in_flight_nbytes += held - bundle.room_nbytes
        self._weigh(min(held, bundle.room_nbytes) - bundle.room_nbytes)
        if not bundle.is_ready:
            self._to_fetch.appendleft((load, bundle))
        elif load.has_memory:
            self._to_decode.append((load, bundle))
            self._run_lock.work.notify()
        self._fetch_more()

    def _note_hung(self, bundle: Bundle, attempts: Attempts) -> None:
        """Count an attempt that hung. After the last allowed one, set the bundle's error."""
        bundle.num_hung = attempts.num_failed
        if bundle.num_hung > self._deadlines.retry_policy.max_retries:
            bundle.error = attempts.timeout_error(bundle.num_hung)
        else:
            self._tally.num_retries += 1

    # Decoding

    def _decode(self, claim: Claim) -> Callable[[], None]:
        for load, bundle in claim.claimed:
            claim.done.append(self._decode_one(load, bundle, partial(self._on_left_decode, claim)))
        return partial(self._on_decoded, claim)

    def _on_decoded(self, claim: Claim) -> None:
        self._weigh(-claim.flight_nbytes)
        for (load, bundle), done in zip(claim.claimed, claim.done, strict=False):
            self._let_go(bundle, done.held_nbytes)
            self._count_requests(bundle, done.attempts)
            if self._is_fetched_again(bundle):
                self._to_decode.appendleft((load, bundle))
            elif self._job.skips(bundle.error) and len(bundle.reads) > 1:
                self._read_singly(load, bundle)
            else:
                done.add_to(self._tally, bundle)
                if bundle.error is None:
                    self._read_room.learn(bundle, done.outcome)
                self._finish(load, bundle)

    def _on_left_decode(self, claim: Claim, attempts: Attempts) -> None:
        """Have other workers do the work of a given-up one. Called by the thread of `Deadlines`."""
        with self._run_lock.lock:
            try:
                self._take_over(claim, attempts)
            except BaseException as problem:
                self._run_lock.fail(problem)

    def _take_over(self, claim: Claim, attempts: Attempts) -> None:
        number = len(claim.done)
        _, bundle = claim.claimed[number]
        # Its bytes may be half decoded, so they are fetched again.
        held = bundle.held_nbytes
        bundle.fetched = None
        self._note_hung(bundle, attempts)
        if bundle.error is None:
            self._count_requests(bundle, attempts)
            self._let_go(bundle, held)
        else:
            claim.done.append(Done(NOTHING, attempts, held))
            number += 1
        self._to_decode.extendleft(reversed(claim.claimed[number:]))
        self._on_decoded(claim)
        self._on_stuck(attempts.thread)
        self._run_lock.work.notify()

    def _let_go(self, bundle: Bundle, held_nbytes: int) -> None:
        self._in_flight_nbytes -= held_nbytes
        self._weigh(-min(held_nbytes, bundle.room_nbytes))

    def _decode_one(self, load: Load, bundle: Bundle, on_left: Callable[[Attempts], None]) -> Done:
        begin, outcome = time.perf_counter(), NOTHING
        # A bundle that is fetched here has no bytes counted: it must not wait for room that others
        # hold.
        held = bundle.held_nbytes
        attempts = self._deadlines.begin(bundle.reads, bundle.num_hung, on_left)
        try:
            if bundle.error is None:
                with attempts:
                    fetched = bundle.fetched or self._job.parts.reader.fetch(bundle)
                    outcome = fetched.decode(bundle.outs(load.blocks))
        except Exception as problem:
            bundle.error = problem
        self._deadlines.end(attempts)
        bundle.fetched = None
        return Done(outcome, attempts, held, time.perf_counter() - begin)

    def _is_fetched_again(self, bundle: Bundle) -> bool:
        """Whether to fetch a bundle again, because its bytes did not decode. Mark it if so.

        The bytes may have been cut short on a network. A bundle is fetched again at most once.
        """
        is_worth = bundle.is_waiting and isinstance(bundle.error, CorruptChunkError)
        if not is_worth or bundle.is_refetched or not self._deadlines.retry_policy.max_retries:
            return False
        bundle.error, bundle.is_refetched = None, True
        self._tally.num_retries += 1
        return True

    def _read_singly(self, load: Load, bundle: Bundle) -> None:
        """Read a failed bundle's chunks one by one, so that only unreadable ones are skipped."""
        parts = bundle.singles()
        load.bundles.extend(parts)
        self._tally.num_requests += bundle.num_requests
        self._to_decode.extendleft((load, part) for part in reversed(parts))

    def _count_requests(self, bundle: Bundle, attempts: Attempts) -> None:
        bundle.num_requests += attempts.num_requests
        self._tally.num_retries += attempts.num_retries

    def _finish(self, load: Load, bundle: Bundle) -> None:
        if self._fetchers is not None:
            self._fetch()
        if self._job.skips(bundle.error):
            self._tally.skipped.update({(r.variable, r.chunk): None for r in bundle.reads})
        for number, *_ in bundle.places:
            block = load.blocks[number]
            block.error = block.error or bundle.error
            block.num_reads_left -= 1
            if block.is_loaded:
                self._tally.add_nbytes(block.begin.group, block.begin.read_nbytes)
                self._on_loaded(block, load.tray)
