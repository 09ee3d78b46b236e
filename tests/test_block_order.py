"""Blocks of long thin samples keep their long dimension last in memory, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xarray as xr
from hypothesis import given

import xloader
from tests.cases import Case, cases
from tests.without_library import without_library
from xloader import Samples
from xloader.engine import assembly
from xloader.engine.block_layout import memory_order
from xloader.testing import write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]

WAYS = [pytest.param(nullcontext, id="C"), pytest.param(without_library, id="NumPy")]


def as_stored(counts: tuple[int, ...], *_: object) -> tuple[int, ...]:
    return tuple(range(len(counts)))


def backwards(counts: tuple[int, ...], *_: object) -> tuple[int, ...]:
    return tuple(reversed(range(len(counts))))


def ordered(choose: Callable[..., tuple[int, ...]]) -> Any:
    """Blocks have an order of this function's choice."""
    return mock.patch.object(assembly, "memory_order", choose)


@pytest.fixture(name="samples", scope="module")
def long_thin_samples() -> Samples:
    rng = np.random.default_rng(11)
    dims, shape = ("time", "y", "x"), (52, 6, 9)
    packing = {"scale_factor": np.float32(0.5), "_FillValue": np.int16(-7)}
    ds = xr.Dataset(
        {
            "a": (dims, rng.random(shape).astype("f4")),
            "b": (dims, rng.random(shape).astype("f4")),
            "packed": (dims, rng.integers(-6, 99, shape).astype("i2"), packing),
            "levels": (("time", "level", "y", "x"), rng.random((52, 3, 6, 9)).astype("f4")),
            "index": ("time", rng.random(52)),
            "land": (("y", "x"), rng.random((6, 9)).astype("f4")),
        }
    )
    # Windows begin and end within chunks, and the selection cuts chunks.
    chunks = dict.fromkeys(("a", "b", "packed"), (16, 4, 5))
    store = write_store(ds, {**chunks, "levels": (16, 2, 4, 5), "index": (16,), "land": (4, 5)})
    return xloader.open(store).isel(time=slice(1, 51), x=slice(1, None))


@given(case=cases())
def test_every_order_gives_the_same_batches(case: Case) -> None:
    for rank in range(case.world_size):
        found = []
        for choose in (as_stored, backwards):
            with ordered(choose), case.loader(rank) as loader:
                found.append([(batch.ids, list(batch)) for batch in loader])
        for (ids, arrays), (other_ids, others) in zip(*found, strict=True):
            assert ids.tolist() == other_ids.tolist()
            for array, other in zip(arrays, others, strict=True):
                np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [{"y": 1}, {"y": 2, "x": 1}])
def test_long_thin_samples(
    samples: Samples, sizes: dict[str, int], way: Callable[[], AbstractContextManager[None]]
) -> None:
    chosen: list[tuple[int, ...]] = []

    def recording(*args: Any) -> tuple[int, ...]:
        chosen.append(memory_order(*args))
        return chosen[-1]

    own = samples.window(time=24, **sizes, stride={"time": 2, **dict.fromkeys(sizes, 1)})
    own = own.field("all", "a", "b").field("later", "packed", "index", time=slice(3, None, 2))
    own = own.field("levels", "levels").field("land", "land")
    options = {"batch_size": 16, "memory": "4MiB", "output": "numpy", "threads": 2}
    with way(), ordered(recording), own.loader(**options) as loader:
        found = [list(batch) for batch in loader]
        single = list(own[5])
    # Without windows along x, lines along x are long enough for their time series.
    assert ((1, 2, 0) in chosen) == ("x" in sizes)
    with way(), ordered(as_stored), own.loader(**options) as loader:
        expected = [list(batch) for batch in loader]
        one = list(own[5])
    for arrays, others in zip([*found, single], [*expected, one], strict=True):
        for array, other in zip(arrays, others, strict=True):
            np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((70, 9, 17), "i1"), ((64, 3, 8), "f4"), ((3, 2, 130), "f8"), ((129, 64, 1), "f4")],
)
def test_chunks_are_decoded_into_another_order(shape: tuple[int, ...], dtype: str) -> None:
    """In tiles of 8 rows and 64 columns, of which some are not full."""
    values = np.random.default_rng(12).integers(0, 99, shape).astype(dtype)
    dims = ("time", "y", "x")
    store = write_store(xr.Dataset({"a": (dims, values)}), {"a": (shape[0], shape[1], 13)})
    samples = xloader.open(store).window(time=1)
    options = {"batch_size": len(samples), "memory": "64MiB", "output": "numpy"}
    with ordered(backwards), samples.loader(**options) as loader:
        (batch,) = loader
    np.testing.assert_array_equal(batch[0][:, 0], values[batch.ids])


def test_which_order_is_chosen() -> None:
    """The long dimension comes last where that spares many cache lines."""
    sizes, many = (1440, 180, 360), 60 * 180 * 360
    assert memory_order((24, 1, 1), sizes, 4, many) == (1, 2, 0)
    assert memory_order((1, 24, 1), sizes, 4, 1440 * 7 * 360) == (0, 2, 1)
    # Rows of a quarter of a cache line and more, and twice as long in place of eight times.
    assert memory_order((1440, 1, 5), sizes, 4, many) == (0, 1, 2)
    assert memory_order((2, 1, 1), sizes, 4, 720 * 180 * 360) == (0, 1, 2)
    # A sixtieth of the pixels, and dimensions that are taken whole.
    assert memory_order((24, 1, 1), sizes, 4, many // 60) == (0, 1, 2)
    assert memory_order((24, 10, 2), (1440, 10, 2), 4, 60) == (0, 1, 2)
    assert memory_order((24, 1, 2), (1440, 10, 2), 4, 600) == (1, 2, 0)
    # The last one of equally long dimensions.
    assert memory_order((1, 60, 60, 1), (1440, 180, 360, 2), 4, 51840) == (0, 1, 3, 2)
    assert memory_order((), (), 4, 1) == ()
