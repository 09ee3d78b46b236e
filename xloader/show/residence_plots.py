"""Which chunk is in memory when, and below it how many regions each batch draws from.

::

    chunk 3            |=====|            a bar is a stay in memory: load to drop
          2     |=========|     |===|     a colour is a lane
          1  |====|
             step of the epoch -->
"""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from xloader.show.canvas import COLOURS, GREY, Picture, count_along, new_picture
from xloader.show.stay_strips import ResidenceTimes

_MOST_BARS: Final = 3000
"""The most stays that are drawn one by one."""
_MOST_ENDS: Final = 300
"""The most stays whose ends are marked."""
_NUM_COLUMNS, _MOST_ROWS = 800, 320
"""Cells of the picture of more stays."""


def draw_residences(times: ResidenceTimes, mixing: float, full_mixing: float) -> Picture:
    """Draw when chunks are in memory, and the regions that batches draw from."""
    picture = new_picture(9.0, 6.4)
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
    if len(times.block) <= _MOST_BARS:
        _draw_bars(above, times)
    else:
        _draw_density(above, times)
    end = times.first_step + max(times.num_steps, 1)
    above.set_xlim(times.first_step, end)
    above.set_ylim(-0.5, times.num_blocks - 0.5)
    names = ", ".join(times.variables[:3]) + (", ..." if len(times.variables) > 3 else "")
    above.set_ylabel(f"chunk of {names}", fontsize=9)
    picture.suptitle(times.title, fontsize=10)
    _draw_legend(above, times)
    _draw_regions(below, times, mixing, full_mixing)
    below.set_xlabel("step of the epoch", fontsize=9)
    for axes in (above, below):
        axes.tick_params(labelsize=8)
        count_along(axes.yaxis)
    count_along(below.xaxis)
    return picture


def _draw_bars(axes: Axes, times: ResidenceTimes) -> None:
    left, right, middle = times.load, times.drop, times.block
    corners = [
        np.stack([left, middle - 0.38], -1),
        np.stack([right, middle - 0.38], -1),
        np.stack([right, middle + 0.38], -1),
        np.stack([left, middle + 0.38], -1),
    ]
    colours = [COLOURS[lane % len(COLOURS)] for lane in times.lane.tolist()]
    bars = PolyCollection(list(np.stack(corners, 1)), facecolors=colours, edgecolors="none")
    axes.add_collection(bars)
    axes.grid(axis="x", color="0.93")
    axes.set_axisbelow(True)
    if len(left) <= _MOST_ENDS:
        axes.plot(left, middle, ">", color="black", markersize=3, clip_on=False)
        axes.plot(right, middle, "|", color="black", markersize=5, clip_on=False)


def stay_density(times: ResidenceTimes, lane: int) -> NDArray[np.int64]:
    """Number of stays that touch each cell of the picture.

    The result has shape (rows, columns).
    """
    num_rows = min(times.num_blocks, _MOST_ROWS)
    is_own = times.lane == lane
    row = times.block[is_own] * num_rows // times.num_blocks
    scale = _NUM_COLUMNS / max(times.num_steps, 1)
    first, last = (
        np.clip((moments[is_own] - times.first_step) * scale, 0, _NUM_COLUMNS - 1).astype(np.int64)
        for moments in (times.load, times.drop)
    )
    width = _NUM_COLUMNS + 1
    change = np.bincount(row * width + first, minlength=num_rows * width)
    change -= np.bincount(row * width + last + 1, minlength=num_rows * width)
    return np.cumsum(change.reshape(num_rows, width), axis=1)[:, :-1]


def _draw_density(axes: Axes, times: ResidenceTimes) -> None:
    lanes = np.unique(times.lane).tolist()
    counts = [stay_density(times, lane) for lane in lanes]
    total = np.maximum(np.sum(counts, axis=0), 1)
    # A few full cells would make all others pale.
    top = max(float(np.percentile(total, 99.5)), 1.0)
    colour = np.zeros((*total.shape, 3))
    for lane, count in zip(lanes, counts, strict=True):
        colour += (count / total)[..., None] * to_rgb(COLOURS[lane % len(COLOURS)])
    strength = np.minimum(np.sum(counts, axis=0) / top, 1.0) ** 0.5
    shown = 1.0 - strength[..., None] * (1.0 - colour)
    end = times.first_step + times.num_steps
    axes.imshow(
        shown,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(times.first_step, end, -0.5, times.num_blocks - 0.5),
    )


def _draw_legend(axes: Axes, times: ResidenceTimes) -> None:
    lanes = np.unique(times.lane).tolist()
    handles: list[Patch | Line2D] = [
        Patch(color=COLOURS[lane % len(COLOURS)], label=f"lane {lane}")
        for lane in lanes[: len(COLOURS)]
    ]
    if len(lanes) > len(COLOURS):
        handles.append(Patch(color="none", label=f"... {len(lanes)} lanes"))
    if len(times.block) <= _MOST_ENDS:
        handles.append(_mark(">", "load"))
        end = times.first_step + times.num_steps
        handles.append(_mark("|", "drop" if (times.drop < end).any() else "stays to the end"))
    elif len(times.block) > _MOST_BARS:
        handles.append(Patch(color="none", label="darker: more chunks"))
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=8, frameon=False
    )


def _mark(marker: str, label: str) -> Line2D:
    return Line2D([], [], color="black", marker=marker, markersize=5, linestyle="", label=label)


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
    axes.set_ylabel("regions a batch\ndraws from", fontsize=9)
    axes.grid(color=GREY, linewidth=0.4)
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=8, frameon=False)
