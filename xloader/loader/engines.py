"""The two engines of a loader, which differ in where its batches are made.

::

    ThreadEngine      on threads of this process
    ProcessEngine     in worker processes, with threads inside each
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xloader.engine.program_run import ProgramRun
from xloader.engine.run import Run
from xloader.loader.batches.device_path import DevicePath
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.ranks.job_factory import JobFactory
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.planning.epoch import Epoch
from xloader.planning.explain import Cached
from xloader.planning.remainder import Remainder
from xloader.transforms.packed_fields import PackedField

if TYPE_CHECKING:
    from xloader.loader.processes.process_run import ProcessRun
    from xloader.loader.processes.process_team import ProcessTeam


class ThreadEngine:
    """The engine on threads of this process."""

    def __init__(
        self,
        rank_plan: RankPlan,
        packed_fields: Sequence[PackedField],
        device_path: DevicePath | None,
        sample_names: SampleNames | None = None,
    ) -> None:
        options = rank_plan.options
        self._job_factory = JobFactory(
            rank_plan,
            num_ready=options.prefetch,
            num_cores=options.num_threads,
            packed_fields=packed_fields,
            device_path=device_path,
            sample_names=sample_names,
        )

    @property
    def rank_plan(self) -> RankPlan:
        """The plan that is carried out."""
        return self._job_factory.rank_plan

    def loaded(self) -> Sequence[Cached]:
        """The blocks in memory from earlier epochs."""
        return [self._job_factory.loaded()]

    def begin(self, remainder: Epoch | Remainder, first_step: int) -> Run | ProgramRun:
        """Make the run of an epoch, or of what is left of it."""
        return self._job_factory.run(remainder, self.rank_plan.sublanes())

    def refresh(self) -> None:
        """Start with new memory if this process was forked since."""
        if self._job_factory.is_foreign:
            self._job_factory.renew()

    def clear(self) -> None:
        """Release all memory."""
        self._job_factory.clear()


class ProcessEngine:
    """The engine in worker processes, which are started at the first run."""

    def __init__(
        self,
        rank_plan: RankPlan,
        packed_fields: Sequence[PackedField],
        device_path: DevicePath | None,
        hand_over: Callable[[Any], Any],
    ) -> None:
        from xloader.loader.processes.process_run import SlotTable

        self.rank_plan = rank_plan
        self._packed_fields = packed_fields
        self._device_path = device_path
        self._hand_over = hand_over
        self._team: ProcessTeam | None = None
        self._table = SlotTable(0)
        self._run: ProcessRun | None = None
        self._num_runs = 0
        self._loaded: list[Cached] = self._nothing_loaded()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes; none before the first run."""
        return [] if self._team is None else self._team.pids

    def loaded(self) -> Sequence[Cached]:
        """Per process, the blocks in memory from earlier epochs."""
        self.refresh()
        return self._loaded

    def begin(self, remainder: Epoch | Remainder, first_step: int) -> ProcessRun:
        """Make the run of an epoch, or of what is left of it from a step on."""
        from xloader.loader.processes.process_messages import BeginRun
        from xloader.loader.processes.process_run import ProcessRun, SlotTable

        self.refresh()
        rank_plan = self.rank_plan
        if self._team is None:
            self._team = self._start_team()
            self._table = SlotTable(len(self._team.buffers))
            # Also if the loader is dropped, or at exit.
            self._end_team = weakref.finalize(self, self._team.close)
        self._num_runs += 1
        run = self._run = ProcessRun(
            self._team,
            self._table,
            BeginRun(self._num_runs, remainder.epoch, first_step),
            remainder.sublanes.num_steps_of(rank_plan.sublanes()[0]),
            self._keep,
            None if self._device_path is None else self._device_path.outbox(),
        )
        run.tally.num_threads = rank_plan.num_threads
        return run

    def refresh(self) -> None:
        """Start new processes at the next run, if one has died or this process was forked."""
        if self._run is not None and self._run.is_closed and not self._run.is_settled:
            # Ctrl-C may have come while the end of the run was waited for.
            self._run.close()
        has_lost_slots = self._device_path is not None and self._device_path.has_lost_slots
        if self._team is not None and (has_lost_slots or not self._team.is_usable):
            self.clear()

    def clear(self) -> None:
        """End the processes."""
        if self._team is not None:
            self._end_team()
            if self._device_path is not None:
                self._device_path.unpin_slots()
            self._table.close()
        self._team = self._run = None
        self._loaded = self._nothing_loaded()

    def _start_team(self) -> ProcessTeam:
        """Start the processes, and let the device read their memory by itself."""
        from xloader.loader.processes.process_team import ProcessTeam

        rank_plan, path = self.rank_plan, self._device_path
        # The batch that the user holds is on the device, if there is one.
        num_held = 0 if path is not None and path.copies_batches else 1
        num_slots = min(rank_plan.options.prefetch + 1 + num_held, max(rank_plan.num_steps, 1))
        team = ProcessTeam(rank_plan, self._hand_over, self._packed_fields, num_slots)
        try:
            if path is not None:
                path.pin_slots(team.memory, num_slots)
        except BaseException:
            team.close(is_stuck=True)
            raise
        return team

    def _keep(self, loaded: Sequence[Cached]) -> None:
        self._loaded, self._run = list(loaded), None

    def _nothing_loaded(self) -> list[Cached]:
        return [frozenset[tuple[int, int]]()] * self.rank_plan.options.processes


Engine = ThreadEngine | ProcessEngine
"""Makes the runs of a loader, one at a time, which use the same memory."""
