"""Extreme selections: no dimensions, more spread than tiles, no possible mixing."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import EmptySamplesError, PlanWarning, UnsupportedDataError
from xloader.testing import write_store


@pytest.mark.parametrize("batch_size", [4, 32])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_variable_without_dimensions(is_stored: bool, batch_size: int) -> None:
    """A variable without dimensions is repeated for every sample, alone or with others."""
    values = np.arange(300, dtype="f4").reshape(100, 3)
    ds = xr.Dataset({"t": (("time", "x"), values), "k": ((), np.float32(3.5))})
    source: Any = write_store(ds, {"t": (16, 3), "k": ()}) if is_stored else ds
    samples = xloader.open(source).window(time=1).field("both", "t", "k").field("only", "k")
    np.testing.assert_array_equal(samples[[7]]["both"][0, 1], np.full((1, 3), 3.5))
    with samples.loader(batch_size=batch_size, output="numpy") as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["both"][:, 0, 0], values[batch.ids])
            assert (batch["both"][:, 1] == 3.5).all()
            assert batch["only"].shape == (len(batch.ids), 1)
            assert (batch["only"] == 3.5).all()


def test_a_spread_beyond_the_tiles_is_a_full_shuffle_of_them() -> None:
    """A spread beyond the number of tiles needs the memory of all tiles and no more."""
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((400, 1000), "f4"))}).chunk(time=10)
    samples = xloader.open(ds).window(time=1)
    loader = samples.loader(
        batch_size=16, memory="8MiB", plan=xloader.PlanRules(spread=1000), output="numpy"
    )
    assert loader.plan.pace.spread == 1000
    assert loader.explain().peak_nbytes <= 8 << 20


def test_a_spread_that_cannot_mix_is_warned_of() -> None:
    """The warning about a spread of 0 advises leaving the spread out, not more memory."""
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((1000, 100), "f4"))}).chunk(time=10)
    samples = xloader.open(ds).window(time=1)
    with (
        samples.loader(
            batch_size=16, memory="200kB", plan=xloader.PlanRules(spread=0), output="numpy"
        ) as loader,
        pytest.warns(PlanWarning, match='leave out spread, and pass memory="'),
    ):
        next(iter(loader))


def test_the_memory_that_a_warning_names_is_enough() -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((4000, 100), "f4"))}).chunk(time=10)
    samples = xloader.open(ds).window(time=3, stride=1)
    with (
        samples.loader(batch_size=16, memory="100kB", output="numpy") as loader,
        pytest.warns(PlanWarning) as caught,
    ):
        next(iter(loader))
    enough = re.search('memory="(.*?)"', str(caught[0].message))
    assert enough is not None
    with (
        samples.loader(batch_size=16, memory=enough[1], output="numpy") as loader,
        warnings.catch_warnings(action="error"),
    ):
        next(iter(loader))
        assert not loader.plan.is_resident


def test_a_field_without_elements_is_refused() -> None:
    ds = xr.Dataset({"t": ("time", np.zeros(10)), "e": (("time", "x"), np.zeros((10, 0)))})
    samples = xloader.open(ds).window(time=1)
    with pytest.raises(EmptySamplesError, match="the field 'e' has no elements"):
        samples.loader(output="numpy")
    assert len(samples.inputs("t")[0][0]) == 1


@pytest.mark.filterwarnings("ignore:Duplicate dimension names")
def test_a_variable_with_a_dimension_twice_is_named() -> None:
    twice = xr.Variable(("x", "x", "time"), np.ones((3, 3, 5)))
    samples = xloader.open(xr.Dataset({"twice": twice, "a": ("time", np.arange(5.0))}))
    samples = samples.window(time=1)
    for attempt in (lambda: samples[0], lambda: samples.inputs("twice"), samples.loader):
        with pytest.raises(UnsupportedDataError, match=r"'twice' has a dimension twice.*leave"):
            attempt()
    assert samples.inputs("a")[4][0] == 4.0


def test_chunks_that_strides_pass_over_do_not_count() -> None:
    """Chunks that strides skip do not count as needed, in memory, or as tiles.

    If they counted as needed, repeated reads would be hidden.
    """
    ds = xr.Dataset({"t": (("time", "lat"), np.zeros((4000, 200), "f4"))})
    samples = xloader.open(ds.chunk(time=16, lat=10)).window(
        time=12, lat=5, stride={"time": 1, "lat": 50}
    )
    explanation = samples.explain(batch_size=16, memory="40KiB")
    assert explanation.read_amplification <= 1.05
    assert explanation.mixing > explanation.full_mixing / 2
