"""Pictures of plans and epochs: chunks in memory, stages of the work, plans compared, coverage.

::

    chunk 3            |=====|            a bar is a stay in memory: load to drop
          2     |=========|     |===|     a colour is a lane
          1  |====|
             step of the epoch -->

    reads   o--.                          a line is a bound of amplification
            |   `--*--*                   a ring is on the front
            x                             a cross does not fit
               memory -->
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from xloader.core.nbytes import show_nbytes
from xloader.show.canvas import (
    COLOURS,
    Picture,
    PlotAxis,
    count_along,
    legend_beside,
    name_axes,
    new_picture,
)
from xloader.show.drawings import ResidenceTimes
from xloader.show.map_plots import draw_map
from xloader.show.plot_axes import axis_of

Floats = NDArray[np.float64]

_MOST_BARS: Final = 20_000
"""The most stays, and chunks, that are drawn."""
_MOST_ENDS: Final = 300
"""The most stays whose ends are marked."""
_MOST_ROWS: Final = 320
"""The most chunks whose bars are seen beside each other. Those of more overlap."""


def draw_residences(times: ResidenceTimes, mixing: float, full_mixing: float) -> Picture:
    """Draw when chunks are in memory, and the regions that batches draw from."""
    picture = new_picture(9.0, 6.4)
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
    nth, drawn = times.thinned(_MOST_BARS, _MOST_BARS)
    _draw_bars(above, drawn, nth)
    end = times.first_step + max(times.num_steps, 1)
    above.set_xlim(times.first_step, end)
    above.set_ylim(-0.5, times.num_blocks - 0.5)
    names = ", ".join(times.variables[:3]) + (", ..." if len(times.variables) > 3 else "")
    name_axes(above, f"chunk of {names}")
    picture.suptitle(times.title, fontsize=10)
    legend_beside(above)
    _draw_regions(below, times, mixing, full_mixing)
    for axis in (above.yaxis, below.yaxis, below.xaxis):
        count_along(axis)
    return picture


def _draw_bars(axes: Axes, times: ResidenceTimes, nth: int) -> None:
    """Draw the stays of every n-th chunk; what has a label comes into the legend."""
    left, right, middle = times.load, times.drop, times.block
    xs = np.stack([left, right, right, left], axis=-1)
    half = 0.38 * max(nth, times.num_blocks / _MOST_ROWS)
    ys = middle[:, None] + half * np.array([-1, -1, 1, 1])
    colours = [COLOURS[lane % len(COLOURS)] for lane in times.lane.tolist()]
    bars = PolyCollection(list(np.stack([xs, ys], axis=-1)), facecolors=colours, edgecolors="none")
    axes.add_collection(bars)
    lanes = np.unique(times.lane).tolist()
    for lane in lanes[: len(COLOURS)]:
        axes.plot([], [], "s", color=COLOURS[lane % len(COLOURS)], label=f"lane {lane}")
    if len(lanes) > len(COLOURS):
        axes.plot([], [], " ", label=f"... {len(lanes)} lanes")
    if len(left) <= _MOST_ENDS:
        is_dropped = (right < times.first_step + times.num_steps).any()
        mark: dict[str, Any] = {"color": "black", "clip_on": False}
        axes.plot(left, middle, ">", markersize=3, label="load", **mark)
        label = "drop" if is_dropped else "stays to the end"
        axes.plot(right, middle, "|", markersize=5, label=label, **mark)
    if nth > 1:
        axes.plot([], [], " ", label=f"one of {nth:,} chunks")


def _draw_regions(axes: Axes, times: ResidenceTimes, mixing: float, full_mixing: float) -> None:
    is_whole = len(times.batches) > 1 and bool((np.diff(times.batches) == 1).all())
    style = "-" if is_whole and len(times.batches) <= 400 else "."
    axes.plot(
        times.batches + 0.5, times.regions, style, color=COLOURS[0], markersize=2, linewidth=1,
        label="full batches",
    )  # fmt: skip
    axes.axhline(mixing, color=COLOURS[1], linewidth=1.5, label=f"mean {mixing:.1f}")
    axes.axhline(
        full_mixing,
        color="0.3",
        linestyle="--",
        linewidth=1,
        label=f"full shuffle {full_mixing:.1f}",
    )
    axes.set_ylim(0, 1.15 * max(full_mixing, float(times.regions.max(initial=1))))
    name_axes(axes, "places a batch\ndraws from", "step of the epoch")
    legend_beside(axes)


_MOST_PARTS = 100
"""Parts of the time whose means are drawn: shorter ones would be noise."""
_FEW_POINTS = 60
"""The most points that are marked one by one."""


def draw_stages(
    seconds: Floats,
    stages: Sequence[str],
    busy_seconds: Floats,
    num_threads: int,
    num_ready: Floats,
    wait_seconds: Floats,
    nbytes: dict[str, Floats],
    title: str,
) -> Picture:
    """Draw what a loader did over time.

    `seconds`: time of each point, ascending from 0. `busy_seconds` has shape (n, num_stages).
    `wait_seconds`: seconds that the consumer waited up to each point.
    """
    picture = new_picture(9.0, 7.6)
    axes = picture.subplots(4, 1, sharex=True, height_ratios=[1.6, 1, 1, 1.2])
    edges = _edges(seconds)
    lengths = np.diff(edges)
    # Stages may end between two points, so that a mean is a little above the number of threads.
    busy = np.stack([_means(seconds, amounts, edges) for amounts in busy_seconds.T])
    axes[0].stackplot(
        edges, np.concatenate([busy, busy[:, -1:]], axis=1), labels=list(stages), colors=COLOURS,
        step="post",
    )  # fmt: skip
    axes[0].axhline(num_threads, color="0.3", linestyle="--", linewidth=1, label="threads")
    name_axes(axes[0], "threads\nat work")
    # A step needs two points, and an epoch may have one batch only.
    marker = "." if len(seconds) <= _FEW_POINTS else ""
    axes[1].step(
        seconds[1:], num_ready[1:], where="post", color=COLOURS[0], linewidth=1, marker=marker,
        clip_on=False,
    )  # fmt: skip
    axes[1].set_ylim(0, max(float(num_ready.max(initial=0)), 1.0) * 1.15)
    for axis in (axes[0].yaxis, axes[1].yaxis):
        count_along(axis)
    name_axes(axes[1], "batches\nready")
    waited = np.clip(100 * _means(seconds, wait_seconds, edges), 0, 100)
    axes[2].stairs(waited, edges, fill=True, color=COLOURS[5])
    axes[2].set_ylim(0, 105)
    name_axes(axes[2], "training\nwaits (%)")
    for number, (name, amounts) in enumerate(nbytes.items()):
        speed = _means(seconds, amounts, edges) / 1e9
        axes[3].stairs(
            speed,
            edges,
            baseline=None,
            color=COLOURS[number],
            label=name,
            linewidth=1.3,
            # Two lines of equal values are both seen.
            linestyle=("-", "--")[number % 2],
        )
    axes[3].set_ylim(bottom=0)
    name_axes(axes[3], "GB/s", "seconds since the first batch was asked for")
    for panel in (axes[0], axes[3]):
        legend_beside(panel)
    axes[3].set_xlim(0, float(lengths.sum()))
    picture.suptitle(title, fontsize=10)
    return picture


def _edges(seconds: Floats) -> Floats:
    """The ends of parts of equal length, of which none is shorter than the points are apart."""
    num = int(min(max(len(seconds) - 1, 1), _MOST_PARTS))
    return np.linspace(0.0, float(seconds[-1]), num + 1)


def _means(seconds: Floats, totals: Floats, edges: Floats) -> Floats:
    """Mean growth a second of a counter, in each part of the time."""
    return np.asarray(np.diff(np.interp(edges, seconds, totals)) / np.diff(edges))


_MOST_NAMED: Final = 12
"""The most lines that the legend names."""
_MOST_POINTS: Final = 2000
"""The most points of a line: more would fall on the same pixels."""
_MOST_MARKED: Final = 7
"""The most memories that have a tick."""
_WIDEST, _THINNEST = 5.0, 1.4
_NEVER: Final = COLOURS[5]
"""The colour of memories that do not fit, and of elements that no sample needs."""


def draw_plans(plans: Floats, least: int | None, title: str) -> Picture:
    """Draw reads and mixing against the memory, a line for each bound.

    `plans` has a row for each plan: bytes of memory that were given, bound, reads a chunk, mixing
    as a share of a full shuffle, and whether the plan is on the front. Without a plan, reads and
    mixing are NaN. `least`: the smallest memory that would do, in bytes.
    """
    picture = new_picture(11.0, 4.4)
    memory, bound, reads, mixing, front = plans[np.lexsort((plans[:, 0], plans[:, 1]))].T
    bounds, best, refused = np.unique(bound).tolist(), front > 0, np.isnan(reads)
    nth = -(-len(bounds) // _MOST_NAMED)
    top = max(float(np.nanmax(reads, initial=1.0)) - 1.0, 0.2)
    most = float(np.nanmax(100 * mixing, initial=100.0))
    # Room below for the crosses.
    panels = (
        ("mean reads of a chunk", reads, (1.0 - 0.15 * top, 1.0 + 1.15 * top)),
        ("mixing (% of a full shuffle)", 100 * mixing, (-0.1 * most, 1.06 * most)),
    )
    for axes, (label, values, limits) in zip(picture.subplots(1, 2), panels, strict=True):
        for number, each in enumerate(bounds):
            at, style = bound == each, _style(number, len(bounds))
            # A name with _ has no place in the legend.
            name = f"{each:g}" if not number % nth else f"_{each:g}"
            size = 3.0 + style["linewidth"]
            axes.plot(memory[at], values[at], marker="o", markersize=size, label=name, **style)
        if nth > 1:
            axes.plot([], [], " ", label=f"... {len(bounds)} bounds")
        if best.any():
            axes.plot(
                memory[best], values[best], "o", color="black", markersize=12, fillstyle="none",
                label="no other is better", zorder=4,
            )  # fmt: skip
        if refused.any():
            axes.plot(
                memory[refused], np.full(refused.sum(), 0.03), "x", color=_NEVER, markersize=7,
                markeredgewidth=2, label="does not fit", zorder=5,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
        axes.set_ylim(*limits)
        name_axes(axes, label, "memory of the loader")
        _name_memory(axes, np.unique(memory), max(least or 0, memory.max()))
        if least is not None:
            name = f"least: {_short_nbytes(least)}"
            axes.axvline(least, color="0.4", linestyle=":", linewidth=1.2, label=name)
    legend_beside(axes, title="max_amplification", title_fontsize=8)
    picture.suptitle(title, fontsize=10)
    return picture


def _style(number: int, count: int) -> dict[str, Any]:
    """Colour and width of a line; later ones are thinner, so that equal plans show both."""
    share = number / max(count - 1, 1)
    is_few = count <= len(COLOURS)
    colour = COLOURS[number] if is_few else colormaps["viridis"](0.95 * share)
    return {"color": colour, "linewidth": _WIDEST + share * (_THINNEST - _WIDEST)}


def _name_memory(axes: Axes, memory: Floats, end: float) -> None:
    """A scale of doublings with ticks at memories that were given, which ascend."""
    begin = float(memory[0])
    axes.set_xscale("log", base=2)
    axes.set_xlim(begin / 1.5, end * 1.5)
    # Ticks that are nearer than this would write over each other.
    gap = np.log(end / begin * 1.5**2) / _MOST_MARKED
    shown: list[float] = []
    for place in memory.tolist():
        if not shown or np.log(place / shown[-1]) >= gap:
            shown.append(place)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([_short_nbytes(place) for place in shown])


def _short_nbytes(nbytes: float) -> str:
    return show_nbytes(int(nbytes)).replace(".0 ", " ")


def draw_coverage(every: Sequence[xr.DataArray], grid: xr.DataArray | None, title: str) -> Picture:
    """Draw how often an epoch has each element: counts along each dimension, and along two."""
    ratios = [1.9] * len(every) + [3.8] * (grid is not None)
    picture = new_picture(8.0, sum(ratios) + 0.7)
    places = picture.add_gridspec(len(ratios), 1, height_ratios=ratios)
    for number, counts in enumerate(every):
        dim = str(counts.dims[0])
        axis = axis_of(dim, dim, counts)
        _draw_counts(picture.add_subplot(places[number]), axis, counts.values)
    if grid is not None:
        _draw_count_grid(picture, picture.add_subplot(places[len(every)]), grid)
    picture.suptitle(title, fontsize=11)
    return picture


def _draw_counts(axes: Axes, axis: PlotAxis, counts: NDArray[Any]) -> None:
    order, edges = np.argsort(axis.values, kind="stable"), np.sort(axis.edges)
    # Of more elements than a picture has points, the least and the most of each part.
    num = min(len(counts), _MOST_POINTS)
    begins = np.arange(num) * len(counts) // num
    low, high = (part.reduceat(counts[order], begins) for part in (np.minimum, np.maximum))
    bounds = edges[[*begins, len(counts)]]
    base = low if num < len(counts) else 0
    axes.stairs(high, bounds, baseline=base, fill=True, color=COLOURS[4])
    top = float(counts.max(initial=0)) or 1.0
    if not counts.all():
        # With edges, so that single elements among many are seen.
        axes.stairs(
            np.where(low == 0, 0.07, np.nan), bounds, fill=True, color=_NEVER, edgecolor=_NEVER,
            linewidth=0.8, label="never", transform=axes.get_xaxis_transform(),
        )  # fmt: skip
        # Beside the panel, where it covers no mark.
        legend_beside(axes)
    axes.set_ylim(-0.08 * top, 1.08 * top)
    axes.set_xlim(edges[0], edges[-1])
    name_axes(axes, "samples an epoch", axis.label)
    if counts.dtype.kind in "iu":
        count_along(axes.yaxis)
    axis.put_ticks(axes.xaxis)


def _draw_count_grid(picture: Picture, axes: Axes, grid: xr.DataArray) -> None:
    values = np.where(grid.values > 0, grid.values, np.nan)
    rows, columns = (axis_of(str(dim), str(dim), grid) for dim in grid.dims)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low == high:
        # Equal counts need a range too.
        low, high = low - 0.5, high + 0.5
    image = draw_map(axes, columns, rows, values, "viridis", low, high)
    if columns.is_degrees and rows.is_degrees:
        axes.set_aspect("equal")
    axes.set_xlabel(columns.label, fontsize=8)
    axes.set_ylabel(rows.label, fontsize=8)
    axes.tick_params(labelsize=7)
    bar = picture.colorbar(image, ax=axes, aspect=22, pad=0.01)
    bar.set_label("samples an epoch (grey: never)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if grid.dtype.kind in "iu":
        count_along(bar.ax.yaxis)
