"""Batches kept in a Zarr store, a group for each: ``cache=`` of a generator."""

from __future__ import annotations

from typing import Any

import xarray as xr


def load_batch(cache: Any, batch: int, *, is_loaded: bool) -> xr.Dataset | None:
    """A batch that is kept, as a Dataset; None where it is not.

    Parameters
    ----------
    cache : mutable mapping or Zarr store
        Where batches are kept.
    batch : int
        The batch's number.
    is_loaded : bool
        Whether it is to be in memory.
    """
    try:
        found: xr.Dataset = xr.open_zarr(cache, group=str(batch), consolidated=False)
    except FileNotFoundError:
        return None
    return found.load() if is_loaded else found


def store_batch(cache: Any, batch: int, made: xr.Dataset | xr.DataArray) -> None:
    """Keep a batch.

    Parameters
    ----------
    cache : mutable mapping or Zarr store
        Where.
    batch : int
        The batch's number.
    made : xarray.Dataset or xarray.DataArray
        The batch.
    """
    made.to_zarr(cache, group=str(batch), mode="a", consolidated=False)
