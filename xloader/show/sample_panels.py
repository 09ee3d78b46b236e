"""Pictures of samples: a panel for each field and step, with coastlines where cartopy has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import require_matplotlib, unknown
from xloader.core.option_checks import is_whole
from xloader.errors import OptionError, SampleIndexError
from xloader.forcings.coordinates import angle_of
from xloader.recipe.layout import make_layouts
from xloader.recipe.names import CHANNEL
from xloader.recipe.recipe import Recipe
from xloader.show.plot_axes import axis_of, is_time, label_texts, place_text

if TYPE_CHECKING:
    from xloader.show.canvas import Picture
    from xloader.show.map_plots import PanelRow


_SCALE = "110m"


@lru_cache(maxsize=1)
def find_coastlines() -> tuple[NDArray[np.float64], ...]:
    """Coastlines of Natural Earth, as cartopy keeps them on this machine.

    The result has shape (n, 2).
    """
    if find_spec("cartopy") is None:
        return ()
    # Maps without coasts are better than no maps, whatever an old or broken cartopy raises.
    try:
        path = _stored_path()
        return () if path is None else _read_lines(path)
    except Exception:
        return ()


def _stored_path() -> Path | None:
    import cartopy
    from cartopy.io import Downloader

    names = {"resolution": _SCALE, "category": "physical", "name": "coastline"}
    downloader = Downloader.from_config(("shapefiles", "natural_earth", *names.values()))
    fields = {"config": cartopy.config, **names}
    places = [downloader.pre_downloaded_path(fields), downloader.target_path(fields)]
    return next((Path(place) for place in places if place and Path(place).exists()), None)


def _read_lines(path: Path) -> tuple[NDArray[np.float64], ...]:
    from cartopy.io import shapereader

    lines = []
    for geometry in shapereader.Reader(str(path)).geometries():
        for part in getattr(geometry, "geoms", [geometry]):
            lines.append(np.asarray(part.coords, np.float64)[:, :2])
    return tuple(lines)


MOST_COLUMNS: Final = 8
"""The most time steps that are drawn."""
MOST_CHANNELS: Final = 4
"""The most channels of a field that are drawn, unless the user names them."""
MOST_ROWS: Final = 16
"""The most rows of panels."""


def draw_samples(
    frames: Mapping[str, xr.Dataset],
    recipe: Recipe | None,
    channel: str | Sequence[str] | None = None,
    title: str = "",
    num_asked: int | None = None,
) -> Picture:
    """Draw samples; see `Samples.plot`."""
    require_matplotlib()
    from xloader.show.map_plots import draw_rows

    wanted = None if channel is None else [channel] if isinstance(channel, str) else list(channel)
    units = {} if recipe is None else _units_of_channels(recipe)
    notes: list[str] = []
    if num_asked is not None and num_asked > len(frames):
        notes.append(f"{len(frames)} of {num_asked:,} samples")
    rows = [
        row
        for sample, frame in frames.items()
        for row in _rows_of(frame, f"{sample}\n" if len(frames) > 1 else "", wanted, units, notes)
    ]
    if len(rows) > MOST_ROWS:
        notes.append(f"{MOST_ROWS} of {len(rows):,} rows of panels")
    rows = _in_columns(rows[:MOST_ROWS], notes)
    has_map = any(row.down is not None for row in rows)
    # A picture that leaves something out says so.
    note = f"shown: {'; '.join(dict.fromkeys(notes))}" if notes else ""
    names = list(frames)
    title = title or (", ".join(names) if len(names) <= 3 else f"{len(names)} samples")
    return draw_rows(rows, title, note, find_coastlines() if has_map else ())


def plotted_rows(num: int, row: int | None, rows: Sequence[int] | None) -> list[int]:
    """The rows of a batch that are drawn; see `Batch.plot`."""
    if (row is not None and rows is not None) or (rows is not None and not len(rows)):
        raise OptionError(
            "the rows to draw are not clear",
            given=f"row={row!r}, rows={rows!r}",
            allowed="row=0 for one row, or rows=[0, 1] for several",
        )
    numbers = [row or 0] if rows is None else rows
    for number in numbers:
        if not is_whole(number) or not -num <= number < num:
            raise SampleIndexError(
                "the batch has no such row", given=repr(number), allowed=f"[0, {num})"
            )
    return [int(number) % num for number in numbers]


def _rows_of(
    frame: xr.Dataset,
    prefix: str,
    wanted: list[str] | None,
    units: Mapping[tuple[str, str], str],
    notes: list[str],
) -> Iterator[PanelRow]:
    known: list[str] = []
    for field, values in frame.data_vars.items():
        name = str(field)
        channel_dim = next((d for d in map(str, values.dims) if _plain(name, d) == CHANNEL), None)
        channels = [name] if channel_dim is None else [str(c) for c in values[channel_dim].values]
        known += channels
        chosen = [c for c in channels if wanted is None or c in wanted]
        if wanted is None and len(chosen) > MOST_CHANNELS:
            notes.append(f"{MOST_CHANNELS} of {len(chosen)} channels of {name} (see channel=)")
            chosen = chosen[:MOST_CHANNELS]
        for channel in chosen:
            channel_values = values
            if channel_dim is not None:
                channel_values = values.isel({channel_dim: channels.index(channel)}, drop=True)
            unit = units.get((name, channel), str(values.attrs.get("units", "")))
            quantity = f"{channel} ({unit})" if unit else channel
            title = name if channel_dim is None else f"{name}: {channel}"
            yield from _cut(frame, channel_values, prefix + title, quantity)
    missing = [one for one in wanted or [] if one not in known]
    if missing:
        remedy = "a field without channels is its own channel"
        raise unknown(missing[0], dict.fromkeys(known), "channel", remedy=remedy)


def _cut(frame: xr.Dataset, values: xr.DataArray, name: str, quantity: str) -> Iterator[PanelRow]:
    """Give each place along dimensions that are neither step nor panel a row of its own."""
    from xloader.show.map_plots import PanelRow

    field = str(values.name)
    dims = [str(dim) for dim in values.dims]
    panel_dims = _panel_dims(field, values, dims)
    others = [dim for dim in dims if dim not in panel_dims]
    step_dim = next((dim for dim in others if is_time(dim, values)), others[0] if others else None)
    others = [dim for dim in others if dim != step_dim]
    steps = _step_labels(frame, field, values, step_dim)
    titles = ["" if step is None else label_texts(np.asarray(step))[0] for step in steps]
    if step_dim is not None and not (step_dim in values.coords and is_time(step_dim, values)):
        titles = [f"{step_dim} {title}" for title in titles]
    axes = [axis_of(_plain(field, dim), dim, values) for dim in panel_dims]
    order = [*([step_dim] if step_dim else []), *panel_dims]
    for place in np.ndindex(*(values.sizes[dim] for dim in others)):
        at = dict(zip(others, place, strict=True))
        texts = [f"{_plain(field, dim)} {place_text(values, dim, at[dim])}" for dim in others]
        arrays = values.isel(at).transpose(*order).values
        panels = zip(titles, arrays if step_dim else arrays[None], strict=True)
        # Levels of a variable are not drawn on one scale: their ranges differ.
        suffix = ", ".join(texts)
        yield PanelRow(
            f"{name}\n{suffix}".strip(),
            f"{quantity}, {suffix}" if suffix else quantity,
            axes[0] if len(axes) == 2 else None,
            axes[-1] if axes else None,
            dict(zip(steps, panels, strict=True)),
        )


def _panel_dims(field: str, values: xr.DataArray, dims: list[str]) -> list[str]:
    """The dimensions that a panel shows: rows and columns of a map, or the one of a line."""
    by_angle = {angle_of(_plain(field, dim), _attrs(values, dim)): dim for dim in reversed(dims)}
    if "lat" in by_angle and "lon" in by_angle:
        return [by_angle["lat"], by_angle["lon"]]
    rest = [dim for dim in dims if not is_time(dim, values)]
    long = [dim for dim in rest if values.sizes[dim] > 1]
    if len(rest) >= 2:
        # A map of one row or column is still a map.
        return (long if len(long) >= 2 else rest)[-2:]
    times = [dim for dim in dims if is_time(dim, values)]
    if times and rest and values.sizes[rest[0]] > 1:
        return [rest[0], times[0]]
    return times[:1] or rest[:1]


def _step_labels(
    frame: xr.Dataset, field: str, values: xr.DataArray, step_dim: str | None
) -> tuple[Any, ...]:
    """The labels of steps, or their numbers; a single None where there is neither."""
    if step_dim is not None:
        labels = tuple(values[step_dim].values) if step_dim in values.coords else ()
        # Beyond padded borders, labels repeat or are missing.
        if labels and len(set(labels)) == len(labels) and all(one == one for one in labels):
            return labels
        return tuple(range(values.sizes[step_dim]))
    # A lead drops the dimension, and leaves its label.
    names = [name for name, c in frame.coords.items() if not c.ndim and is_time(str(name), frame)]
    coordinates = [name for name in names if str(name).startswith(f"{field}_")] or [
        name for name in names if not any(str(name).startswith(f"{f}_") for f in frame.data_vars)
    ]
    return (frame[coordinates[0]].values[()] if coordinates else None,)


def _in_columns(rows: list[PanelRow], notes: list[str]) -> list[PanelRow]:
    """Rows by column: equal steps lie below each other, if rows of different steps share some."""
    kept = []
    for row in rows:
        steps = list(row.panels)
        if len(steps) > MOST_COLUMNS:
            notes.append(f"{MOST_COLUMNS} of {len(steps):,} steps")
            places = np.linspace(0, len(steps) - 1, MOST_COLUMNS).round().astype(int)
            steps = [steps[place] for place in places]
        kept.append(steps)
    runs = {tuple(steps) for steps in kept if steps != [None]}
    try:
        columns = sorted({step for run in runs for step in run})
    except TypeError:
        # Labels of different kinds.
        columns = []
    if len(columns) > MOST_COLUMNS or len(columns) == sum(map(len, runs)):
        columns = []
    return [
        replace(
            row,
            panels={
                columns.index(step) if step in columns else place: row.panels[step]
                for place, step in enumerate(steps)
            },
        )
        for row, steps in zip(rows, kept, strict=True)
    ]


def _plain(field: str, dim: str) -> str:
    """A dimension's own name, where fields that differ along it have put theirs before it."""
    return dim.removeprefix(f"{field}_") or dim


def _attrs(values: xr.DataArray, dim: str) -> Mapping[Any, Any]:
    return values[dim].attrs if dim in values.coords else {}


def _units_of_channels(recipe: Recipe) -> dict[tuple[str, str], str]:
    """Units by field and channel, where no transform changes them or the fields."""
    if recipe.is_mapped:
        return {}
    channel_units = {}
    for layout in make_layouts(recipe):
        for part in layout.parts:
            units = str(recipe.variable(part.variable).attrs.get("units", ""))
            if any(step.changes_units((part.variable,)) for step in recipe.steps):
                units = ""
            if part.channels is not None and layout.channels is not None:
                for channel in islice(layout.channels, *part.channels):
                    channel_units[layout.name, channel] = units
    return channel_units
