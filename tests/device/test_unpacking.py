"""Fields that cross to a device as stored are unpacked there to the values of xarray."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from xloader import Samples
from xloader.core.options import LoaderOptions
from xloader.device.unpacking import TensorUnpacker
from xloader.errors import NanError
from xloader.loader.batches.batch import Batch
from xloader.loader.loader import Loader
from xloader.loader.planned_loader import PlannedLoader
from xloader.recipe.layout import make_layouts
from xloader.testing import write_store
from xloader.transforms.packed_fields import PackedField, packed_fields

CPU = torch.device("cpu")
INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.NanWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


def fields_of(samples: Samples, **options: Any) -> tuple[PackedField, ...]:
    return packed_fields(samples.recipe, make_layouts(samples.recipe), **options)


def packed_loader(samples: Samples, fields: tuple[PackedField, ...], **options: Any) -> Loader:
    """A loader of arrays as they are gathered for a device."""
    asked = {"batch_size": 5, "seed": 1, "on_nan": "ignore", **options}
    return PlannedLoader(samples.recipe, LoaderOptions(output="numpy", **asked), np.asarray, fields)


def unpacked(batch: Batch, fields: tuple[PackedField, ...]) -> dict[str, np.ndarray]:
    """Each packed field of a batch, unpacked."""
    found = {}
    for field in fields:
        stored = batch[field.name]
        assert stored.dtype == field.stored_dtype
        before = stored.copy()
        packed = torch.from_numpy(np.ascontiguousarray(stored).reshape(-1).view(np.uint8))
        found[field.name] = TensorUnpacker.of(field, CPU).unpack(packed).numpy()
        np.testing.assert_array_equal(stored, before)
        assert not np.shares_memory(stored, found[field.name])
    return found


def same(actual: np.ndarray, expected: np.ndarray, size: float, dtype: np.dtype) -> None:
    """Compare with values in float64, to a few roundings of numbers of this size."""
    assert actual.dtype == dtype
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(actual, expected, rtol=4 * eps, atol=4 * eps * size)


def stored_numbers(dtype: np.dtype, count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    if dtype.kind == "f":
        values = rng.normal(0, 100, count).astype(dtype)
        values[:2] = np.nan, -999
        return values
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, count, dtype.newbyteorder("="), endpoint=True)
    values[:4] = info.min, info.max, info.min + 1, info.max - 1
    return values.astype(dtype)


@st.composite
def attributes_of(draw: st.DrawFn, dtype: np.dtype) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    kinds = [float, np.float32, np.float64]
    if draw(st.booleans()):
        scale = draw(st.sampled_from([0.1, -0.0017250274674967954, 2.0]))
        attrs["scale_factor"] = draw(st.sampled_from(kinds))(scale)
    if draw(st.booleans()):
        attrs["add_offset"] = draw(st.sampled_from(kinds))(draw(st.sampled_from([273.15, -40.0])))
    native = dtype.newbyteorder("=")
    if dtype.kind == "f":
        fills: list[Any] = [-999.0, 1e20, np.nan, native.type(-999)]
    else:
        info = np.iinfo(native)
        fills = [native.type(info.min), native.type(info.max), 1.5, np.nan]
        if draw(st.booleans()):
            attrs["_Unsigned"] = draw(st.sampled_from(["true", "false"]))
    if draw(st.booleans()):
        # A store holds the fill value in the dtype of the array.
        attrs["_FillValue"] = draw(st.sampled_from(fills if dtype.kind == "f" else fills[:2]))
    if draw(st.booleans()):
        attrs["missing_value"] = draw(st.sampled_from(fills))
    if dtype.kind == "u" and attrs.get("_FillValue"):
        # xarray refuses a fill value that does not fit the signed dtype.
        attrs.pop("_Unsigned", None)
    return attrs


@st.composite
def datasets(draw: st.DrawFn) -> xr.Dataset:
    """Two variables of one stored dtype and any byte orders, the second one with levels."""
    name = draw(st.sampled_from([*INTEGERS, "f2", "f4"]))
    dtypes = [np.dtype(name).newbyteorder(draw(st.sampled_from("<>"))) for _ in range(2)]
    first, second = (draw(attributes_of(dtype)) for dtype in dtypes)
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), stored_numbers(dtypes[0], 72).reshape(9, 4, 2), first),
            "z": (
                ("time", "level", "y", "x"),
                stored_numbers(dtypes[1], 216).reshape(9, 3, 4, 2),
                second,
            ),
        }
    )


@given(
    ds=datasets(),
    dtype=st.sampled_from([None, "float32", "float64"]),
    is_stacked=st.booleans(),
    is_normalized=st.booleans(),
    fill=st.sampled_from([None, 0.0, {"z": -3.5}]),
)
def test_values_are_those_of_xarray(
    ds: xr.Dataset, dtype: str | None, is_stacked: bool, is_normalized: bool, fill: Any
) -> None:
    store = write_store(ds, {"t": (4, 4, 2), "z": (3, 3, 2, 2)})
    samples = xloader.open(store, dtype=dtype).window(time=2, stride=1)
    if is_stacked:
        samples = samples.field("a", "t", "z").field("b", "z")
    means, stds = np.array([3.0, 250.0, -2.0]), np.array([1.5, 20.0, 0.25])
    if is_normalized:
        samples = samples.normalize({"t": (280.0, 15.0), "z": (means, stds)})
    if fill is not None:
        samples = samples.fillna(fill)
    fields = fields_of(samples)
    decoded = xr.open_zarr(store, consolidated=False).load().astype("f8")
    if is_normalized:
        decoded["t"] = (decoded["t"] - 280.0) / 15.0
        decoded["z"] = (decoded["z"] - means[:, None, None]) / stds[:, None, None]
    if fill is not None:
        decoded = decoded.fillna(fill)
    t, z = decoded["t"].to_numpy()[:, None], decoded["z"].to_numpy()
    whole = {"t": t[:, 0], "z": z}
    if is_stacked:
        whole = {"a": np.concatenate([t, z], axis=1), "b": z}
    with packed_loader(samples, fields) as loader:
        batches = list(loader)
    layouts = {layout.name: layout for layout in make_layouts(samples.recipe)}
    for batch in batches:
        for name, values in unpacked(batch, fields).items():
            windows = np.stack([whole[name][i : i + 2] for i in batch.ids])
            channelled = np.swapaxes(windows, 1, 2) if is_stacked else windows
            size = np.nanmax(np.abs(channelled), initial=0.0) + 1000.0
            same(values, channelled, size, layouts[name].dtype)
    for name, layout in layouts.items():
        stored = {samples.recipe.variable(p.variable).stored_dtype for p in layout.parts}
        is_narrow = all(own.itemsize < layout.dtype.itemsize for own in stored)
        if layout.dtype.kind == "f" and is_narrow and len(layout.parts) == 1 and not is_stacked:
            assert name in {field.name for field in fields} or (
                # Levels are no channels without a named field.
                (is_normalized and name == "z") or _is_ambiguous(samples, layout.parts[0].variable)
            )


def _is_ambiguous(samples: Samples, variable: str) -> bool:
    packing = samples.recipe.variable(variable).packing
    return packing is not None and not np.can_cast(packing.seen_dtype, packing.wide_dtype, "safe")


def make_samples(**more: Any) -> Samples:
    rng = np.random.default_rng(5)
    attributes = {"scale_factor": 0.01, "add_offset": 280.0, "_FillValue": np.int16(-1)}
    t = rng.integers(-900, 900, (12, 4, 6)).astype(">i2")
    t[3, 1, 2:4] = -1
    ds = xr.Dataset(
        {
            "t": (("time", "y", "x"), t, attributes),
            "u": (("time", "y", "x"), rng.random((12, 4, 6), np.float32)),
            **more,
        }
    )
    chunks = {name: (5, *variable.shape[1:]) for name, variable in ds.variables.items()}
    return xloader.open(write_store(ds, chunks)).window(time=2, stride=1)


@pytest.mark.parametrize("fill", [None, 0.0])
def test_missing_numbers_count_as_nan(fill: float | None) -> None:
    samples = make_samples()
    if fill is not None:
        samples = samples.fillna(fill)
    fields = fields_of(samples)
    with packed_loader(samples, fields, on_nan="count") as loader:
        list(loader)
        assert loader.report().num_nan == ({"t": 4} if fill is None else {})
    with packed_loader(samples, fields, on_nan="raise", shuffle=False) as loader:
        if fill is None:
            with pytest.raises(NanError, match="4 values") as caught:
                list(loader)
            assert caught.value.ids == (2, 3)
        else:
            list(loader)


@pytest.mark.parametrize("fill", [None, 0.5])
def test_narrow_floats_and_their_nan_are_those_of_values(fill: float | None) -> None:
    half = np.random.default_rng(1).normal(0, 3, (12, 5)).astype("f2")
    half[2, :2], half[7, 4] = np.nan, -999
    attributes = {"scale_factor": 0.25, "_FillValue": np.float16(-999)}
    samples = make_samples(h=xr.Variable(("time", "level"), half, attributes))
    # Filled before it is normalised, and after: the first fill value is normalised too.
    if fill is not None:
        samples = samples.fillna({"h": fill})
    samples = samples.normalize({"h": (1.0, 2.0)}).fillna({"t": 3.0})
    fields = fields_of(samples)
    assert names(samples) == ["h", "t"]
    with (
        packed_loader(samples, fields) as loader,
        samples.loader(output="numpy", batch_size=5, seed=1, on_nan="ignore") as other,
    ):
        for batch, expected in zip(loader, other, strict=True):
            for name, values in unpacked(batch, fields).items():
                assert values.dtype == expected[name].dtype
                np.testing.assert_allclose(values, expected[name], rtol=0, atol=2e-4)
            assert fields[0].count_nans(batch.h).sum() == np.isnan(expected.h).sum()


def test_integers_beyond_float32_are_exact() -> None:
    counts = np.array([2**24 + 1, 2**31 - 1, -(2**31) + 1, 7], "i4")
    wide = xr.Variable(("time",), np.tile(counts, 3), {"add_offset": -(2.0**24)})
    samples = make_samples(w=wide)
    fields = tuple(field for field in fields_of(samples) if field.name == "w")
    with packed_loader(samples, fields) as loader:
        for batch in loader:
            ids = batch.ids[:, None] + np.arange(2)
            expected = np.tile(counts, 3)[ids].astype("f8") - 2.0**24
            values = unpacked(batch, fields)["w"]
            np.testing.assert_array_equal(values, expected, strict=True)


def names(samples: Samples, **options: Any) -> list[str]:
    return [field.name for field in fields_of(samples, **options)]


def test_what_cannot_be_folded_is_gathered_as_values() -> None:
    samples = make_samples()
    assert names(samples) == ["t"]
    assert names(samples.map(lambda ds: ds + 1)) == []
    assert names(samples.clip(0, 1)) == []
    by_place = xr.DataArray(np.arange(4.0), dims="y")
    assert names(samples.normalize({"t": (by_place, 1.0)})) == []
    # A field of two stored dtypes, and a variable that such a field shares with another one.
    mixed = samples.field("a", "t", "u").field("b", "t")
    assert names(mixed) == []
    assert names(samples.field("a", "t").field("b", "t").field("c", "u")) == ["a", "b"]


def test_fields_that_need_float64_stay_where_there_is_none() -> None:
    wide = xr.Variable(("time",), np.arange(12, dtype="i4"), {"scale_factor": 0.1})
    samples = make_samples(w=wide)
    assert names(samples) == ["t", "w"]
    assert names(samples, has_float64=False) == ["t"]


def test_integers_that_are_normalised_are_packed() -> None:
    counts = xr.Variable(("time",), np.arange(12, dtype="u1"))
    samples = make_samples(n=counts)
    assert names(samples) == ["t"]
    samples = samples.normalize({"n": (6.0, 2.0)})
    assert sorted(names(samples)) == ["n", "t"]
    fields = fields_of(samples)
    with packed_loader(samples, fields) as loader:
        for batch in loader:
            expected = (batch.ids[:, None] + np.arange(2) - 6.0) / 2.0
            same(unpacked(batch, fields)["n"], expected, 10.0, np.dtype("f4"))
