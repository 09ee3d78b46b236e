"""Plans the epochs of a loader on stores that are not written yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from xloader.core.axis import Axis
from xloader.core.boxes import Boxes
from xloader.core.footprint import Footprint
from xloader.core.options import LoaderOptions
from xloader.errors import (
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    show_memory,
)
from xloader.jobs.advice.chunk_advice import ChunkProposal
from xloader.jobs.advice.chunk_shapes import MEDIUM_NBYTES, ChunkedPart, Shape, shard_shape
from xloader.jobs.advice.read_speed import ReadSpeed
from xloader.jobs.advice.target_recipe import chunked_part, recipe_in_chunks, taken_variables
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.planning.epoch import Remainder
from xloader.planning.explain import mixing_on
from xloader.planning.make_plan import batch_nbytes, delivered_nbytes
from xloader.planning.mixing import full_mixing
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.recipe.selection import as_selection
from xloader.sources.base import Variable
from xloader.sources.chunk_sizes import Sizes, StoredObjects, stored_objects_of


@dataclass(frozen=True)
class StoredSizes:
    """How the variables of some samples are stored today.

    `stored_share`: stored bytes for each decoded byte; None if not known of some variable.
    `num_objects`: objects that hold this part; None if not known.
    """

    stored_share: float | None
    nbytes: int | None
    num_objects: int | None
    shards: dict[str, int] | None


def stored_sizes(recipe: Recipe) -> StoredSizes:
    """Look up how the variables of some samples are stored. No chunk is read."""
    recipe = recipe.planned
    stored = [variable for variable in taken_variables(recipe) if not variable.is_computed]
    objects_by_name = {v.name: stored_objects_of(recipe.source, v.name) for v in stored}
    decoded = {v.name: _covered(recipe, v) * v.stored_dtype.itemsize for v in stored}
    nbytes = 0.0
    num_objects = 0
    has_sizes = has_objects = True
    for variable in stored:
        objects = objects_by_name[variable.name]
        if objects is None or objects.stored_share is None:
            has_sizes = False
        else:
            nbytes += objects.stored_share * decoded[variable.name]
        if objects is None:
            has_objects = False
        else:
            num_objects += _num_objects(recipe, variable, objects)
    total = sum(decoded.values())
    largest = max(stored, key=lambda v: decoded[v.name])
    objects = objects_by_name[largest.name]
    return StoredSizes(
        nbytes / total if has_sizes and total else None,
        round(nbytes) if has_sizes else None,
        num_objects if has_objects else None,
        None if objects is None or objects.shards is None else _shards(recipe, largest, objects),
    )


def _covered(recipe: Recipe, variable: Variable) -> int:
    """Elements of a variable that are selected."""
    return math.prod(axis.size for axis in recipe.axes_of(variable.name))


def _num_objects(recipe: Recipe, variable: Variable, objects: StoredObjects) -> int:
    axes = recipe.axes_of(variable.name)
    if objects.shards is None:
        return math.prod(axis.num_blocks for axis in axes)
    # The last shard may reach beyond the array.
    wholes = (size if isinstance(size, int) else max(size) for size in objects.shards)
    # In stored order, as an order of chunks may come back to a shard that it has left.
    return math.prod(
        Axis(axis.stored_size, size, as_selection(np.sort(axis.selection))).num_blocks
        for axis, size in zip(axes, wholes, strict=True)
    )


def _shards(recipe: Recipe, variable: Variable, objects: StoredObjects) -> dict[str, int]:
    assert objects.shards is not None
    return {
        dim: size if isinstance(size, int) else max(size)
        for dim, size in zip(variable.dims, objects.shards, strict=True)
        if dim in recipe.dims_of(variable.name)
    }


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


def amplification_of(proposal: ChunkProposal) -> float:
    """Reads for each distinct chunk needed; 1 if nothing is read."""
    return proposal.read_amplification or 1.0


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
        self._is_today_refused = False

    @cached_property
    def part(self) -> ChunkedPart:
        """The variables that a copy would store, and what samples take of them."""
        footprint, options = self._footprint, self.options
        batches = (options.prefetch + 2) * batch_nbytes(footprint, self._layouts, options)
        pool = (options.memory_nbytes * 15 // 16 - batches) // options.carried_lanes
        return chunked_part(self.recipe, footprint.num_samples, options.global_batch, max(pool, 1))

    @cached_property
    def _stored(self) -> StoredSizes:
        return stored_sizes(self.recipe)

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
        stored, part = self._stored, self.part
        proposal = ChunkProposal(
            kind="today",
            chunks=_chunks_today(self.recipe, part),
            shards=stored.shards,
            explanation=None,
            chunk_nbytes=self._footprint.max_chunk_nbytes,
            batch_chunks=_batch_chunks(self._footprint, self.options.global_batch),
            nbytes=stored.nbytes,
            num_objects=stored.num_objects,
        )
        try:
            return self._predicted(proposal, RankPlan(self.recipe, self.options), is_today=True)
        except EmptySamplesError:
            raise
        except OptionError as error:
            self._is_today_refused = True
            self._errors.append(error)
            if not isinstance(error, MemoryBudgetError):
                return replace(proposal, problem=error.what)
            least = error.minimum_nbytes
            problem = f"the memory is too small for these chunks, which need {show_memory(least)}"
            return replace(proposal, problem=problem, minimum_nbytes=least)

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
                ratio = self.speed.stored_share or self._stored.stored_share
                proposal = ChunkProposal(
                    kind="",
                    chunks=chunks,
                    shards=shards,
                    explanation=None,
                    chunk_nbytes=rank_plan.footprint.max_chunk_nbytes,
                    batch_chunks=_batch_chunks(rank_plan.footprint, self.options.global_batch),
                    nbytes=None if ratio is None else round(ratio * self.part.nbytes),
                    num_objects=self.part.num_chunks(shards or chunks),
                )
                proposals.append(self._predicted(proposal, rank_plan))
            except OptionError as error:
                self.failed.append(chunks)
                self._errors.append(error)
        return proposals

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

    def raise_if_none(self) -> None:
        """If there is no plan for today's chunks either, raise the error that asks for least."""
        if not self._is_today_refused:
            return
        budgets = [error for error in self._errors if isinstance(error, MemoryBudgetError)]
        raise min(budgets, key=lambda error: error.minimum_nbytes, default=self._errors[0])

    def _predicted(
        self, proposal: ChunkProposal, rank_plan: RankPlan, *, is_today: bool = False
    ) -> ChunkProposal:
        left = rank_plan.remainder(0, 0)
        expected = rank_plan.explain(left)
        share = None
        if self.options.shuffle:
            epoch = left.whole if isinstance(left, Remainder) else left
            # A full shuffle exceeds its mean in some epochs.
            share = min(mixing_on(epoch, self._regions) / max(self._full_mixing, 1e-9), 1.0)
        source = self.recipe.source
        names = [variable.name for variable in taken_variables(self.recipe)]
        speed = self.speed.gb_per_s(
            expected,
            self.options,
            delivered_nbytes(self._layouts, self.options.on_device.dtype),
            _rows_of(self.recipe, self._layouts),
            proposal.chunk_nbytes,
            is_waiting=any(map(source.is_waiting, names)),
            is_today=is_today,
            is_through_xarray=any(map(source.is_through_xarray, names)),
        )
        return replace(
            proposal,
            explanation=expected,
            mixing_share=share,
            gb_per_s=speed,
            is_resident=rank_plan.plan.is_resident,
        )


def _chunks_today(recipe: Recipe, part: ChunkedPart) -> dict[str, int]:
    """The largest chunk along each dimension, of the variable with most bytes that has it."""
    chunks_by_dim: dict[str, Sizes] = {}
    stored = [variable for variable in taken_variables(recipe) if not variable.is_computed]
    for variable in sorted(stored, key=lambda v: -int(np.prod(v.shape)) * v.stored_dtype.itemsize):
        for dim, chunks in zip(variable.dims, variable.chunks, strict=True):
            chunks_by_dim.setdefault(dim, chunks)
    return {
        dim: max(
            min(max(chunk) if isinstance(chunk := chunks_by_dim[dim], tuple) else chunk, size), 1
        )
        for dim, size in part.sizes.items()
    }


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
