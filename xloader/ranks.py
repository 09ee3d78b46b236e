"""Which rank's itinerary this process has: looked up late, held to, and compared with the others'.

::

    made      planned where that can be, so that what cannot be is an error at once
    settled   at the first use: with the rank that this process has then, and no other later
    begun     its part told, and compared with what the ranks beside it are about to do
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

from xloader.errors import OptionError, RanksError, StateError
from xloader.explain import Explanation
from xloader.itinerary import Itinerary
from xloader.options import LoaderOptions
from xloader.recipe import Recipe
from xloader.state import Saver, Stand, read_state
from xloader.world import resolve_world

_LOG: Final = logging.getLogger("xloader")

_NUMBERS: Final = itertools.count()
"""Loaders begin in the same order on all ranks of one program."""

_OPTIONS: Final = (
    "batch_size", "memory", "prefetch", "lanes", "spread", "max_amplification", "shuffle",
)  # fmt: skip
"""What plans are made of, beside the samples."""


class Roster:
    """The itinerary of this process, whose rank may not be known when it is asked for.

    Parameters
    ----------
    recipe : Recipe
        The data behind the samples.
    asked : LoaderOptions
        What was asked for; without a rank, it is looked up.
    workers : int
        As of `Itinerary`.

    Raises
    ------
    OptionError
        Of any kind, where ranks that come later cannot mend it.
    """

    def __init__(self, recipe: Recipe, asked: LoaderOptions, workers: int = 1) -> None:
        self.asked = asked
        self._recipe = recipe
        self._workers = workers
        self._itinerary: Itinerary | None = None
        self._saver: Saver | None = None
        self._is_settled = False
        self._has_begun = False
        self._number: int | None = None
        may_change = asked.rank is None and _process_group() is None
        try:
            options = asked.settled()
        except OptionError:
            # Lightning leaves half of it to the process group; and of how many ranks, decides.
            if not may_change:
                raise
            return
        try:
            self._itinerary = Itinerary(recipe, options, workers)
        except OptionError:
            # With lanes, what batches take depends on how many ranks share them.
            if not may_change or asked.lanes is None:
                raise

    @property
    def planned(self) -> Itinerary | None:
        """The itinerary as far as it can be known before the first use."""
        return self._itinerary

    @property
    def itinerary(self) -> Itinerary:
        """The itinerary as it stands, settled where it was not."""
        own = self._itinerary
        return own if own is not None and self._is_settled else self.settle()

    def settle(self) -> Itinerary:
        """The itinerary of the rank that this process has by now, which has to stay so.

        Raises
        ------
        RanksError
            If the rank is another than at the first call, or cannot be looked up.
        OptionError
            Of any kind, if what was asked for cannot be with so many ranks.
        """
        asked, own = self.asked, self._itinerary
        world = resolve_world(asked.rank, asked.world_size)
        if own is None or world != own.options.world:
            if self._is_settled and own is not None:
                raise RanksError(
                    "this process has another rank than when its batches were dealt",
                    given=f"rank {world.rank} of {world.world_size}",
                    allowed=f"rank {own.options.world.rank} of {own.options.world.world_size}",
                    remedy="use a loader for the first time after torch.distributed is "
                    "initialised, or pass rank= and world_size=",
                )
            own = self._take(Itinerary(self._recipe, asked.settled(), self._workers))
        if self._recipe.whole is not None and asked.rank is None and world.world_size > 1:
            raise RanksError(
                "of samples that a group of ranks shares, each rank of the group has the same",
                given=f"rank {world.rank} of {world.world_size}, as looked up",
                allowed="rank= and world_size=, those of the group among all groups",
                remedy='pass rank=mesh.get_local_rank("data"), world_size=mesh["data"].size()',
            )
        self._is_settled = True
        return own

    def save(self, stand: Stand) -> dict[str, Any]:
        """A place to go on from as plain JSON values, under 2 KB."""
        own = self.itinerary
        self._saver = self._saver or Saver(own)
        return self._saver.save(stand)

    def load(self, state: Mapping[str, Any], *, is_within_batch: bool = False) -> Stand:
        """Take up the plan and the seed of a state, and say where it stands.

        Parameters
        ----------
        state : dict
            What `save` gave.
        is_within_batch : bool
            Whether one can go on from within a batch.

        Raises
        ------
        StateError, LanesError, MemoryBudgetError
            As `read_state` does.
        """
        own = self.settle()
        stand, plan, seed = read_state(state, own)
        if stand.row and not is_within_batch:
            raise StateError(
                "the state is of samples that came one by one, and stands within a batch",
                given=f"row {stand.row} of step {stand.step}",
                allowed="a state between two batches",
                remedy="save a state after a whole batch",
            )
        if (plan, seed) != (own.plan, own.options.seed):
            self._take(own.resumed(plan, seed))
        # Whether the others have loaded it, too, is to be seen.
        self._has_begun, self._number = False, None
        return stand

    def begin(self, expected: Explanation, stand: Stand) -> None:
        """Once: say what is this rank's part, and compare it with that of the ranks beside it.

        Parameters
        ----------
        expected : Explanation
            What is about to begin.
        stand : Stand
            Where it begins.

        Raises
        ------
        RanksError
            If ranks have planned differently or begin elsewhere, with what differs.
        """
        if self._has_begun:
            return
        own, group = self.itinerary, _process_group()
        if group is not None and self.asked.rank is None and own.options.world.world_size > 1:
            if self._number is None:
                self._number = next(_NUMBERS)
            _compare(own, self.save(stand), group, f"xloader/begin/{self._number}")
        _tell_share(own, expected)
        self._has_begun = True

    def _take(self, itinerary: Itinerary) -> Itinerary:
        self._itinerary, self._saver = itinerary, None
        return itinerary


def _tell_share(itinerary: Itinerary, expected: Explanation) -> None:
    """Log which part of an epoch is this rank's."""
    world, lanes = itinerary.options.world, itinerary.lanes
    if world.world_size > 1:
        _LOG.info(
            "rank %d of %d: lanes %d to %d of %d, %d reads of chunks an epoch",
            world.rank,
            world.world_size,
            lanes[0],
            lanes[-1],
            itinerary.plan.pace.lanes,
            expected.num_reads,
        )


def _compare(itinerary: Itinerary, state: dict[str, Any], group: Any, key: str) -> None:
    """Compare what this rank is about to do with what the first one to come here was.

    Nobody waits for anybody: the first rank leaves its state in the store of the process group,
    and each later one compares its own.
    """
    options = {name: getattr(itinerary.options, name) for name in _OPTIONS}
    own = json.loads(json.dumps({"state": state, "options": options}))
    first = json.loads(group.compare_set(key, "", json.dumps(own)))
    if first["state"] == own["state"]:
        return
    ours, theirs = _flat(own), _flat(first)
    others = [name for name in ours if theirs.get(name) != ours[name]]
    raise RanksError(
        f"ranks are about to do different things, by their {', '.join(others) or 'plans'}",
        given=f"rank {itinerary.options.world.rank}: "
        + ", ".join(f"{name}={ours[name]!r}" for name in others),
        allowed=", ".join(f"{name}={theirs.get(name)!r}" for name in others),
        remedy="on all ranks make the same samples, pass the same options, load the same state, "
        "set the same epoch, and begin loaders in the same order; a loader of one rank alone "
        "takes rank=0, world_size=1; a Dataset that xarray opened may have its variables in "
        "another order on each rank, so name them",
    )


def _flat(told: Mapping[str, Any]) -> dict[str, Any]:
    """What users know of what a rank does, by name."""
    state = told["state"]
    is_other_plan = ("epoch", "step", "row", "seed", "drop_last")
    return {**{name: state[name] for name in is_other_plan}, **state["samples"], **told["options"]}


def _process_group() -> Any:
    """What the ranks of the process group share; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()
