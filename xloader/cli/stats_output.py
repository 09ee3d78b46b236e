"""Statistics as a table of text, and as JSON."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import numpy as np
import xarray as xr

from xloader.cli.endings import say
from xloader.cli.json_output import print_json
from xloader.core.count_text import show_count
from xloader.core.text_table import align_columns

_STAT: Final = "stat"
_MOST_NUMBERS: Final = 1_000
"""Most numbers that are printed if they are in a file as well."""


def show_stats(stats: xr.Dataset, path: str | None, *, is_json: bool) -> None:
    """Print statistics. Of many numbers that are in a file, only the sizes are printed."""
    num_numbers = sum(own.size for own in stats.data_vars.values())
    is_short = path is None or num_numbers <= _MOST_NUMBERS
    if is_json:
        print_json({"path": path, "stats": stats if is_short else None})
        return
    if is_short:
        say(make_stats_table(stats))
    else:
        sizes = ", ".join(f"{dim} {size:,}" for dim, size in stats.sizes.items())
        say(f"{num_numbers:,} numbers of {show_count(len(stats.data_vars), 'variable')}: {sizes}")
    if path is not None:
        say(f"Written to {path}.")


def make_stats_table(stats: xr.Dataset) -> str:
    """Return statistics as a table: a row for each variable, channel, month and lead."""
    dims = list(dict.fromkeys(dim for own in stats.values() for dim in own.dims if dim != _STAT))
    names = [str(name) for name in stats[_STAT].values]
    rows = [["variable", *map(str, dims), "units", *names]]
    for name, own in stats.data_vars.items():
        own = own.transpose(..., _STAT)
        units = str(own.attrs.get("units", ""))
        for index in np.ndindex(own.shape[:-1]):
            at = dict(zip(own.dims, index, strict=False))
            labels = [_label(own, dim, at[dim]) if dim in at else "" for dim in dims]
            cells = [_number(*pair) for pair in zip(names, own.values[index], strict=True)]
            rows.append([str(name), *labels, units, *cells])
    return align_columns(rows, num_left=2 + len(dims))


def _label(values: xr.DataArray, dim: Hashable, position: int) -> str:
    if dim not in values.coords:
        return str(position)
    label: Any = values.coords[dim].values[position]
    if isinstance(label, np.timedelta64):
        return _show_duration(label)
    return f"{label:g}" if isinstance(label, np.floating) else str(label)


def _show_duration(duration: np.timedelta64) -> str:
    """The duration in the largest unit of which it is a whole number."""
    for unit in ("D", "h", "m", "s"):
        if duration % np.timedelta64(1, unit) == np.timedelta64(0):
            return f"{duration // np.timedelta64(1, unit)}{unit}"
    return str(duration)


def _number(name: str, value: float) -> str:
    if name == "count" and np.isfinite(value):
        return f"{int(value):,}"
    return f"{value:.6g}"
