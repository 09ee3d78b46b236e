"""Compared plans are those of `explain`, and the front holds those that no other plan beats."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import OptionError
from xloader.planning.plan_comparison import ComparedPlan, mark_front
from xloader.testing import write_store

MEMORY = ["64KiB", "1MiB", "4MiB", "16MiB"]


@pytest.fixture(scope="module")
def samples():
    ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 1000), "f4"))})
    return xloader.open(write_store(ds, {"t2m": (16, 1000)})).window(time=3, stride=1)


@pytest.fixture(scope="module")
def compared(samples):
    return samples.compare_plans(memory=MEMORY, max_amplification=[1.05, 2.0], batch_size=8)


def test_each_plan_is_that_of_explain(samples, compared):
    pairs = [(plan.memory_nbytes, plan.max_amplification) for plan in compared.plans]
    assert pairs == list(itertools.product([1 << 16, 1 << 20, 1 << 22, 1 << 24], [1.05, 2.0]))
    for plan in compared.plans[2:]:
        loader = samples.loader(
            memory=plan.memory_nbytes,
            plan=xloader.PlanRules(max_amplification=plan.max_amplification),
            batch_size=8,
            output="numpy",
        )
        if loader.plan.is_resident:
            # Its first epoch mixes less.
            loader.set_epoch(1)
        assert plan.explanation == loader.explain()


def test_a_memory_that_is_too_small_says_how_much_would_do(samples, compared):
    plan = compared.plans[0]
    assert plan.explanation is None
    assert not plan.is_on_front
    assert plan.to_dict()["num_reads"] is None
    found = samples.compare_plans(memory=plan.minimum_nbytes, max_amplification=1.05, batch_size=8)
    assert found.plans[0].explanation is not None


def test_the_front_of_known_figures(compared):
    told = compared.plans[-1].explanation

    def plan(num_reads, mixing, peak_nbytes):
        own = replace(told, num_reads=num_reads, mixing=mixing, peak_nbytes=peak_nbytes)
        return ComparedPlan(1, 1.05, own)

    plans = [
        plan(10, 8.0, 100),
        plan(10, 8.0, 100),
        plan(20, 9.0, 100),
        # Beaten by the first: as many reads and as much mixing, but more memory.
        plan(10, 8.0, 200),
        plan(10, 8.5, 200),
        # Beaten in all three.
        plan(30, 7.0, 300),
        ComparedPlan(1, 1.05, None, 500),
    ]
    marked = [own.is_on_front for own in mark_front(plans)]
    assert marked == [True, False, True, False, True, False, False]


def test_of_equal_plans_the_one_that_was_given_least_is_on_the_front(compared):
    told = compared.plans[-1].explanation
    alike = replace(told, mixing=told.mixing + 1e-9)
    plans = [
        ComparedPlan(4, 1.05, told),
        ComparedPlan(2, 4.0, told),
        # Better by less than a row shows.
        ComparedPlan(8, 1.05, alike),
        ComparedPlan(2, 2.0, told),
    ]
    assert [own.is_on_front for own in mark_front(plans[:2] + plans[3:])] == [False, False, True]
    marked = mark_front(plans)
    assert sum(own.is_on_front for own in marked) == 1


def test_the_table_and_the_dict(compared):
    lines = str(compared).splitlines()
    assert len(lines) == 1 + len(compared.plans) + 1
    assert lines[-1].startswith("* on the front: no other plan")
    for line, plan in zip(lines[1:-1], compared.plans, strict=True):
        assert line.endswith("*") == plan.is_on_front
        if plan.explanation is None:
            assert "needs " in line
        else:
            assert f"{plan.explanation.num_reads:,}" in line
    shown = json.loads(json.dumps(compared.to_dict()))
    assert [own["is_on_front"] for own in shown["plans"]] == [
        plan.is_on_front for plan in compared.plans
    ]
    assert shown["plans"][-1]["num_reads"] == compared.plans[-1].explanation.num_reads


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": []}, "no memory"),
        ({"max_amplification": []}, "no max_amplification"),
        ({"memory": ["lots"]}, "number of bytes"),
        ({"max_amplification": [0.5]}, "max_amplification"),
        ({"batchsize": 3}, "no option 'batchsize'"),
        (
            {"max_amplification": 2.0, "plan": xloader.PlanRules(max_amplification=1.5)},
            "another bound of amplification",
        ),
    ],
)
def test_bad_options_are_errors(samples, options, words):
    with pytest.raises(OptionError, match=words):
        samples.compare_plans(**options)


def test_the_bound_of_the_plan_is_the_one_to_plan_for(samples):
    rules = xloader.PlanRules(max_amplification=1.5, lanes=2)
    compared = samples.compare_plans(memory="1MiB", batch_size=8, plan=rules)
    (plan,) = compared.plans
    assert plan.max_amplification == 1.5
    assert plan.explanation.lanes == 2
    both = samples.compare_plans(memory="1MiB", max_amplification=1.5, batch_size=8, plan=rules)
    assert both == compared
