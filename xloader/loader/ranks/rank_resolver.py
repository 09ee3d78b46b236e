"""The rank plan of this process: made once its rank is known, and compared with other ranks.

Loaders are often made before ``torch.distributed`` is initialised, so the rank is looked up late::

    made      planned if the rank may be known already, so that wrong options are errors at once
    settled   at the first use, with the rank that this process has then and must keep
    begun     this rank's part is logged, and compared with what other ranks are about to do
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from xloader.core.cores import MemoryLimit, find_memory_limit
from xloader.core.options import LoaderOptions
from xloader.core.ranks import World, find_world, resolve_world
from xloader.errors import OptionError, RanksError, StateError
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.memory_share import hold_share
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.ranks.state import read_state, save
from xloader.planning.explain import Explanation
from xloader.recipe.recipe import Recipe

_LOG: Final = logging.getLogger("xloader")

_OPTIONS: Final = ("batch_size", "memory", "prefetch", "shuffle", "steps")
"""Options that the plan or its epochs depend on, besides its rules and the samples."""


PlanT = TypeVar("PlanT")


def try_early(options: LoaderOptions, make: Callable[..., PlanT]) -> PlanT | None:
    """Make something for the ranks that are known by now, so that wrong options are errors at once.

    None where the options are wrong, but may be right once this process knows its rank.
    """
    may_change = options.world is None and process_group() is None
    try:
        settled = options.settled()
    except OptionError:
        # Until there is a process group, Lightning sets only half of the rank's variables, and
        # whether the options are valid may depend on the number of ranks.
        if may_change:
            return None
        raise
    try:
        return make(settled, memory_limit(options, settled.ranks, waits=False))
    except OptionError:
        # With lanes, the memory of batches depends on the number of ranks.
        if may_change and options.plan.lanes is not None:
            return None
        raise


class RankResolver:
    """The rank plan of this process. Its rank may become known only after this object is made."""

    def __init__(self, recipe: Recipe, options: LoaderOptions, num_workers: int = 1) -> None:
        self.options = options
        self._recipe = recipe
        self._num_workers = num_workers
        self._settled: RankPlan | None = None
        self._has_begun = False
        # Which one of the loaders that begin this is, and how many states it has loaded since.
        self._number: int | None = None
        self._num_loads = 0
        self._planned = try_early(options, self._make)
        hold_share(options)

    @property
    def planned(self) -> RankPlan | None:
        """The rank plan, or the one expected before the first use; None if that is unknown."""
        return self._settled or self._planned

    @property
    def rank_plan(self) -> RankPlan:
        """The rank plan, which is settled first if necessary."""
        return self._settled or self.settle()

    def settle(self) -> RankPlan:
        """Make the rank plan for the rank that this process has now. The rank must not change."""
        world = find_world(self.options.world)
        if self._settled is None:
            self._settled = self._plan_for(world or World())
        settled_world = self._settled.options.ranks
        # After the process group has been destroyed, no rank is found.
        if world is not None and world != settled_world:
            raise RanksError(
                "the rank of this process changed after the loader was first used",
                given=f"rank {world.rank} of {world.world_size}",
                allowed=f"rank {settled_world.rank} of {settled_world.world_size}",
                remedy="use the loader only after torch.distributed is initialised, "
                "or pass world=xloader.World(rank, world_size)",
            )
        return self._settled

    def _plan_for(self, world: World) -> RankPlan:
        if self._recipe.whole is not None and self.options.world is None and world.world_size > 1:
            raise RanksError(
                "slabs need world=: a group of ranks that shares samples needs the "
                "same ones on each rank",
                given=f"rank {world.rank} of {world.world_size}, found in the environment",
                remedy='pass world=xloader.World(mesh.get_local_rank("data"), mesh["data"].size())',
            )
        limit, made = memory_limit(self.options, world), self._planned
        if made is None or (made.options.ranks, made.limit) != (world, limit):
            made = self._make(self.options.settled(), limit)
        require_common(limit, world, is_capped=made.is_capped)
        return made

    def _make(self, settled: LoaderOptions, limit: MemoryLimit | None) -> RankPlan:
        return RankPlan(self._recipe, settled, self._num_workers, limit=limit)

    def save(self, position: Position) -> dict[str, Any]:
        """The state at a position."""
        return save(position, self.rank_plan)

    def load(self, state: Mapping[str, Any], *, is_within_batch: bool = False) -> Position:
        """Adopt the plan and the seed of a state, and give its position."""
        rank_plan = self.settle()
        position, plan, seed = read_state(state, rank_plan)
        if position.row and not is_within_batch:
            raise StateError(
                "the state was saved while samples were taken one by one, and lies within a batch",
                given=f"row {position.row} of step {position.step}",
                remedy="save a state after a whole batch",
            )
        if (plan, seed) != (rank_plan.plan, rank_plan.options.seed):
            self._settled = rank_plan.resumed(plan, seed)
        # The next `begin` compares again: other ranks may not have loaded this state.
        self._has_begun = False
        self._num_loads += self._number is not None
        return position

    def begin(self, expected: Explanation, position: Position) -> None:
        """Log this rank's part of an epoch, and compare what it is about to do with other ranks.

        Later calls do nothing, until a state is loaded.
        """
        if self._has_begun:
            return
        rank_plan, group = self.rank_plan, process_group()
        world_size = rank_plan.options.ranks.world_size
        if group is not None and self.options.world is None and world_size > 1:
            self._compare(rank_plan, position, group)
        if world_size > 1:
            rank, num_lanes = rank_plan.options.ranks.rank, rank_plan.plan.pace.lanes
            share = num_lanes // world_size
            _LOG.info(
                "rank %d of %d: lanes %d to %d of %d, %d reads of chunks an epoch",
                rank,
                world_size,
                rank * share,
                (rank + 1) * share - 1,
                num_lanes,
                expected.num_reads,
            )
        self._has_begun = True

    def _compare(self, rank_plan: RankPlan, position: Position, group: Any) -> None:
        """Compare what this rank is about to do with what the first rank to get here wrote down.

        No rank waits for another. The first one writes its state and options to the store of the
        process group, and each later one compares its own with them. Loaders must begin in the
        same order on all ranks.
        """
        options = {name: getattr(rank_plan.options, name) for name in _OPTIONS}
        options |= asdict(rank_plan.options.plan)
        # "1GiB" on one rank and the same number of bytes on another are no difference.
        options["memory"] = rank_plan.options.memory_nbytes
        text = json.dumps({"state": self.save(position), "options": options})
        try:
            if self._number is None:
                self._number = group.add(f"xloader/rank/{rank_plan.options.ranks.rank}", 1)
            key = f"xloader/begin/{self._number}/{self._num_loads}"
            first = json.loads(group.compare_set(key, "", text))
        except RuntimeError:
            # Some stores keep no values, such as that of a dry run: nothing to compare with.
            return
        _require_same(rank_plan.options.ranks, json.loads(text), first)


def _require_same(world: World, intent: dict[str, Any], first: dict[str, Any]) -> None:
    if first["state"] == intent["state"]:
        return
    ours, theirs = _flat(intent), _flat(first)
    differing = [name for name in ours if theirs.get(name) != ours[name]]
    raise RanksError(
        f"the ranks disagree: their {', '.join(differing) or 'plans'} differ",
        given=f"rank {world.rank}: " + ", ".join(f"{name}={ours[name]!r}" for name in differing),
        allowed=", ".join(f"{name}={theirs.get(name)!r}" for name in differing),
        remedy="on all ranks, make the same samples, pass the same options, load the same state, "
        "set the same epoch, and begin the loaders in the same order; pass world=xloader.World() "
        "to a loader that only one rank uses; name the variables, because xarray may open a "
        "Dataset with its variables in another order on each rank",
    )


def _flat(intent: Mapping[str, Any]) -> dict[str, Any]:
    """Position, samples and options of what a rank is about to do, by names that users know."""
    state = intent["state"]
    known = {name: state[name] for name in ("epoch", "step", "row", "seed", "drop_last")}
    return {**known, **state["samples"], **intent["options"]}


def process_group() -> Any:
    """The store that the ranks of the process group share; None without a process group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()


def _is_worker() -> bool:
    """Whether this process is a worker of a ``DataLoader``: a forked one inherits the group."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def memory_limit(options: LoaderOptions, world: World, *, waits: bool = True) -> MemoryLimit | None:
    """The limit of which the memory is a share; None if the options say the bytes.

    Ranks of a process group agree on the one that leaves a rank least. Each rank writes its own
    down when it makes a loader, so that few of them wait when they use it.
    """
    share, store = options.memory_share, process_group()
    if options.memory_nbytes or share.limit:
        return None if options.memory_nbytes else share.limit
    num_processes = world.world_size
    with suppress(OptionError):
        num_processes = max(num_processes, resolve_world().world_size)
    limit = find_memory_limit(num_processes)
    if world.world_size == 1 or store is None or options.world is not None:
        return limit
    if _is_worker():
        raise RanksError(
            "a worker cannot ask the other ranks how much memory they have",
            given="a dataset without memory=, made before the process group was initialised",
            remedy="make it after torch.distributed is initialised, or pass memory= in bytes",
        )
    keys = [f"xloader/memory/{rank}" for rank in range(world.world_size)]
    try:
        store.set(keys[world.rank], json.dumps(asdict(limit)))
    except RuntimeError:
        # Some stores keep no values, such as that of a dry run: there is no other rank.
        return replace(limit, is_common=True)
    if waits:
        try:
            store.wait(keys)
        except RuntimeError as error:
            what = "other ranks have made no loader without memory=, so theirs is not known"
            given = f"rank {world.rank} of {world.world_size}: {error}"
            raise RanksError(what, given=given, remedy=_PASS_MEMORY) from error
        limits = [MemoryLimit(**json.loads(text)) for text in store.multi_get(keys)]
        limit = replace(min(limits, key=lambda each: each.part_nbytes), is_common=True)
        share.limit = limit
    return limit


_PASS_MEMORY: Final = (
    "pass memory= in bytes on all ranks, or make the same loaders on all ranks of a process group; "
    "pass world=xloader.World() to a loader that only one rank uses"
)


def with_memory(options: LoaderOptions) -> LoaderOptions:
    """Copy of the options with the bytes that this machine says, for what no other rank takes."""
    return options.with_memory(memory_limit(options, World(), waits=False))


def require_common(limit: MemoryLimit | None, world: World, *, is_capped: bool) -> None:
    """Refuse memory that other ranks may have less or more of, if the order depends on it."""
    if limit is not None and not (limit.is_common or is_capped) and world.world_size > 1:
        what = "memory= is needed: other ranks may be on machines with more or less memory"
        given = f"rank {world.rank} of {world.world_size}, and data that do not all fit"
        raise RanksError(what, given=given, remedy=_PASS_MEMORY)
