"""How often an epoch has each element: a line for each dimension, and a map of two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray

from xloader.show.canvas import (
    COLOURS,
    MOST_POINTS,
    Picture,
    PlotAxis,
    count_along,
    draw_range,
    new_picture,
)
from xloader.show.map_plots import draw_map

_NEVER: Final = COLOURS[5]
"""The colour of elements that no sample needs."""


@dataclass(frozen=True, eq=False)
class CountLine:
    """The counts along one dimension."""

    axis: PlotAxis
    counts: NDArray[Any]


@dataclass(frozen=True, eq=False)
class CountGrid:
    """The counts along two dimensions.

    `counts` has shape (row, column).
    """

    rows: PlotAxis
    columns: PlotAxis
    counts: NDArray[Any]


def draw_coverage(lines: Sequence[CountLine], grid: CountGrid | None, title: str) -> Picture:
    """Draw how often an epoch has each element."""
    height = 1.9 * len(lines) + 3.8 * (grid is not None) + 0.7
    picture = new_picture(8.0, height)
    ratios = [1.9] * len(lines) + [3.8] * (grid is not None)
    places = picture.add_gridspec(len(ratios), 1, height_ratios=ratios)
    for number, line in enumerate(lines):
        _draw_line(picture.add_subplot(places[number]), line)
    if grid is not None:
        _draw_grid(picture, picture.add_subplot(places[len(lines)]), grid)
    picture.suptitle(title, fontsize=11)
    return picture


def _draw_line(axes: Axes, line: CountLine) -> None:
    order = np.argsort(line.axis.values, kind="stable")
    places, counts = line.axis.values[order], line.counts[order]
    edges = np.sort(line.axis.edges)
    if len(counts) <= MOST_POINTS:
        axes.stairs(counts, edges, fill=True, color=COLOURS[4], label="samples")
    else:
        draw_range(axes, places, counts, COLOURS[0], "samples, least to most")
    top = float(counts.max(initial=0)) or 1.0
    axes.set_ylim(-0.08 * top, 1.08 * top)
    for begin, end in _never(counts):
        axes.axvspan(edges[begin], edges[end], 0, 0.07, color=_NEVER, linewidth=0.8)
    if not counts.all():
        # Beside the panel, where it covers no mark.
        axes.legend(
            handles=[Patch(color=_NEVER, label="never")],
            loc="upper left",
            bbox_to_anchor=(1.005, 1.0),
            fontsize=7,
            frameon=False,
        )
    axes.set_xlim(np.min(line.axis.edges), np.max(line.axis.edges))
    axes.set_xlabel(line.axis.label, fontsize=8)
    axes.set_ylabel("samples an epoch", fontsize=8)
    axes.tick_params(labelsize=7)
    if counts.dtype.kind in "iu":
        count_along(axes.yaxis)
    axes.set_axisbelow(True)
    axes.grid(color="0.92")
    line.axis.put_ticks(axes.xaxis)


def _never(counts: NDArray[Any]) -> list[tuple[int, int]]:
    """The stretches without samples, as half-open ranges, at most one for each visible part."""
    size = -(-len(counts) // (MOST_POINTS // 4))
    is_never = np.logical_or.reduceat(counts == 0, np.arange(0, len(counts), size))
    edges = np.flatnonzero(np.diff(is_never, prepend=False, append=False))
    return [(b * size, min(e * size, len(counts))) for b, e in edges.reshape(-1, 2).tolist()]


def _draw_grid(picture: Picture, axes: Axes, grid: CountGrid) -> None:
    values = np.where(grid.counts > 0, grid.counts, np.nan)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low == high:
        # Equal counts need a range too.
        low, high = low - 0.5, high + 0.5
    image = draw_map(axes, grid.columns, grid.rows, values, "viridis", low, high)
    if grid.columns.is_degrees and grid.rows.is_degrees:
        axes.set_aspect("equal")
    axes.set_xlabel(grid.columns.label, fontsize=8)
    axes.set_ylabel(grid.rows.label, fontsize=8)
    axes.tick_params(labelsize=7)
    bar = picture.colorbar(image, ax=axes, aspect=22, pad=0.01)
    bar.set_label("samples an epoch (grey: never)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if grid.counts.dtype.kind in "iu":
        count_along(bar.ax.yaxis)
