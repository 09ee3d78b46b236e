"""Every kind of source over the same dataset, with the values that xarray gives."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from packaging.version import Version
from zarr.codecs import BloscCodec, TransposeCodec

from xloader.sources.base import Read, Source, Variable
from xloader.sources.chunk_sizes import Cut
from xloader.sources.open.open_source import open_source
from xloader.testing import write_store

CHUNKS = {"t": (4, 3, 5), "m": (7, 3), "flag": (5,), "s": ()}


def make_dataset(num_times: int = 11) -> xr.Dataset:
    shape = (num_times, 7, 5)
    t = np.arange(1, np.prod(shape) + 1, dtype="f4").reshape(shape) / 8
    t[2, 3, 1] = np.nan
    m = np.arange(7 * num_times, dtype="i2").reshape(7, num_times) - 20
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), t, {"units": "K", "grid_mapping": "crs"}),
            "m": (("lat", "time"), m),
            "flag": (("time",), np.arange(num_times) % 3 == 0),
            "s": ((), np.float64(2.5)),
            "label": (("time",), np.array(["a", "bc"] * num_times)[:num_times].astype(object)),
        },
        coords={
            "time": np.datetime64("2001-02-03", "ns")
            + np.arange(num_times) * np.timedelta64(6, "h"),
            "lat": np.linspace(-90, 90, 7),
            "area": (("lat", "lon"), np.arange(35.0).reshape(7, 5)),
        },
    )


def numeric(dataset: xr.Dataset) -> xr.Dataset:
    # Zarr v3 has no settled dtype for strings and warns. One kind of store keeps the strings.
    return dataset.drop_vars("label")


@dataclass(frozen=True)
class Opened:
    source: Source
    oracle: xr.Dataset
    reopen: Callable[[], Source]


def of_path(path: Path, **kwargs: Any) -> Opened:
    with xr.open_dataset(path, **kwargs, cache=False) as dataset:
        oracle = dataset.load()
    return Opened(open_source(path), oracle, lambda: open_source(path))


def zarr_kwargs() -> dict[str, Any]:
    return {"engine": "zarr", "chunks": None, "consolidated": False}


def direct_memory(folder: Path, dataset: xr.Dataset) -> Opened:
    store = write_store(numeric(dataset), CHUNKS)
    return Opened(open_source(store), numeric(dataset), lambda: open_source(store))


def zarr_group(folder: Path, dataset: xr.Dataset) -> Opened:
    store = write_store(numeric(dataset), CHUNKS)
    root = zarr.create_group(store, overwrite=True, zarr_format=3)
    root.create_group("deep")
    numeric(dataset).to_zarr(store, group="deep/er", zarr_format=3, consolidated=False)
    group = zarr.open_group(store, path="deep", mode="r")
    return Opened(
        open_source(group, group="er"),
        numeric(dataset),
        lambda: open_source(store, group="deep/er"),
    )


def consolidated(folder: Path, dataset: xr.Dataset) -> Opened:
    path = folder / "v2.zarr"
    numeric(dataset).to_zarr(
        path,
        zarr_format=2,
        consolidated=True,
        write_empty_chunks=True,
        encoding={name: {"chunks": chunks} for name, chunks in CHUNKS.items()},
    )
    return of_path(path, engine="zarr", chunks=None)


STORED: dict[str, dict[str, Any]] = {
    "zarr-direct-local": {},
    "zarr-transposed-big-endian": {
        "t": {
            # Two that differ from the way back, as does what they make together.
            "filters": [TransposeCodec(order=(1, 2, 0)), TransposeCodec(order=(1, 2, 0))],
            "serializer": zarr.codecs.BytesCodec(endian="big"),
            "compressors": [BloscCodec(cname="lz4"), zarr.codecs.Crc32cCodec()],
        }
    },
    "zarr-sharded": {
        "t": {"shards": (8, 6, 5)},
        "m": {"shards": (7, 6)},
        "flag": {"shards": (10,)},
    },
    # With two compressors the size between them is unknown, so zarr itself decodes.
    "zarr-unknown-chain": {"t": {"compressors": [BloscCodec(), zarr.codecs.GzipCodec()]}},
    "zarr-packed": {"t": {"dtype": "i2", "scale_factor": 0.125, "_FillValue": -9999}},
    "zarr-v2": {},
}
"""Kinds of Zarr stores in a folder, and the encodings of their variables."""


def stored(name: str, folder: Path, dataset: xr.Dataset) -> Opened:
    version = 2 if name == "zarr-v2" else 3
    path, encoding = folder / "a.zarr", STORED[name]
    write_store(numeric(dataset), CHUNKS, path, zarr_format=version, encoding=encoding)
    return of_path(path, **zarr_kwargs())


def numpy_backed(folder: Path, dataset: xr.Dataset) -> Opened:
    return Opened(open_source(dataset), dataset, lambda: open_source(dataset.copy(deep=True)))


def dask_backed(folder: Path, dataset: xr.Dataset) -> Opened:
    chunked = dataset.chunk({"time": (4, 4, dataset.sizes["time"] - 8), "lat": 3})
    return Opened(open_source(chunked), dataset, lambda: open_source(chunked))


def netcdf(engine: str) -> Callable[[Path, xr.Dataset], Opened]:
    def make(folder: Path, dataset: xr.Dataset) -> Opened:
        path = folder / f"{engine}.nc"
        encoding: dict[str, Any] = {"t": {"dtype": "i2", "scale_factor": 0.125, "_FillValue": -9}}
        if engine != "scipy":
            encoding["m"] = {"chunksizes": (7, 3), "zlib": True}
        numeric(dataset).to_netcdf(path, engine=engine, encoding=encoding)
        return of_path(path)

    return make


def lazy_netcdf(folder: Path, dataset: xr.Dataset) -> Opened:
    path = folder / "lazy.nc"
    numeric(dataset).to_netcdf(path, engine="netcdf4")
    lazy = xr.open_dataset(path).isel(time=slice(1, None))
    return Opened(open_source(lazy), lazy.copy().load(), lambda: open_source(lazy))


def rectilinear(folder: Path, dataset: xr.Dataset) -> Opened:
    num_times = dataset.sizes["time"]
    edges = (3, 1, 4, num_times - 8)
    chunks = {**CHUNKS, "t": (edges, 3, (4, 1)), "m": (7, edges), "flag": (edges,)}
    store = write_store(numeric(dataset), chunks, folder / "r.zarr")
    return Opened(open_source(store), numeric(dataset), lambda: open_source(folder / "r.zarr"))


def rectilinear_shards(folder: Path, dataset: xr.Dataset) -> Opened:
    edges = (4, 2, dataset.sizes["time"] - 6)
    encoding = {
        "t": {"shards": (edges, 7, (3, 2))},
        "m": {"shards": (7, edges), "compressors": ()},
        "flag": {"shards": (edges,)},
    }
    chunks = {**CHUNKS, "t": (1, 7, 1), "m": (7, 1), "flag": (1,)}
    store = write_store(numeric(dataset), chunks, folder / "rs.zarr", encoding=encoding)
    return Opened(open_source(store), numeric(dataset), lambda: open_source(folder / "rs.zarr"))


KINDS: dict[str, Callable[[Path, xr.Dataset], Opened]] = {
    **{name: partial(stored, name) for name in STORED},
    "zarr-direct-memory": direct_memory,
    "zarr-group": zarr_group,
    "zarr-v2-consolidated": consolidated,
    "numpy": numpy_backed,
    "dask": dask_backed,
    "netcdf4": netcdf("netcdf4"),
    "netcdf3-scipy": netcdf("scipy"),
    "netcdf-lazy-dataset": lazy_netcdf,
}

if Version(zarr.__version__) >= Version("3.2"):
    KINDS["zarr-rectilinear"] = rectilinear
    KINDS["zarr-rectilinear-shards"] = rectilinear_shards

if importlib.util.find_spec("h5py"):
    # h5netcdf reads with h5py but does not install it.
    KINDS["netcdf-h5netcdf"] = netcdf("h5netcdf")


def num_chunks(variable: Variable) -> tuple[int, ...]:
    return tuple(
        len(sizes) if isinstance(sizes, tuple) else -(-size // sizes)
        for sizes, size in zip(variable.chunks, variable.shape, strict=True)
    )


def span(variable: Variable, axis: int, index: int) -> tuple[int, int]:
    sizes, size = variable.chunks[axis], variable.shape[axis]
    bounds = (
        np.append(0, np.cumsum(sizes))
        if isinstance(sizes, tuple)
        else np.minimum(np.arange(-(-size // sizes) + 1) * sizes, size)
    )
    return int(bounds[index]), int(bounds[index + 1])


def whole_cut(variable: Variable, chunk: tuple[int, ...]) -> Cut:
    spans = [span(variable, axis, index) for axis, index in enumerate(chunk)]
    return tuple(slice(0, stop - start) for start, stop in spans)


def read(source: Source, name: str, chunk: tuple[int, ...], cut: Cut | None = None) -> np.ndarray:
    variable = source.variables[name]
    cut = whole_cut(variable, chunk) if cut is None else cut
    shape = tuple(
        len(range(*part.indices(10**9))) if isinstance(part, slice) else len(part) for part in cut
    )
    out = np.empty(shape, variable.stored_dtype)
    read_into(source, name, chunk, cut, out)
    return out if variable.packing is None else variable.packing.unpack(out)


def read_into(source: Source, name: str, chunk: tuple[int, ...], cut: Cut, out: np.ndarray) -> bool:
    """Read a chunk into ``out``; return whether the store holds the chunk."""
    return not source.fetch([Read(name, chunk, cut)]).decode([out]).num_missing


def read_all(source: Source, name: str) -> np.ndarray:
    """Read all values of a variable, chunk by chunk, and unpack them."""
    variable = source.variables[name]
    stored = np.empty(variable.shape, variable.stored_dtype)
    for chunk in np.ndindex(num_chunks(variable)):
        spans = (slice(*span(variable, axis, index)) for axis, index in enumerate(chunk))
        read_into(source, name, chunk, whole_cut(variable, chunk), stored[(*spans, ...)])
    return stored if variable.packing is None else variable.packing.unpack(stored)
