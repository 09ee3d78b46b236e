"""Datasets for tests, and Zarr stores that hold them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore

from xloader.sources.chunk_sizes import each

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def write_store(
    dataset: xr.Dataset,
    chunks: Mapping[str, tuple[int | tuple[int, ...], ...]],
    path: str | os.PathLike[str] | None = None,
    *,
    zarr_format: int = 3,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
) -> Store:
    """Write a dataset to a Zarr store, each variable in its own chunks.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset to write.
    chunks : mapping of str to tuple of (int or tuple of int)
        Chunk shape of each data variable. A tuple for a dimension gives the size of each chunk
        along it, by zarr 3.2 or newer.
    path : path-like, optional
        A folder to make. By default the store is in memory.
    zarr_format : {3, 2}
        Version of the Zarr format.
    encoding : mapping of str to mapping, optional
        More of xarray's encoding by variable, such as ``shards`` or ``compressors``.

    Returns
    -------
    zarr.abc.store.Store
        The store, with every chunk, even if it is equal to the fill value.
    """
    store: Store = MemoryStore() if path is None else LocalStore(os.fspath(path))
    merged: dict[str, dict[str, Any]] = {k: dict(more) for k, more in (encoding or {}).items()}
    for name, shape in chunks.items():
        merged.setdefault(name, {})["chunks"] = tuple(shape)
    rectilinear = {name: merged.pop(name) for name in list(merged) if _varies(merged[name])}
    dataset.to_zarr(
        store,
        mode="w",
        zarr_format=zarr_format,
        consolidated=False,
        write_empty_chunks=True,
        encoding=merged,
    )
    for name, options in rectilinear.items():
        shape = dataset[name].shape
        sizes = {
            key: _sizes_of(options[key], shape) for key in ("chunks", "shards") & options.keys()
        }
        if "shards" in sizes:
            # Zarr allows only one shape for the chunks within shards.
            sizes["chunks"] = options["chunks"]
        _write_rectilinear(store, name, dataset[name].to_numpy(), {**options, **sizes})
    return store


def _varies(encoding: Mapping[str, Any]) -> bool:
    """Whether an encoding asks for chunks or shards of several sizes along some dimension."""
    sizes = (*(encoding.get("chunks") or ()), *(encoding.get("shards") or ()))
    return any(isinstance(size, tuple) for size in sizes)


def _sizes_of(sizes: Sequence[int | tuple[int, ...]], shape: tuple[int, ...]) -> list[list[int]]:
    """The size of each chunk along each dimension, since zarr 3.2 takes only full lists."""
    return [list(each(size, end)) for size, end in zip(sizes, shape, strict=True)]


def _write_rectilinear(
    store: Store, name: str, values: NDArray[Any], options: Mapping[str, Any]
) -> None:
    """Write an array again in chunks that xarray cannot write. Its attributes are kept."""
    group = zarr.open_group(store, mode="r+")
    written: Any = group[name]
    with zarr.config.set({"array.rectilinear_chunks": True, "array.write_empty_chunks": True}):
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            dimension_names=written.metadata.to_dict()["dimension_names"],
            attributes=dict(written.attrs),
            overwrite=True,
            **options,
        )
        array[...] = values


def datasets(
    *,
    max_dims: int = 3,
    max_size: int = 12,
    max_variables: int = 3,
    dtypes: tuple[str, ...] = ("float32", "float64", "int16", "int32", "int64", "uint16"),
) -> SearchStrategy[tuple[xr.Dataset, dict[str, tuple[int, ...]]]]:
    """A hypothesis strategy of small datasets with unique values, and of chunks for them.

    Because values are unique, each one shows where it was read.

    Parameters
    ----------
    max_dims : int, default 3
        The most dimensions. They are "time", "lat" and "lon", in this order.
    max_size : int, default 12
        The most elements along a dimension.
    max_variables : int, default 3
        The most data variables. The first has every dimension. The others have some of them, in
        any order.
    dtypes : tuple of str
        Dtypes to choose from. They must hold the total number of elements exactly.

    Returns
    -------
    hypothesis.strategies.SearchStrategy
        A strategy of pairs ``(dataset, chunks)``. Values count up from 1 through all variables.
        The chunks have the form that `write_store` takes, and may be longer than their dimension.
    """
    from hypothesis import strategies as st

    names = ("time", "lat", "lon")[:max_dims]

    @st.composite
    def draw_dataset(draw: st.DrawFn) -> tuple[xr.Dataset, dict[str, tuple[int, ...]]]:
        """Draw sizes, variables, values and chunks."""
        dims = names[: draw(st.integers(1, len(names)))]
        sizes = {dim: draw(st.integers(1, max_size)) for dim in dims}
        dataset, chunks, first = xr.Dataset(), {}, 1
        for number in range(draw(st.integers(1, max_variables))):
            chosen_dims = dims
            if number:
                ordered = draw(st.permutations(dims))
                chosen_dims = tuple(ordered[: draw(st.integers(1, len(dims)))])
            shape = tuple(sizes[dim] for dim in chosen_dims)
            last = first + int(np.prod(shape))
            values = np.arange(first, last).astype(draw(st.sampled_from(dtypes)))
            name = f"v{number}"
            dataset[name] = (chosen_dims, values.reshape(shape))
            chunks[name] = tuple(draw(st.integers(1, size + 1)) for size in shape)
            first = last
        if draw(st.booleans()):
            dataset = dataset.assign_coords({dim: np.arange(sizes[dim]) * 0.5 for dim in dims})
        return dataset, chunks

    return draw_dataset()
