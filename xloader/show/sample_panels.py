"""Pictures of samples: a panel for each field and step, with coastlines where cartopy has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    from xloader.show.map_plots import Panel, PanelRow


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


@dataclass(frozen=True, eq=False)
class _Strip:
    """One row of panels before its steps are chosen."""

    name: str
    quantity: str
    values: xr.DataArray
    step_dim: str | None
    labels: tuple[Any, ...]


def draw_samples(
    frames: Mapping[str, xr.Dataset],
    recipe: Recipe | None,
    channel: str | Sequence[str] | None = None,
    title: str = "",
    num_asked: int | None = None,
) -> Picture:
    """Draw samples; see `Samples.plot`."""
    require_matplotlib()
    from xloader.show.map_plots import PanelRow, draw_rows

    wanted = None if channel is None else [channel] if isinstance(channel, str) else list(channel)
    units = {} if recipe is None else _units_of_channels(recipe)
    notes: list[str] = []
    if num_asked is not None and num_asked > len(frames):
        notes.append(f"{len(frames)} of {num_asked:,} samples")
    strips = [
        strip
        for sample, frame in frames.items()
        for strip in _strips(frame, f"{sample}\n" if len(frames) > 1 else "", wanted, units, notes)
    ]
    if len(strips) > MOST_ROWS:
        notes.append(f"{MOST_ROWS} of {len(strips):,} rows of panels")
    strips = strips[:MOST_ROWS]
    if all(strip.step_dim is None for strip in strips):
        # Then no column is a time step.
        rows = [PanelRow(s.name, s.quantity, (_panel(s, None, s.labels),)) for s in strips]
    else:
        rows = _aligned_rows(strips, notes)
    has_map = any(panel.rows is not None for row in rows for panel in row.drawn)
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


def _strips(
    frame: xr.Dataset,
    prefix: str,
    wanted: list[str] | None,
    units: Mapping[tuple[str, str], str],
    notes: list[str],
) -> Iterator[_Strip]:
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


def _cut(frame: xr.Dataset, values: xr.DataArray, name: str, quantity: str) -> Iterator[_Strip]:
    """Give each place along dimensions that are neither step nor panel a row of its own."""
    field = str(values.name)
    dims = [str(dim) for dim in values.dims]
    panel_dims = _panel_dims(field, values, dims)
    others = [dim for dim in dims if dim not in panel_dims]
    step_dim = next((dim for dim in others if is_time(dim, values)), others[0] if others else None)
    others = [dim for dim in others if dim != step_dim]
    labels = _step_labels(frame, field, values, step_dim)
    order = [*([step_dim] if step_dim else []), *panel_dims]
    for place in np.ndindex(*(values.sizes[dim] for dim in others)):
        at = dict(zip(others, place, strict=True))
        texts = [f"{_plain(field, dim)} {place_text(values, dim, at[dim])}" for dim in others]
        panel_values = values.isel(at).transpose(*order)
        # Levels of a variable are not drawn on one scale: their ranges differ.
        suffix = ", ".join(texts)
        yield _Strip(
            f"{name}\n{suffix}".strip(),
            f"{quantity}, {suffix}" if suffix else quantity,
            panel_values,
            step_dim,
            labels,
        )


def _panel_dims(field: str, values: xr.DataArray, dims: list[str]) -> list[str]:
    """The dimensions that a panel shows: rows and columns of a map, or the one of a line."""
    by_angle = {angle_of(_plain(field, dim), _attrs(values, dim)): dim for dim in reversed(dims)}
    if "lat" in by_angle and "lon" in by_angle:
        return [by_angle["lat"], by_angle["lon"]]
    rest = [dim for dim in dims if not is_time(dim, values)]
    long = [dim for dim in rest if values.sizes[dim] > 1]
    if len(long) >= 2:
        return long[-2:]
    if len(rest) >= 2:
        # A map of one row or column is still a map.
        return rest[-2:]
    times = [dim for dim in dims if is_time(dim, values)]
    if times and rest and values.sizes[rest[0]] > 1:
        return [rest[0], times[0]]
    return times[:1] or rest[:1]


def _step_labels(
    frame: xr.Dataset, field: str, values: xr.DataArray, step_dim: str | None
) -> tuple[Any, ...]:
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
    return (frame[coordinates[0]].values[()],) if coordinates else ()


def _aligned_rows(strips: list[_Strip], notes: list[str]) -> list[PanelRow]:
    """Rows whose equal steps lie below each other, if all have labels of one kind."""
    from xloader.show.map_plots import PanelRow

    single = [label for s in strips if s.step_dim is None for label in s.labels]
    runs = [s.labels for s in strips if s.step_dim is not None]
    most = max(MOST_COLUMNS - len(set(single)), 2)
    kept = [_thinned(labels, most) for labels in runs]
    for labels, few in zip(runs, kept, strict=True):
        if len(few) < len(labels):
            notes.append(f"{len(few)} of {len(labels):,} steps")
    columns = _shared_columns({*kept, *((label,) for label in single)})
    num = len(columns) or max(map(len, kept))
    by_strip = iter(kept)
    rows = []
    for strip in strips:
        labels = strip.labels if strip.step_dim is None else next(by_strip)
        panels: list[Panel | None] = [None] * num
        if not labels:
            panels[0] = _panel(strip, None, ())
        for place, label in enumerate(labels):
            at = columns.index(label) if columns else place
            number = None if strip.step_dim is None else strip.labels.index(label)
            panels[at] = _panel(strip, number, (label,))
        rows.append(PanelRow(strip.name, strip.quantity, tuple(panels)))
    return rows


def _shared_columns(runs: set[tuple[Any, ...]]) -> list[Any]:
    """The steps of all columns, if rows of different steps share some; else none."""
    try:
        columns = sorted({label for labels in runs for label in labels})
    except TypeError:
        # Labels of different kinds.
        return []
    is_shared = len(columns) < sum(map(len, runs)) or len(runs) == 1
    return columns if is_shared and len(columns) <= MOST_COLUMNS else []


def _thinned(labels: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    if len(labels) <= most:
        return labels
    return tuple(labels[i] for i in np.linspace(0, len(labels) - 1, most).round().astype(int))


def _panel(strip: _Strip, step: int | None, labels: tuple[Any, ...]) -> Panel:
    from xloader.show.map_plots import Panel

    values, title = strip.values, ""
    if labels:
        title = label_texts(np.asarray(labels[0]))[0]
    if step is not None:
        assert strip.step_dim is not None
        values = values.isel({strip.step_dim: step})
        if strip.step_dim not in strip.values.coords or not is_time(strip.step_dim, strip.values):
            title = f"{strip.step_dim} {title}"
    field = str(values.name)
    axes = [axis_of(_plain(field, str(dim)), str(dim), values) for dim in values.dims]
    if len(axes) == 2:
        return Panel(title, values.values, axes[1], axes[0])
    return Panel(title, values.values, *axes)


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
