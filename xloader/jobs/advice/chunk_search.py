"""Searches better chunks: plans the epochs of a loader on stores that are not written yet.

Promising shapes come first, then those near the best of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from xloader.cluster.cluster_tasks import find_cluster
from xloader.core.axis import Axis
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.options import LoaderOptions, make_options
from xloader.errors import EmptySamplesError, MemoryBudgetError, OptionError, show_memory
from xloader.jobs.advice.chunk_advice import Advice, ChunkProposal
from xloader.jobs.advice.chunk_shapes import (
    MEDIUM_NBYTES,
    ChunkedPart,
    Shape,
    candidate_shapes,
    diverse_shapes,
    neighbour_shapes,
    shard_shape,
)
from xloader.jobs.advice.read_speed import ReadSpeed, measure_speed
from xloader.jobs.advice.target_recipe import (
    chunked_part,
    recipe_in_chunks,
    stored_variables,
    taken_variables,
)
from xloader.jobs.materialize.target_arrays import Sizes
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.ranks.rank_resolver import with_memory
from xloader.planning.explain import mixing_on
from xloader.planning.make_plan import batch_nbytes, delivered_nbytes
from xloader.planning.mixing import full_mixing
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import as_selection
from xloader.sources.base import Variable
from xloader.sources.chunk_sizes import StoredObjects, stored_objects_of
from xloader.transforms.computed_variables import chunks_of_dims

_FIRST_PLANS = 10
_NEAR_PLANS = 5
_ROUNDS = 2
"""At most 10 + 2 x 5 shapes are planned for, and today's chunks twice: as they are, in shards.

Of the first ten, four are enough if no other can be clearly better than one of them.
"""

_MANY_IDS = 200_000
"""Ids of a subset from which on shapes are first compared for all windows."""

_CLEARLY_FASTER = 1.15
"""Writing terabytes anew pays only for a clear gain. Speeds are estimates, good to about this."""

_CLEARLY_MIXED = 0.1
"""Gain of the share of a full shuffle's mixing that counts as clear."""

_FEWER_OBJECTS = 10
_MANY_OBJECTS = 10_000
"""Ten times fewer objects count as a gain where there are more than this."""

_CLEARLY_FEWER_BYTES = 0.85
"""Share of today's decoded bytes of an epoch from which on a saving counts as clear."""


def _is_clearly_better(proposal: ChunkProposal, now: ChunkProposal) -> bool:
    """Whether a proposal is clearly better than today's chunks in something, and worse in none."""
    if now.explanation is None:
        return True
    few, many = proposal.num_objects, now.num_objects
    has_fewer = (
        few is not None and many is not None and many > max(_MANY_OBJECTS, _FEWER_OBJECTS * few)
    )
    if now.is_resident:
        # Only the first epoch reads, so better chunks would save little.
        return has_fewer
    faster = _speed(proposal) / max(_speed(now), 1e-9)
    mixed = share_of(proposal) - share_of(now)
    is_worse = faster < 0.95 or mixed < -0.02
    return not is_worse and (
        faster >= _CLEARLY_FASTER
        or mixed >= _CLEARLY_MIXED
        or _read_nbytes(proposal) <= _CLEARLY_FEWER_BYTES * _read_nbytes(now)
        or has_fewer
    )


def choose(current: ChunkProposal, tried: Sequence[ChunkProposal]) -> list[ChunkProposal]:
    """Up to three proposals, each better than the first one in something."""
    return kinds_of([proposal for proposal in tried if _is_clearly_better(proposal, current)])


def kinds_of(good: Sequence[ChunkProposal]) -> list[ChunkProposal]:
    """The best proposal, and up to two that are better in something."""
    if not good:
        return []
    best = max(good, key=value_of)
    # Of those that are as good within the estimate, chunks of a medium size suit most other uses.
    alike = [
        proposal
        for proposal in good
        if value_of(proposal) >= 0.97 * value_of(best)
        and share_of(proposal) >= share_of(best) - 0.02
    ]
    best = min(alike, key=lambda p: abs(math.log(p.chunk_nbytes / MEDIUM_NBYTES)))
    chosen = [replace(best, kind="best")]
    mixer = max(good, key=lambda p: (round(share_of(p), 2), _speed(p)))
    if share_of(mixer) > share_of(best) + 0.02:
        chosen.append(replace(mixer, kind="mixes best"))
    reader = min(good, key=lambda p: (_read_nbytes(p), -value_of(p)))
    if _read_nbytes(reader) < 0.98 * _read_nbytes(best):
        chosen.append(replace(reader, kind="reads least"))
    enough = [p for p in good if value_of(p) >= 0.8 * value_of(best)]
    fewest = min(enough, key=lambda p: (_num_reads(p), -value_of(p)))
    if _num_reads(fewest) <= _num_reads(best) / 2:
        chosen.append(replace(fewest, kind="fewest chunks"))
    distinct = {tuple(p.chunks.values()): p for p in reversed(chosen)}
    return sorted(distinct.values(), key=chosen.index)[:3]


def value_of(proposal: ChunkProposal) -> float:
    """Speed and mixing together: a batch from half as many places teaches less."""
    return _speed(proposal) * share_of(proposal)


def _speed(proposal: ChunkProposal) -> float:
    return proposal.gb_per_s or 0.0


def share_of(proposal: ChunkProposal) -> float:
    """The mixing as a share of a full shuffle's; 1 where ids ascend."""
    return 1.0 if proposal.mixing_share is None else proposal.mixing_share


def _num_reads(proposal: ChunkProposal) -> int:
    return 0 if proposal.explanation is None else proposal.explanation.num_reads


def _read_nbytes(proposal: ChunkProposal) -> int:
    return 0 if proposal.explanation is None else proposal.explanation.read_nbytes


ENOUGH_PLANS = 4
"""Plans after which an ideal one ends the search."""

_REGIONS = 1024
_REGIONS_ACROSS = 16
"""Chunks that regions are made of, along the windowed dimension with most windows and others."""


class ChunkTrials:
    """Plans the epochs of a loader on stores in other chunks."""

    def __init__(self, recipe: Recipe, options: LoaderOptions, speed: ReadSpeed) -> None:
        self.recipe = recipe
        self.options = options
        self._layouts = make_layouts(recipe)
        self._footprint = make_footprint(recipe, self._layouts)
        self.speed = speed
        self.num_plans = 0
        self.failed: list[Shape] = []
        self._errors: list[OptionError] = []

    @cached_property
    def part(self) -> ChunkedPart:
        """The variables that a copy would store, and what samples take of them."""
        footprint, options = self._footprint, self.options
        batches = (options.prefetch + 2) * batch_nbytes(footprint, self._layouts, options)
        pool = (options.memory_nbytes * 15 // 16 - batches) // options.carried_lanes
        return chunked_part(self.recipe, footprint.num_samples, options.global_batch, max(pool, 1))

    @cached_property
    def _today(self) -> ChunkProposal:
        """Today's chunks, without a prediction. No chunk is read."""
        recipe, sizes = self.recipe.planned, self.part.sizes
        stored = sorted(stored_variables(recipe), key=lambda v: -_nbytes_of(recipe, v))
        pairs = [(variable, stored_objects_of(recipe.source, variable.name)) for variable in stored]
        chunks = {dim: int(np.max(along)) for dim, along in chunks_of_dims(stored).items()}
        shards = None
        largest, objects = pairs[0]
        if objects is not None and objects.shards is not None:
            along = zip(largest.dims, objects.shards, strict=True)
            shards = {dim: int(np.max(size)) for dim, size in along if dim in sizes}
        return ChunkProposal(
            kind="today",
            chunks={dim: max(min(chunks[dim], size), 1) for dim, size in sizes.items()},
            shards=shards,
            explanation=None,
            chunk_nbytes=self._footprint.max_chunk_nbytes,
            batch_chunks=_batch_chunks(self._footprint, self.options.global_batch),
            nbytes=_known_sum([_stored_nbytes(recipe, v, objects) for v, objects in pairs]),
            num_objects=_known_sum([_num_objects(recipe, v, objects) for v, objects in pairs]),
        )

    @cached_property
    def _regions(self) -> Footprint:
        """The same samples in small chunks, whose regions are the same for all proposals."""
        windows = self.recipe.planned.require_windows()
        longest = max(range(len(windows.dims)), key=windows.num_positions.__getitem__)
        fine = {
            name: -(-size // (_REGIONS if dim == longest else _REGIONS_ACROSS))
            for dim, (name, size) in enumerate(zip(windows.dims, windows.dim_sizes, strict=True))
        }
        recipe = recipe_in_chunks(self.recipe.planned, fine)
        return make_footprint(recipe, make_layouts(recipe))

    @cached_property
    def _full_mixing(self) -> float:
        return full_mixing(self._regions, self.options.global_batch)

    def current(self) -> ChunkProposal:
        """Today's chunks. If the memory is too small for them, the proposal says so."""
        try:
            return self._predicted(self._today, RankPlan(self.recipe, self.options))
        except EmptySamplesError:
            raise
        except OptionError as error:
            self._errors.append(error)
            if not isinstance(error, MemoryBudgetError):
                return replace(self._today, problem=error.what)
            least = error.minimum_nbytes
            problem = f"the memory is too small for these chunks, which need {show_memory(least)}"
            return replace(self._today, problem=problem, minimum_nbytes=least)

    def propose(self, shapes: Sequence[Shape]) -> list[ChunkProposal]:
        """Plan for some shapes of chunks, each in shards. Shapes without a plan are left out."""
        proposals: list[ChunkProposal] = []
        for chunks in shapes:
            if len(proposals) >= ENOUGH_PLANS and any(map(self.is_ideal, proposals)):
                break
            self.num_plans += 1
            shards = shard_shape(self.part, chunks)
            recipe = recipe_in_chunks(self.recipe, chunks, shards)
            try:
                rank_plan = RankPlan(recipe, self.options)
                share = self.speed.stored_share
                proposal = ChunkProposal(
                    kind="",
                    chunks=chunks,
                    shards=shards,
                    explanation=None,
                    chunk_nbytes=rank_plan.footprint.max_chunk_nbytes,
                    batch_chunks=_batch_chunks(rank_plan.footprint, self.options.global_batch),
                    # Without a measurement, values compress as well as they do today.
                    nbytes=round(share * self.part.nbytes) if share else self._today.nbytes,
                    num_objects=self.part.num_chunks(shards or chunks),
                )
                proposals.append(self._predicted(proposal, rank_plan))
            except OptionError as error:
                self.failed.append(chunks)
                self._errors.append(error)
        return proposals

    def within_limit(self, proposals: Sequence[ChunkProposal]) -> list[ChunkProposal]:
        """Those that read each chunk no more often than allowed."""
        limit = self.options.plan.max_amplification
        return [p for p in proposals if (p.read_amplification or 1.0) <= limit]

    def is_ideal(self, proposal: ChunkProposal) -> bool:
        """Whether no other chunks can be clearly better, so that the search may end."""
        explanation, part, recipe = proposal.explanation, self.part, self.recipe.planned
        if explanation is None or recipe.num_ids < len(recipe.require_windows()) / 4:
            return False
        # With gaps between windows, as with few of all windows, smaller chunks may read less.
        has_gaps = any(dim.extent is not None and dim.extent < dim.stride for dim in part.dims)
        overhead = 1e3 * self.speed.chunk_us * explanation.num_reads
        return (
            not has_gaps
            and explanation.read_amplification <= 1.02
            and share_of(proposal) >= 0.97
            and overhead <= 0.1 * self.speed.read_ns * explanation.read_nbytes
        )

    def least_error(self) -> OptionError:
        """Where no chunks could be planned for, the error that asks for least memory."""
        budgets = [error for error in self._errors if isinstance(error, MemoryBudgetError)]
        return min(budgets, key=lambda error: error.minimum_nbytes, default=self._errors[0])

    def _predicted(self, proposal: ChunkProposal, rank_plan: RankPlan) -> ChunkProposal:
        left = rank_plan.remainder(rank_plan.plan.typical_epoch, 0)
        expected = rank_plan.explain(left)
        share = None
        if self.options.shuffle:
            # A full shuffle exceeds its mean in some epochs.
            share = min(mixing_on(left.whole, self._regions) / max(self._full_mixing, 1e-9), 1.0)
        source = self.recipe.source
        names = [variable.name for variable in taken_variables(self.recipe)]
        speed = self.speed.gb_per_s(
            expected,
            self.options,
            delivered_nbytes(self._layouts, self.options.on_device.dtype),
            _rows_of(self.recipe, self._layouts),
            proposal.chunk_nbytes,
            is_waiting=any(map(source.is_waiting, names)),
            is_today=proposal.kind == "today",
            is_through_xarray=any(map(source.is_through_xarray, names)),
        )
        return replace(
            proposal,
            explanation=expected,
            mixing_share=share,
            gb_per_s=speed,
            is_resident=rank_plan.plan.is_resident,
        )


def _known_sum(numbers: Sequence[int | None]) -> int | None:
    """The sum; None if one of the numbers is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _nbytes_of(recipe: Recipe, variable: Variable) -> int:
    """Decoded bytes of the part of a variable that is selected."""
    sizes = [axis.size for axis in recipe.axes_of(variable.name)]
    return math.prod(sizes) * variable.stored_dtype.itemsize


def _stored_nbytes(recipe: Recipe, variable: Variable, objects: StoredObjects | None) -> int | None:
    """Stored bytes of the same part, estimated from a few objects; None if not known."""
    share = None if objects is None else objects.stored_share
    return None if share is None else round(share * _nbytes_of(recipe, variable))


def _num_objects(recipe: Recipe, variable: Variable, objects: StoredObjects | None) -> int | None:
    """Objects that hold this part; None if not known."""
    if objects is None:
        return None
    axes = recipe.axes_of(variable.name)
    if objects.shards is None:
        return math.prod(axis.num_blocks for axis in axes)
    # The last shard may reach beyond the array. In stored order, as an order of chunks may come
    # back to a shard that it has left.
    return math.prod(
        Axis(axis.stored_size, int(np.max(size)), as_selection(np.sort(axis.selection))).num_blocks
        for axis, size in zip(axes, objects.shards, strict=True)
    )


def _rows_of(recipe: Recipe, layouts: Sequence[FieldLayout]) -> int:
    """Rows of neighbouring elements of a sample: along the last dimensions that it takes whole."""
    count = 0
    for layout in layouts:
        length = 1
        for dim, size in zip(reversed(layout.dims), reversed(layout.shape), strict=True):
            length *= size
            if size < recipe.dim_sizes.get(dim, size):
                break
        count += math.prod(layout.shape) // max(length, 1)
    return count


def _batch_chunks(footprint: Footprint, batch_size: int) -> int:
    """Number of chunks that a batch of samples from all over the data touches."""
    num_ids = len(footprint.windows) if footprint.subset is None else len(footprint.subset)
    ids = np.unique(np.linspace(0, num_ids - 1, min(batch_size, num_ids, 4096)).astype(np.int64))
    boxes = Boxes.at(footprint.positions_of(ids))
    return sum(
        len(np.unique(footprint.needs(group, boxes)[1])) * group.num_reads_per_block
        for group in footprint.groups
    )


def find_advice(
    recipe: Recipe, options: LoaderOptions, *, measure: bool = False, client: Any = None
) -> Advice:
    """Find better chunks; see `Samples.advise`."""
    recipe.require_windows()
    options = with_memory(options.settled())
    speed = ReadSpeed()
    if measure and (tasks := find_cluster(client, recipe)) is not None:
        speed = tasks.call("measuring how fast chunks decode", measure_speed, recipe)
    elif measure:
        speed = measure_speed(recipe)
    trials = ChunkTrials(recipe, options, speed)
    current = trials.current()
    tried = _search(trials, current.chunks)
    if not tried and current.explanation is None:
        raise trials.least_error()
    # Where the memory is small, each chunk may have to be read more often than allowed.
    chosen = choose(current, trials.within_limit(tried)) or choose(current, tried)
    return Advice(current, tuple(chosen), trials.speed, trials.num_plans)


def _search(trials: ChunkTrials, today: Shape) -> list[ChunkProposal]:
    """Plan for promising shapes. Of many samples out of more windows, only for a few of them."""
    recipe = trials.recipe
    if recipe.subset is None or recipe.slab is not None or recipe.num_ids < _MANY_IDS:
        return _search_all(trials, today)
    # Each plan for so many ids takes seconds, and for all windows a fraction of one.
    scouts = ChunkTrials(replace(recipe, subset=None), trials.options, trials.speed)
    scouted = _search_all(scouts, today)
    trials.num_plans += scouts.num_plans
    chosen = kinds_of(trials.within_limit(scouted) or scouted)
    return trials.propose([proposal.chunks for proposal in chosen])


def _search_all(trials: ChunkTrials, today: Shape) -> list[ChunkProposal]:
    """Plan for promising shapes, then for those near the best of them."""
    tried = trials.propose([today])
    shapes = candidate_shapes(trials.part)
    tried += trials.propose(
        diverse_shapes([shape for shape in shapes if shape != today], _FIRST_PLANS)
    )
    for _ in range(_ROUNDS):
        known = [*(proposal.chunks for proposal in tried), *trials.failed]
        left = [shape for shape in shapes if shape not in known]
        if not left or any(map(trials.is_ideal, tried)):
            break
        front = max(tried, key=value_of).chunks if tried else shapes[0]
        tried += trials.propose(neighbour_shapes(left, front, _NEAR_PLANS))
    return tried


def chosen_chunks(
    recipe: Recipe,
    chunks: Sizes | None,
    shards: Sizes | None,
    advice: Advice | ChunkProposal | None,
) -> tuple[Sizes, Sizes | None]:
    """The sizes to write.

    The sizes of shards; None for none.
    """
    if chunks is not None and advice is None:
        return chunks, shards
    if chunks is not None or shards is not None:
        raise OptionError(
            "chunks are given twice" if advice is not None else "shards are given without chunks",
            given=f"chunks={chunks!r}, shards={shards!r}" + ", and advice=" * (advice is not None),
            remedy=(
                "pass chunks= too, or leave shards= out"
                if advice is None
                else "leave advice= out, or the sizes"
            ),
        )
    if advice is None:
        advice = find_advice(recipe.planned, make_options())
    # Where no other chunks are better, those of today are kept.
    proposal = advice.best if isinstance(advice, Advice) else advice
    if not isinstance(proposal, ChunkProposal):
        raise OptionError(
            "the advice is not that of samples.advise()",
            given=type(advice).__name__,
            remedy="pass advice=samples.advise(batch_size=...)",
        )
    return proposal.chunks, proposal.shards
