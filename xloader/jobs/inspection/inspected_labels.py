"""Looks at the labels of coordinates: range, step, gaps, labels that come twice or go back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import XloaderError
from xloader.recipe.label_steps import LabelSteps, find_steps, show_label
from xloader.recipe.recipe import Recipe

_MOST_LABELS: Final = 1 << 24
"""Coordinates of more values than this are not read."""


@dataclass(frozen=True)
class InspectedLabels:
    """The values of one coordinate.

    Parameters
    ----------
    name : str
        Name of the coordinate.
    dims : tuple of str
        Its dimensions.
    shape : tuple of int
        Its shape.
    dtype : str
        Dtype of its values, decoded.
    units : str
        Units, empty if not known.
    first, last : str
        The first and the last label; of several dimensions, the smallest and the largest where
        these are numbers or times.
    step : str
        The common step in words; empty without one.
    gaps : str
        How many steps differ from it and where the first one is; empty if none does.
    num_duplicates : int
        Labels that come again.
    num_backward : int
        Steps in the direction opposite to most.
    num_missing : int
        Labels that are NaN or no time.
    is_time : bool
        Whether the labels are times, along which windows do not cross gaps by default.
    problem : str
        Why the labels cannot be used; empty if they can.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    units: str = ""
    first: str = ""
    last: str = ""
    step: str = ""
    gaps: str = ""
    num_duplicates: int = 0
    num_backward: int = 0
    num_missing: int = 0
    is_time: bool = False
    problem: str = ""

    @property
    def text(self) -> str:
        """The labels in one line."""
        if self.problem:
            return self.problem
        units = f" {self.units}" * bool(self.units)
        is_unread = not self.first and not self.num_missing and all(self.shape)
        range_ = f" from {self.first} to {self.last}{units}" if self.first else ""
        size = " x ".join(f"{n:,}" for n in self.shape) or "1"
        parts = [size + (range_ or ", not read" * is_unread)]
        parts += [f"step {self.step}"] if self.step else []
        parts += [f"steps are irregular: {self.gaps}"] if self.gaps else []
        for count, what in (
            (self.num_duplicates, "more than once"),
            (self.num_backward, "out of order"),
            (self.num_missing, "missing"),
        ):
            parts += [f"{count:,} {what}"] if count else []
        return "; ".join(parts)


def inspect_labels(recipe: Recipe) -> tuple[InspectedLabels, ...]:
    """Look at all coordinates of a recipe's source. Their values are read."""
    coords = recipe.source.coordinates(is_indexed=False).coords
    # Any object may name a coordinate of xarray.
    names = sorted(coords, key=lambda name: (coords[name].dims != (name,), str(name)))
    return tuple(_inspect(recipe, str(name), coords[name]) for name in names)


def _inspect(recipe: Recipe, name: str, labels: xr.DataArray) -> InspectedLabels:
    units = str(labels.attrs.get("units", ""))
    told: dict[str, Any] = {
        "name": name,
        "dims": tuple(map(str, labels.dims)),
        "shape": tuple(labels.shape),
        "dtype": str(labels.dtype),
        "units": units,
    }
    if labels.size > _MOST_LABELS:
        return InspectedLabels(**told)
    try:
        values = np.asarray(labels.variable.values)
        is_line = labels.dims == (name,) and name in recipe.dim_sizes
        steps = find_steps(recipe, name) if is_line else None
    except XloaderError as error:
        return InspectedLabels(**told, problem=f"cannot be read ({error})")
    # Labels are read by xarray, whose backends raise errors of many kinds.
    except Exception as error:
        told_error = f"{type(error).__name__}: {error}".splitlines()[0]
        return InspectedLabels(**told, problem=f"cannot be read ({told_error})")
    if not values.size:
        return InspectedLabels(**told)
    return InspectedLabels(**told, **_ends(values), **(_order(values, steps) if is_line else {}))


def _ends(values: NDArray[Any]) -> dict[str, Any]:
    is_missing = _is_missing(values)
    known = values[~is_missing]
    found: dict[str, Any] = {"num_missing": int(is_missing.sum())}
    if known.size:
        has_range = values.ndim > 1 and known.dtype.kind in "biufmM"
        ends = (known.min(), known.max()) if has_range else (known[0], known[-1])
        found["first"], found["last"] = map(show_label, ends)
    return found


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    return (
        np.asarray(np.isnat(values)) if values.dtype.kind in "mM" else np.zeros(values.shape, bool)
    )


def _order(values: NDArray[Any], steps: LabelSteps | None) -> dict[str, Any]:
    """The step, and labels that come again or go back."""
    kept = values[~_is_missing(values)]
    found: dict[str, Any] = {"num_duplicates": len(kept) - len(set(kept.tolist()))}
    if steps is not None:
        found["step"], found["gaps"] = steps.text, steps.describe()
        found["is_time"] = steps.is_time
        if not steps.is_regular:
            found["step"] = ""
    if kept.dtype.kind in "iufmMO" and len(kept) > 1:
        ascends = kept[1:] > kept[:-1]
        descends = kept[1:] < kept[:-1]
        found["num_backward"] = int(min(ascends.sum(), descends.sum()))
    return found
