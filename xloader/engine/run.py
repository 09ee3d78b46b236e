"""One pass over an epoch: threads that load, gather and finish, and a consumer that takes.

::

    walk      who needs what, a little ahead of the loads
    load      residences in the order of their first row, as memory allows
    gather    rows of open batches, as their blocks come in
    finish    transforms of whole batches
    deliver   in order

Every worker does whatever comes next of these, the work nearest to delivery first. Loads start
strictly in order and the plan has made room for all that is needed at any place, so the
residence at the head of the queue can always be loaded once what lies before it is gathered.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from xloader.engine.blocks import Placed
from xloader.engine.job import Arrays, Block, Delivery, Filling, Job, Tally
from xloader.engine.steps import Key, Step
from xloader.errors import ClosedError, ForkError
from xloader.grid import Ints
from xloader.sources.base import Outcome

_MOST_ROWS_AHEAD = 1 << 16
"""Rows whose needs are known before their batches are open."""

_MOST_GATHERS = 32
"""Gathers that a worker takes at a time."""


class Run:
    """Carries out one job. Safe to close at any time, from any thread, more than once."""

    def __init__(self, job: Job) -> None:
        self.tally = Tally()
        self._job = job
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._blocks: dict[Key, Block] = job.kept if job.is_resident else {}
        self._to_load: deque[Block] = deque()
        self._reads: deque[tuple[Block, list[Placed]]] = deque()
        self._gathers: deque[tuple[Filling, Block, Ints]] = deque()
        self._fillings: deque[Filling] = deque()
        self._num_opened = 0
        self._rows_ahead = 0
        self._num_gathering = 0
        self._is_wanted = False
        self._is_walking = False
        self._is_walked = job.num_steps == 0
        self._is_closed = False
        self._last_rows: Arrays | None = None
        self._last_id = -1
        self._failure: BaseException | None = None
        job.pool.restart_peak()
        self._threads = [
            threading.Thread(target=self._work, name=f"xloader-{number}", daemon=True)
            for number in range(job.num_threads)
        ]
        for thread in self._threads:
            thread.start()

    # The consumer's side

    def take(self) -> Delivery | None:
        """The next batch; ``None`` after the last one.

        Raises
        ------
        ChunkError
            If a chunk of this batch cannot be had.
        ForkError
            If this is the child of the process that made the run.
        ClosedError
            If the run is closed.
        """
        self._check_process()
        begin = time.perf_counter()
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()
            while not self._is_closed and self._failure is None and not self._head_is_ready():
                if self._is_walked and not self._fillings:
                    return None
                self._changed.wait()
            self.tally.wait_seconds += time.perf_counter() - begin
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise ClosedError("the iterator is closed", remedy="iterate over the loader again")
            filling = self._fillings.popleft()
            self._num_opened -= 1
            self._is_wanted = False
        if filling.error is not None:
            raise filling.error
        return self._deliver(filling)

    def close(self) -> None:
        """Stop the threads and give all memory back."""
        if os.getpid() != self._pid:
            # A worker may have held the lock at the fork, and nobody here would release it.
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            # A garbage collection on a worker ended the iterator: the others may wait for a lock
            # that this thread holds, and stop by themselves.
            return
        for thread in self._threads:
            thread.join()
        with self._changed:
            self._gathers.clear()
            self._reads.clear()
            self._to_load.clear()
            self._fillings.clear()
            self._drop_blocks()

    def _head_is_ready(self) -> bool:
        return bool(self._fillings) and self._fillings[0].is_final

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkError(
                "a loader's iterator was carried over a fork, where its threads do not live",
                given=f"process {os.getpid()}, made in {self._pid}",
                remedy='make the loader in the child, or start it with "spawn" or "forkserver" '
                'under if __name__ == "__main__":',
            )

    def _deliver(self, filling: Filling) -> Delivery:
        assert filling.arrays is not None
        return Delivery(filling.step.index, filling.arrays, *self._padded_ids(filling.step))

    def _padded_ids(self, step: Step) -> tuple[Ints, NDArray[np.bool_]]:
        """Ids of all rows, and which rows only repeat the last real one."""
        size = self._job.batch_size if self._job.is_padded else len(step.ids)
        ids = np.full(size, step.ids[-1] if len(step.ids) else self._last_id)
        ids[: len(step.ids)] = step.ids
        return ids, np.arange(size) >= len(step.ids)

    def _drop_blocks(self) -> None:
        """Give back what is in memory, but for whole blocks that stay."""
        for key, block in list(self._blocks.items()):
            if self._job.is_resident and block.is_loaded and block.error is None:
                block.waiting.clear()
                continue
            del self._blocks[key]
            if block.buffer is not None:
                self._job.pool.give_back(block.buffer)

    # The workers' side

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    task = self._next_task()
                    while task is None and not self._is_closed:
                        self._changed.wait()
                        task = self._next_task()
                    if self._is_closed:
                        return
                assert task is not None
                task()
                # It holds a batch, whose memory must not wait until there is another task.
                task = None
        except BaseException as error:
            # A bug in the engine itself must end the iteration, not leave it waiting.
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _next_task(self) -> Callable[[], None] | None:
        """What to do next, claimed for the caller. The lock is held."""
        if self._is_closed:
            return None
        self._open_batches()
        for filling in self._opened():
            if not filling.num_missing and not filling.is_finishing and self._may_finish(filling):
                filling.is_finishing = True
                return lambda: self._finish(filling)
        if self._gathers and self._num_gathering < self._job.num_gatherers:
            # Several at a time, so that small ones cost little beside taking the lock.
            share = -(-len(self._gathers) // self._job.num_gatherers)
            taken = [self._gathers.popleft() for _ in range(min(share, _MOST_GATHERS))]
            self._num_gathering += 1
            return lambda: self._gather(taken)
        self._start_loads()
        if self._reads:
            block, bundle = self._reads.popleft()
            return lambda: self._load(block, bundle)
        if self._may_walk():
            self._is_walking = True
            return self._walk
        return None

    def _opened(self) -> Iterator[Filling]:
        for index in range(min(self._num_opened, len(self._fillings))):
            yield self._fillings[index]

    def _may_finish(self, filling: Filling) -> bool:
        """A batch without rows of its own repeats one of the batch before it."""
        if len(filling.step.ids):
            return True
        return self._last_rows is not None

    def _may_walk(self) -> bool:
        if self._is_walked or self._is_walking:
            return False
        num_ahead = len(self._fillings) - self._num_opened
        return num_ahead < 2 or (not self._to_load and self._rows_ahead < _MOST_ROWS_AHEAD)

    def _open_batches(self) -> None:
        # One more only once the consumer asks: till then it may hold two, the last and this one.
        most = self._job.prefetch + self._is_wanted
        while self._num_opened < min(most, len(self._fillings)):
            filling = self._fillings[self._num_opened]
            self._num_opened += 1
            self._rows_ahead -= len(filling.step.ids)
            num_rows = self._job.batch_size if self._job.is_padded else len(filling.step.ids)
            # A short batch is a part of a full one's buffer, which then serves again.
            filling.arrays = {
                f.name: self._job.batches.take((self._job.batch_size, *f.shape), f.dtype)[:num_rows]
                for f in self._job.fields
            }
            filling.views = self._job.gatherer.views(filling.arrays)
            for block, rows in filling.pending:
                if block.is_loaded:
                    self._gathers.append((filling, block, rows))
                else:
                    block.waiting.append((filling, rows))
            filling.pending.clear()
            if filling.step.needs:
                self._changed.notify_all()

    def _start_loads(self) -> None:
        """Begin the residences at the head of the queue, as memory allows."""
        while self._to_load and not self._reads:
            need = self._to_load[0].need
            nbytes = self._job.reader.nbytes(need.group, need.block)
            if not self._job.pool.has_room(nbytes):
                return
            block = self._to_load.popleft()
            block.buffer = self._job.pool.take(nbytes)
            block.values = self._job.reader.views(need.group, need.block, block.buffer)
            bundles = self._job.reader.bundles(need.group, need.block, block.values)
            block.num_reads_left = sum(len(bundle) for bundle in bundles)
            self._reads.extend((block, bundle) for bundle in bundles)
            if len(bundles) > 1:
                self._changed.notify_all()

    def _walk(self) -> None:
        step = next(self._job.steps, None)
        with self._changed:
            self._is_walking = False
            if step is None:
                self._is_walked = True
                self._changed.notify_all()
                return
            filling = Filling(step, num_missing=len(step.needs))
            for need in step.needs:
                block = self._blocks.get(need.key)
                if block is None:
                    block = Block(need, need.num_samples)
                    self._blocks[need.key] = block
                    self._to_load.append(block)
                filling.pending.append((block, need.rows))
            self._fillings.append(filling)
            self._rows_ahead += len(step.ids)
            self._is_walked = step.index + 1 == self._job.num_steps
            self._changed.notify_all()

    def _load(self, block: Block, bundle: list[Placed]) -> None:
        begin = time.perf_counter()
        error: BaseException | None = None
        outcome = Outcome(num_missing=0, num_requests=len(bundle))
        try:
            outcome = self._job.reader.do(bundle)
        except Exception as problem:
            error = problem
        with self._changed:
            self.tally.num_reads += len(bundle)
            self.tally.num_missing += outcome.num_missing
            self.tally.num_requests += outcome.num_requests
            self.tally.load_seconds += time.perf_counter() - begin
            block.error = block.error or error
            block.num_reads_left -= len(bundle)
            if block.is_loaded:
                self.tally.read_nbytes += block.need.read_nbytes
                self._gathers.extend((f, block, rows) for f, rows in block.waiting)
                block.waiting.clear()
                self._changed.notify_all()

    def _gather(self, gathers: list[tuple[Filling, Block, Ints]]) -> None:
        begin = time.perf_counter()
        for filling, block, rows in gathers:
            if block.error is None:
                need = block.need
                positions = filling.step.positions[rows]
                self._job.gatherer.gather(
                    need.group, need.block, block.values, filling.views, rows, positions
                )
        with self._changed:
            self.tally.gather_seconds += time.perf_counter() - begin
            self._num_gathering -= 1
            is_news = False
            for filling, block, rows in gathers:
                filling.error = filling.error or block.error
                filling.num_missing -= 1
                block.num_left -= len(rows)
                is_news |= not filling.num_missing or not block.num_left
                if not block.num_left and not self._job.is_resident:
                    self._evict(block)
            if is_news:
                self._changed.notify_all()

    def _evict(self, block: Block) -> None:
        del self._blocks[block.need.key]
        assert block.buffer is not None
        self._job.pool.give_back(block.buffer)
        block.values, block.buffer = {}, None

    def _finish(self, filling: Filling) -> None:
        begin = time.perf_counter()
        step = filling.step
        try:
            if filling.error is None:
                self._pad(filling)
                assert filling.arrays is not None
                filling.arrays = self._job.finish(filling.arrays, self._padded_ids(step)[0])
        except Exception as error:
            filling.error = error
        with self._changed:
            self.tally.finish_seconds += time.perf_counter() - begin
            filling.is_final = True
            self._changed.notify_all()

    def _pad(self, filling: Filling) -> None:
        """Repeat the last real row, of this batch or the one before it."""
        assert filling.arrays is not None
        if not self._job.is_padded:
            return
        num_rows = len(filling.step.ids)
        for name, array in filling.arrays.items():
            if num_rows:
                array[num_rows:] = array[num_rows - 1]
            else:
                assert self._last_rows is not None
                array[:] = self._last_rows[name]
        if filling.step.index + 2 == self._job.num_steps:
            rows = {name: array[num_rows - 1].copy() for name, array in filling.arrays.items()}
            with self._changed:
                self._last_id = int(filling.step.ids[-1])
                self._last_rows = rows
