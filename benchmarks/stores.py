"""The stores that are measured: smooth noise, rounded as packed data are.

The noise compresses about as well as weather data. A store is written beside its final place and
renamed when it is complete, so that a killed run leaves no partial store.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmarks.layouts import DIMS, Sizes, StoreSpec

_PACKING = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}


def ensure_stores(folder: Path, specs: Sequence[StoreSpec]) -> dict[StoreSpec, Path]:
    """Return the path of each store; make the stores that do not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {spec: folder / spec.folder_name for spec in specs}
    missing = [spec for spec in paths if not paths[spec].is_dir()]
    partial = {spec: folder / f"{spec.folder_name}.partial" for spec in missing}
    for path in partial.values():
        shutil.rmtree(path, ignore_errors=True)
    # One random field is used for all stores of a size, because noise takes long to make.
    for number, name in enumerate(dict.fromkeys(n for spec in missing for n in spec.variables)):
        for size in dict.fromkeys(spec.shape[1:] for spec in missing):
            wanted = [x for x in missing if name in x.variables and x.shape[1:] == size]
            values = make_noise((max((x.num_steps for x in wanted), default=0), *size), number)
            for spec in wanted:
                _write(partial[spec], spec, name, values[: spec.num_steps])
    for spec in missing:
        partial[spec].rename(paths[spec])
    return paths


def make_noise(shape: Sizes, seed: int) -> NDArray[np.float32]:
    """Return a random walk along time at each grid point, shape (time, lat, lon)."""
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal(shape, dtype=np.float32)
    steps *= 0.01
    return np.cumsum(steps, axis=0, out=steps)


def _write(path: Path, spec: StoreSpec, name: str, values: NDArray[np.float32]) -> None:
    encoding = {"chunks": spec.chunks, **(_PACKING if spec.is_packed else {})}
    if spec.shards is not None:
        encoding["shards"] = spec.shards
    ds = xr.Dataset({name: (DIMS, values.round(spec.digits))}, _labels(spec))
    ds.to_zarr(
        path,
        mode="a",
        zarr_format=3,
        consolidated=spec.is_consolidated,
        encoding={name: encoding},
    )


def _labels(spec: StoreSpec) -> dict[str, NDArray[Any]]:
    if not spec.has_labels:
        return {}
    begin, step = np.datetime64("2001-01-01", "ns"), np.timedelta64(6, "h")
    return {
        "time": begin + step * np.arange(spec.num_steps),
        "lat": np.linspace(90, -90, spec.lats),
        "lon": np.linspace(0, 360, spec.lons, endpoint=False),
    }


def ensure_grown(
    folder: Path, spec: StoreSpec, times: int, axis: int = 0
) -> tuple[StoreSpec, Path]:
    """Return a store that is ``times`` as long as another, with its chunks repeated along an axis.

    The axis is 0 for time or 1 for lat. This takes no longer than copying files. The
    dimensions have no labels.
    """
    if axis == 0:
        grown = dataclasses.replace(spec, num_steps=times * spec.num_steps)
    else:
        name = f"{spec.name}-{times}-times-lat"
        grown = dataclasses.replace(spec, name=name, lats=times * spec.lats)
    base, path = folder / spec.folder_name, folder / grown.folder_name
    if path.is_dir():
        return grown, path
    partial = path.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(base, partial, ignore=shutil.ignore_patterns("c"))
    per_copy = spec.shape[axis] // (spec.shards or spec.chunks)[axis]
    for name in spec.variables:
        metadata = json.loads((base / name / "zarr.json").read_text())
        metadata["shape"] = list(grown.shape)
        (partial / name / "zarr.json").write_text(json.dumps(metadata))
        # The folders that have one folder for each chunk along the axis.
        chunks = base / name / "c"
        for parent in [chunks] if axis == 0 else sorted(chunks.iterdir()):
            copied = partial / name / parent.relative_to(base / name)
            for index in range(times * per_copy):
                shutil.copytree(parent / str(index % per_copy), copied / str(index))
    partial.rename(path)
    return grown, path


def store_at(place: str) -> Any:
    """Return the argument for opening a store: the path itself, or an obstore store for a URL."""
    if "://" not in place:
        return place
    from obstore.store import HTTPStore
    from zarr.storage import ObjectStore

    options: Any = {"allow_http": True}
    return ObjectStore(HTTPStore.from_url(place, client_options=options), read_only=True)
