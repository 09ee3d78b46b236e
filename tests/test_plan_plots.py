"""The picture of compared plans: its lines are the figures of the plans, by memory and bound."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.pictures import assert_legible
from xloader.planning.plan_comparison import PlanComparison
from xloader.testing import write_store

pytest.importorskip("matplotlib")

MEMORY = ["64KiB", "1MiB", "4MiB", "16MiB"]


@pytest.fixture(scope="module")
def samples():
    ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 1000), "f4"))})
    return xloader.open(write_store(ds, {"t2m": (16, 1000)})).window(time=3, stride=1)


@pytest.fixture(scope="module")
def compared(samples) -> PlanComparison:
    return samples.compare_plans(memory=MEMORY, max_amplification=[1.05, 2.0], batch_size=8)


def lines_of(axes, label):
    return [line for line in axes.lines if line.get_label() == label]


def test_each_line_has_the_figures_of_a_bound(compared):
    reads, mixing = compared.plot().axes
    for bound in (1.05, 2.0):
        plans = [own for own in compared.plans if own.max_amplification == bound]
        for axes, factor, figure in (
            (reads, 1, lambda own: own.explanation.read_amplification),
            (mixing, 100, lambda own: own.mixing_share),
        ):
            (line,) = lines_of(axes, f"{bound:g}")
            assert line.get_xdata().tolist() == [own.memory_nbytes for own in plans]
            drawn = line.get_ydata()
            for value, own in zip(drawn, plans, strict=True):
                if own.explanation is None:
                    assert np.isnan(value)
                else:
                    assert value == pytest.approx(factor * figure(own))
                    low, high = axes.get_ylim()
                    assert low < value < high
    assert reads.get_ylabel() == "mean reads of a chunk"
    assert mixing.get_ylabel() == "mixing (% of a full shuffle)"
    assert reads.get_xlabel() == mixing.get_xlabel() == "memory of the loader"


def test_rings_are_the_front_and_crosses_do_not_fit(compared):
    reads, mixing = compared.plot().axes
    for axes in (reads, mixing):
        front = lines_of(axes, "no other is better")
        rings = [tuple(point) for line in front for point in line.get_xydata()]
        assert len(rings) == len(compared.front)
        assert {x for x, _ in rings} == {own.memory_nbytes for own in compared.front}
        crosses = [x for line in lines_of(axes, "does not fit") for x in line.get_xdata()]
        refused = [own.memory_nbytes for own in compared.plans if own.explanation is None]
        assert crosses == refused == [1 << 16] * 2
    legend = mixing.get_legend()
    assert legend.get_title().get_text() == "max_amplification"
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["1.05", "2", "no other is better", "does not fit", "least: 625 KiB"]


def test_ticks_are_memories_with_their_units(compared):
    for axes in compared.plot().axes:
        texts = [text.get_text() for text in axes.get_xticklabels()]
        assert texts == ["64 KiB", "1 MiB", "4 MiB", "16 MiB"]
        assert axes.get_xticks().tolist() == [1 << 16, 1 << 20, 1 << 22, 1 << 24]


def test_many_plans_leave_no_text_over_another(samples):
    memory = [round(2 ** (20 + n / 4)) for n in range(20)]
    figure = samples.compare_plans(memory=memory, max_amplification=1.5).plot()
    assert_legible(figure)
    bounds = np.linspace(1.01, 4, 30).tolist()
    figure = samples.compare_plans(memory="1MiB", max_amplification=bounds).plot()
    assert_legible(figure)
    assert "... 30 bounds" in [text.get_text() for text in figure.axes[1].get_legend().get_texts()]


@pytest.mark.parametrize("memory", [["1MiB"], ["1KiB", "2KiB"], ["1KiB", "64MiB"]])
def test_few_plans_or_none_are_drawn(samples, memory):
    compared = samples.compare_plans(memory=memory)
    figure = compared.plot()
    assert_legible(figure)
    is_none = not compared.front
    assert figure.get_suptitle().endswith("none of which fits") == is_none
