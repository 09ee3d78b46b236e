"""Weights of elements: areas of cells by latitude, or an array of the user."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import OptionError
from xloader.forcings.coordinates import find_coordinate, is_in_radians
from xloader.jobs.wanted_elements import check_fits, cut_along
from xloader.recipe.recipe import Recipe


@dataclass(frozen=True, eq=False)
class ElementWeights:
    """A weight for each selected element along some dimensions."""

    dims: tuple[str, ...]
    values: NDArray[np.float64]

    def along(self, dims: tuple[str, ...], parts: dict[str, slice]) -> NDArray[np.float64] | None:
        """The weights of a box of elements, to be broadcast; None if the dimensions lack some."""
        if not set(self.dims) <= set(dims):
            return None
        return cut_along(self.values, self.dims, dims, parts)

    @cached_property
    def digest(self) -> str:
        """Text that is equal for equal weights."""
        digest = hashlib.sha256(repr((self.dims, self.values.shape)).encode())
        digest.update(np.ascontiguousarray(self.values, "<f8").tobytes())
        return digest.hexdigest()[:16]


def parse_weights(recipe: Recipe, variables: list[str], weights: Any) -> ElementWeights | None:
    """Check the option ``weights``."""
    if weights is None:
        return None
    if isinstance(weights, str) and weights == "area":
        found = _areas(recipe)
    elif isinstance(weights, xr.DataArray) and weights.dtype.kind in "biuf":
        check_fits(recipe, weights, "weights")
        dims = tuple(map(str, weights.dims))
        found = ElementWeights(dims, np.asarray(weights.values, np.float64))
    else:
        raise OptionError(
            "weights are neither 'area' nor an array of numbers",
            given=repr(weights) if isinstance(weights, str) else type(weights).__name__,
            allowed="'area', or an xarray.DataArray along some dimensions of the samples",
            remedy="pass weights='area' to weight by the cosine of the latitude",
        )
    if not (np.isfinite(found.values) & (found.values >= 0)).all():
        raise OptionError(
            "a weight is negative or not finite",
            given=f"weights from {np.min(found.values)} to {np.max(found.values)}",
            allowed="finite numbers of at least 0",
            remedy="replace them by 0 to leave out their elements",
        )
    if not any(set(found.dims) <= set(recipe.dims_of(name)) for name in variables):
        raise OptionError(
            "no variable has all dimensions of the weights",
            given=f"weights along {', '.join(found.dims)}",
            allowed=f"dimensions of one of { {name: recipe.dims_of(name) for name in variables} }",
            remedy="pass weights along fewer dimensions",
        )
    return found


def _areas(recipe: Recipe) -> ElementWeights:
    coords = recipe.source.coordinates(is_indexed=False)
    lat = coords[find_coordinate(coords, "lat")]
    kept = {str(dim): recipe.kept_of(str(dim)) for dim in lat.dims}
    lat = lat.isel({dim: own if isinstance(own, int) else list(own) for dim, own in kept.items()})
    values = np.asarray(lat.values, np.float64)
    angles = values if is_in_radians(lat) else np.deg2rad(values)
    # Rounded latitudes of the poles may lie a little beyond them.
    return ElementWeights(tuple(map(str, lat.dims)), np.maximum(np.cos(angles), 0.0))
