"""The loader of one set of samples.

It combines the rank plan (what to read and deliver), the job factory (memory and readers) and one
run at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from xloader.core.footprint import Footprint
from xloader.core.nans import NanWarner
from xloader.core.options import LoaderOptions
from xloader.core.ranks import World
from xloader.engine.batches import Delivery
from xloader.errors import OptionError
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.batches.device_path import DevicePath
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.epoch_iterator import EpochRun
from xloader.loader.loader import Loader
from xloader.loader.progress import EpochProgress
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.finishing import Finishing, HandOver
from xloader.loader.ranks.job_factory import JobFactory, explain_ranks
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.ranks.rank_resolver import RankResolver
from xloader.loader.reports.explain_notes import processes_note, rank_note
from xloader.planning.epoch import Epoch, Remainder
from xloader.planning.plan import Plan
from xloader.recipe.recipe import Recipe
from xloader.transforms.packed_fields import PackedField
from xloader.transforms.rng import Chance

if TYPE_CHECKING:
    from xloader.engine.run import Run
    from xloader.loader.processes.process_team import ProcessTeam
    from xloader.loader.reports.batch_variance import BatchVariance
    from xloader.planning.explain import Explanation
    from xloader.show.canvas import Picture
    from xloader.show.cards import Card


class PlannedLoader(Loader):
    """Loader of one set of samples; see `Loader`.

    `packed_fields` are gathered as stored, and unpacked by the device. `label` begins warnings:
    which of several sets they are about. With `sample_names`, the ids of other samples, batches
    have these ids: only for threads of this process, and not for a device.
    """

    def __init__(
        self,
        recipe: Recipe,
        options: LoaderOptions,
        hand_over: HandOver,
        packed_fields: Sequence[PackedField] = (),
        device_path: DevicePath | None = None,
        sample_names: SampleNames | None = None,
    ) -> None:
        super().__init__(options, recipe)
        self.recipe = recipe
        self._hand_over = hand_over
        self._packed_fields = tuple(packed_fields)
        self.device_path = device_path
        self._sample_names = sample_names
        self.label = ""
        self._resolver = RankResolver(recipe, self.options)
        self._nan_warner = NanWarner(options.on_nan)
        self._explained: dict[tuple[Position, int], Explanation] = {}
        self._carried: Engine | None = None
        # Made before processes are, so that their batches refer to the recipe of this one.
        _ = recipe.token

    @property
    def footprint(self) -> Footprint:
        """The chunks of the source that the samples need."""
        return self._resolver.rank_plan.footprint

    @property
    def plan(self) -> Plan:
        """The plan of all epochs."""
        return self._resolver.rank_plan.plan

    def __len__(self) -> int:
        """Number of batches of an epoch on this rank."""
        return self._resolver.settle().num_steps

    @property
    def num_samples(self) -> int:
        """Number of samples of an epoch, over all ranks."""
        return self._resolver.rank_plan.num_samples

    def _measure_variance(
        self, variable: str | None, num_batches: int, epoch: int
    ) -> BatchVariance:
        from xloader.loader.variance_measurement import measure_batch_variance

        rank_plan = self._resolver.settle()
        return measure_batch_variance(rank_plan, epoch, variable, num_batches, PlannedLoader)

    def _preview(
        self, start: Position, num_rows: int, channel: str | Sequence[str] | None, name: str | None
    ) -> Picture:
        from xloader.loader.preview import draw_preview

        if name is not None:
            raise OptionError(
                "this loader has one set of samples, and no names",
                given=f"name={name!r}",
                remedy="leave it out",
            )
        return draw_preview(self._resolver.settle(), self._left(start), start, num_rows, channel)

    def _explain(self, start: Position, scope: Literal["rank", "world"]) -> Explanation:
        rank_plan = self._resolver.settle()
        if scope == "rank":
            expected = self._expected(start)
        else:
            expected = explain_ranks(rank_plan, self._left(start))
        refusal = self.device_path.refusal if self.device_path else ""
        noted = rank_plan.with_notes(expected, self._packed_fields, refusal)
        more = processes_note(self.recipe, rank_plan.options), rank_note(rank_plan.options, scope)
        return replace(noted, notes=(*noted.notes, *filter(None, more)))

    def move_to(self, position: Position) -> None:
        """Start the next iteration at a position."""
        self._cursor.resume(position)

    @property
    def _world(self) -> World:
        return self._resolver.settle().options.ranks

    def _save(self, position: Position) -> dict[str, Any]:
        return self._resolver.save(position)

    def _load(self, state: Mapping[str, Any]) -> None:
        position = self._resolver.load(state)
        self._stop()
        self._explained = {}
        self._cursor.load(position, self._resolver.rank_plan.num_steps)

    def __reduce__(self) -> tuple[object, ...]:
        # Only the arguments are pickled: threads, memory and position belong to this process.
        arguments = (self.recipe, self.options, self._hand_over, self._packed_fields)
        return PlannedLoader, (*arguments, self.device_path, self._sample_names)

    def _card(self) -> Card:
        from xloader.show.sample_cards import show_rest

        # Ranks are not settled, and nothing is planned: to show a loader must not change it.
        planned, explained = self._resolver.planned, self._explained.items()
        costs = {show_rest(start.epoch, start.step): cost for (start, _), cost in explained}
        num_steps = None if planned is None else planned.num_steps
        return self._make_card(num_steps, costs, {"samples": self.recipe})

    def _in_words(self) -> str:
        planned = self._resolver.planned
        count = "" if planned is None else f"{planned.num_steps} "
        return f"{count}batches of {self.batch_size}, epoch {self.epoch}"

    def _left(self, start: Position) -> Epoch | Remainder:
        """The epoch, or remainder of one, that an iteration from a position on yields."""
        return self._resolver.rank_plan.remainder(start.epoch, start.step)

    def _expected(self, start: Position) -> Explanation:
        """Prediction for an iteration of this rank. No labels are read."""
        rank_plan, left = self._resolver.settle(), self._left(start)
        kept = self._engine().loaded()
        key = start, len(kept)
        if key not in self._explained:
            self._explained = {key: rank_plan.explain(left, cached=[kept])}
        return self._explained[key]

    def _announce(self) -> None:
        expected = self._expected(self._cursor.start)
        rank_plan = self._resolver.rank_plan
        if self.device_path is not None and rank_plan.num_steps:
            self.device_path.check(rank_plan.batch_size, rank_plan.last_size)
        rank_plan.warn(expected, self.label)
        self._resolver.begin(expected, self._cursor.start)

    def _prepare(self) -> EpochRun:
        start = self._cursor.start
        expected, rank_plan = self._expected(start), self._resolver.rank_plan
        remainder = self._left(start)
        run = self._engine().begin(remainder)
        progress = EpochProgress(expected, run.tally, rank_plan, self.device_path)
        num_again = remainder.sublanes.num_again_of(rank_plan.sublanes()[0])
        return EpochRun(run, progress, start, rank_plan.num_steps, num_again)

    def _stop(self) -> None:
        super()._stop()
        if self._carried is not None:
            self._carried.refresh()

    def _release(self) -> None:
        if self._carried is not None:
            self._carried.clear()
        if self.device_path is not None:
            self.device_path.close()

    def _engine(self) -> Engine:
        """The engine of the present rank plan, made anew when the plan has changed."""
        rank_plan, engine = self._resolver.rank_plan, self._carried
        if engine is None or engine.rank_plan is not rank_plan:
            if engine is not None:
                engine.clear()
            options = rank_plan.options.for_process()
            finishing = Finishing(
                self.recipe, options, self._hand_over, self._packed_fields, self._sample_names
            )
            engine = Engine(rank_plan, finishing, self.device_path)
            self._carried = engine
        return engine

    def _deliver(self, delivery: Delivery, epoch: int) -> Any:
        try:
            self._nan_warner.warn(delivery.nans)
            if delivery.collated is not None:
                return delivery.collated.value
            batch = self._batch(delivery, epoch)
        finally:
            # A warning may be an error. The device's memory must come back all the same.
            delivery.release()
        return self._collate(batch)

    def _batch(self, delivery: Delivery, epoch: int) -> Batch:
        seed = self._resolver.rank_plan.options.seed
        chance = Chance(seed, epoch, delivery.occurrences)
        names = self._sample_names
        recipe = self.recipe if names is None else names.recipe
        ids = delivery.ids if names is None else names.of(delivery.ids)
        origin = BatchOrigin.of(recipe, chance)
        if self.device_path is not None:
            return self.device_path.deliver(delivery, chance, origin)
        arrays = [self._hand_over(array) for array in delivery.arrays.values()]
        return Batch(arrays, delivery.arrays, ids, delivery.is_padding, origin)


class Engine(JobFactory):
    """Makes the runs of a loader, one at a time, which use the same memory.

    Worker processes are started at the first run.
    """

    def __init__(
        self, rank_plan: RankPlan, finishing: Finishing, device_path: DevicePath | None
    ) -> None:
        options = finishing.options
        num_ready, num_cores = options.prefetch, options.num_threads
        super().__init__(rank_plan, finishing, num_ready, num_cores, device_path=device_path)
        self._team: ProcessTeam | None = None

    @property
    def pids(self) -> list[int]:
        """Ids of the worker processes; none before the first run."""
        return [] if self._team is None else self._team.pids

    def loaded(self) -> set[tuple[int, int]]:
        """Set of the blocks in memory from earlier epochs, as (group, block)."""
        self.refresh()
        return super().loaded()

    def begin(self, remainder: Epoch | Remainder) -> Run:
        """Make the run of an epoch, or of what is left of it."""
        self.refresh()
        if self._team is None and self.rank_plan.options.processes:
            self._team = self._start_team()
            # Also if the loader is dropped, or at exit.
            self._end_team = weakref.finalize(self, self._team.close)
            self.use(self._team.make_slots, self._team.finisher)
        return self.run(remainder, self.rank_plan.sublanes())

    def refresh(self) -> None:
        """Start with new memory and processes where those there are cannot be used any more."""
        if self._team is not None and (self.is_spoilt or not self._team.is_usable):
            self.clear()
        if self.is_foreign:
            self.renew()

    def clear(self) -> None:
        """Release all memory, and end the processes."""
        super().clear()
        if self._team is not None:
            self._end_team()
            if self._device_path is not None:
                self._device_path.unpin_slots()
            self._team = None
            self.use(None, None)

    def _start_team(self) -> ProcessTeam:
        """Start the processes, and let the device read their memory by itself."""
        from xloader.loader.processes.process_team import ProcessTeam

        rank_plan, path = self.rank_plan, self._device_path
        # The batch that the user holds is on the device, if there is one.
        num_held = 0 if path is not None and path.copies_batches else 1
        num_slots = min(rank_plan.options.prefetch + 1 + num_held, max(rank_plan.num_steps, 1))
        num_rows, room_nbytes = rank_plan.slot_rows, rank_plan.room_nbytes
        team = ProcessTeam(self._finishing, num_rows, room_nbytes, num_slots)
        try:
            if path is not None:
                path.pin_slots(team.memory.buffer, num_slots)
        except BaseException:
            team.close(is_stuck=True)
            raise
        return team
