"""Which open Datasets a forked child may read: views of Zarr arrays in directories or in memory."""

from __future__ import annotations

from typing import Any, Final

import xarray as xr
from zarr.storage import LocalStore, MemoryStore

from xloader.sources import zarr_adapter
from xloader.sources.views.dask_views import view_of_graph
from xloader.sources.views.xarray_views import UnrecognisedError, held_by, view_of

_PLAIN: Final = (LocalStore, MemoryStore)
"""Stores without a connection, a thread or an open file."""


def survives_fork(dataset: xr.Dataset, names: tuple[str, ...]) -> bool:
    """Whether a forked child may make a source of some variables anew."""
    return all(isinstance(_store_of(dataset.variables[name]), _PLAIN) for name in names)


def _store_of(variable: xr.Variable) -> Any:
    """The store of a variable's array, without wrappers. None if it is not known."""
    held = held_by(variable)
    try:
        view = view_of(held) if variable.chunks is None else view_of_graph(held)
    except UnrecognisedError:
        return None
    return zarr_adapter.innermost(view.array.store)
