"""CF conventions: packed variables give exactly what xarray makes of them, and times too."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec
from zarr.storage import MemoryStore

import xloader
from xloader.errors import UnsupportedDataError
from xloader.sources.base import Source
from xloader.sources.catalog import decoded_dtype
from xloader.sources.cf import coding_of
from xloader.sources.opening import open_source
from xloader.testing import CountingStore, write_store

DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
ORDERS = ["<", ">"]

# xarray warns of what it makes the best of, and of numbers that leave the range of their dtype.
pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
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
    # The sign of zero too, and which NaN is a matter of the processor.
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


@given(packed_variables(), st.sampled_from([None, "f2", "f4", "f8"]))
def test_every_coding_is_xarrays_or_left_to_xarray(
    variable: tuple[np.ndarray, dict[str, Any]], asked: str | None
):
    stored, attrs = variable
    try:
        decoded = decode(stored, attrs)
        expected = decoded.to_numpy()
    except (TypeError, ValueError, OverflowError, KeyError):
        # What xarray cannot open or read, such as integers with missing values, none can.
        return
    if expected.dtype.kind not in "iuf":
        return
    dtype = decoded_dtype(decoded, asked)
    if coding_of(decoded, stored.dtype).xarray_only:
        # No more is left to it than has to be: two things that units of time bring about, and
        # integers with an integer scale.
        is_in_two_steps = stored.dtype.itemsize == 4 and decoded.dtype == "f4"
        assert decoded.dtype.kind == "i" or (is_in_two_steps and attrs["units"] != "K")
        return
    same(unpack(stored, decoded, dtype), expected.astype(dtype))
