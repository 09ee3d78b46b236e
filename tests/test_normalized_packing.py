"""Packed numbers are normalised in the look-up that unpacks them, with the same values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.without_library import without_library
from xloader import Samples
from xloader.testing import write_store
from xloader.transforms import normalize

MEAN, STD = 271.3, 0.7


def batches(samples: Samples, **options: object) -> list[list[np.ndarray]]:
    with samples.loader(output="numpy", **options) as loader:
        return [list(batch) for batch in loader]


@pytest.fixture(name="packed")
def make_packed() -> Samples:
    """Two packed variables, one of them with levels, and one that is not packed."""
    rng = np.random.default_rng(3)
    attributes = {"scale_factor": np.float32(0.013), "_FillValue": np.int16(-7)}
    t = rng.integers(-(2**15), 2**15, (12, 6, 8)).astype("i2")
    t[:, 0, :3] = -7
    z = rng.integers(0, 120, (12, 2, 6)).astype("i2")
    ds = xr.Dataset(
        {
            "t": (("time", "y", "x"), t, attributes),
            "z": (("time", "level", "y"), z, attributes),
            "u": (("time", "y"), rng.random((12, 6), np.float32)),
        }
    )
    chunks = {"t": (4, 3, 8), "z": (4, 2, 3), "u": (4, 6)}
    return xloader.open(write_store(ds, chunks)).window(time=2, y=3, stride=1)


@pytest.fixture(name="changed")
def record_changes() -> Iterator[list[int]]:
    """The number of dimensions of each array that is normalised; tables have one."""
    dims: list[int] = []
    change = normalize._change

    def recording(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
        dims.append(values.ndim)
        change(values, mean, std)

    with mock.patch.object(normalize, "_change", recording):
        yield dims


@pytest.mark.parametrize("is_compiled", [True, False])
def test_values_are_those_of_two_steps(
    packed: Samples, changed: list[int], is_compiled: bool
) -> None:
    options = {"batch_size": 7, "memory": "1MiB", "on_nan": "ignore"}
    plain = batches(packed, **options)
    samples = packed.normalize({"t": (MEAN, STD), "u": (0.5, 2.0)}).fillna(0.25)
    changed.clear()
    with nullcontext() if is_compiled else without_library():
        found = batches(samples, **options)
    mean, std = np.float32(MEAN), np.float32(STD)
    for (t, u, z), (own_t, own_u, own_z) in zip(plain, found, strict=True):
        expected = (t - mean) / std
        np.testing.assert_array_equal(own_t, np.where(np.isnan(t), np.float32(0.25), expected))
        np.testing.assert_array_equal(own_z, np.nan_to_num(z, nan=0.25))
        np.testing.assert_array_equal(own_u, (u - np.float32(0.5)) / np.float32(2))
    # The table of t once, and u in each batch.
    assert changed.count(1) == 1
    assert len(changed) == 1 + len(found)


def test_what_cannot_be_done_to_the_table_is_done_to_batches(
    packed: Samples, changed: list[int]
) -> None:
    means, stds = (xr.DataArray(own, dims="level") for own in ([1.0, 2.0], [3.0, 4.0]))
    by_level = packed.normalize({"z": (means, stds)})
    later = packed.fillna(0.0).normalize({"t": (MEAN, STD)})
    for samples in (by_level, later):
        changed.clear()
        batches(samples, batch_size=7, memory="1MiB", on_nan="ignore")
        assert changed
        assert 1 not in changed


def test_single_samples_are_those_of_batches(packed: Samples) -> None:
    samples = packed.normalize({"t": (MEAN, STD), "z": (1.0, 3.0)})
    (first, *_) = batches(samples, batch_size=1, memory="1MiB", shuffle=False, on_nan="ignore")
    for array, own in zip(first, samples[0], strict=True):
        np.testing.assert_array_equal(array[0], own)


def test_explain_says_so(packed: Samples) -> None:
    samples = packed.normalize({"t": (MEAN, STD), "u": (0.5, 2.0)})
    with samples.loader(output="numpy", batch_size=4, memory="1MiB") as loader:
        assert loader.explain().gather.endswith("; t normalised while unpacked")
    with packed.loader(output="numpy", batch_size=4, memory="1MiB") as loader:
        assert "normalised" not in loader.explain().gather
