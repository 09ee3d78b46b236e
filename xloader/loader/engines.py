"""The engine of a loader: its threads make the batches, and worker processes may finish them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xloader.engine.run import Run
from xloader.loader.batches.device_path import DevicePath
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.ranks.finishing import Finishing
from xloader.loader.ranks.job_factory import JobFactory
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.planning.epoch import Epoch
from xloader.planning.explain import Cached
from xloader.planning.remainder import Remainder
from xloader.transforms.packed_fields import PackedField

if TYPE_CHECKING:
    from xloader.loader.processes.process_team import ProcessTeam


class Engine:
    """Makes the runs of a loader, one at a time, which use the same memory.

    Worker processes are started at the first run.
    """

    def __init__(
        self,
        rank_plan: RankPlan,
        packed_fields: Sequence[PackedField],
        device_path: DevicePath | None,
        hand_over: Callable[[Any], Any],
        sample_names: SampleNames | None = None,
    ) -> None:
        self.rank_plan = rank_plan
        options = rank_plan.options.for_process()
        self._finishing = Finishing(rank_plan.recipe, options, tuple(packed_fields), sample_names)
        self._device_path = device_path
        self._hand_over = hand_over
        self._team: ProcessTeam | None = None
        self._job_factory = JobFactory(
            rank_plan,
            self._finishing,
            num_ready=options.prefetch,
            num_cores=options.num_threads,
            device_path=device_path,
        )

    @property
    def pids(self) -> list[int]:
        """Ids of the worker processes; none before the first run."""
        return [] if self._team is None else self._team.pids

    def loaded(self) -> Sequence[Cached]:
        """The blocks in memory from earlier epochs."""
        self.refresh()
        return [self._job_factory.loaded()]

    def begin(self, remainder: Epoch | Remainder) -> Run:
        """Make the run of an epoch, or of what is left of it."""
        self.refresh()
        if self._team is None and self.rank_plan.options.processes:
            self._team = self._start_team()
            # Also if the loader is dropped, or at exit.
            self._end_team = weakref.finalize(self, self._team.close)
            self._job_factory.use(self._team.make_slots, self._team.finisher)
        return self._job_factory.run(remainder, self.rank_plan.sublanes())

    def refresh(self) -> None:
        """Start with new memory and processes where those there are cannot be used any more."""
        if self._team is not None:
            has_lost_slots = self._device_path is not None and self._device_path.has_lost_slots
            if has_lost_slots or self._job_factory.is_spoilt or not self._team.is_usable:
                self.clear()
        if self._job_factory.is_foreign:
            self._job_factory.renew()

    def clear(self) -> None:
        """Release all memory, and end the processes."""
        self._job_factory.clear()
        if self._team is not None:
            self._end_team()
            if self._device_path is not None:
                self._device_path.unpin_slots()
            self._team = None
            self._job_factory.use(None, None)

    def _start_team(self) -> ProcessTeam:
        """Start the processes, and let the device read their memory by itself."""
        from xloader.loader.processes.process_team import ProcessTeam

        rank_plan, path = self.rank_plan, self._device_path
        # The batch that the user holds is on the device, if there is one.
        num_held = 0 if path is not None and path.copies_batches else 1
        num_slots = min(rank_plan.options.prefetch + 1 + num_held, max(rank_plan.num_steps, 1))
        num_rows, room_nbytes = rank_plan.slot_rows, rank_plan.room_nbytes
        team = ProcessTeam(self._finishing, self._hand_over, num_rows, room_nbytes, num_slots)
        try:
            if path is not None:
                path.pin_slots(team.memory.buffer, num_slots)
        except BaseException:
            team.close(is_stuck=True)
            raise
        return team
