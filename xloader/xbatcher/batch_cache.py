"""Reading and writing of batches in a Zarr store, one group for each batch.

This is the ``cache`` argument of a `BatchGenerator`.
"""

from __future__ import annotations

from typing import Any

import xarray as xr


def load_batch(cache: Any, batch: int, *, is_loaded: bool) -> xr.Dataset | None:
    """Open a batch of the cache.

    The batch, or None if it is not in the cache.
    """
    try:
        found: xr.Dataset = xr.open_zarr(cache, group=str(batch), consolidated=False)
    except FileNotFoundError:
        return None
    return found.load() if is_loaded else found


def store_batch(cache: Any, batch: int, made: xr.Dataset | xr.DataArray) -> None:
    """Write a batch to the cache."""
    made.to_zarr(cache, group=str(batch), mode="a", consolidated=False)
