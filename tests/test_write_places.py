"""Results are never written over the data that they are made of, nor over a folder of anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import OptionError, TargetError, UnsupportedDataError

DATASET = xr.Dataset({"t": (("time", "x"), np.arange(24.0).reshape(8, 3))})


def stats(samples: xloader.Samples, target: str) -> object:
    return samples.stats(path=target, overwrite=True)


def materialize(samples: xloader.Samples, target: str) -> object:
    return samples.materialize(target, chunks={"time": 2}, overwrite=True)


def mosaic(samples: xloader.Samples, target: str) -> object:
    with samples.mosaic(target, overwrite=True) as out:
        out.write(np.arange(4), samples[np.arange(4)].t)
        out.flush()
    return out


JOBS = [stats, materialize, mosaic]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("inside", ["", "/group.zarr"])
def test_no_job_overwrites_its_source(job: Any, inside: str, tmp_path: Path) -> None:
    path = tmp_path / "archive.zarr"
    DATASET.to_zarr(path, zarr_format=3, consolidated=False)
    before = files_of(tmp_path)
    samples = xloader.open(path).window(time=2)
    with pytest.raises(TargetError, match="the target lies in the source"):
        job(samples, f"{path}{inside}")
    assert files_of(tmp_path) == before


def test_statistics_do_not_overwrite_a_netcdf_source(tmp_path: Path) -> None:
    path = tmp_path / "archive.nc"
    DATASET.to_netcdf(path, engine="h5netcdf")
    before = files_of(tmp_path)
    with pytest.raises(TargetError, match="the target lies in the source"):
        xloader.stats(path, path=path, overwrite=True)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("job", JOBS)
def test_no_job_removes_a_folder_of_anything(job: Any, tmp_path: Path) -> None:
    path = tmp_path / "work.zarr"
    path.mkdir()
    (path / "thesis.txt").write_text("ten years")
    with pytest.raises(TargetError, match="no Zarr store"):
        job(DATASET.xloader.window(time=2), str(path))
    assert files_of(tmp_path) == {"work.zarr/thesis.txt": b"ten years"}


@pytest.mark.parametrize("job", JOBS)
def test_an_earlier_result_is_overwritten(job: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "result.zarr")
    samples = DATASET.xloader.window(time=2)
    job(samples, path)
    job((DATASET + 1).xloader.window(time=2), path)
    assert xr.open_dataset(path, engine="zarr", consolidated=False).sizes


def test_a_store_is_no_netcdf_file(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDataError, match="piece by piece"):
        DATASET.xloader.window(time=2).materialize(tmp_path / "years.nc", chunks={"time": 2})


def test_packing_names_its_variables(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="which variables are packed"):
        DATASET.xloader.window(time=2).materialize(tmp_path / "t.zarr", pack="int16")
