"""Real files give the same batches bit for bit as netCDF and as three kinds of Zarr.

All four formats hold the same packed numbers. The files are optional: see ``conftest.data_folder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader

# The files name NaN as fill value of integers, which xarray drops with a warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    # Sea surface temperature has no values on land.
    pytest.mark.filterwarnings("ignore::xloader.errors.NanWarning"),
]


@dataclass(frozen=True)
class Real:
    """A file, its packing and chunks, and the windows and inputs taken from it."""

    file: str
    packing: Mapping[str, Any]
    chunks: Mapping[str, int]
    shards: Mapping[str, int]
    window: Mapping[str, int]
    stride: Mapping[str, int]
    inputs: tuple[str, ...]


SST = Real(
    file="sst.mnmean.nc",
    # The file has float32. Older copies of the same product were packed with these numbers.
    packing={"dtype": "int16", "scale_factor": 0.01, "add_offset": 0.0, "_FillValue": 32767},
    chunks={"time": 16, "lat": 45, "lon": 60},
    shards={"time": 32, "lat": 90, "lon": 180},
    window={"time": 3, "lat": 30, "lon": 30},
    stride={"time": 2, "lat": 20, "lon": 30},
    inputs=("sst",),
)
ERA = Real(
    file="eraint_uvz.nc",
    packing={},
    chunks={"month": 1, "level": 1, "latitude": 80, "longitude": 120},
    shards={"month": 2, "level": 3, "latitude": 160, "longitude": 240},
    window={"latitude": 64, "longitude": 64},
    stride={"latitude": 50, "longitude": 64},
    inputs=("z", "u", "v"),
)


def write_all(real: Real, source: Path, folder: Path) -> dict[str, Path]:
    """Write the same packed numbers in every format; return the paths by format."""
    path = source / real.file
    if not path.is_file():
        pytest.skip(f"no real data: {path} is not there")
    if real.packing:
        with xr.open_dataset(path) as dataset:
            dataset = dataset.load().drop_encoding()
        path = folder / real.file
        dataset.to_netcdf(path, encoding={name: dict(real.packing) for name in real.inputs})
    paths = {"netcdf": path}
    # Read the stored numbers as they are, with the attributes that describe the packing.
    with xr.open_dataset(path, mask_and_scale=False, decode_times=False) as raw:
        raw = raw.load().drop_encoding()
    # Each format keeps the fill value in its own place, so it is removed from the attributes. A
    # fill value of NaN is dropped for integers.
    fills = {name: array.attrs.pop("_FillValue", np.nan) for name, array in raw.variables.items()}
    for name, version, is_sharded in (("v3", 3, False), ("v3-sharded", 3, True), ("v2", 2, False)):
        paths[name] = folder / f"{real.file}.{name}.zarr"
        encoding: dict[str, dict[str, Any]] = {}
        for variable in real.inputs:
            dims = raw[variable].dims
            encoding[variable] = {"chunks": tuple(real.chunks[str(dim)] for dim in dims)}
            if is_sharded:
                encoding[variable]["shards"] = tuple(real.shards[str(dim)] for dim in dims)
            # Without an explicit fill value, Zarr v2 would get 0, and xarray would mask zeros.
            fill = fills[variable]
            encoding[variable]["_FillValue"] = None if np.isnan(fill) else fill
        raw.to_zarr(paths[name], zarr_format=version, consolidated=False, encoding=encoding)
    return paths


@pytest.mark.parametrize(("real", "dtype"), [(SST, "float32"), (ERA, None)], ids=["sst", "era"])
def test_every_format_gives_the_same_batches(
    real: Real, dtype: str | None, data_folder: Path, tmp_path: Path
):
    paths = write_all(real, data_folder, tmp_path)
    with xr.open_dataset(paths["netcdf"]) as dataset:
        expected = dataset.load()
    delivered = {}
    for name, path in paths.items():
        samples = (
            xloader.open(path, dtype=dtype)
            .window(real.window, stride=real.stride)
            .inputs(*real.inputs)
        )
        stored = samples.recipe.source.variables[real.inputs[0]]
        if name != "netcdf":
            assert stored.stored_dtype == np.int16
            assert "through xarray" not in samples.recipe.source.path_of(real.inputs[0])
        xr.testing.assert_equal(samples.coords.to_dataset(), expected.coords.to_dataset())
        # The epochs are not shuffled, because the shuffle depends on each format's chunks.
        loader = samples.loader(batch_size=7, shuffle=False, output="numpy")
        batches = list(loader)
        ids = np.concatenate([batch.ids for batch in batches])
        rows = np.concatenate([batch.inputs for batch in batches])
        shuffled = samples.loader(batch_size=7, seed=3, memory="96MiB", output="numpy")
        again = np.empty_like(rows)
        for batch in shuffled:
            again[batch.ids] = batch.inputs
        np.testing.assert_array_equal(ids, np.arange(len(samples)))
        np.testing.assert_array_equal(again, rows, strict=True)
        for i in (0, len(samples) // 2, -1):
            np.testing.assert_array_equal(samples[i][0], rows[i], strict=True)
        delivered[name] = rows
    first = delivered["netcdf"]
    assert np.isfinite(first).any()
    assert np.isnan(first).any() == bool(real.packing)
    for rows in delivered.values():
        np.testing.assert_array_equal(rows, first, strict=True)
        is_number = ~np.isnan(first)
        assert rows[is_number].tobytes() == first[is_number].tobytes()
    # The values must also equal those of xarray.
    part = expected[real.inputs[0]].isel({dim: slice(0, n) for dim, n in real.window.items()})
    wanted = part.to_numpy().astype(first.dtype).reshape(-1, *real.window.values())
    np.testing.assert_array_equal(first[0, : len(wanted)], wanted, strict=True)
