"""The groups of a stored mosaic: names with a ``/``, as joined samples have them, are paths.

``radar/rain`` along ``(time, radar/y)`` is stored as ``rain`` along ``(time, y)`` in the group
``radar``, so that the store opens as an `xarray.DataTree`. Each group has all the coordinates of
its variables. Without such names, everything lies in the root.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from xloader.mosaic.target_grid import GridVariable, TargetGrid


def group_of(name: str) -> str:
    """The group in which something of that name is stored; empty for the root."""
    return name.rpartition("/")[0]


def name_within(group: str, name: str) -> str:
    """The name that something has in a group."""
    return name.removeprefix(f"{group}/") if group else name


def groups_of(grid: TargetGrid) -> dict[str, list[GridVariable]]:
    """The variables of each group, in their order."""
    found: dict[str, list[GridVariable]] = {}
    for variable in grid.variables:
        found.setdefault(group_of(variable.name), []).append(variable)
    return found


def label_groups(grid: TargetGrid, labels: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """The coordinates of each group, as Zarr can hold them."""
    stored = _storable(labels)
    groups = groups_of(grid)
    for group, variables in groups.items():
        dims = {dim for variable in variables for dim in variable.dims}
        own = {
            name: coord
            for name, coord in stored.coords.items()
            if set(coord.dims) <= dims and group_of(str(name)) in ("", group)
        }
        part = xr.Dataset(coords=own)
        names = [str(name) for name in {*part.coords, *part.dims}]
        renamed = {name: name_within(group, name) for name in names}
        yield group, part.rename({old: new for old, new in renamed.items() if old != new})


def _storable(labels: xr.Dataset) -> xr.Dataset:
    """Coordinates as Zarr can hold them: text of any length, and levels of an index one by one."""
    several = [dim for dim in labels.dims if getattr(labels.indexes.get(dim), "nlevels", 1) > 1]
    plain = labels.reset_index(several)
    texts = {
        name: own.astype(object)
        for name, own in plain.coords.items()
        # Categories and other dtypes of pandas are none of NumPy's.
        if not isinstance(own.dtype, np.dtype) or own.dtype.kind == "U"
    }
    return plain.assign_coords(texts)
