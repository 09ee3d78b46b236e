"""What is copied into batches has the bits that NumPy would copy, whatever the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from tests.without_library import without_library
from xloader.testing import write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]

TYX = ("time", "y", "x")


def check(
    store: Any,
    window: dict[str, int],
    stride: dict[str, int],
    *,
    fields: Any = (),
    dtype: str | None = None,
    **options: Any,
) -> None:
    """Compare the batches of a store with NumPy.

    `fields`: by name, the variables that lie side by side in it. `dtype`: of delivered numbers,
    where xarray gives another one.
    """
    with xr.open_zarr(store, consolidated=False, chunks=None) as opened:
        stored = opened.load() if dtype is None else opened.load().astype(dtype)
    samples = xloader.open(store).window(window, stride=stride)
    for name, variables in fields:
        samples = samples.field(name, *variables)
    counts = [(stored.sizes[dim] - size) // stride[dim] + 1 for dim, size in window.items()]
    given = {"batch_size": 4, "memory": "1MiB", "on_nan": "ignore", "output": "numpy"}
    seen: list[int] = []
    with samples.loader(**{**given, **options}) as loader:
        for batch in loader:
            seen += batch.ids.tolist()
            for row, index in enumerate(batch.ids.tolist()):
                begins = zip(window.items(), np.unravel_index(index, counts), strict=True)
                box = {
                    dim: slice(at * stride[dim], at * stride[dim] + size)
                    for (dim, size), at in begins
                }
                part = stored.isel(box, missing_dims="ignore")
                for name, array in zip(batch.names, batch, strict=True):
                    wanted = part[name].to_numpy() if not fields else _stacked(part, fields, name)
                    assert array.dtype == wanted.dtype
                    assert array[row].tobytes() == wanted.tobytes(), name
    assert sorted(seen) == list(range(int(np.prod(counts))))


def _stacked(part: xr.Dataset, fields: Any, name: str) -> Any:
    """Variables side by side, those of fewer dimensions repeated along the others."""
    variables = [part[variable] for variable in dict(fields)[name]]
    return np.stack([array.transpose(*TYX).to_numpy() for array in xr.broadcast(*variables)])


def write(tmp_path: Path, ds: xr.Dataset, chunks: Any, **options: Any) -> Path:
    write_store(ds, chunks, tmp_path / "store.zarr", **options)
    return tmp_path / "store.zarr"


def batches_of(case: Case, rank: int, epoch: int) -> list[tuple[Any, list[Any]]]:
    with case.loader(rank) as loader:
        loader.set_epoch(epoch)
        expected = loader.explain()
        batches = [(batch.ids, list(batch)) for batch in loader]
        report = loader.report()
        assert report.num_reads == expected.num_reads
        assert report.peak_nbytes <= expected.peak_nbytes
    return batches


@settings(max_examples=max(settings().max_examples // 2, 5))
@given(case=cases(), epoch=st.integers(0, 1))
def test_batches_are_the_same_with_and_without_the_library(case: Case, epoch: int) -> None:
    for rank in range(case.world_size):
        found = batches_of(case, rank, epoch)
        with without_library():
            expected = batches_of(case, rank, epoch)
        for (ids, arrays), (other_ids, others) in zip(found, expected, strict=True):
            assert ids.tolist() == other_ids.tolist()
            for array, other in zip(arrays, others, strict=True):
                assert array.dtype == other.dtype
                np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "<u2", ">u2", "<f2", "<i4", ">f4", "<f4", "<i8", ">i8", "<f8"]
)
def test_dtypes(executor: str, dtype: str, tmp_path: Path) -> None:
    values = np.arange(20 * 7 * 5).reshape(20, 7, 5)
    values = values % 3 == 0 if dtype == "?" else values.astype(dtype)
    path = write(tmp_path, xr.Dataset({"a": (TYX, values)}), {"a": (4, 3, 5)})
    check(path, {"time": 3, "y": 4}, {"time": 2, "y": 2}, threads=2)


@pytest.mark.parametrize(
    ("packed", "dtype"), [("i1", "f4"), ("u1", "f8"), ("i2", "f8"), ("u2", "f4"), ("i4", "f8")]
)
def test_packed_numbers(executor: str, packed: str, dtype: str, tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 120, (20, 6, 8)).astype(packed)
    attributes = {
        "scale_factor": np.dtype(dtype).type(0.25),
        "add_offset": np.dtype(dtype).type(-3),
        "_FillValue": values.dtype.type(7),
    }
    path = write(tmp_path, xr.Dataset({"a": (TYX, values, attributes)}), {"a": (4, 3, 8)})
    window = {"time": 2, "y": 4, "x": 3}
    delivered = "f8" if packed == "i4" else "f4"
    check(path, window, dict.fromkeys(window, 1), dtype=delivered, batch_size=16)


@pytest.mark.parametrize("x", [1, 15, 16, 17, 64, 65, 1025])
def test_short_lines(executor: str, x: int, tmp_path: Path) -> None:
    """Lines of so many bytes, copied from several places in turns where there are enough."""
    values = np.random.default_rng(6).integers(0, 256, (3, 11, 1030)).astype(np.uint8)
    ds = xr.Dataset({"a": (TYX, values), "b": (TYX, values[::-1])})
    path = write(tmp_path, ds, {"a": (2, 11, 1030), "b": (2, 11, 1030)})
    for time, y in ((1, 1), (1, 2), (1, 3), (1, 4), (1, 11), (3, 1), (2, 7)):
        window = {"time": time, "y": y, "x": x}
        check(path, window, {"time": 1, "y": 3, "x": 1029 - x or 1}, batch_size=3)


@pytest.mark.parametrize(("packed", "y"), [("i2", 128), ("u2", 129)])
def test_long_rows_of_packed_numbers(executor: str, packed: str, y: int, tmp_path: Path) -> None:
    """Rows of 64 KiB and more, most of which begin between two multiples of 16 bytes."""
    values = np.random.default_rng(4).integers(0, 2**16, (9, y + 3, 131)).astype(np.uint16)
    attributes = {"scale_factor": np.float32(0.25), "_FillValue": values.view(packed)[0, 0, 0]}
    ds = xr.Dataset({"a": (TYX, values.view(packed), attributes)})
    path = write(tmp_path, ds, {"a": (3, y + 3, 131)})
    check(path, {"time": 1, "y": y}, {"time": 1, "y": 1}, dtype="f4", batch_size=3, memory="16MiB")


def test_a_field_of_variables_with_other_dtypes_and_dimensions(
    executor: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    ds = xr.Dataset(
        {
            "t": (TYX, rng.random((20, 6, 8)).astype("f4")),
            "z": (("time", "y", "x"), rng.random((20, 6, 8))),
            "co2": (("time",), rng.random(20)),
            "land": (("y", "x"), rng.random((6, 8)).astype("f4")),
        }
    )
    chunks = {"t": (3, 6, 8), "z": (4, 3, 8), "co2": (5,), "land": (3, 4)}
    path = write(tmp_path, ds, chunks)
    fields = [("all", ("t", "z", "co2", "land")), ("few", ("land", "t"))]
    window = {"time": 2, "y": 4, "x": 4}
    check(path, window, dict.fromkeys(window, 2), fields=fields, batch_size=8)


def test_as_many_dimensions_as_an_array_may_have(executor: str) -> None:
    """The compiled function has room for as many nested loops."""
    sizes = (6, *(1,) * 55, 2, 3)
    ds = xr.Dataset({"a": ([f"d{n}" for n in range(len(sizes))], np.arange(36.0).reshape(sizes))})
    with xloader.open(ds).window(d0=2, stride=1).loader(batch_size=2, output="numpy") as loader:
        for batch in loader:
            for row, index in enumerate(batch.ids):
                np.testing.assert_array_equal(batch.a[row], ds.a.values[index : index + 2])


@pytest.mark.parametrize("num_dims", [16, 17])
def test_many_windowed_dimensions(executor: str, num_dims: int) -> None:
    dims = [f"d{n}" for n in range(num_dims)]
    values = np.arange(12.0).reshape(4, *(1,) * (num_dims - 2), 3)
    samples = xloader.open(xr.Dataset({"a": (dims, values)})).window(dict.fromkeys(dims, 1))
    with samples.loader(batch_size=5, output="numpy") as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch.a.ravel(), np.arange(12.0)[batch.ids])
