"""Axes of pictures, from the labels of a dimension: name, units, places and dates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.forcings.coordinates import ROLES, angle_of

if TYPE_CHECKING:
    from xloader.show.canvas import PlotAxis

_SHORT_UNITS: Final = {
    **dict.fromkeys(ROLES["lat"].units, "°N"),
    **dict.fromkeys(ROLES["lon"].units, "°E"),
}


def axis_of(name: str, dim: str, values: xr.DataArray | xr.Dataset) -> PlotAxis:
    """The axis of a picture that shows a dimension."""
    from xloader.show.canvas import PlotAxis

    size = values.sizes[dim]
    count = np.arange(size, dtype=np.float64)
    if dim not in values.coords:
        angle = angle_of(name, {})
        # The rows of an image count from its top.
        return PlotAxis(f"{name} (element)", count, is_reversed=angle is None)
    labels, attrs = values[dim].values, values[dim].attrs
    if labels.dtype.kind not in "fiu":
        return PlotAxis(name, count, tuple(label_texts(labels)))
    angle, places = angle_of(name, attrs), labels.astype(np.float64)
    if angle == "lon":
        places = np.unwrap(places, period=360.0)
    steps = np.diff(places)
    if not np.isfinite(places).all() or not ((steps > 0).all() or (steps < 0).all()):
        return PlotAxis(name, count, tuple(label_texts(labels)))
    is_down = attrs.get("positive") == "down"
    label = axis_label(name, attrs, angle)
    return PlotAxis(label, places, is_reversed=is_down, is_degrees=angle is not None)


def axis_label(name: str, attrs: Mapping[Any, Any], angle: str | None = None) -> str:
    """Label of an axis: the CF standard name, or else the dimension's name, with its units."""
    units = str(
        attrs.get("units", {"lat": "degrees_north", "lon": "degrees_east"}.get(angle or ""))
    )
    short = "" if units == "None" else _SHORT_UNITS.get(units.lower(), units)
    shown = str(attrs.get("standard_name", name))
    return f"{shown} ({short})" if short else shown


def is_time(dim: str, values: xr.DataArray | xr.Dataset) -> bool:
    """Whether the labels of a dimension are times; without labels, whether its name says so."""
    if dim not in values.coords:
        return any(
            dim == role_name or dim.endswith(f"_{role_name}")
            for role_name in ROLES["time"].names[:2]
        )
    labels = values[dim].values
    if labels.dtype.kind in "Mm":
        return True
    if labels.dtype == object and labels.size:
        return hasattr(labels.reshape(-1)[0], "dayofyr")
    return values[dim].attrs.get("standard_name") == "time"


def place_text(values: xr.DataArray, dim: str, place: int) -> str:
    """The label of one element of a dimension as text, or its number if there are no labels."""
    if dim in values.coords:
        return label_texts(values[dim].values)[place]
    return str(place)


def label_texts(labels: NDArray[Any]) -> list[str]:
    """Labels as text: dates without seconds, and without hours if all are at midnight."""
    flat = labels.reshape(-1)
    if flat.dtype.kind == "M":
        minutes = flat.astype("M8[m]")
        is_daily = bool((minutes == minutes.astype("M8[D]")).all())
        return [str(one)[: 10 if is_daily else 16].replace("T", " ") for one in minutes]
    if flat.dtype.kind == "f":
        return [f"{one:.6g}" for one in flat]
    texts = [str(one) for one in flat]
    if all(text.endswith(" 00:00:00") for text in texts):
        return [text.removesuffix(" 00:00:00") for text in texts]
    return [text.removesuffix(":00") if " " in text else text for text in texts]
