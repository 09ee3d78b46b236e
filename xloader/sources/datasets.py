"""From an open ``xr.Dataset`` to a source."""

from __future__ import annotations

import os
from collections.abc import Iterable

import xarray as xr

from xloader.sources import catalog
from xloader.sources.base import Source
from xloader.sources.openers import Given, safe_name
from xloader.sources.xarray_source import XarraySource, describe, is_in_memory


def from_dataset(dataset: xr.Dataset, variables: Iterable[str] | str | None) -> Source:
    """Make a source of an open dataset of any backing.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset; nothing of it is read.
    variables : iterable of str, optional
        The data variables to offer, as `catalog.choose` has it.
    """
    path = safe_name(str(dataset.encoding.get("source") or ""))
    name = f"an open Dataset of {path}" if path else "an open Dataset"
    chosen = catalog.choose(dataset, variables, name)
    # The coordinates stay, so that xarray's view of them is the user's own.
    kept = dataset[list(chosen)].assign_coords(dataset.coords)
    return XarraySource(
        describe(kept, chosen, None),
        open_dataset=Given(kept),
        name=name,
        key=os.path.basename(path),
        is_forkable=all(is_in_memory(kept.variables[name]) for name in chosen),
        is_shared=True,
    )
