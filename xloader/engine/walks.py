"""Walks: which blocks the rows to come need, found a little ahead of the loads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from xloader.engine.block_loads import BlockLoads
from xloader.engine.block_table import LoadedBlock
from xloader.engine.job import Job, RunLock, Task
from xloader.engine.open_batches import OpenBatches
from xloader.engine.open_trays import OpenTray
from xloader.engine.step_needs import TrayRows
from xloader.engine.tally import Tally

_MOST_ROWS_AHEAD: Final = 1 << 16
"""Most rows whose needs are found before their batches are open."""


class Walks:
    """The walks through the steps of a run, one at a time. The run's lock guards them.

    Parameters
    ----------
    job : Job
        The work of the run.
    tally : Tally
        Counts times.
    run_lock : RunLock
        The lock of the run.
    block_loads : BlockLoads
        Gets the blocks that rows are the first to need.
    open_batches : OpenBatches
        Gets the batches.

    Attributes
    ----------
    is_over : bool
        Whether the needs of all rows are found.
    """

    def __init__(
        self,
        job: Job,
        tally: Tally,
        run_lock: RunLock,
        block_loads: BlockLoads,
        open_batches: OpenBatches,
    ) -> None:
        self._job = job
        self._tally = tally
        self._run_lock = run_lock
        self._block_loads = block_loads
        self._open_batches = open_batches
        self._trays = job.walker.trays(job.block_table.known())
        self._is_under_way = False
        self.is_over = job.walker.num_steps == 0

    def is_due(self) -> bool:
        """Whether a worker should walk now."""
        if self.is_over or self._is_under_way:
            return False
        if self._open_batches.num_unopened < 2:
            return True
        is_short = self._block_loads.is_idle or self._block_loads.can_fetch
        return is_short and self._open_batches.num_unopened_rows < _MOST_ROWS_AHEAD

    def is_urgent(self) -> bool:
        """Whether a worker should walk before it gathers or decodes, if there are others.

        All trays are open and no block waits for memory or for being fetched. Only one worker walks
        at a time, and the others would soon wait for it.
        """
        is_short = self._block_loads.is_idle and not self._open_batches.num_unopened
        return is_short and self.is_due()

    def begin(self) -> Task:
        """A task for the calling worker that walks."""
        self._is_under_way = True
        return self._walk

    def _walk(self) -> Callable[[], None]:
        begin = time.perf_counter()
        trays = list(itertools.islice(self._trays, self._job.walker.num_at_once))
        return partial(self._on_walked, trays, time.perf_counter() - begin)

    def _on_walked(self, trays: list[TrayRows], seconds: float) -> None:
        self._tally.walk_seconds += seconds
        self._is_under_way = False
        for rows in trays:
            self._add(rows)
        self.is_over = not trays or (trays[-1].batches[-1].index + 1 == self._job.walker.num_steps)
        if self.is_over:
            self._run_lock.batch.notify()

    def _add(self, rows: TrayRows) -> None:
        """Queue a tray, and the blocks that it is the first to need."""
        tray = OpenTray(rows)
        loads: dict[Hashable, list[LoadedBlock]] = {}
        for begin in rows.begins:
            block = self._job.block_table.put(begin, self._job.is_row(rows, begin))
            # Blocks that take no memory of the pool need not wait for that of other rows.
            row = None if block.is_row else begin.row
            loads.setdefault((row, begin.group), []).append(block)
        for blocks in loads.values():
            self._block_loads.add(blocks, tray)
        self._open_batches.add(tray)
