"""The plan of one rank, and the epochs that follow from it.

The loader and the other doors into PyTorch share it. Nothing is read here, apart from labels.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xloader.core.cores import MemoryLimit
from xloader.core.messages import warn_caller
from xloader.core.nbytes import MemoryShare, show_nbytes
from xloader.core.options import LoaderOptions
from xloader.engine.buffers import BatchPool, Fields
from xloader.engine.slot_layout import SlotLayout
from xloader.errors import EmptySamplesError, EpochWarning, OptionError
from xloader.planning.epoch import Epoch, Remainder
from xloader.planning.make_plan import delivered_nbytes, make_budget, make_plan, most_rows
from xloader.planning.passes import JoinedEpoch
from xloader.planning.plan import Plan
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.transforms.outputs import make_outputs
from xloader.transforms.packed_fields import PackedField, normalized_packings

if TYPE_CHECKING:
    from xloader.loader.reports.explain_notes import MemoryAdvice
    from xloader.planning.explain import Cached, Explanation


def describe_samples(recipe: Recipe) -> dict[str, str]:
    """Hash each part of what determines the samples.

    Only the labels at both ends of the windowed dimensions are read, because another store of the
    same shape may hold other years.
    """
    traits = {
        "store": recipe.source.fingerprint,
        "variables": recipe.variables,
        "selection": recipe.selection,
        "labels": list(_ends(recipe)),
        "windows": recipe.windows,
        "fields": recipe.fields,
        "transforms": [step.describe() for step in recipe.steps],
        "subset": "" if recipe.subset is None else recipe.subset.digest,
    }
    if recipe.num_taken is not None:
        traits["samples of an epoch"] = str(recipe.num_taken)
    return {
        name: hashlib.sha256(repr(trait).encode()).hexdigest()[:12]
        for name, trait in traits.items()
    }


def _ends(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """The first and the last label of each windowed dimension that has labels."""
    coordinates = recipe.source.coordinates(is_indexed=False)
    for dim in recipe.require_windows().dims:
        kept = recipe.kept_of(dim)
        if isinstance(kept, int) or not len(kept) or dim not in coordinates.coords:
            continue
        labels = coordinates[dim].variable.to_base_variable()
        if labels.dims == (dim,):
            try:
                yield dim, _text(labels[kept[0]].values), _text(labels[kept[-1]].values)
            except Exception:
                # Training needs no labels, so those that cannot be read are not compared.
                yield dim, "", ""


def _text(label: np.ndarray) -> str:
    if label.dtype.kind in "mM":
        # The unit of time that xarray decodes to depends on its version.
        label = label.astype(f"{label.dtype.kind}8[us]")
    value = label.item()
    # The text of other objects may contain their memory address.
    is_plain = label.dtype.kind != "O" or isinstance(value, str) or hasattr(value, "isoformat")
    return str(value) if is_plain else ""


class RankPlan:
    """The plan of one rank: the batches that it delivers in each epoch, and the chunks it reads."""

    def __init__(
        self,
        recipe: Recipe,
        options: LoaderOptions,
        workers: int = 1,
        plan: Plan | None = None,
        limit: MemoryLimit | None = None,
    ) -> None:
        self.recipe = recipe
        self.limit, self.options = limit, options.with_memory(limit)
        self.layouts = make_layouts(recipe)
        self.footprint = make_footprint(recipe, self.layouts)
        # Ranks of a group read slabs of the same samples. The order must be the same for all.
        self._planned_layouts, self.planned_footprint = self.layouts, self.footprint
        if recipe.planned is not recipe:
            self._planned_layouts = make_layouts(recipe.planned)
            self.planned_footprint = make_footprint(recipe.planned, self._planned_layouts)
        self._planned: Epoch | None = None
        self._left: Remainder | None = None
        self._has_warned = False
        self._check_samples()
        self.budget, self.is_capped = "", limit is None
        # What the plan of a state may take.
        self.most_nbytes = self.options.memory_nbytes
        if limit is not None:
            self._fit_memory(limit, options.memory_share, workers)
        self.plan = plan or make_plan(
            self.planned_footprint, self._planned_layouts, self.options, workers
        )
        self._check_padding()

    def _fit_memory(self, limit: MemoryLimit, share: MemoryShare, workers: int) -> None:
        """Say in words what is taken of a limit; by itself, what all data need if they fit."""
        self.budget = limit.in_words(share)
        if not share.is_by_itself:
            return
        self.most_nbytes, taken = limit.part_nbytes, self.options.memory_nbytes
        footprint, layouts = self.planned_footprint, self._planned_layouts
        budget = make_budget(footprint, layouts, self.options, workers)
        enough = workers * budget.minimum_nbytes(footprint.total_nbytes)
        self.is_capped = enough <= taken and self.options.plan.spread is None
        if self.is_capped:
            # A sixteenth is for reads under way: of small data, only two chunks would be read.
            capped = min(max(enough, 2 << 30), taken)
            self.budget = f"capped at {show_nbytes(capped)}, as all data fit; else {self.budget}"
            self.options = dataclasses.replace(self.options, memory=capped)

    def resumed(self, plan: Plan, seed: int) -> RankPlan:
        """Replace the plan and the seed by those of a saved state."""
        resumed = copy.copy(self)
        resumed.plan = plan
        # The memory of the plan is counted for this number of batches.
        prefetch = plan.budget.num_batches - 2
        resumed.options = dataclasses.replace(self.options, seed=seed, prefetch=prefetch)
        if self.limit is not None:
            nbytes = plan.budget.memory_nbytes * plan.workers
            resumed.options = dataclasses.replace(resumed.options, memory=nbytes)
            resumed.budget = f"{show_nbytes(nbytes)}, as in the state that was loaded"
        resumed._planned = None
        # It is about the plan, and is made anew.
        resumed.__dict__.pop("_memory_advice", None)
        resumed._check_padding()
        return resumed

    @property
    def num_samples(self) -> int:
        """Number of samples of an epoch, over all ranks."""
        if self.options.steps is not None:
            return self.options.steps * self.options.global_batch
        return self.recipe.planned.num_taken or self.planned_footprint.num_samples

    @property
    def num_steps(self) -> int:
        """Number of steps that every rank takes in an epoch."""
        return self.plan.num_steps(self.num_samples, drop_last=self.options.drop_last)

    @cached_property
    def batch_size(self) -> int:
        """Rows of the largest batch of this rank."""
        return most_rows(self.footprint, self.options)

    @property
    def slot_rows(self) -> int:
        """Rows for which a batch has memory: one at least."""
        return max(self.batch_size, 1)

    @property
    def num_each(self) -> int:
        """Rows of each rank, padding included: as many as the most samples that a rank has."""
        most = -(-self.num_samples // self.options.ranks.world_size)
        return min(most, self.num_steps * self.options.batch_size)

    @property
    def last_size(self) -> int:
        """Rows of the last batch of each rank, padding included; 0 without any batch."""
        return self.num_each - max(self.num_steps - 1, 0) * self.options.batch_size

    def num_padding(self, scope: Literal["rank", "world"] = "rank") -> int:
        """Rows that fill up the last batch of this rank, or of all ranks."""
        world = self.options.ranks
        first, num = (0, world.world_size) if scope == "world" else (world.rank, 1)
        begin, end = (i * self.num_samples // world.world_size for i in (first, first + num))
        return max(num * self.num_each - (end - begin), 0)

    @cached_property
    def sample_traits(self) -> dict[str, str]:
        """Hashes of what determines the samples, for states to save; see `describe_samples`."""
        steps = self.options.steps
        traits = describe_samples(self.recipe.planned)
        return traits if steps is None else {**traits, "steps": str(steps)}

    def remainder(self, number: int, first_step: int) -> Epoch | Remainder:
        """The remainder of an epoch from a step on."""
        epoch, kept = self.epoch(number), self._left
        if not first_step and self.footprint is self.planned_footprint:
            return epoch
        if kept is None or kept.whole is not epoch or kept.first_step != first_step:
            processes = tuple(self.processes("world"))
            self._left = kept = Remainder(epoch, first_step, self.footprint, processes)
        return kept

    @property
    def ways(self) -> set[bool]:
        """Whether variables that samples need are fetched ahead; both values if only some are."""
        # Not kept: blocks of dask are fetched ahead while a client of a cluster is active.
        return set(map(self.recipe.source.is_waiting, self.footprint.variables))

    def epoch(self, number: int) -> Epoch:
        """The order and schedule of an epoch, which are kept until another one is asked for."""
        if self._planned is None or self._planned.epoch != number:
            footprint, plan, options = self.planned_footprint, self.plan, self.options
            num, steps = self.num_samples, options.steps
            if isinstance(self._planned, JoinedEpoch):
                self._planned = self._planned.following(number)
            elif steps is not None or self.recipe.planned.num_taken is not None:
                self._planned = JoinedEpoch(
                    footprint, plan, options.seed, number, num_taken=num, is_endless=bool(steps)
                )
            else:
                self._planned = Epoch(footprint, plan, options.seed, number, options.drop_last)
        return self._planned

    def sublanes(self, worker: int = 0) -> range:
        """Numbers of the sub-lanes of which one worker of this rank makes batches."""
        return self.processes("rank")[worker]

    def explain(
        self,
        epoch: Epoch | Remainder,
        scope: Literal["rank", "world"] = "rank",
        cached: Sequence[Cached] = (),
        *,
        num_more: int = 0,
    ) -> Explanation:
        """Predict what an epoch will cost. Nothing is read."""
        from xloader.planning.explain import explain_epoch

        if scope not in ("rank", "world"):
            raise OptionError("unknown scope", given=repr(scope), allowed="'rank' or 'world'")
        source = self.recipe.source
        paths = {name: source.path_of(name) for name in self.footprint.variables}
        known = () if scope == "world" else cached
        readers, num_padding = self.processes(scope), self.num_padding(scope)
        return explain_epoch(epoch, readers, paths, known, self.batch_nbytes, num_more, num_padding)

    @cached_property
    def room_nbytes(self) -> int:
        """Bytes that worker processes need for a batch as delivered, beside it as gathered."""
        options, recipe = self.options, self.recipe
        if not options.processes:
            return 0
        if options.collates_in_processes or recipe.is_mapped or options.on_device.dtype is not None:
            row_nbytes = delivered_nbytes(self.layouts, options.on_device.dtype)
            if recipe.is_mapped:
                outputs = make_outputs(recipe, self.layouts)
                row_nbytes = max(row_nbytes, sum(output.nbytes for output in outputs))
            # Each array begins at an address of its own.
            return self.slot_rows * row_nbytes + (1 << 12)
        return 0

    @property
    def batch_nbytes(self) -> int:
        """Bytes of the largest batch of this rank: as gathered or as delivered, or in a slot."""
        if self.options.processes:
            fields = Fields(self.layouts, self.slot_rows, 1, BatchPool, self.room_nbytes)
            return SlotLayout.of(fields.kinds).nbytes
        return self.batch_size * delivered_nbytes(self.layouts, self.options.on_device.dtype)

    @property
    def is_direct(self) -> bool:
        """Whether no variable is read through xarray."""
        source = self.recipe.source
        return not any(source.is_through_xarray(name) for name in self.footprint.variables)

    def with_notes(
        self,
        expected: Explanation,
        packed_fields: Sequence[PackedField] = (),
        pinning_refusal: str = "",
    ) -> Explanation:
        """Add notes on the samples to a prediction. Labels of windowed dimensions are read."""
        from xloader.loader.reports import explain_notes

        recipe, layouts = self.recipe, self.layouts
        advice = self._memory_advice
        memory_notes = advice.note(expected), advice.one_region_note(expected)
        notes = self._empty_note, explain_notes.memory_note(self.options), *memory_notes
        output_dtype = self.options.on_device.dtype
        noted = explain_notes.with_notes(
            expected, recipe, layouts, output_dtype, *notes, packed_fields=packed_fields
        )
        changes: dict[str, Any] = {"_budget": self.budget}
        changes["threads"] = explain_notes.threads_in_words(self.options)
        changes["transfer"] = explain_notes.transfer_in_words(
            self.options, recipe, layouts, packed_fields, self.batch_size, pinning_refusal
        )
        as_stored = {field.name for field in packed_fields}
        unpacked = tuple(layout for layout in layouts if layout.name not in as_stored)
        normalized = ", ".join(sorted(normalized_packings(recipe, unpacked)))
        if normalized:
            changes["gather"] = f"{noted.gather}; {normalized} normalised while unpacked"
        return dataclasses.replace(noted, **changes)

    def warn_if_empty(self) -> None:
        """Warn once if an epoch has no batch, because ``drop_last`` leaves all samples out."""
        if self._empty_note and not self._has_warned:
            self._has_warned = True
            warn_caller(
                f"{self._empty_note}: pass drop_last=False or a smaller batch_size",
                EpochWarning,
            )

    @property
    def _empty_note(self) -> str:
        if self.num_steps or not self.num_samples:
            return ""
        num_samples, options = self.num_samples, self.options
        are = "sample is" if num_samples == 1 else "samples are"
        batch = f"batch of {options.global_batch}"
        if options.ranks.world_size > 1:
            ranks = options.ranks.world_size
            batch = (
                f"global batch of {options.global_batch}, "
                f"{options.batch_size} on each of {ranks} ranks"
            )
        return f"0 batches: {num_samples} {are} fewer than one {batch}, drop_last=True"

    def processes(self, scope: Literal["rank", "world"]) -> list[range]:
        """The sub-lanes of each worker, of this rank or of all ranks."""
        world = self.options.ranks
        ranks = range(world.world_size) if scope == "world" else [world.rank]
        workers = self.plan.workers
        share = self.plan.pace.lanes // world.world_size * workers
        every = [range(rank * share, (rank + 1) * share) for rank in ranks]
        return [numbers[worker::workers] for numbers in every for worker in range(workers)]

    def warn(self, expected: Explanation, label: str = "") -> None:
        """Warn once if a shuffle mixes poorly, reads more than allowed, or has no batch."""
        self.warn_if_empty()
        if self._has_warned or not self.options.shuffle or self.plan.is_resident:
            return
        self._has_warned = True
        for message, category in self._memory_advice.warnings(expected):
            warn_caller(f"{label}{message}", category)

    @cached_property
    def _memory_advice(self) -> MemoryAdvice:
        from xloader.loader.reports.explain_notes import MemoryAdvice

        return MemoryAdvice(self.plan, self.footprint, self.options, self._plan_for)

    def _plan_for(self, memory: int) -> tuple[Plan, Explanation]:
        """The plan for another memory, and its cost."""
        # With a small spread given by the user, no amount of memory would mix well enough.
        rules = dataclasses.replace(self.options.plan, spread=None)
        options = dataclasses.replace(self.options, plan=rules, memory=memory)
        larger = RankPlan(self.recipe, options, self.plan.workers)
        # As explain() would tell it, with the reads of each worker process.
        return larger.plan, larger.explain(larger.epoch(larger.plan.typical_epoch))

    def _check_padding(self) -> None:
        """Refuse a plan in which a worker has only a batch of padding, and no row to repeat."""
        if self.plan.workers == 1 or self.options.ranks.world_size == 1:
            return
        sublanes = self.epoch(0).sublanes
        last_worker = (sublanes.num_steps - 1) % sublanes.workers
        spans = [sublanes.span(number) for number in self.sublanes(last_worker)]
        if sublanes.num_steps > sublanes.workers or any(begin < end for begin, end in spans):
            return
        raise OptionError(
            "a worker would have only padding to deliver",
            given=f"num_workers={sublanes.workers}, {sublanes.num_steps} batches on each rank",
            allowed=f"up to {max(sublanes.num_steps - 1, 1)} workers",
            remedy="use fewer workers, smaller batches, or drop_last=True",
        )

    def _check_samples(self) -> None:
        num_samples, options = self.num_samples, self.options
        if 0 < num_samples < options.ranks.world_size:
            raise EmptySamplesError(
                "there are fewer samples than ranks",
                given=f"{num_samples} samples, world_size={options.ranks.world_size}",
                remedy="use fewer ranks, or a smaller stride",
            )
        num_samples = self.planned_footprint.num_samples
        if options.steps is not None and num_samples < 2 * options.global_batch:
            raise OptionError(
                "with steps, a pass over the samples needs two global batches, or a sample would "
                "be in a batch twice",
                given=f"{num_samples} samples, a global batch of {options.global_batch}",
                allowed=f"at least {2 * options.global_batch} samples",
                remedy="pass a smaller batch_size=, or leave steps= out",
            )
