"""Shuffled batches as other libraries make them, of the same samples from the same store."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from benchmarks.layouts import DIMS, Layout
from benchmarks.measure import Effort, Speed
from benchmarks.stores import store_at

MOST_SELECTORS: Final = 200_000
"""Number of windows given to xbatcher, which makes an object for each before it starts."""

Batches = Callable[[], Iterator[int]]
"""Starts a shuffled pass and yields the number of bytes of each batch."""


def play(
    way: str, layout: Layout, place: str, effort: Effort
) -> Generator[Speed | None, Any, None]:
    """Set up; then make batches for some seconds in each turn, after one batch to warm up."""
    layout = dataclasses.replace(layout, batch_size=min(layout.batch_size, effort.most_batch))
    batches = WAYS[way](layout, open_dataset(place, layout, with_dask=way == "dask"))
    yield None
    while True:
        coming = batches()
        next(coming)
        nbytes = 0
        begin = time.perf_counter()
        for batch_nbytes in coming:
            nbytes += batch_nbytes
            if time.perf_counter() - begin > effort.seconds:
                break
        speed = Speed(nbytes, time.perf_counter() - begin)
        # Closing the pass ends its workers, so that they do not slow the next competitor down.
        del coming
        yield speed


def open_dataset(place: str, layout: Layout, *, with_dask: bool) -> xr.Dataset:
    """Open the store with xarray: lazily, or in memory if the layout is measured in memory."""
    chunks: dict[str, int] | None = {} if with_dask else None
    consolidated = layout.store.is_consolidated
    ds: xr.Dataset = xr.open_zarr(store_at(place), consolidated=consolidated, chunks=chunks)
    if layout.is_in_memory:
        ds = ds.persist() if with_dask else ds.load()
    return ds


class PlainDataset:
    """The dataset that a user writes first: one ``isel`` per sample.

    Parameters
    ----------
    ds : xarray.Dataset
    layout : Layout
    """

    def __init__(self, ds: xr.Dataset, layout: Layout) -> None:
        self.ds = ds
        self.layout = layout

    def __len__(self) -> int:
        return math.prod(self.layout.counts)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], ...]:
        sample = self.ds.isel(window_of(self.layout, index))
        return tuple(sample[name].values for name in self.layout.store.variables)


def window_of(layout: Layout, index: int) -> dict[str, slice]:
    """Return the slices of one sample."""
    position = np.unravel_index(index, layout.counts)
    spans = zip(DIMS, position, layout.strides, layout.window_sizes, strict=True)
    return {dim: slice(int(p) * s, int(p) * s + size) for dim, p, s, size in spans}


def _plain(layout: Layout, ds: xr.Dataset, num_workers: int) -> Batches:
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        PlainDataset(ds, layout),  # type: ignore[arg-type]
        batch_size=layout.batch_size,
        shuffle=True,
        num_workers=num_workers,
        # Without this, workers would start by the method that started this process.
        multiprocessing_context="fork" if num_workers and sys.platform == "linux" else None,
    )
    return lambda: (sum(field.nbytes for field in batch) for batch in loader)


def _xbatcher(layout: Layout, ds: xr.Dataset) -> Batches:
    import torch
    import xbatcher
    import xbatcher.loaders.torch
    from torch.utils.data import DataLoader

    sizes = dict(zip(DIMS, layout.window_sizes, strict=True))
    overlap = {
        dim: size - stride
        for (dim, size), stride in zip(sizes.items(), layout.strides, strict=True)
        if size > stride
    }
    if math.prod(layout.counts) > MOST_SELECTORS:
        ds = ds.isel(lat=slice(0, ds.sizes["lat"] // 10), lon=slice(0, ds.sizes["lon"] // 10))
    windows = xbatcher.BatchGenerator(ds, input_dims=sizes, input_overlap=overlap)
    loader = DataLoader(
        # xbatcher's own conversion to a tensor takes one variable only.
        xbatcher.loaders.torch.MapDataset(
            windows, transform=lambda sample: torch.from_numpy(sample.to_array().values)
        ),
        batch_size=layout.batch_size,
        shuffle=True,
    )
    return lambda: (batch.nbytes for batch in loader)


def _dask(layout: Layout, ds: xr.Dataset) -> Batches:
    """Make shuffled batches with dask.

    Each batch is computed in one call, so that its samples read a shared chunk once.
    """
    from dask.base import compute

    batch_size = layout.batch_size
    rng = np.random.default_rng(0)

    def make(ids: NDArray[np.int64]) -> int:
        lazy = [ds.isel(window_of(layout, int(index))) for index in ids]
        samples = compute(*lazy)  # type: ignore[no-untyped-call]
        names = layout.store.variables
        return sum(np.stack([sample[name].values for sample in samples]).nbytes for name in names)

    def batches() -> Iterator[int]:
        ids = rng.permutation(math.prod(layout.counts))
        starts = range(0, len(ids) - batch_size + 1, batch_size)
        return (make(ids[start : start + batch_size]) for start in starts)

    return batches


WAYS: Final[dict[str, Callable[[Layout, xr.Dataset], Batches]]] = {
    "xbatcher": _xbatcher,
    "isel, 0 workers": functools.partial(_plain, num_workers=0),
    "isel, 2 workers": functools.partial(_plain, num_workers=2),
    "dask": _dask,
}
"""The ways to make shuffled batches, by name."""
