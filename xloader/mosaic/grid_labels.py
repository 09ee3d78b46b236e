"""The coordinates of a mosaic: those of the source, at the cells of the mosaic, and the leads."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.mosaic.field_grid import VALID, FieldGrid, Placing
from xloader.recipe.recipe import Recipe


def make_labels(recipe: Recipe, grid: FieldGrid) -> xr.Dataset:
    """The coordinates of a mosaic, in memory."""
    names = {variable.name for variable in grid.target.variables}
    dims = {dim for variable in grid.target.variables for dim in variable.dims}
    dims -= {placing.lead_dim for placing in grid.placings}
    source = recipe.source.coordinates()
    dropped = {dim: kept for dim, kept in recipe.selection if isinstance(kept, int)}
    known = dims | set(dropped)
    unfit = [
        name
        for name, coord in source.coords.items()
        if not set(coord.dims) <= known or name in names
    ]
    cut = source.drop_vars(unfit)
    indexers: dict[str, Any] = {dim: grid.elements_of(dim) for dim in dims} | dropped
    cut = cut.isel({dim: own for dim, own in indexers.items() if dim in cut.dims})
    for placing in grid.placings:
        if placing.lead_dim:
            cut = cut.assign_coords(_lead_coords(source, grid, placing))
    labels = xr.Dataset(coords=cut.coords).load().drop_encoding()
    for coord in labels.coords.values():
        # xarray refuses to write these where they are encoded.
        coord.attrs.pop("_FillValue", None)
    return labels


def _lead_coords(source: xr.Dataset, grid: FieldGrid, placing: Placing) -> dict[str, xr.Variable]:
    """The leads, and the labels that predictions are for."""
    elements = np.asarray(placing.elements)
    in_words = {"long_name": f"elements of {placing.dim} after the first one of the window"}
    dim, lead_dim = placing.dim, placing.lead_dim
    if dim not in source.indexes:
        return {lead_dim: xr.Variable(lead_dim, elements, in_words)}
    labels = source[dim].variable.to_base_variable()
    valid = labels[xr.Variable((dim, lead_dim), grid.lead_elements(placing))]
    first = labels[xr.Variable(dim, grid.elements_of(dim))]
    spans = _common_spans(valid.to_numpy(), first.to_numpy())
    if spans is None:
        leads = xr.Variable(lead_dim, elements, in_words)
    else:
        leads = xr.Variable(lead_dim, spans, {"long_name": "time since the start of the window"})
    return {lead_dim: leads, f"{VALID}_{dim}": valid}


def _common_spans(valid: NDArray[Any], first: NDArray[Any]) -> NDArray[np.timedelta64] | None:
    """The time from the start of windows to each lead; None if it differs, or labels are no times.

    A month after the start of the window is 28 to 31 days, for example.
    """
    try:
        spans = np.asarray(valid - first[:, None])
        if spans.dtype == object:
            spans = spans.astype("m8[us]")
    except (TypeError, ValueError):
        return None
    if spans.dtype.kind != "m" or (spans != spans[:1]).any():
        return None
    return np.asarray(spans[0].astype("m8[ns]"))
