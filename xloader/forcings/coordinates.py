"""Finds coordinates of time, latitude and longitude, by the CF conventions or by common names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import unknown
from xloader.errors import OptionError, UnknownNameError


@dataclass(frozen=True)
class RoleMarks:
    """The marks by which a coordinate is known."""

    standard_name: str
    units: tuple[str, ...]
    names: tuple[str, ...]


ROLES: Final[dict[str, RoleMarks]] = {
    "time": RoleMarks("time", (), ("time", "valid_time", "date", "datetime", "t")),
    "lat": RoleMarks(
        "latitude",
        ("degrees_north", "degree_north", "degree_n", "degrees_n", "degreen", "degreesn"),
        ("lat", "latitude", "lats", "nav_lat", "xlat", "latitudes"),
    ),
    "lon": RoleMarks(
        "longitude",
        ("degrees_east", "degree_east", "degree_e", "degrees_e", "degreee", "degreese"),
        ("lon", "longitude", "lons", "nav_lon", "xlong", "xlon", "longitudes"),
    ),
}
"""The marks of each role."""


def find_coordinate(coords: xr.Dataset, role: str) -> str:
    """Name of the coordinate of a role.

    The CF standard name comes first, then the units, then common names. Of several coordinates,
    one with a common name is taken, or the one that is a dimension.
    """
    marks = ROLES[role]
    for test in _tests(marks, role):
        names = [
            str(name) for name, coord in coords.coords.items() if test(str(name).lower(), coord)
        ]
        if names:
            return _choose(coords, names, marks, role)
    raise UnknownNameError(
        f"no coordinate for {role!r} was found",
        given=", ".join(map(repr, coords.coords)) or "no coordinates",
        allowed=f"a coordinate with the standard name {marks.standard_name!r}, or named "
        f"{' or '.join(marks.names[:2])}",
        remedy=f'name it, as in forcing(..., coords={{"{role}": "..."}}); if it is a data '
        "variable, open the Dataset with set_coords",
    )


def angle_of(name: str, attrs: Mapping[Any, Any]) -> Literal["lat", "lon"] | None:
    """Which angle a coordinate is: latitude, longitude or neither."""
    angles: Final = ("lat", "lon")
    for role in angles:
        marks, units = ROLES[role], str(attrs.get("units", "")).lower()
        if attrs.get("standard_name") == marks.standard_name or units in marks.units:
            return role
    return next((role for role in angles if name.lower() in ROLES[role].names), None)


def require_coordinate(coords: xr.Dataset, name: str, parameter: str) -> str:
    """The name of a coordinate, after a check that it exists."""
    if name in coords.coords:
        return name
    what = f"there is no coordinate for the parameter {parameter!r}"
    remedy = f'name one, as in forcing(..., coords={{"{parameter}": "..."}})'
    raise unknown(name, coords.coords, "coordinate", what, remedy)


def is_in_radians(coord: xr.DataArray) -> bool:
    """Whether the labels of a coordinate are angles in radians."""
    return str(coord.attrs.get("units", "")).lower() in ("rad", "radian", "radians")


def _tests(marks: RoleMarks, role: str) -> Iterator[Callable[[str, xr.DataArray], bool]]:
    is_time = role == "time"

    def fits(coord: xr.DataArray) -> bool:
        return not is_time or holds_times(coord)

    yield lambda _, coord: coord.attrs.get("standard_name") == marks.standard_name and fits(coord)
    yield lambda _, coord: str(coord.attrs.get("units", "")).lower() in marks.units
    if is_time:
        yield lambda _, coord: coord.attrs.get("axis") == "T" and fits(coord)
    yield lambda name, coord: name in marks.names and fits(coord)
    if is_time:
        yield lambda _, coord: fits(coord)
        # The error about labels that are no times says more than one about no coordinate.
        yield lambda name, _: name in marks.names[:2]


def holds_times(coord: xr.DataArray) -> bool:
    """Whether a coordinate has times as labels, of NumPy or of cftime."""
    if coord.dtype.kind == "M":
        return True
    if coord.dtype != object or not coord.size:
        return False
    return hasattr(np.asarray(coord[(0,) * coord.ndim].values).item(), "dayofyr")


def _choose(coords: xr.Dataset, names: list[str], marks: RoleMarks, role: str) -> str:
    if len(names) > 1:
        by_name = [name for name in names if name.lower() in marks.names]
        names = by_name or [name for name in names if name in coords.dims] or names
        names.sort(key=lambda name: (name not in coords.dims, name.lower() != marks.names[0]))
        if by_name or len(names) == 1:
            return names[0]
        raise OptionError(
            f"several coordinates could be {role!r}",
            given=", ".join(map(repr, names)),
            remedy=f'name it, as in forcing(..., coords={{"{role}": {names[0]!r}}})',
        )
    return names[0]


def on_arrays(
    fn: Callable[..., NDArray[Any]], attrs: Mapping[str, str], *labels: Any
) -> xr.DataArray | NDArray[Any]:
    """Call a formula on labels as plain arrays."""
    named = [label for label in labels if isinstance(label, xr.DataArray)]
    if not named:
        return fn(*map(np.asarray, labels))
    if any(label.indexes for label in named):
        named = list(xr.align(*named, join="exact", copy=False))
    dims = list(dict.fromkeys(dim for label in named for dim in label.dims))
    rest, arrays = iter(named), []
    for label in labels:
        if not isinstance(label, xr.DataArray):
            arrays.append(np.asarray(label))
            continue
        taken = next(rest).variable
        kept = [dim for dim in dims if dim in taken.dims]
        values = np.asarray(taken.transpose(*kept).values)
        arrays.append(values[tuple(slice(None) if dim in kept else None for dim in dims)])
    coords = {name: coord for label in named for name, coord in label.coords.items()}
    return xr.DataArray(fn(*arrays), coords, dims, attrs=dict(attrs))
