"""Fields of samples side by side: maps, lines and single values.

::

    inputs: sst     May 2011   June 2011   July 2011            |  colour
    targets: sst                                     Aug 2011   |  scale

Each row of panels is one channel of one field, each column one time step. Panels of one variable
share a colour scale, whatever the field, the step and the sample. It is drawn once, beside the
first row of the variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.image import AxesImage, PcolorImage
from numpy.typing import NDArray

from xloader.show.canvas import COLOURS, GREY, Picture, PlotAxis, new_picture

_SHORTEST, _TALLEST = 1.2, 4.5
"""Least and greatest height of a panel, in inches."""
_LINE_HEIGHT: Final = 1.7
_CROSSES_ZERO: Final = 0.25
"""A scale is centred on zero if the smaller side has this share of the larger one."""


Extend = Literal["neither", "min", "max", "both"]

Panel = tuple[str, NDArray[Any]]
"""The title and the values of one panel: a map, a line, or a single value."""


@dataclass(frozen=True, eq=False)
class PanelRow:
    """One row of panels: the steps of one channel of a field in one sample.

    `down`, `across`: the axes of all its panels; a line has no first one, and a single value none.
    `panels`: by step, and as `draw_rows` takes them, by column.
    """

    name: str
    quantity: str
    down: PlotAxis | None
    across: PlotAxis | None
    panels: Mapping[Any, Panel]

    def height(self, width: float) -> float:
        """Height of the panels in inches, if they are of a width."""
        if self.down is None or self.across is None:
            return _LINE_HEIGHT if self.across is not None else 0.6
        if self.down.is_degrees and self.across.is_degrees:
            ratio = float(np.ptp(self.down.edges) / np.ptp(self.across.edges))
        else:
            ratio = min(max(len(self.down.values) / len(self.across.values), 0.5), 1.2)
        return min(max(ratio * width, _SHORTEST), _TALLEST)

    def shares_columns(self, other: PanelRow) -> bool:
        """Whether both have maps with the same axis across."""
        if self.down is None or self.across is None or other.down is None or other.across is None:
            return False
        return self.across.is_like(other.across)


@dataclass(frozen=True)
class _Scale:
    """The colour scale of a variable."""

    low: float
    high: float
    colours: str = "viridis"
    extend: Extend = "neither"


def draw_rows(
    rows: Sequence[PanelRow],
    title: str,
    note: str = "",
    coastlines: Sequence[NDArray[np.float64]] = (),
) -> Picture:
    """Draw rows of panels.

    `coastlines` has shape (n, 2).
    """
    num_columns = 1 + max(column for row in rows for column in row.panels)
    width = {1: 5.4, 2: 3.6, 3: 3.0}.get(num_columns, 2.5)
    heights = [row.height(width) for row in rows]
    picture = new_picture(num_columns * width + 1.5, sum(heights) + 0.5 * len(rows) + 0.8)
    # The last column is for the colour scales.
    grid = picture.add_gridspec(
        len(rows),
        num_columns + 1,
        height_ratios=[height + 0.4 for height in heights],
        width_ratios=[*[1.0] * num_columns, 0.12 / width],
    )
    scales = {row.quantity: _scale_of(rows, row.quantity) for row in rows}
    with_scale: set[str] = set()
    titles: dict[int, str] = {}
    for number, row in enumerate(rows):
        is_wide = row.down is None and len(row.panels) == 1
        below = rows[number + 1] if number + 1 < len(rows) else None
        for column, (panel_title, values) in row.panels.items():
            axes = picture.add_subplot(grid[number, :-1] if is_wide else grid[number, column])
            _draw_panel(axes, row, values, scales[row.quantity], coastlines)
            if titles.get(column) != panel_title:
                axes.set_title(panel_title, fontsize=9)
            titles[column] = panel_title
            is_repeated = below is not None and column in below.panels
            if below is not None and is_repeated and row.shares_columns(below):
                axes.tick_params(labelbottom=False)
            elif row.across is not None:
                axes.set_xlabel(row.across.label, fontsize=8)
            if column == min(row.panels):
                _name_row(axes, row)
            else:
                axes.tick_params(labelleft=False)
        if row.down is not None and row.quantity not in with_scale:
            with_scale.add(row.quantity)
            beside = picture.add_subplot(grid[number, num_columns], label="<colorbar>")
            extend = scales[row.quantity].extend
            bar = picture.colorbar(axes.images[0], cax=beside, extend=extend)
            bar.set_label(row.quantity, fontsize=8)
            bar.ax.tick_params(labelsize=7)
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
    row: PanelRow,
    values: NDArray[Any],
    scale: _Scale,
    coastlines: Sequence[NDArray[np.float64]],
) -> None:
    axes.tick_params(labelsize=7)
    if row.across is None:
        name = ", ".join([*row.name.splitlines(), row.quantity])
        text = f"{name}: {values.item():.6g}"
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=10)
        axes.set_axis_off()
        return
    if row.down is None:
        axes.plot(
            row.across.values, values, color=COLOURS[0], linewidth=1.2, marker=".",
            markersize=3 if len(values) <= 100 else 0,
        )  # fmt: skip
        span = (scale.high - scale.low) or 1.0
        axes.set_ylim(scale.low - 0.05 * span, scale.high + 0.05 * span)
        row.across.put_ticks(axes.xaxis)
        axes.grid(color="0.9")
        return
    draw_map(axes, row.across, row.down, values, scale.colours, scale.low, scale.high)
    if row.across.is_degrees and row.down.is_degrees:
        axes.set_aspect("equal")
        # Longitudes may count from 0 to 360 or from -180 to 180.
        lines = [
            coast + np.array([turn, 0.0]) for coast in coastlines for turn in (-360.0, 0.0, 360.0)
        ]
        if lines:
            collection = LineCollection(lines, colors="0.15", linewidths=0.5)
            axes.add_collection(collection, autolim=False)


def _name_row(axes: Axes, row: PanelRow) -> None:
    """Name a row at its first panel."""
    if row.across is None:
        return
    beside = row.quantity if row.down is None else row.down.label
    is_said = row.down is None and beside.startswith(row.name)
    axes.set_ylabel(beside if is_said else f"{row.name}\n{beside}", fontsize=8)


def _scale_of(rows: Sequence[PanelRow], quantity: str) -> _Scale:
    """The colour scale of a variable. A few extreme values do not stretch that of maps."""
    alike = [row for row in rows if row.quantity == quantity]
    arrays = [values[np.isfinite(values)] for row in alike for _, values in row.panels.values()]
    values = np.concatenate([array.astype(np.float64) for array in arrays])
    if not len(values):
        return _Scale(0.0, 1.0)
    if all(row.down is None for row in alike):
        low, high = float(values.min()), float(values.max())
        return _Scale(low, high) if high > low else _Scale(low - 0.5, high + 0.5)
    low, high = np.percentile(values, [0.5, 99.5]).tolist()
    colours = "viridis"
    if low < 0 < high and min(-low, high) > _CROSSES_ZERO * max(-low, high):
        # White is zero.
        edge = max(-low, high)
        low, high, colours = -edge, edge, "RdBu_r"
    if low == high:
        low, high = low - 0.5, high + 0.5
    below, over = bool(values.min() < low), bool(values.max() > high)
    extend: Extend = "both" if below and over else "min" if below else "max" if over else "neither"
    return _Scale(low, high, colours, extend)
