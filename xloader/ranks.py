"""Ranks that train together: each says once what it does, and all must have planned alike."""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

from xloader.errors import RanksError
from xloader.explain import Explanation
from xloader.itinerary import Itinerary

_LOG: Final = logging.getLogger("xloader")

_NUMBERS: Final = itertools.count()
"""Loaders begin in the same order on all ranks of one program."""


def tell_share(itinerary: Itinerary, expected: Explanation) -> None:
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


def check_alike(itinerary: Itinerary, state: Mapping[str, Any]) -> None:
    """Compare this rank's plan with that of the rank which came first, where they can talk.

    Nobody waits for anybody: the first rank leaves its plan in the store of the process group,
    and each later one compares its own.

    Parameters
    ----------
    itinerary : Itinerary
        What this rank does.
    state : dict
        It as a saved state, of the first step.

    Raises
    ------
    RanksError
        If they differ, with what differs.
    """
    options = itinerary.options
    store = _store() if options.rank is None and options.world.world_size > 1 else None
    if store is None:
        return
    own = {**state["samples"], **state["plan"], "seed": state["seed"]}
    key = f"xloader/plan/{next(_NUMBERS)}"
    first = json.loads(store.compare_set(key, "", json.dumps(own)))
    others = [name for name in own if first.get(name) != json.loads(json.dumps(own[name]))]
    if others:
        raise RanksError(
            f"the ranks have planned differently: {', '.join(others)} differ",
            given=f"rank {options.world.rank}: " + ", ".join(f"{n}={own[n]}" for n in others),
            allowed=", ".join(f"{name}={first.get(name)}" for name in others),
            remedy="make the same samples and pass the same options on all ranks; a Dataset that "
            "xarray opened may have its variables in another order on each, so name them",
        )


def _store() -> Any:
    """What the ranks of the process group share; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()
