"""Floating fields are delivered in the dtype that was asked for, and others as they are."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import xloader
from xloader import Samples
from xloader.core.output_dtypes import BFLOAT16, convert_floats, largest_of
from xloader.errors import OptionError

NAMES = ["float32", "float16", "bfloat16"]


@pytest.fixture(name="samples")
def make_samples() -> Samples:
    rng = np.random.default_rng(2)
    ds = xr.Dataset(
        {
            "t": (("time", "x"), 280 + rng.random((30, 70), np.float32)),
            "d": (("time", "x"), rng.random((30, 70))),
            "n": (("time", "x"), rng.integers(0, 60000, (30, 70)).astype("u2")),
            "b": (("time", "x"), rng.random((30, 70)) > 0.5),
        }
    )
    ds["t"][3, 5] = np.nan
    return xloader.open(ds).window(time=2, stride=1).normalize({"t": (280.0, 0.25)})


def batches(samples: Samples, **options: Any) -> list[Any]:
    asked = {"batch_size": 4, "memory": "4MiB", "on_nan": "ignore", **options}
    with samples.loader(**asked) as loader:
        return list(loader)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_tensors_are_those_that_pytorch_would_convert(
    samples: Samples, name: str, is_mapped: bool
) -> None:
    if is_mapped:
        samples = samples.map(lambda ds: ds)
    dtype = getattr(torch, name)
    # All batches are kept: their memory must not be used again.
    pairs = zip(
        batches(samples, device=xloader.OnDevice(dtype=name)), batches(samples), strict=True
    )
    for batch, plain in pairs:
        assert batch.ids.tolist() == plain.ids.tolist()
        for field, expected in plain.as_dict().items():
            asked = expected.to(dtype) if expected.is_floating_point() else expected
            torch.testing.assert_close(batch[field], asked, rtol=0, atol=0, equal_nan=True)


def test_arrays_too(samples: Samples) -> None:
    found = batches(samples, device=xloader.OnDevice(dtype="float16"), output="numpy")
    for batch, plain in zip(found, batches(samples, output="numpy"), strict=True):
        for field, expected in plain.as_dict().items():
            dtype = np.dtype("f2") if expected.dtype.kind == "f" else expected.dtype
            np.testing.assert_array_equal(batch[field], expected.astype(dtype), strict=True)


def test_short_and_padded_batches(samples: Samples) -> None:
    options = {
        "device": xloader.OnDevice(dtype="bfloat16"),
        "world": xloader.World(0, 2),
        "batch_size": 6,
    }
    found = batches(samples, **options)
    plain = batches(samples, **{**options, "device": None})
    assert found[-1].is_padding.any()
    for batch, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(
            batch.t, expected.t.to(torch.bfloat16), rtol=0, atol=0, equal_nan=True
        )


def test_values_of_a_function_are_not_overwritten(samples: Samples) -> None:
    kept = []

    def keep(ds: xr.Dataset) -> xr.Dataset:
        kept.append((ds, ds.copy(deep=True)))
        return ds

    batches(samples.map(keep), device=xloader.OnDevice(dtype="float16"))
    for ds, copied in kept:
        xr.testing.assert_identical(ds, copied)


def test_nan_is_found_before_values_are_narrowed(samples: Samples) -> None:
    with samples.loader(
        batch_size=4, memory="4MiB", on_nan="count", device=xloader.OnDevice(dtype="bfloat16")
    ) as loader:
        list(loader)
        assert loader.report().num_nan == {"t": 2}


def test_a_value_too_large_is_an_error() -> None:
    ds = xr.Dataset({"p": ("time", np.array([1.0, 101325.0, 3.0], "f4"))})
    samples = xloader.open(ds).window(time=1)
    options = {"batch_size": 3, "shuffle": False}
    narrow = {**options, "device": xloader.OnDevice(dtype="float16")}
    with pytest.raises(OptionError, match="'p' is too large for float16") as caught:
        batches(samples, **narrow)
    assert "between -65504 and 65504" in str(caught.value)
    (batch,) = batches(samples, **options, device=xloader.OnDevice(dtype="bfloat16"))
    assert batch.p.flatten().tolist() == [1.0, 101376.0, 3.0]
    # Infinite values are none too large.
    ds["p"][1] = np.inf
    (batch,) = batches(samples, **narrow)
    assert batch.p.flatten().tolist() == [1.0, np.inf, 3.0]


@pytest.mark.parametrize("value", ["float64", "f4", "int8", torch.bfloat16, np.float16, 16])
def test_other_dtypes_are_refused(samples: Samples, value: Any) -> None:
    with pytest.raises(OptionError, match=r"^dtype is not one of the choices") as caught:
        samples.loader(device=xloader.OnDevice(dtype=value))
    assert "pass the name as text" in str(caught.value)


def test_numpy_has_no_bfloat16(samples: Samples) -> None:
    with pytest.raises(OptionError, match="NumPy has no bfloat16"):
        samples.loader(device=xloader.OnDevice(dtype="bfloat16"), output="numpy")


def test_a_loader_of_bfloat16_can_be_pickled(samples: Samples) -> None:
    loader = samples.loader(
        batch_size=4, device=xloader.OnDevice(dtype="bfloat16"), on_nan="ignore"
    )
    with pickle.loads(pickle.dumps(loader)) as other:
        assert next(iter(other)).t.dtype == torch.bfloat16


@given(
    arrays_of.arrays("f4", st.integers(0, 40), elements=st.floats(width=32, allow_subnormal=True)),
    st.sampled_from(["f4", "f8", "f2"]),
    st.booleans(),
)
def test_bfloat16_is_rounded_as_pytorch_does(values: np.ndarray, dtype: str, is_own: bool) -> None:
    with np.errstate(over="ignore"):
        array = values.astype(dtype)
    expected = torch.from_numpy(array.astype("f4")).to(torch.bfloat16)
    found = convert_floats({"x": array}, "bfloat16", is_own=is_own)["x"]
    assert found.dtype == BFLOAT16
    tensor = torch.from_numpy(found.view("i2")).view(torch.bfloat16)
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)


def test_large_arrays_are_converted_where_they_lie() -> None:
    values = np.random.default_rng(0).random((3, 1 << 17))
    expected = values.astype("f2")
    array = values.copy()
    found = convert_floats({"x": array}, "float16", is_own=True)["x"]
    assert np.shares_memory(found, array)
    np.testing.assert_array_equal(found, expected, strict=True)
    # A dtype that is not smaller cannot lie there.
    wider = convert_floats({"x": expected}, "float32", is_own=True)["x"]
    np.testing.assert_array_equal(wider, expected.astype("f4"), strict=True)


def test_the_largest_value_of_a_dtype() -> None:
    assert (largest_of("float16"), largest_of(None)) == (65504.0, float("inf"))
