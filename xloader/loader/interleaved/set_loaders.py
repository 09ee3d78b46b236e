"""The loaders of several sets of samples, each with its part of the batch and of the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xloader.core.cores import usable_cores
from xloader.core.counter_rng import derive_key
from xloader.core.nbytes import show_nbytes
from xloader.core.options import LoaderOptions
from xloader.core.output_dtypes import converted_dtype
from xloader.core.ranks import World
from xloader.errors import MemoryBudgetError
from xloader.loader.interleaved.composed_run import NUM_HELD
from xloader.loader.interleaved.sample_sets import Interleaving, SampleSet, SampleSets, taking
from xloader.loader.planned_loader import PlannedLoader
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.planning.make_plan import make_budget
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.show.cost_figures import SetShare


def share_memory(
    nbytes: int, needs: Sequence[int], enough: Sequence[int], weights: Sequence[int]
) -> list[int]:
    """Divide memory among sets by weight, within what each of them needs and can use."""

    def shares(level: int) -> list[int]:
        """The memory of each set, if `level` bytes stand for the sum of all weights."""
        total = sum(weights)
        return [
            max(least, min(level * weight // total, most))
            for least, most, weight in zip(needs, enough, weights, strict=True)
        ]

    low, high = 0, nbytes * sum(weights)
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if sum(shares(level)) <= nbytes else (low, level - 1)
    return shares(low)


MakeLoader = Callable[[Recipe, LoaderOptions], PlannedLoader]
"""Makes the loader of one set."""

_SET_SEED = 0x5E75


@dataclass(frozen=True)
class SetLoaders:
    """The loaders of all sets, for a number of ranks."""

    world: World
    interleaving: Interleaving
    loaders: Mapping[str, PlannedLoader]
    composed_nbytes: int

    @classmethod
    def of(
        cls,
        sets: SampleSets,
        options: LoaderOptions,
        settled: LoaderOptions,
        make_loader: MakeLoader,
        is_on_host: bool,
    ) -> SetLoaders:
        """Make the loaders."""
        interleaving = sets.settle(settled)
        plain: dict[str, tuple[Recipe, LoaderOptions]] = {}
        for index, member in enumerate(sets.sets):
            rows = interleaving.lanes * interleaving.lane_rows[index]
            set_options = _options_of(index, member, interleaving, settled)
            plain[member.name] = taking(member.recipe, rows), set_options
        composed = _batch_nbytes(sets, settled) if is_on_host else 0
        shares = _divide(sets, settled, plain, NUM_HELD * composed)
        loaders = {}
        # The rank stays open: each loader finds it, and compares itself with other ranks.
        for (name, (recipe, set_options)), nbytes in zip(plain.items(), shares, strict=True):
            set_options = replace(set_options, memory=nbytes, world=options.world)
            loaders[name] = make_loader(recipe, set_options)
            loaders[name].label = f"set {name!r}, with {show_nbytes(nbytes)} of the memory: "
        return cls(settled.ranks, interleaving, loaders, composed)

    def starts(self, position: Position) -> dict[str, Position | None]:
        """Where each set's own loader goes on from a position; None if it has given all rows."""
        starts: dict[str, Position | None] = {}
        for index, name in enumerate(self.loaders):
            step = self.interleaving.begin(index, position.step)
            starts[name] = None if step is None else Position(position.epoch, step)
        return starts

    def shares(self, sets: SampleSets) -> dict[str, SetShare]:
        """The part of each set in an epoch."""
        shares = {}
        for member, size, taken in zip(sets.sets, sets.sizes, self.interleaving.taken, strict=True):
            nbytes = self.loaders[member.name].options.memory_nbytes
            # Where samples come twice, none is left out.
            left_out = max(size - taken, 0)
            shares[member.name] = SetShare(member.weight, taken, left_out, nbytes)
        return shares


def _options_of(
    index: int, member: SampleSet, interleaving: Interleaving, settled: LoaderOptions
) -> LoaderOptions:
    """The options of a set's own loader, but for its memory."""
    threads = settled.threads
    if threads is None:
        # One more than its part: a set may have fewer rows, and each of them cost more.
        threads = min(math.ceil(usable_cores() * member.weight) + 1, usable_cores())
    return replace(
        settled,
        threads=threads,
        batch_size=interleaving.share(index) * interleaving.lanes // interleaving.world_size,
        drop_last=False,
        collate_fn=None,
        # With equal seeds, sets of equal chunks would come in the same order.
        seed=derive_key(settled.seed, index, _SET_SEED) if index else settled.seed,
    )


def _batch_nbytes(sets: SampleSets, settled: LoaderOptions) -> int:
    """Bytes of a full composed batch."""
    # As for the batches of one set: with lanes, a later run may have one rank only.
    num_rows = settled.global_batch if settled.plan.lanes else settled.batch_size
    return num_rows * sum(
        out.nbytes
        // out.dtype.itemsize
        * max(out.dtype.itemsize, converted_dtype(out.dtype, settled.on_device.dtype).itemsize)
        for out in sets.outputs
    )


def _divide(
    sets: SampleSets,
    settled: LoaderOptions,
    plain: Mapping[str, tuple[Recipe, LoaderOptions]],
    composed_nbytes: int,
) -> list[int]:
    """The memory of each set: by weight, within what it needs and can use."""
    needs, enough = [], []
    for recipe, set_options in plain.values():
        planned = recipe.planned
        layouts = make_layouts(planned)
        footprint = make_footprint(planned, layouts)
        needs.append(_least_nbytes(recipe, set_options))
        budget = make_budget(footprint, layouts, set_options)
        enough.append(max(needs[-1], budget.enough_nbytes(footprint.total_nbytes)))
    left = settled.memory_nbytes - composed_nbytes
    if sum(needs) > left:
        each = ", ".join(f"{n} needs {least}" for n, least in zip(sets.names, needs, strict=True))
        raise MemoryBudgetError(
            f"the memory is too small for {len(needs)} sets of samples together",
            given=f"memory={settled.memory_nbytes} bytes; {each}",
            minimum_nbytes=composed_nbytes + sum(needs),
        )
    return share_memory(left, needs, enough, sets.pattern.weights)


def _least_nbytes(recipe: Recipe, options: LoaderOptions) -> int:
    """The memory in bytes that a set's own loader needs."""
    try:
        RankPlan(recipe, replace(options, memory=1))
    except MemoryBudgetError as error:
        return error.minimum_nbytes
    return 1
