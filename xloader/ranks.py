"""Ranks that train together: each says once what it does, and all must have planned alike."""

from __future__ import annotations

import itertools
import json
import logging
import sys
from typing import Any, Final

from xloader.errors import RanksError
from xloader.explain import Explanation
from xloader.itinerary import Itinerary
from xloader.state import make_state

_LOG: Final = logging.getLogger("xloader")

_NUMBERS: Final = itertools.count()
"""Loaders begin in the same order on all ranks of one program."""


class RollCall:
    """What is said and compared once, as a loader begins for the first time."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._is_over = False

    def answer(self, itinerary: Itinerary, expected: Explanation) -> None:
        """Say what is this rank's part, and compare its plan with that of the ranks beside it.

        Parameters
        ----------
        itinerary : Itinerary
            What this rank does, about to begin.
        expected : Explanation
            What it will cost.

        Raises
        ------
        RanksError
            If ranks have planned differently, with what differs.
        """
        if self._is_over:
            return
        options, store = itinerary.options, _store()
        if options.rank is None and options.world.world_size > 1 and store is not None:
            if self._number is None:
                self._number = next(_NUMBERS)
            _check_alike(itinerary, store, f"xloader/plan/{self._number}")
        _tell_share(itinerary, expected)
        self._is_over = True


def _tell_share(itinerary: Itinerary, expected: Explanation) -> None:
    """Log which part of an epoch is this rank's."""
    world = itinerary.options.world
    if world.world_size > 1:
        lanes = itinerary.plan.pace.lanes // world.world_size
        first = world.rank * lanes
        _LOG.info(
            "rank %d of %d: lanes %d to %d of %d, %d reads of chunks an epoch",
            world.rank,
            world.world_size,
            first,
            first + lanes - 1,
            itinerary.plan.pace.lanes,
            expected.num_reads,
        )


def _check_alike(itinerary: Itinerary, store: Any, key: str) -> None:
    """Compare this rank's plan with that of the rank which came first.

    Nobody waits for anybody: the first rank leaves its plan in the store of the process group,
    and each later one compares its own.
    """
    state = make_state(itinerary, 0, 0)
    own = json.loads(json.dumps({**state["samples"], **state["plan"], "seed": state["seed"]}))
    first = json.loads(store.compare_set(key, "", json.dumps(own)))
    others = [name for name in own if first.get(name) != own[name]]
    if others:
        raise RanksError(
            f"the ranks have planned differently: {', '.join(others)} differ",
            given=f"rank {itinerary.options.world.rank}: "
            + ", ".join(f"{name}={own[name]}" for name in others),
            allowed=", ".join(f"{name}={first.get(name)}" for name in others),
            remedy="make the same samples and pass the same options on all ranks, and begin "
            "loaders in the same order on each; a loader of one rank alone takes rank=0, "
            "world_size=1; a Dataset that xarray opened may have its variables in another order "
            "on each rank, so name them",
        )


def _store() -> Any:
    """What the ranks of the process group share; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()
