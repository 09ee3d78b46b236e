"""CF conventions: packed variables and times give exactly xarray's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec
from zarr.storage import MemoryStore

import xloader
from tests.sources import kinds
from xloader.errors import UnsupportedDataError
from xloader.sources.arrays.catalog import coding_of, decoded_dtype
from xloader.sources.open.open_source import open_source
from xloader.testing import CountingStore, write_store

DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
ORDERS = ["<", ">"]

# xarray warns about attributes that it has to guess, and about values outside their dtype's range.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*will not decode the variable.*timedelta64:FutureWarning"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.NanWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


def decode(stored: np.ndarray, attrs: dict[str, Any], **kwargs: Any) -> xr.DataArray:
    variable = xr.Variable(("x",), stored, dict(attrs))
    return xr.Dataset({"v": xr.conventions.decode_cf_variable("v", variable, **kwargs)})["v"]


def unpack(stored: np.ndarray, decoded: xr.DataArray, dtype: np.dtype | None = None) -> np.ndarray:
    coding = coding_of(decoded, stored.dtype, dtype)
    assert coding.xarray_only == ""
    native = stored.astype(stored.dtype.newbyteorder("="))
    return native if coding.packing is None else coding.packing.unpack(native)


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual, expected, strict=True)
    # Compare bits to tell 0 from -0. NaN is left out because its bits depend on the processor.
    is_number = ~np.isnan(expected)
    assert actual[is_number].tobytes() == expected[is_number].tobytes()


def factors() -> st.SearchStrategy[Any]:
    plain = st.sampled_from([0.1, -0.0017250274674967954, 1.0, 273.15, 1e-3, 32768.5, 3, -1])
    return plain.flatmap(
        lambda value: st.sampled_from(
            [value, float(value), np.float64(value), np.float32(value), np.array([value], "f8")]
        )
    )


@st.composite
def packed_variables(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES))).newbyteorder(draw(st.sampled_from(ORDERS)))
    native = dtype.newbyteorder("=")
    if dtype.kind == "f":
        special = [0.0, -0.0, 1.5, -9999.0, 1e20, 3e38, np.nan, np.inf, -9.96921e36]
        with np.errstate(over="ignore"):
            values = np.array(special).astype(dtype)
        fills: list[Any] = [-9999.0, 1e20, -9.96921e36, np.nan, native.type(-9999), values[4]]
    else:
        info = np.iinfo(native)
        ends = [info.min, info.max, info.min + 1, info.max - 1, info.max // 2, 0, 1, 99]
        picked = draw(st.lists(st.integers(int(info.min), int(info.max)), min_size=3, max_size=3))
        values = np.array([*ends, *picked]).astype(dtype)
        fills = [*(int(value) for value in values), np.nan, 1.5, float(values[-1])]
        fills += [native.type(value) for value in values]
    attrs: dict[str, Any] = {}
    for name in ("scale_factor", "add_offset"):
        if draw(st.booleans()):
            attrs[name] = draw(factors())
    if draw(st.booleans()):
        attrs["_FillValue"] = draw(st.sampled_from(fills))
    if draw(st.booleans()):
        several = st.lists(st.sampled_from(fills), min_size=1, max_size=3).map(np.array)
        attrs["missing_value"] = draw(st.one_of(st.sampled_from(fills), several))
    if dtype.kind in "iu" and draw(st.booleans()):
        attrs["_Unsigned"] = draw(st.sampled_from(["true", "false", "True"]))
    if draw(st.integers(0, 4)) == 0:
        attrs["units"] = draw(st.sampled_from(["K", "days", "seconds"]))
    for name in ("valid_min", "valid_max"):
        if draw(st.booleans()):
            attrs[name] = 1
    return values, attrs


def numbers(dtype: str) -> np.ndarray:
    return np.array([0, 1, -2, 7, -9999, 1e20 if "f" in dtype else 99]).astype(dtype)


F32 = {"scale_factor": np.float32(0.1), "add_offset": np.float32(3)}


# A fill value whose dtype differs from that of the values may equal none of them.
@example((numbers("f4"), {"_FillValue": 1e20}), None)
@example((numbers("f4"), {"_FillValue": np.float32(1e20)}), None)
# xarray makes a fill value unsigned in the wrong byte order.
@example((numbers(">i2"), {"_FillValue": -2, "_Unsigned": "true"}), None)
@example((numbers("<i2"), {"_FillValue": -2, "_Unsigned": "true"}), None)
# For time units, xarray masks in float64, which tells these two values apart, and scales in
# float32.
@example((2**25 + np.arange(2, dtype="i4"), {"_FillValue": 2**25, "units": "days", **F32}), None)
# xarray treats a factor in an array as a Python float.
@example((np.arange(99, dtype="f4"), {"_FillValue": np.nan, "scale_factor": np.array([0.1])}), None)
@given(packed_variables(), st.sampled_from([None, "f2", "f4", "f8"]))
def test_every_coding_is_xarrays_or_left_to_xarray(
    variable: tuple[np.ndarray, dict[str, Any]], asked: str | None
):
    stored, attrs = variable
    try:
        decoded = decode(stored, attrs)
        expected = decoded.to_numpy()
    except (TypeError, ValueError, OverflowError, KeyError):
        # xarray itself cannot open or read these, such as integers with missing values.
        return
    if expected.dtype.kind not in "iuf":
        return
    dtype = decoded_dtype(decoded, asked)
    if coding_of(decoded, stored.dtype).xarray_only:
        # Only these cases are left to xarray: two that involve time units, and integers with an
        # integer scale.
        is_in_two_steps = stored.dtype.itemsize == 4 and decoded.dtype == "f4"
        assert decoded.dtype.kind == "i" or (is_in_two_steps and attrs["units"] != "K")
        return
    same(unpack(stored, decoded, dtype), expected.astype(dtype))


def make_store(dtype: str, attrs: dict[str, Any], fill: Any = 0, **codecs: Any) -> MemoryStore:
    """Make a group with one array ``v`` of every other number from -60 on, with raw attributes."""
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=codecs.pop("zarr_format", 3))
    names: dict[str, Any] = {"dimension_names": ("y", "x")}
    if group.metadata.zarr_format == 2:
        names = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
    array = group.create_array(
        "v", shape=(6, 10), chunks=(4, 5), dtype=dtype, fill_value=fill, **names, **codecs
    )
    array.attrs.update(attrs)
    numbers = np.arange(60) * 2 - 60
    array[:] = numbers.astype(dtype).reshape(6, 10)
    return store


def xarrays(store: MemoryStore, **kwargs: Any) -> np.ndarray:
    with xr.open_dataset(store, engine="zarr", consolidated=False, **kwargs) as dataset:
        return dataset["v"].to_numpy()


PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -10}
STORES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "v3": ("i2", PACKED, {}),
    "v3-big-endian": ("i2", PACKED, {"serializer": zarr.codecs.BytesCodec(endian="big")}),
    "sharded": ("i2", PACKED, {"shards": (8, 10)}),
    "v2": ("i2", {"scale_factor": 0.01, "add_offset": 273.15}, {"zarr_format": 2, "fill": -10}),
    "v2-big-endian": (">i2", {"scale_factor": 0.5}, {"zarr_format": 2, "fill": -10}),
    "codecs-that-zarr-alone-knows": (
        "i2",
        PACKED,
        {"compressors": [BloscCodec(), GzipCodec()]},
    ),
    "several-fills": ("i4", {**PACKED, "missing_value": [-8, 6]}, {}),
    "unsigned": ("i2", {**PACKED, "_Unsigned": "true"}, {}),
    "masked-integers": ("i2", {"_FillValue": -10}, {}),
    "masked-long-integers": ("i4", {"missing_value": -10}, {}),
    # xarray writes the fill value of floats in base64.
    "masked-floats": ("f4", {"_FillValue": "AAAAAAAAJMA="}, {}),
    "v2-masked-floats": ("f4", {}, {"zarr_format": 2, "fill": -10.0}),
    "bool": ("i1", {"dtype": "bool"}, {}),
    "scale-of-zero": ("i2", {"scale_factor": 0.0, "add_offset": 1.5}, {}),
    "factors-in-lists": ("i2", {"scale_factor": [0.5], "add_offset": [1.5]}, {}),
}


@pytest.mark.parametrize("name", STORES)
def test_stores_are_read_packed_and_give_what_xarray_gives(name: str):
    dtype, attrs, codecs = STORES[name]
    store = make_store(dtype, attrs, **codecs)
    source = open_source(store, dtype=None)
    variable = source.variables["v"]
    native = np.dtype(dtype).newbyteorder("=")
    assert variable.packing is not None
    assert variable.stored_dtype == native
    assert source.path_of("v").endswith(f"; packed as {native}")
    assert "through xarray" not in source.path_of("v")
    expected = xarrays(store)
    assert variable.dtype == expected.dtype
    same(kinds.read_all(source, "v"), expected)
    # Single samples and the engine each unpack the values that the source gives.
    samples = xloader.open(store, dtype=None).window(y=2, stride=1)
    np.testing.assert_array_equal(samples[3][0], expected[3:5], strict=True)
    for batch in samples.loader(batch_size=3, seed=5, output="numpy"):
        rows = np.stack([expected[i : i + 2] for i in batch.ids])
        np.testing.assert_array_equal(batch["v"], rows, strict=True)
        same(batch["v"], rows)


@pytest.mark.parametrize(
    ("kwargs", "dtype"),
    [
        ({}, "f4"),
        ({"mask_and_scale": False}, "i2"),
        ({"decode_cf": False}, "i2"),
        ({"dtype": "float64"}, "f8"),
        ({"dtype": np.float16}, "f2"),
    ],
)
def test_options_of_opening_choose_the_values(kwargs: dict[str, Any], dtype: str):
    store = make_store("i2", PACKED)
    source = open_source(store, **kwargs)
    variable = source.variables["v"]
    assert variable.dtype == dtype
    assert (variable.packing is None) == (dtype == "i2")
    opening = {k: v for k, v in kwargs.items() if k != "dtype"}
    same(kinds.read_all(source, "v"), xarrays(store, **opening).astype(dtype))


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"dtype": "bool", "_FillValue": -10}, "packed numbers decoded to bool"),
        ({"units": "days", "_FillValue": -10}, "missing values in int64"),
    ],
)
def test_what_only_xarray_knows_goes_through_xarray(attrs: dict[str, Any], reason: str):
    store = make_store("i1", attrs)
    # Not every release of xarray decodes a variable with time units as a timedelta by default.
    kwargs = {"decode_timedelta": xr.coders.CFTimedeltaCoder(decode_via_units=False)}
    source = open_source(store, dtype=None, **kwargs)
    assert source.variables["v"].packing is None
    assert source.path_of("v").startswith(
        "block by block through xarray, because of its CF decoding"
    )
    assert f"({reason})" in source.path_of("v")
    same(kinds.read_all(source, "v"), xarrays(store, **kwargs))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_absent_chunk_is_decoded_like_a_stored_number(zarr_format: int):
    attrs = {"scale_factor": 0.5, "add_offset": 1.0}
    if zarr_format == 3:
        attrs["_FillValue"] = -10
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=zarr_format)
    names: dict[str, Any] = {"dimension_names": ("x",)}
    if zarr_format == 2:
        names = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    array = group.create_array("v", shape=(6,), chunks=(3,), dtype="i2", fill_value=-4, **names)
    array.attrs.update(attrs)
    array[3:] = [-4, 6, -10]
    source = open_source(store, on_missing="fill", dtype=None)
    expected = [-1.0, -1.0, -1.0, -1.0, 4.0, np.nan]
    if zarr_format == 2:
        # In Zarr v2, xarray masks the array's own fill value.
        expected = [np.nan, np.nan, np.nan, np.nan, 4.0, -4.0]
    np.testing.assert_array_equal(kinds.read_all(source, "v"), expected)
    np.testing.assert_array_equal(xarrays(store), expected)


@pytest.mark.parametrize("attribute", ["scale_factor", "add_offset"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_factors_that_are_not_finite_are_refused_at_open(
    tmp_path: Path, attribute: str, value: float
):
    attrs = {"scale_factor": 0.5, "add_offset": 1.0, attribute: value}
    store = make_store("i2", attrs)
    raw = xr.Dataset({"v": ("x", np.arange(5, dtype="i2"), attrs)})
    raw.to_netcdf(tmp_path / "a.nc")
    for place in (store, tmp_path / "a.nc"):
        with pytest.raises(UnsupportedDataError, match=rf"'{attribute}' of variable 'v'") as caught:
            open_source(place)
        assert "mask_and_scale=False" in str(caught.value)
        assert open_source(place, mask_and_scale=False).variables["v"].dtype == np.int16


def test_fingerprints_tell_packings_apart():
    def fingerprint(**changed: Any) -> str:
        attrs = {**PACKED, **changed}
        return open_source(make_store("i2", attrs), dtype=None).fingerprint

    changes: list[dict[str, Any]] = [
        {"scale_factor": 0.02},
        {"add_offset": 273.0},
        {"_FillValue": -12},
        {"missing_value": -12},
        {"_Unsigned": "true"},
    ]
    told = {fingerprint(**change) for change in ({}, *changes)}
    assert len(told) == 1 + len(changes)
    assert fingerprint(units="K") == fingerprint()


@pytest.mark.parametrize(("dtype", "batch_size"), [("i2", 5), ("i4", 60), ("f4", 5)])
def test_packed_rows_go_to_their_places_in_a_field(dtype: str, batch_size: int):
    rng = np.random.default_rng(2)
    raw = xr.Dataset(
        {
            name: (dims, rng.integers(-90, 90, shape).astype(dtype), attrs)
            for name, dims, shape, attrs in [
                ("t", ("time", "y", "x"), (60, 5, 4), PACKED),
                ("mask", ("y", "x"), (5, 4), {"scale_factor": 0.5}),
                ("turned", ("x", "time", "y"), (4, 60, 5), {"add_offset": 1.0}),
                ("plain", ("time", "y", "x"), (60, 5, 4), {}),
            ]
        }
    )
    store = write_store(raw, {"t": (7, 2, 4), "turned": (3, 20, 5), "plain": (60, 5, 4)})
    with xr.open_dataset(store, engine="zarr", consolidated=False) as dataset:
        expected = dataset.load()
    samples = xloader.open(store).window(time=3, y=2, stride={"time": 2, "y": 1})
    samples = samples.inputs("t", "mask", "plain", time=[0, 2]).field("turned", "turned")
    dtypes = {v.name: v.dtype for v in samples.recipe.source.variables.values()}
    for batch in samples.loader(batch_size=batch_size, seed=4, output="numpy"):
        starts = samples.positions(batch.ids)
        for row, (t, y) in enumerate(zip(starts["time"].values, starts["y"].values, strict=True)):
            part = expected.isel(time=slice(t, t + 3), y=slice(y, y + 2))
            for channel, name in enumerate(("t", "mask", "plain")):
                wanted = part[name].isel({"time": [0, 2]}, missing_dims="ignore").to_numpy()
                wanted = np.broadcast_to(wanted, (2, 2, 4)).astype(dtypes[name])
                np.testing.assert_array_equal(batch.inputs[row, channel], wanted)
            wanted = part["turned"].to_numpy().astype(dtypes["turned"])
            np.testing.assert_array_equal(batch["turned"][row], wanted)


def test_a_budget_holds_twice_as_many_packed_values():
    values = np.arange(64 * 40 * 50).reshape(64, 40, 50) % 1000 * 0.01
    dataset = xr.Dataset({"v": (("time", "y", "x"), values)})
    packing = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1}
    packed = write_store(dataset, {"v": (4, 40, 50)}, encoding={"v": packing})
    wide = write_store(dataset.astype("f4"), {"v": (4, 40, 50)})
    num_reads = {}
    for name, inner in (("packed", packed), ("wide", wide)):
        store = CountingStore(inner)
        # Batches are float32 in both cases and take 160 kB. The rest has room for the 256 kB of
        # int16 but not for the 512 kB of float32.
        loader = (
            xloader.open(store)
            .window(time=1)
            .loader(batch_size=5, seed=1, memory=500_000, prefetch=2, output="numpy")
        )
        store.reset()
        seen = [dict(zip(b.ids.tolist(), b["v"], strict=True)) for _ in range(2) for b in loader]
        whole = {i: row for part in seen for i, row in part.items()}
        np.testing.assert_allclose(np.stack([whole[i][0] for i in range(64)]), values, atol=1e-5)
        num_reads[name] = store.num_reads
        assert loader.plan.is_resident == (name == "packed")
        if name == "packed":
            assert loader.explain().num_reads == 0
            assert loader.explain().peak_nbytes <= 500_000
    assert num_reads["packed"] == 16
    assert num_reads["wide"] > 16
