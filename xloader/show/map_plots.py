"""Fields of samples side by side: maps, lines and single values.

::

    inputs: sst     May 2011   June 2011   July 2011            |  colour
    targets: sst                                     Aug 2011   |  scale

Each row of panels is one channel of one field, each column one time step. Panels of one variable
share a colour scale, whatever the field, the step and the sample. It is drawn once, beside the
first rows of the variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.gridspec import SubplotSpec
from matplotlib.image import AxesImage, PcolorImage
from numpy.typing import NDArray

from xloader.show.canvas import COLOURS, GREY, Picture, PlotAxis, new_picture

_SHORTEST, _TALLEST = 1.2, 4.5
"""Least and greatest height of a panel, in inches."""
_LINE_HEIGHT: Final = 1.7
_CROSSES_ZERO: Final = 0.25
"""A scale is centred on zero if the smaller side has this share of the larger one."""


@dataclass(frozen=True, eq=False)
class Panel:
    """One panel: a map, a line, or a single value."""

    title: str
    values: NDArray[Any]
    columns: PlotAxis | None = None
    rows: PlotAxis | None = None

    @property
    def ratio(self) -> float:
        """Height of a map per unit of width."""
        if self.columns is None or self.rows is None:
            return 0.0
        if self.columns.is_degrees and self.rows.is_degrees:
            return float(np.ptp(self.rows.edges)) / float(np.ptp(self.columns.edges))
        return float(min(max(self.values.shape[0] / self.values.shape[1], 0.5), 1.2))


@dataclass(frozen=True, eq=False)
class PanelRow:
    """One row of panels: the steps of one channel of a field in one sample.

    `panels`: one for each column; None where the row has no such step.
    """

    name: str
    quantity: str
    panels: tuple[Panel | None, ...]

    @property
    def drawn(self) -> list[Panel]:
        """The panels that are there."""
        return [panel for panel in self.panels if panel is not None]

    @property
    def maps(self) -> list[Panel]:
        """The panels that are maps."""
        return [panel for panel in self.drawn if panel.rows is not None]


def draw_rows(
    rows: Sequence[PanelRow],
    title: str,
    note: str = "",
    coastlines: Sequence[NDArray[np.float64]] = (),
) -> Picture:
    """Draw rows of panels.

    `coastlines` has shape (n, 2).
    """
    num_columns = len(rows[0].panels)
    width = {1: 5.4, 2: 3.6, 3: 3.0}.get(num_columns, 2.5)
    heights = [_height(row, width) for row in rows]
    picture = new_picture(num_columns * width + 1.5, sum(heights) + 0.5 * len(rows) + 0.8)
    # The last column is for the colour scales.
    grid = picture.add_gridspec(
        len(rows),
        num_columns + 1,
        height_ratios=[height + 0.4 for height in heights],
        width_ratios=[*[1.0] * num_columns, 0.12 / width],
    )
    limits = {row.quantity: _limits(rows, row.quantity) for row in rows}
    last_of = _rows_of_scales(rows)
    above: dict[int, tuple[Axes, Panel]] = {}
    for number, row in enumerate(rows):
        is_wide = len(row.drawn) == 1 and row.drawn[0].rows is None
        axes_of: dict[int, Axes] = {}
        for column, panel in enumerate(row.panels):
            if panel is not None:
                place = grid[number, :-1] if is_wide else grid[number, column]
                axes_of[column] = picture.add_subplot(place)
                _draw_panel(axes_of[column], panel, row, limits[row.quantity], coastlines)
                if column not in above or above[column][1].title != panel.title:
                    axes_of[column].set_title(panel.title, fontsize=9)
        _label_rows(row, axes_of)
        if number in last_of:
            place = grid[number : last_of[number] + 1, num_columns]
            shown = next(axes.images[0] for axes in axes_of.values() if axes.images)
            _scale_beside(picture, place, row.quantity, rows, shown)
        for column, axes in axes_of.items():
            panel = row.panels[column]
            assert panel is not None
            _label_columns(axes, panel, above.get(column))
            above[column] = axes, panel
    picture.suptitle(title, fontsize=11)
    if note:
        picture.supxlabel(note, fontsize=8, color="0.3")
    return picture


def draw_map(
    axes: Axes,
    columns: PlotAxis,
    rows: PlotAxis,
    values: NDArray[Any],
    colours: str,
    low: float,
    high: float,
) -> AxesImage | PcolorImage | QuadMesh:
    """Draw one map. Elements without a value are grey.

    `values` has shape (row, column).
    """
    axes.set_facecolor(GREY)
    masked = np.ma.masked_invalid(values.astype(np.float64))
    image = axes.pcolorfast(columns.edges, rows.edges, masked, cmap=colours, vmin=low, vmax=high)
    axes.set_xlim(*sorted((columns.edges[0], columns.edges[-1])))
    axes.set_ylim(*sorted((rows.edges[0], rows.edges[-1]), reverse=rows.is_reversed))
    columns.put_ticks(axes.xaxis)
    rows.put_ticks(axes.yaxis)
    if columns.is_degrees and columns.values.max() >= 360:
        axes.xaxis.set_major_formatter(lambda degrees, _: f"{degrees % 360:g}")
    return image


def _draw_panel(
    axes: Axes,
    panel: Panel,
    row: PanelRow,
    limits: tuple[float, float, str],
    coastlines: Sequence[NDArray[np.float64]],
) -> None:
    axes.tick_params(labelsize=7)
    low, high, colours = limits
    if panel.columns is None:
        name = ", ".join([*row.name.splitlines(), row.quantity])
        text = f"{name}: {panel.values.item():.6g}"
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=10)
        axes.set_axis_off()
        return
    if panel.rows is None:
        axes.plot(
            panel.columns.values, panel.values, color=COLOURS[0], linewidth=1.2, marker=".",
            markersize=3 if len(panel.values) <= 100 else 0,
        )  # fmt: skip
        axes.set_facecolor("white")
        span = (high - low) or 1.0
        axes.set_ylim(low - 0.05 * span, high + 0.05 * span)
        panel.columns.put_ticks(axes.xaxis)
        axes.grid(color="0.9")
        return
    draw_map(axes, panel.columns, panel.rows, panel.values, colours, low, high)
    if panel.columns.is_degrees and panel.rows.is_degrees:
        axes.set_aspect("equal")
        bounds = axes.get_xlim(), axes.get_ylim()
        # Longitudes may count from 0 to 360 or from -180 to 180.
        lines = [
            coast + np.array([turn, 0.0]) for coast in coastlines for turn in (-360.0, 0.0, 360.0)
        ]
        if lines:
            axes.add_collection(LineCollection(lines, colors="0.15", linewidths=0.5))
        axes.set_xlim(*bounds[0])
        axes.set_ylim(*bounds[1])


def _label_rows(row: PanelRow, axes_of: dict[int, Axes]) -> None:
    """Name the row at its first panel, and hide the numbers that other panels repeat."""
    first: PlotAxis | None = None
    for number, (column, axes) in enumerate(axes_of.items()):
        panel = row.panels[column]
        assert panel is not None
        if panel.columns is None:
            continue
        if not number:
            first = panel.rows
            beside = row.quantity if panel.rows is None else panel.rows.label
            is_said = panel.rows is None and beside.startswith(row.name)
            axes.set_ylabel(beside if is_said else f"{row.name}\n{beside}", fontsize=8)
        elif panel.rows is None or (first is not None and first.is_like(panel.rows)):
            axes.tick_params(labelleft=False)


def _label_columns(axes: Axes, panel: Panel, above: tuple[Axes, Panel] | None) -> None:
    """Name the axis across, at the lowest of the panels of a column that have the same one."""
    if panel.columns is None:
        return
    axes.set_xlabel(panel.columns.label, fontsize=8)
    if above is not None and above[1].columns is not None:
        is_map = panel.rows is not None and above[1].rows is not None
        if is_map and above[1].columns.is_like(panel.columns):
            above[0].tick_params(labelbottom=False)
            above[0].set_xlabel("")


def _rows_of_scales(rows: Sequence[PanelRow]) -> dict[int, int]:
    """First and last row beside which each colour scale stands.

    Each variable has one, beside its first row of maps and those that follow this one.
    """
    last_of: dict[int, int] = {}
    known: set[str] = set()
    first = -1
    for number, row in enumerate(rows):
        if not row.maps:
            continue
        if row.quantity not in known:
            known.add(row.quantity)
            first = number
            last_of[first] = number
        elif rows[first].quantity == row.quantity and last_of[first] == number - 1:
            last_of[first] = number
    return last_of


def _scale_beside(
    picture: Picture, place: SubplotSpec, quantity: str, rows: Sequence[PanelRow], image: AxesImage
) -> None:
    """Draw the colour scale of all maps of a variable."""
    maps = [panel for row in rows if row.quantity == quantity for panel in row.maps]
    values = np.concatenate([panel.values[np.isfinite(panel.values)] for panel in maps])
    low, high = image.get_clim()
    below, over = bool((values < low).any()), bool((values > high).any())
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, over]
    beside = picture.add_subplot(place, label="<colorbar>")
    bar = picture.colorbar(image, cax=beside, extend=extend)
    bar.set_label(quantity, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _limits(rows: Sequence[PanelRow], quantity: str) -> tuple[float, float, str]:
    """Ends of the colour scale of a variable, and its colours.

    A few extreme values do not stretch the scale of maps. Lines show them all.
    """
    panels = [panel for row in rows if row.quantity == quantity for panel in row.drawn]
    parts = [panel.values[np.isfinite(panel.values)].astype(np.float64) for panel in panels]
    values = np.concatenate([part.reshape(-1) for part in parts])
    if not len(values):
        return 0.0, 1.0, "viridis"
    is_map = any(panel.rows is not None for panel in panels)
    ends = np.percentile(values, [0.5, 99.5]) if is_map else (values.min(), values.max())
    low, high = float(ends[0]), float(ends[1])
    if low < 0 < high and min(-low, high) > _CROSSES_ZERO * max(-low, high):
        # White is zero.
        edge = max(-low, high)
        return (-edge, edge, "RdBu_r") if is_map else (low, high, "RdBu_r")
    return (low, high, "viridis") if high > low else (low - 0.5, high + 0.5, "viridis")


def _height(row: PanelRow, width: float) -> float:
    """Height of a row's panels, in inches."""
    ratios = [panel.ratio for panel in row.drawn]
    if not max(ratios, default=0.0):
        return _LINE_HEIGHT if any(panel.columns is not None for panel in row.drawn) else 0.6
    return min(max(max(ratios) * width, _SHORTEST), _TALLEST)
