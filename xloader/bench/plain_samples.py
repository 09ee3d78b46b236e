"""Samples as a user reads them without xloader: by ``isel`` on a Dataset, or by xbatcher.

Both fill the same fields as xloader does, so that all deliver the same values.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Kept, Recipe
from xloader.sources.open.open_source import location_of
from xloader.sources.stores.per_process import PerProcess

MOST_SELECTORS: Final = 200_000
"""Most windows that are given to xbatcher, which makes an object for each before it starts."""


@dataclass(frozen=True)
class PlainOpener:
    """Opens a store with xarray, lazily and without dask, as most users do."""

    path: str
    group: str | None = None
    storage_options: Mapping[str, Any] | None = None
    selection: tuple[tuple[str, Kept], ...] = ()

    def __call__(self) -> xr.Dataset:
        """Open the store."""
        path = os.path.expanduser(self.path)
        is_zarr = not isinstance(location_of(path, self.storage_options, {}), str)
        options: dict[str, Any] = {"group": self.group, "engine": "zarr" if is_zarr else None}
        if self.storage_options:
            options["storage_options"] = dict(self.storage_options)
        with warnings.catch_warnings():
            # Consolidated metadata are tried first, as by default.
            warnings.simplefilter("ignore")
            ds = xr.open_dataset(path, chunks=None, **options)
        return ds.isel({dim: _indexer(kept) for dim, kept in self.selection})


def _indexer(kept: Kept) -> Any:
    if isinstance(kept, range):
        return slice(kept.start, kept.stop, kept.step)
    # The dimension stays, with one element, as in the fields' views of stored dimensions.
    return slice(kept, kept + 1) if isinstance(kept, int) else list(kept)


class IselSamples:
    """Map-style dataset that reads each sample by ``isel``."""

    def __init__(self, recipe: Recipe, open_dataset: PlainOpener) -> None:
        self._recipe = recipe
        self._layouts = make_layouts(recipe)
        self._dataset = PerProcess(open_dataset, open_dataset.path, is_remade=True)

    def __len__(self) -> int:
        return self._recipe.num_ids

    def __getitem__(self, index: int) -> tuple[NDArray[Any], ...]:
        (starts,) = self._recipe.firsts_of(np.array([index], np.int64)).tolist()
        return fill_fields(self._layouts, self._dataset.get(), starts)


class XbatcherSamples:
    """Map-style dataset that takes each sample from a ``BatchGenerator`` of xbatcher."""

    def __init__(self, recipe: Recipe, open_dataset: PlainOpener) -> None:
        windows = recipe.require_windows()
        self._layouts = make_layouts(recipe)
        self._open_dataset = open_dataset
        self._sizes = dict(zip(windows.dims, windows.window_sizes, strict=True))
        strides = zip(windows.dims, windows.strides, strict=True)
        self._overlap = {
            dim: self._sizes[dim] - stride for dim, stride in strides if self._sizes[dim] > stride
        }
        self._starts = [0] * len(windows.dims)
        self._windows = PerProcess(self._make_windows, open_dataset.path, is_remade=True)

    def _make_windows(self) -> Any:
        names = list(
            dict.fromkeys(part.variable for layout in self._layouts for part in layout.parts)
        )
        dataset = self._open_dataset()[names]
        # xbatcher stacks dimensions that it is not told of.
        sizes = {str(dim): size for dim, size in dataset.sizes.items()} | self._sizes
        xbatcher = importlib.import_module("xbatcher")
        return xbatcher.BatchGenerator(dataset, input_dims=sizes, input_overlap=self._overlap)

    def __len__(self) -> int:
        return len(self._windows.get())

    def __getitem__(self, index: int) -> tuple[NDArray[Any], ...]:
        return fill_fields(self._layouts, self._windows.get()[index], self._starts)


def fill_fields(
    layouts: Sequence[FieldLayout], dataset: xr.Dataset, starts: Sequence[int]
) -> tuple[NDArray[Any], ...]:
    """Read the fields of one sample with xarray.

    One array for each field, in the field's shape and dtype.
    """
    fields = []
    for layout in layouts:
        out = np.empty((1, *layout.shape), layout.dtype)
        for part in layout.parts:
            indexers = {
                dim: _elements(start, *access)
                for dim, access, start in zip(layout.windowed, part.accesses, starts, strict=True)
                if access is not None
            }
            part.view(out)[0] = dataset[part.variable].isel(indexers).values
        fields.append(out[0])
    return tuple(fields)


def _elements(start: int, first: int, step: int, count: int) -> slice:
    begin = start + first
    return slice(begin, begin + step * (count - 1) + 1, step)


def why_not_plain(recipe: Recipe) -> str:
    """Why samples cannot be read by plain ``isel``; an empty text if they can."""
    windows = recipe.require_windows()
    if any(windows.wraps) or any(pad is not None for pad in windows.pads):
        return "its windows wrap or are padded, which isel cannot do"
    return ""


def extra_of_xbatcher(recipe: Recipe) -> dict[str, int]:
    """Windows that xbatcher takes although the samples leave them out, by reason."""
    windows = recipe.require_windows()
    counts = {"gap": windows.dropped.get("gap", 0), "dropped": len(windows) - recipe.num_ids}
    return {reason: count for reason, count in counts.items() if count > 0}


def why_not_xbatcher(recipe: Recipe) -> str:
    """Why xbatcher cannot make samples; an empty text if it can."""
    windows = recipe.require_windows()
    if reason := why_not_plain(recipe):
        return reason
    if any(step > 1 for step in windows.dilations):
        return "xbatcher has no dilation"
    sizes = windows.window_sizes
    if any(stride > size for stride, size in zip(windows.strides, sizes, strict=True)):
        return "xbatcher has no strides longer than a window"
    if any(extent > size for extent, size in zip(windows.extents, sizes, strict=True)):
        return "xbatcher has no leads beyond the window"
    if len(windows) > MOST_SELECTORS:
        return f"xbatcher makes an object for each window, which are {len(windows):,} here"
    return ""
