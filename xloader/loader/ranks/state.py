"""States: the position of an iteration as plain JSON, to be saved with a model and loaded later.

::

    save(position)   version, epoch, step, row, seed, drop_last, plan, hashes of the samples
    read_state()     checks the whole state before it uses any part of it

The order of the samples is a function of seed, epoch and plan, so a state need not hold it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from xloader.core.options import divisors_of
from xloader.errors import MemoryBudgetError, OptionError, StateError
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.rank_plan import RankPlan, describe_samples
from xloader.planning.make_plan import batch_nbytes, check_plan, delivered_nbytes
from xloader.planning.plan import Plan

VERSION: Final = 1

_FROM_STATE_DICT: Final = "a value of state_dict(), also after it was stored as JSON"

_KEYS: Final = (
    "version", "epoch", "step", "row", "seed", "drop_last", "samples", "plan", "check",
)  # fmt: skip


def save(position: Position, rank_plan: RankPlan) -> dict[str, Any]:
    """Make the state at a position."""
    return sign(
        {
            "version": VERSION,
            "seed": rank_plan.options.seed,
            "drop_last": rank_plan.options.drop_last,
            "samples": dict(rank_plan.sample_traits),
            "plan": rank_plan.plan.to_dict(),
            **asdict(position),
        }
    )


def sign(state: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum to a state, so that damage is noticed."""
    rest = {name: state[name] for name in state if name != "check"}
    text = json.dumps(rest, sort_keys=True)
    return {**rest, "check": hashlib.sha256(text.encode()).hexdigest()[:12]}


def read_state(state: object, rank_plan: RankPlan) -> tuple[Position, Plan, int]:
    """Check that a loader can continue from a state, and read its position, plan and seed."""
    checked = _check_shape(state)
    # Anew each time: an error that passes may have kept labels from being read the last time.
    samples = dict(checked["samples"])
    steps, expected = samples.pop("steps", "None"), str(rank_plan.options.steps)
    _check_samples(samples, describe_samples(rank_plan.recipe.planned))
    if steps != expected:
        remedy = f"pass steps={steps}"
        raise another_option("steps", f"steps={expected}", f"steps={steps}", remedy)
    # Only now: the plan of samples with other dimensions has another form.
    today = _as_of_today(checked["plan"])
    if not _is_alike(today, rank_plan.plan.to_dict()):
        raise unusable_state("its plan is not valid", repr(checked["plan"])[:500])
    try:
        plan = Plan.from_dict(today)
        if plan != rank_plan.plan:
            row_nbytes = delivered_nbytes(rank_plan.layouts, None)
            check_plan(plan, rank_plan.planned_footprint, row_nbytes)
    except OptionError as error:
        why = f"its plan does not fit the samples: {error.what}"
        raise unusable_state(why, error.given, error.allowed) from error
    _check_options(checked, plan, rank_plan)
    _check_memory(plan, rank_plan)
    position = Position(checked["epoch"], checked["step"], checked["row"])
    if position.step > rank_plan.num_steps:
        raise unusable_state(
            f"its step is beyond the {rank_plan.num_steps} steps of an epoch", position.step
        )
    most, num_rows = _num_rows(rank_plan, position.step)
    if position.row >= most:
        raise unusable_state("its row lies outside its batch", position.row)
    if position.row >= num_rows:
        position = Position(position.epoch, rank_plan.num_steps)
    return position, plan, checked["seed"]


def _check_shape(state: object) -> dict[str, Any]:
    """Check the form of a state and the types of its values, but for its plan."""
    state = check_form(state, _KEYS, ("epoch", "step", "row"))
    is_well_formed = (
        type(state["seed"]) is int
        and -(2**63) <= state["seed"] < 2**64
        and type(state["drop_last"]) is bool
        and isinstance(state["samples"], Mapping)
        and all(type(text) is str for pair in state["samples"].items() for text in pair)
    )
    if not is_well_formed:
        raise unusable_state("its values are not of the right types", repr(state)[:500])
    return state


def check_form(state: object, keys: Sequence[str], counts: Sequence[str]) -> dict[str, Any]:
    """Check the version, the keys, the numbers and the checksum of a state of any loader."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise _no_state(state)
    if state["version"] != VERSION:
        raise StateError(
            "the state was saved by another version of xloader",
            given=state["version"],
            allowed=VERSION,
            remedy="load it with the version of xloader that saved it, and finish the epoch there",
        )
    if sorted(map(str, state)) != sorted(keys):
        raise unusable_state("it does not have the keys of a state", sorted(map(str, state)))
    for name in counts:
        if type(state[name]) is not int or not 0 <= state[name] < 1 << 63:
            why = f"its {name} is not a whole number from 0 to 2**63 - 1"
            raise unusable_state(why, state[name])
    try:
        is_whole = sign(state)["check"] == state["check"]
    except (TypeError, ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        raise unusable_state("it was changed after it was saved", "another checksum")
    return dict(state)


def _no_state(given: object) -> StateError:
    mapping: Mapping[Any, Any] = given if isinstance(given, Mapping) else {}
    inner = [
        name
        for name, value in mapping.items()
        if isinstance(value, Mapping) and {"version", "check", "plan"} <= value.keys()
    ]
    if not inner:
        return unusable_state("it is not a state of xloader", type(given).__name__)
    return StateError(
        "this is not the state of a loader, but contains one",
        given=f"{type(given).__name__} with the keys {', '.join(map(str, mapping))}",
        remedy=f"pass the value of the key {inner[0]!r}",
    )


def _as_of_today(plan: Any) -> Any:
    """The plan of a state, in today's form.

    One saved before plans had visits lacks their number, which is 1. One saved before the first
    epoch grew goes on without that. One saved when worker processes divided the memory has their
    number.
    """
    if not isinstance(plan, Mapping):
        return plan
    changed = dict(plan)
    if isinstance(plan.get("pace"), Mapping):
        changed["pace"] = {"visits": 1, "is_growing": False, **plan["pace"]}
    if isinstance(plan.get("budget"), Mapping):
        budget = plan["budget"].items()
        changed["budget"] = {name: size for name, size in budget if name != "num_processes"}
    return changed


def _is_alike(value: object, example: object) -> bool:
    """Whether a value has the same keys and types as an example, at every level."""
    if isinstance(example, Mapping):
        return (
            isinstance(value, Mapping)
            and value.keys() == example.keys()
            and all(_is_alike(value[name], example[name]) for name in example)
        )
    if isinstance(example, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(example):
            return False
        return all(_is_alike(*pair) for pair in zip(value, example, strict=True))
    return type(value) is type(example)


def _check_samples(saved: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    differing = [name for name in {**expected, **saved} if saved.get(name) != expected.get(name)]
    if {"labels", "windows"} <= set(differing):
        # They are the labels of the dimensions that have windows.
        differing.remove("labels")
    if differing:
        raise StateError(
            f"the state belongs to other samples: their {', '.join(differing)} differ",
            given=f"samples with other {', '.join(differing)}",
            remedy="make the samples in the same way as when the state was saved",
        )


def _check_options(state: Mapping[str, Any], plan: Plan, rank_plan: RankPlan) -> None:
    options, world_size = rank_plan.options, rank_plan.options.ranks.world_size
    for name, expected, saved in (
        ("drop_last", options.drop_last, state["drop_last"]),
        ("shuffle", rank_plan.plan.pace.is_shuffled, plan.pace.is_shuffled),
        ("num_workers", rank_plan.plan.workers, plan.workers),
    ):
        if saved != expected:
            remedy = f"pass {name}={saved}" + ", to data_loader" * (name == "num_workers")
            raise another_option(name, f"{name}={expected}", f"{name}={saved}", remedy)
    lanes = plan.pace.lanes
    if lanes % world_size:
        raise OptionError(
            "the ranks do not divide the lanes of the state",
            given=f"world_size={world_size}, {lanes} lanes",
            allowed=f"world_size in {divisors_of(lanes)}",
            remedy="start one of these numbers of ranks; for a new training, pass "
            "plan=PlanRules(lanes=...), which every rank count you might use divides evenly",
        )
    if plan.global_batch != options.global_batch:
        raise StateError(
            "the state has another global batch",
            given=f"batch_size={options.batch_size} on each of {world_size} ranks",
            allowed=f"a global batch of {plan.global_batch}",
            remedy=f"pass batch_size={plan.global_batch // world_size}",
        )


def another_option(name: str, given: object, allowed: object, remedy: str) -> StateError:
    """The error that a state was saved with another value of an option."""
    return StateError(
        f"the state was saved with another {name}", given=given, allowed=allowed, remedy=remedy
    )


def _check_memory(plan: Plan, rank_plan: RankPlan) -> None:
    """Refuse a plan whose chunks and batches do not fit, given the lanes of this rank."""
    options, budget = rank_plan.options, plan.budget
    pool = plan.pool_nbytes(plan.pace.lanes // options.ranks.world_size)
    if plan.is_resident:
        pool = min(pool, rank_plan.footprint.total_nbytes)
    batches = budget.num_batches * batch_nbytes(rank_plan.footprint, rank_plan.layouts, options)
    rest = budget.in_flight_nbytes + budget.index_nbytes
    needed = max(batches, budget.batches_nbytes) + rest + pool
    if needed > rank_plan.most_nbytes // plan.workers:
        raise MemoryBudgetError(
            "the plan of the state needs more memory",
            given=f"{rank_plan.most_nbytes} bytes",
            minimum_nbytes=needed * plan.workers,
        )


def _num_rows(rank_plan: RankPlan, step: int) -> tuple[int, int]:
    """Number of rows of a batch of a rank: the most that a state may count, and those it has."""
    size, is_over = rank_plan.options.batch_size, step >= rank_plan.num_steps
    num_rows = min(size, max(rank_plan.num_each - step * size, 1))
    # Earlier versions filled the last batch of several ranks up to its full size.
    return num_rows if is_over or rank_plan.options.ranks.world_size == 1 else size, num_rows


def unusable_state(why: str, given: object, allowed: object = _FROM_STATE_DICT) -> StateError:
    """Error for a state that cannot be loaded."""
    return StateError(
        f"the state cannot be used: {why}",
        given=given,
        allowed=allowed,
        remedy="load another checkpoint",
    )
