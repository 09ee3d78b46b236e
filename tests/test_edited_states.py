"""States that were edited and signed again: each loads and ends its epoch, or is refused."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given

import xloader
from tests.cases import Case, cases
from tests.flat_options import grouped
from xloader.errors import OptionError, StateError
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.ranks.state import sign
from xloader.planning.make_plan import check_plan, delivered_nbytes
from xloader.testing import write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

VALUES = (0, -1, 2, 10**6, 2**63, 10**400, 0.5, math.nan)
OTHERS = (None, True, "1", [])


def line() -> xloader.Samples:
    ds = xr.Dataset({"t": (("time", "x"), np.arange(240.0).reshape(80, 3))})
    return xloader.open(write_store(ds, {"t": (4, 3)})).window(time=1)


def plane() -> xloader.Samples:
    ds = xr.Dataset({"t": (("y", "x"), np.arange(400.0).reshape(20, 20))})
    return xloader.open(write_store(ds, {"t": (4, 5)})).window(y=3, x=3, stride=1)


LINE, PLANE = line(), plane()
SHARED: dict[str, Any] = {"batch_size": 8, "output": "numpy", "seed": 1, "threads": 1}
LOADERS: dict[str, Callable[[], Any]] = {
    "held": lambda: LINE.loader(memory="4KiB", plan=xloader.PlanRules(lanes=4), **SHARED),
    "read again": lambda: LINE.loader(memory="4KiB", plan=xloader.PlanRules(spread=3), **SHARED),
    "patches": lambda: PLANE.loader(memory="8KiB", plan=xloader.PlanRules(lanes=2), **SHARED),
    "ascending": lambda: PLANE.loader(memory="4KiB", shuffle=False, **SHARED),
    "listed": lambda: LINE.select(range(0, 80, 3)).loader(memory="3KiB", shuffle=False, **SHARED),
    "weighted": lambda: LINE.weighted(np.arange(80.0)).loader(
        memory="4KiB", drop_last=True, **SHARED
    ),
    "interleaved": lambda: xloader.interleave(
        {"a": (LINE, 2), "b": (LINE.select(range(40)), 1)}
    ).loader(memory="8KiB", **SHARED),
}

Place = tuple[Any, ...]


def places(part: Any, at: Place = ()) -> Iterator[Place]:
    """Where the values of a state are, but for its checksums."""
    parts = enumerate(part) if isinstance(part, list) else getattr(part, "items", tuple)()
    for name, inner in parts:
        if name != "check":
            yield (*at, name)
            yield from places(inner, (*at, name))


def value_at(state: Any, at: Place) -> Any:
    for name in at:
        state = state[name]
    return state


def edited(state: dict[str, Any], *changes: tuple[Place, Any]) -> dict[str, Any]:
    """The state with other values at some places, signed again, also within each set."""
    changed = copy.deepcopy(state)
    for at, value in changes:
        value_at(changed, at[:-1])[at[-1]] = value
    sets = changed.get("sets")
    if isinstance(sets, dict):
        signed = {n: sign(own) if isinstance(own, dict) else own for n, own in sets.items()}
        changed = {**changed, "sets": signed}
    return sign(changed)


def outcomes(make: Callable[[], Any], states: Iterator[dict[str, Any]]) -> Counter[str]:
    """How often a state was refused, and how often the rest of its epoch was delivered.

    An error that is none of xloader's fails the test, and so does pytest's time limit.
    """
    found: Counter[str] = Counter()
    loader = make()
    for state in states:
        try:
            loader.load_state_dict(state)
            found["finished"] += sum(1 for _ in loader) > 0
            loader.close()
            loader = make()
        except OptionError as error:
            found[type(error).__name__] += 1
    loader.close()
    return found


def saved(kind: str) -> dict[str, Any]:
    with LOADERS[kind]() as loader:
        next(iter(loader))
        state: dict[str, Any] = loader.state_dict()
        return state


def wrong(value: Any) -> list[Any]:
    near = [value - 1, value + 1] if type(value) is int else []
    return [other for other in (*VALUES, *near, *OTHERS) if other is not value]


@pytest.mark.parametrize("kind", LOADERS)
def test_every_value_of_a_state_is_checked(kind: str) -> None:
    state = saved(kind)
    # The states of all sets have the same form.
    chosen = [at for at in places(state) if at[:2] != ("sets", "b")]
    edits = [(at, value) for at in chosen for value in wrong(value_at(state, at))]
    found = outcomes(LOADERS[kind], (edited(state, edit) for edit in edits))
    assert found.total() == len(edits) > 450
    assert found["StateError"] > 0.7 * len(edits)
    assert found["finished"] > 20


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind != "interleaved"])
def test_two_values_of_a_plan_are_checked_together(kind: str) -> None:
    state, rng = saved(kind), random.Random(kind)
    plan = [at for at in places(state) if type(value_at(state, at)) in (int, bool, float)]
    pairs = rng.sample(list(itertools.combinations(plan, 2)), 120)
    values = [[value for value in wrong(value_at(state, at)) if value] for at in plan]
    choices = dict(zip(plan, values, strict=True))
    edits = [[(at, rng.choice(choices[at])) for at in pair] for pair in pairs]
    found = outcomes(LOADERS[kind], (edited(state, *edit) for edit in edits))
    assert found.total() == len(edits)


@pytest.mark.parametrize(
    ("at", "value", "named"),
    [
        (("lane_pool_nbytes",), 0, "lane_pool_nbytes is too small. Given: 0. Allowed: >= 480"),
        (("budget", "num_lanes"), 1, "lane_pool_nbytes is too small"),
        (("budget", "batch_nbytes"), 0, "batch_nbytes is too small. Given: 0. Allowed: >= 48"),
        (("pace", "streams"), 2**63, "streams is too large. .* Allowed: <= 20"),
        (("pace", "run"), 21, "run is too large. Given: 21. Allowed: <= 20"),
        (("pace", "lanes"), 5, "the lanes do not divide the batch. Given: 5 lanes"),
        (("pace", "lanes"), 10**6, "lanes is too large. Given: 1000000. Allowed: <= 8"),
        (("pace", "tiling", 0), -1, "tiling is too small. Given: -1. Allowed: >= 0"),
        (("pace", "run_dim"), 1, "run_dim is too large. Given: 1. Allowed: <= 0"),
        (("depth",), 1, "depth is too large. Given: 1. Allowed: <= 0"),
    ],
)
def test_what_does_not_fit_the_samples_is_named(at: Place, value: int, named: str) -> None:
    state = saved("held")
    with LOADERS["held"]() as loader, pytest.raises(StateError, match=named):
        loader.load_state_dict(edited(state, (("plan", *at), value)))


SAMPLES = {
    "line": (LINE, {}),
    "patches": (PLANE, {}),
    "ascending": (PLANE, {"shuffle": False}),
    "listed": (LINE.select(range(0, 80, 3)), {"shuffle": False}),
    "weighted": (LINE.weighted(np.arange(80.0)), {"max_amplification": 4.0}),
}


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "3.5KiB"},
        {"memory": "8KiB", "lanes": 2},
        {"memory": "1MiB"},
        {"memory": "8KiB", "prefetch": 0},
    ],
)
@pytest.mark.parametrize("kind", SAMPLES)
def test_plans_of_other_options_go_on(kind: str, options: dict[str, Any]) -> None:
    samples, more = SAMPLES[kind]
    with samples.loader(**grouped(**{**SHARED, **more, **options})) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch.ids.tolist() for batch in batches]
    with samples.loader(**grouped(**{**SHARED, **more, "threads": 2}), memory="2MiB") as loader:
        loader.load_state_dict(state)
        assert [batch.ids.tolist() for batch in loader] == rest


@given(case=cases())
def test_every_plan_that_is_made_passes_the_check(case: Case) -> None:
    plans = RankPlan(case.samples.recipe, case.samples.loader(**case.options_of(0)).options)
    check_plan(plans.plan, plans.planned_footprint, delivered_nbytes(plans.layouts, None))
