"""Variables that lie side by side in a field have xarray's values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.abc.store import Store

import xloader
from tests.cases import Case, Spans, least_memory
from tests.without_library import without_library
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def case_of(ds: xr.Dataset, store: Store, spans: Spans, fields: Any = (), **options: Any) -> Case:
    samples = xloader.open(store).window(
        spans.sizes, stride=spans.strides, dilation=spans.dilations
    )
    for name, names, offsets in fields:
        samples = samples.field(name, *names, **offsets)
    options = {"world_size": 1, "output": "numpy", **options}
    return Case(ds, {}, {}, spans, fields, options, CountingStore(store), samples)


def check_case(case: Case) -> None:
    seen: list[int] = []
    for rank in range(case.world_size):
        with case.loader(rank) as loader:
            for batch in loader:
                seen += batch.ids[~batch.is_padding].tolist()
                for row, index in enumerate(batch.ids.tolist()):
                    for number, values in enumerate(case.sample(index)):
                        np.testing.assert_array_equal(batch[number][row], values)
    assert sorted(seen) == list(range(len(case.samples)))


def test_rows_of_many_variables_side_by_side(executor: str) -> None:
    values = np.arange(16 * 120 * 120, dtype="f4").reshape(16, 120, 120)
    ds = xr.Dataset({f"v{n}": (("time", "y", "x"), values + n) for n in range(10)})
    size = {"time": 1, "y": 60, "x": 60}
    spans = Spans(size, size, dict.fromkeys(size, 1))
    store = write_store(ds, {f"v{n}": (16, 120, 120) for n in range(10)})
    check_case(case_of(ds, store, spans, batch_size=32, memory="256MiB"))


SIZES = {"time": 24, "y": 6, "z": 2}
DIMS = [("time", "y"), ("y", "time"), ("time", "z", "y"), ("time",), ("y",), ("z", "time")]


@st.composite
def many_variables(draw: st.DrawFn) -> tuple[xr.Dataset, Store]:
    """Draw variables of equal and unequal dims, dtypes, chunks and packings."""
    ds, encoding = xr.Dataset(), {}
    even = {dim: draw(st.integers(1, size)) for dim, size in SIZES.items()}
    kinds = [DIMS[0], *draw(st.lists(st.sampled_from(DIMS), min_size=1, max_size=6))]
    for number, dims in enumerate(kinds):
        shape = tuple(SIZES[dim] for dim in dims)
        dtype = draw(st.sampled_from(["f4", "f4", "f8", "i2", "i1", "packed"]))
        values = (np.arange(np.prod(shape)).reshape(shape) + 31 * number) % 120 / 1.0
        own: dict[str, Any] = {}
        if dtype == "packed":
            own = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -1}
            dtype = "f4"
        ds[f"v{number}"] = (dims, values.astype(dtype))
        is_even = draw(st.integers(0, 2))
        own["chunks"] = tuple(even[d] if is_even else draw(st.integers(1, SIZES[d])) for d in dims)
        encoding[f"v{number}"] = own
    store = write_store(ds, {}, encoding=encoding)
    with xr.open_zarr(store, consolidated=False, chunks=None) as opened:
        return opened[list(ds)].load(), store


@st.composite
def stacking_cases(draw: st.DrawFn) -> Case:
    """Draw fields that stack some variables or hold one each, in small and large batches."""
    ds, store = draw(many_variables())
    sizes = {"time": draw(st.integers(1, 4))}
    if draw(st.booleans()):
        sizes["y"] = draw(st.integers(1, 3))
    dilations = {dim: draw(st.integers(1, 2)) for dim in sizes}
    spans = Spans(sizes, dict.fromkeys(sizes, 1), dilations)
    fields: tuple[Any, ...] = ()
    if draw(st.booleans()):
        first = [str(name) for name in ds if ds[name].dims == DIMS[0]]
        offset = draw(st.sampled_from([{}, {"time": 0}, {"time": [0]}]))
        fields = (
            ("a", tuple(first), {}),
            ("b", tuple(reversed(first)), offset),
            ("c", ("v0",), {}),
        )
    options = {
        "batch_size": draw(st.sampled_from([3, 12, 64])),
        "world_size": draw(st.sampled_from([1, 1, 2])),
        "seed": draw(st.integers(0, 3)),
        "threads": draw(st.integers(1, 3)),
    }
    case = case_of(ds, store, spans, fields, memory="8MiB", **options)
    if draw(st.booleans()):
        return replace(case, options={**case.options, "memory": least_memory(case)})
    return case


@settings(max_examples=max(settings().max_examples // 4, 5))
@given(case=stacking_cases())
def test_stacks_hold_what_xarray_gives(case: Case) -> None:
    check_case(case)
    with without_library():
        check_case(case)


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_variables_side_by_side_that_lack_a_dimension(executor: str, num_steps: int) -> None:
    """Each variable keeps its own values where a field has a dimension that they lack."""
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat"), np.arange(4.0 * num_steps).reshape(num_steps, 4)),
            "oro": ("lat", np.arange(10, 14, dtype="i2")),
            "mask": ("lat", np.arange(20, 24, dtype="i2")),
        }
    )
    store = write_store(ds, {"t2m": (1, 2), "oro": (2,), "mask": (2,)})
    spans = Spans({"lat": 1}, {"lat": 1}, {"lat": 1})
    fields = [("inputs", ("t2m", "oro", "mask"), {"lat": 0})]
    check_case(case_of(ds, store, spans, fields, batch_size=2, shuffle=False, threads=1))
