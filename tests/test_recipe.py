from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import EmptySamplesError, OptionError, UnknownNameError
from xloader.recipe.recipe import Field, Recipe
from xloader.sources.open.open_source import open_source


def _dataset() -> xr.Dataset:
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.random((20, 4, 6), np.float32)),
            "z": (("time", "level", "lat", "lon"), rng.random((20, 3, 4, 6), np.float32)),
            "oro": (("lat", "lon"), rng.random((4, 6))),
        },
        coords={"level": [500, 850, 1000], "lat": [60.0, 50.0, 40.0, 30.0]},
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.zarr"
    chunks = {"t2m": {"chunks": (6, 4, 6)}, "z": {"chunks": (6, 1, 4, 6)}}
    _dataset().to_zarr(path, zarr_format=3, consolidated=False, encoding=chunks)
    return path


def _samples(store: Path) -> xloader.Samples:
    return (
        xloader.open(store)
        .isel(time=slice(2, None), level=1)
        .window(time=4, stride=2)
        .inputs("t2m", "z", time=slice(0, 3))
        .targets("t2m", time=3)
        .normalize({"t2m": (1, 2)})
        .fillna(0)
    )


def test_equal_recipes_are_equal_also_over_two_openings(store: Path) -> None:
    assert _samples(store) == _samples(store)
    assert hash(_samples(store).recipe) == hash(_samples(store).recipe)
    assert _samples(store).fillna(0) != _samples(store)


def test_a_store_pickles_small_and_equal(store: Path) -> None:
    samples = _samples(store)
    samples[0]
    _ = samples.shapes, samples.recipe.fingerprint, len(samples)
    pickled = pickle.dumps(samples)
    assert len(pickled) < 16 * 1024
    again = pickle.loads(pickled)
    assert again == samples
    for actual, expected in zip(again[3], samples[3], strict=True):
        np.testing.assert_array_equal(actual, expected)


CHANGES: dict[str, Any] = {
    "variables": lambda s: xloader.Samples(replace(s.recipe, variables=("t2m", "z"))),
    "selection": lambda s: xloader.Samples(replace(s.recipe, selection=())),
    "field order": lambda s: xloader.Samples(replace(s.recipe, fields=s.recipe.fields[::-1])),
    "windows": lambda s: xloader.Samples(
        replace(s.recipe, windows=replace(s.recipe.windows, strides=(1,)))
    ),
    "steps": lambda s: s.fillna(1),
    "statistics": lambda s: xloader.Samples(replace(s.recipe, steps=())).normalize({"t2m": (1, 3)}),
    "a recorded method": lambda s: s.clip(0, 1),
    "a recorded array": lambda s: s.clip(np.arange(3.0)),
    "another recorded array": lambda s: s.clip(np.arange(4.0)),
}


def test_the_fingerprint_tells_every_change_apart(store: Path) -> None:
    samples = _samples(store)
    prints = [samples.recipe.fingerprint]
    prints += [change(samples).recipe.fingerprint for change in CHANGES.values()]
    assert len(set(prints)) == len(CHANGES) + 1
    assert _samples(store).recipe.fingerprint == prints[0]


def test_the_fingerprint_is_the_same_in_another_process(store: Path) -> None:
    script = (
        "import xloader\n"
        f"samples = xloader.open({str(store)!r}).window(time=4).inputs('t2m', 'z')\n"
        "found = samples.map(lambda ds: ds).where(lambda ds: ds > 0).recipe.fingerprint\n"
    )
    here: dict[str, Any] = {"__name__": "__main__"}
    exec(script, here)
    root = Path(__file__).resolve().parents[1]
    run = [sys.executable, "-c", f"{script}print(found)"]
    environ = {"PYTHONHASHSEED": "1"}
    done = subprocess.run(run, check=True, capture_output=True, text=True, cwd=root, env=environ)
    assert done.stdout.strip() == here["found"]


def test_values_are_frozen(store: Path) -> None:
    samples = _samples(store)
    with pytest.raises(FrozenInstanceError):
        samples.recipe = None  # type: ignore[misc, assignment]
    with pytest.raises(FrozenInstanceError):
        samples.recipe.fields = ()  # type: ignore[misc]


def test_a_field_without_channels_has_one_variable() -> None:
    with pytest.raises(OptionError, match=r"must have exactly one variable. Given: 2 variables"):
        Field("a", ("t2m", "z"), has_channels=False)


def test_names_that_are_not_there() -> None:
    source = open_source(_dataset())
    with pytest.raises(UnknownNameError, match=r"no variable with this name"):
        Recipe(source).axes_of("u")
    with pytest.raises(UnknownNameError, match=r"no dimension with this name"):
        Recipe(source).kept_of("x")


def test_nothing_to_window() -> None:
    samples = _dataset().xloader.window(level=1)
    recipe = replace(samples.recipe, variables=("t2m", "oro"))
    with pytest.raises(EmptySamplesError, match=r"no numeric variable has a windowed dimension"):
        _ = recipe.gathered_fields


def test_sizes_that_differ() -> None:
    class Two:
        """A source whose two variables do not fit into one xarray Dataset."""

        variables: ClassVar = {
            **open_source(xr.Dataset({"a": ("x", np.zeros(3))})).variables,
            **open_source(xr.Dataset({"b": ("x", np.zeros(4))})).variables,
        }

    with pytest.raises(
        OptionError, match=r"size of their dimension 'x'. Given: 'a' with 3, 'b' with 4"
    ):
        _ = Recipe(Two()).dim_sizes  # type: ignore[arg-type]
