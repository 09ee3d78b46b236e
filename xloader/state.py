"""Where a loader stands, as plain JSON: what is saved with a model, and taken up again elsewhere.

::

    state_dict()       version, epoch, step, seed, plan, and what the samples are, part by part
    load_state_dict()  checked whole before anything of it is believed; the plan is adopted

The order is a function of seed, epoch and plan, so that is all there is to keep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xloader.errors import LanesError, MemoryBudgetError, OptionError, StateError
from xloader.itinerary import Itinerary
from xloader.plan import Plan
from xloader.planning import batch_nbytes
from xloader.recipe import Recipe

VERSION: Final = 1

_KEYS: Final = ("version", "epoch", "step", "seed", "drop_last", "samples", "plan")


@dataclass(frozen=True)
class Position:
    """A place in training.

    Parameters
    ----------
    plan : Plan
        The plan by which it was come to.
    seed : int
    epoch, step : int
        The batch that comes next: steps of each rank that came before it in its epoch.
    """

    plan: Plan
    seed: int
    epoch: int
    step: int


def make_state(itinerary: Itinerary, epoch: int, step: int) -> dict[str, Any]:
    """A position as plain JSON values, under 2 KB.

    Parameters
    ----------
    itinerary : Itinerary
    epoch, step : int
        As of `Position`.
    """
    return {
        "version": VERSION,
        "epoch": epoch,
        "step": step,
        "seed": itinerary.options.seed,
        "drop_last": bool(itinerary.options.drop_last),
        "samples": describe_samples(itinerary.recipe.planned),
        "plan": itinerary.plan.to_dict(),
    }


def read_state(state: object, itinerary: Itinerary) -> Position:
    """The position that a state means for a loader.

    Parameters
    ----------
    state : dict
        What `make_state` gave, perhaps by way of JSON.
    itinerary : Itinerary
        Of the loader that is to go on from there.

    Raises
    ------
    StateError
        If it is no state, is damaged, or is of other samples or another global batch.
    LanesError
        If the ranks do not divide its lanes.
    MemoryBudgetError
        If its plan needs more memory than there is.
    """
    checked = _check_shape(state, itinerary.plan.to_dict())
    _check_samples(checked["samples"], describe_samples(itinerary.recipe.planned))
    try:
        plan = Plan.from_dict(checked["plan"])
    except (OptionError, TypeError, KeyError, ValueError) as error:
        raise _damaged("its plan is none", repr(checked["plan"])) from error
    _check_options(checked, plan, itinerary)
    _check_memory(plan, itinerary)
    position = Position(plan, checked["seed"], checked["epoch"], checked["step"])
    if position.step > itinerary.num_steps:
        raise _damaged(f"it is beyond the {itinerary.num_steps} steps of an epoch", position.step)
    return position


def describe_samples(recipe: Recipe) -> dict[str, str]:
    """What fixes which samples there are, each part by a short hash."""
    subset = "" if recipe.subset is None else recipe.subset.digest
    parts = {
        "store": recipe.source.fingerprint,
        "variables": recipe.variables,
        "selection": recipe.selection,
        "windows": recipe.windows,
        "fields": recipe.fields,
        "transforms": [step.describe() for step in recipe.steps],
        "subset": subset,
    }
    return {
        name: hashlib.sha256(repr(part).encode()).hexdigest()[:12] for name, part in parts.items()
    }


def _check_shape(state: object, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse all but the keys and kinds of values that states have."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise _damaged("it is no state of xloader", type(state).__name__)
    if state["version"] != VERSION:
        raise StateError(
            "the state is of another version of xloader",
            given=f"version {state['version']!r}",
            allowed=VERSION,
            remedy="load it with the version of xloader that saved it, and finish the epoch there",
        )
    if sorted(map(str, state)) != sorted(_KEYS):
        raise _damaged("its keys are others", sorted(map(str, state)))
    for name in ("epoch", "step"):
        if type(state[name]) is not int or state[name] < 0:
            raise _damaged(f"its {name} is no whole number from 0 on", repr(state[name]))
    is_well_formed = (
        type(state["seed"]) is int
        and type(state["drop_last"]) is bool
        and isinstance(state["samples"], Mapping)
        and _is_alike(state["plan"], plan)
    )
    if not is_well_formed:
        raise _damaged("values of its kinds are missing", repr(dict(state))[:500])
    return dict(state)


def _is_alike(found: object, example: object) -> bool:
    """Whether a value has the keys and kinds of an example, all the way down."""
    if isinstance(example, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == example.keys()
            and all(_is_alike(found[name], example[name]) for name in example)
        )
    if isinstance(example, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(example):
            return False
        return all(_is_alike(*pair) for pair in zip(found, example, strict=True))
    if isinstance(example, float):
        return isinstance(found, int | float) and not isinstance(found, bool)
    return type(found) is type(example)


def _check_samples(found: Mapping[str, Any], own: Mapping[str, str]) -> None:
    others = [name for name in own if found.get(name) != own[name]]
    if others:
        raise StateError(
            f"the state is of other samples: {', '.join(others)} differ",
            given=f"samples whose {', '.join(others)} are not those of the state",
            allowed="the same store, and the same verbs in the same order",
            remedy="make the samples as they were when the state was saved",
        )


def _check_options(state: Mapping[str, Any], plan: Plan, itinerary: Itinerary) -> None:
    options, world_size = itinerary.options, itinerary.options.world.world_size
    for name, own, saved in (
        ("drop_last", bool(options.drop_last), state["drop_last"]),
        ("shuffle", itinerary.plan.pace.is_shuffled, plan.pace.is_shuffled),
        ("num_workers", itinerary.plan.workers, plan.workers),
    ):
        if saved != own:
            raise StateError(
                f"the state was saved with another {name}",
                given=f"{name}={own}",
                allowed=f"{name}={saved}",
                remedy=f"pass {name}={saved}",
            )
    lanes = plan.pace.lanes
    if lanes % world_size:
        sizes = [size for size in range(1, lanes + 1) if lanes % size == 0]
        raise LanesError(
            "the ranks do not divide the lanes of the state",
            given=f"world_size={world_size}, {lanes} lanes",
            allowed=f"world_size in {sizes}",
            remedy="start as many ranks, and pass lanes= when training begins, "
            "a number that all sizes you may want divide",
        )
    if plan.global_batch != options.global_batch:
        raise StateError(
            "the state has another global batch",
            given=f"batch_size={options.batch_size} on each of {world_size} ranks",
            allowed=f"a global batch of {plan.global_batch}",
            remedy=f"pass batch_size={plan.global_batch // world_size}",
        )


def _check_memory(plan: Plan, itinerary: Itinerary) -> None:
    """Refuse a plan whose chunks and batches do not fit, with those lanes that this rank has."""
    options, budget = itinerary.options, plan.budget
    own_lanes = plan.pace.lanes // options.world.world_size
    batches = budget.num_batches * batch_nbytes(itinerary.footprint, itinerary.layouts, options)
    rest = budget.in_flight_nbytes + budget.index_nbytes
    needed = max(batches, budget.batches_nbytes) + rest + plan.pool_nbytes(own_lanes)
    if needed > max(options.memory_nbytes // plan.workers, 0) and needed > budget.memory_nbytes:
        raise _too_large(needed * plan.workers, options.memory_nbytes)
    if budget.memory_nbytes > options.memory_nbytes // plan.workers:
        raise _too_large(budget.memory_nbytes * plan.workers, options.memory_nbytes)


def _too_large(needed: int, given: int) -> MemoryBudgetError:
    return MemoryBudgetError(
        "the plan of the state needs more memory", given=f"{given} bytes", minimum_nbytes=needed
    )


def _damaged(why: str, given: object) -> StateError:
    return StateError(
        f"the state cannot be used: {why}",
        given=given,
        allowed="what state_dict() gave, perhaps by way of JSON",
        remedy="take another checkpoint",
    )
