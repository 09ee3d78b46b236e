"""Packed numbers are unpacked to the same bits, however they are laid out, cut and cast."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from xloader.core.packing import _PART_SIZE, Packing

F4, F8 = np.dtype("f4"), np.dtype("f8")


def packing_of(stored: str, *, seen: str = "", dtype: np.dtype = F4, **changed: object) -> Packing:
    numbers = {"fills": (np.int64(7),), "scale": 0.1, "offset": 273.15, "wide_dtype": F8, **changed}
    return Packing(np.dtype(stored), np.dtype(seen or stored), dtype=dtype, **numbers)


def plain(packing: Packing, packed: np.ndarray) -> np.ndarray:
    """Unpack step by step, as the docstring of `Packing` describes it."""
    values = packed.view(packing.seen_dtype).astype(packing.wide_dtype)
    is_missing = np.isin(values, np.array(packing.fills, packing.wide_dtype))
    values = values * packing.scale + packing.offset
    return np.where(is_missing, np.nan, values).astype(packing.dtype)


def random_bits(stored: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(3)
    if np.dtype(stored).kind == "f":
        return rng.integers(-20, 20, shape).astype(stored)
    bits = rng.integers(0, 256, (*shape, np.dtype(stored).itemsize), np.uint8)
    packed = bits.view(stored)[..., 0]
    packed[rng.random(shape) < 0.2] = 7
    return packed


@pytest.mark.parametrize("stored", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_stored_dtype(stored: str, dtype: str):
    packing = packing_of(stored, dtype=np.dtype(dtype))
    packed = random_bits(stored, (30, 40))
    actual = packing.unpack(packed)
    np.testing.assert_array_equal(actual, plain(packing, packed), strict=True)
    assert np.isnan(actual).any()
    assert np.isfinite(actual).any()


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_bits_seen_with_the_other_sign(size: int):
    for signs in ("iu", "ui"):
        packing = packing_of(f"{signs[0]}{size}", seen=f"{signs[1]}{size}")
        packed = random_bits(f"{signs[0]}{size}", (500,))
        np.testing.assert_array_equal(packing.unpack(packed), plain(packing, packed), strict=True)


@pytest.mark.parametrize("stored", ["i2", "i4"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((), id="a single number"),
        pytest.param((0, 4), id="nothing"),
        pytest.param((3, _PART_SIZE // 2), id="cut along the first axis, with a rest"),
        pytest.param((1, 2, _PART_SIZE + 1), id="cut along later axes"),
        pytest.param((_PART_SIZE + 5, 1), id="cut into many and a few"),
    ],
)
def test_cut_into_parts(stored: str, shape: tuple[int, ...]):
    packing = packing_of(stored)
    packed = random_bits(stored, shape)
    np.testing.assert_array_equal(packing.unpack(packed), plain(packing, packed), strict=True)


@pytest.mark.parametrize("stored", ["i2", "i4", "f4"])
def test_into_any_strides_and_nowhere_else(stored: str):
    packing = packing_of(stored)
    packed = random_bits(stored, (9, 8, 7))[::2, 1:, ::-3].transpose(2, 0, 1)
    canvas = np.full((14, 5, 9), -1, F4)
    out = canvas[::-2, ::2, 1:8].transpose(1, 0, 2)[:, :5]
    assert out.shape == packed.shape
    packing.unpack_into(packed, out)
    np.testing.assert_array_equal(out, plain(packing, packed))
    out[...] = -1
    assert (canvas == -1).all()


def test_into_a_wider_field():
    packing = packing_of("i2")
    packed = random_bits("i2", (6, 5))
    out = np.empty((6, 5), F8)
    packing.unpack_into(packed, out)
    # Values are cast to their own dtype first and widened then, so float64 has no extra digits.
    np.testing.assert_array_equal(out, plain(packing, packed).astype("f8"))


def test_types_of_the_numbers_choose_the_arithmetic():
    packed = np.arange(-3000, 3000, dtype="i2")
    weak = packing_of("i2", scale=0.1, fills=(), wide_dtype=F4).unpack(packed)
    strong = packing_of("i2", scale=np.float64(0.1), fills=(), wide_dtype=F4).unpack(packed)
    np.testing.assert_array_equal(weak, packed.astype("f4") * np.float32(0.1) + np.float32(273.15))
    assert (weak != strong).any()


def test_numbers_that_are_not_there_may_overflow_quietly():
    packing = packing_of("i2", scale=1e4, dtype=np.dtype("f2"))
    assert packing.unpack(np.array([0], "i2")).tolist() == [273.25]


def test_pickles_without_its_table():
    packing = packing_of("i2")
    before = len(pickle.dumps(packing))
    packed = random_bits("i2", (100,))
    expected = packing.unpack(packed)
    data = pickle.dumps(packing)
    assert len(data) == before < 2000
    copy = pickle.loads(data)
    assert copy == packing
    assert hash(copy) == hash(packing)
    np.testing.assert_array_equal(copy.unpack(packed), expected, strict=True)


def test_is_described_by_all_that_fixes_the_values():
    packing = packing_of("i2")
    others = [
        packing_of("u2"),
        packing_of("i2", seen="u2"),
        packing_of("i2", fills=()),
        packing_of("i2", fills=(np.int64(8),)),
        packing_of("i2", scale=0.2),
        packing_of("i2", scale=np.float64(0.1)),
        packing_of("i2", scale=None),
        packing_of("i2", offset=None, scale=273.15, fills=(np.int64(7), 0.1)),
        packing_of("i2", wide_dtype=F4),
    ]
    told = [json.dumps(one.describe()) for one in (packing, *others)]
    assert len(set(told)) == len(told)
    assert json.dumps(packing_of("i2").describe()) == told[0]


def test_threads_unpack_what_one_thread_unpacks():
    packing = packing_of("i2")
    packed = random_bits("i2", (50, 60))
    with ThreadPoolExecutor(4) as pool:
        # The first threads all make the lookup table at the same time.
        results = list(pool.map(packing.unpack, [packed] * 16))
    for result in results:
        np.testing.assert_array_equal(result, plain(packing, packed), strict=True)
