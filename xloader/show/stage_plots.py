"""The stages of a loader over time: threads at work, batches ready, waits, and bytes a second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from xloader.show.canvas import COLOURS, Picture, count_along, new_picture

_MOST_PARTS = 100
"""Parts of the time whose means are drawn: shorter ones would be noise."""
_FEW_POINTS = 60
"""The most points that are marked one by one."""

Floats = NDArray[np.float64]


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
    _name(axes[0], "threads\nat work")
    # A step needs two points, and an epoch may have one batch only.
    marker = "." if len(seconds) <= _FEW_POINTS else ""
    axes[1].step(
        seconds[1:], num_ready[1:], where="post", color=COLOURS[0], linewidth=1, marker=marker,
        clip_on=False,
    )  # fmt: skip
    axes[1].set_ylim(0, max(float(num_ready.max(initial=0)), 1.0) * 1.15)
    for axis in (axes[0].yaxis, axes[1].yaxis):
        count_along(axis)
    _name(axes[1], "batches\nready")
    waited = np.clip(100 * _means(seconds, wait_seconds, edges), 0, 100)
    axes[2].stairs(waited, edges, fill=True, color=COLOURS[5])
    axes[2].set_ylim(0, 105)
    _name(axes[2], "training\nwaits (%)")
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
    _name(axes[3], "GB/s")
    axes[3].set_xlabel("seconds since the first batch was asked for", fontsize=9)
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


def _name(axes: Axes, label: str) -> None:
    axes.set_ylabel(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=8, frameon=False)
