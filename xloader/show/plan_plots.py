"""Plans beside each other: reads a chunk and mixing against the memory, a line for each bound.

::

    reads   o--.                    mixing       .--*        a line is a bound of amplification
            |   `--*--*             (%)      *--'            a ring is on the front
            x                                x               a cross does not fit
               memory -->                       memory -->
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from xloader.show.canvas import COLOURS, Picture, new_picture

_MOST_NAMED: Final = 12
"""The most lines that the legend names."""
_MOST_MARKED: Final = 7
"""The most memories that have a tick."""
_WIDEST, _THINNEST = 5.0, 1.4
_REFUSED: Final = COLOURS[5]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlanLine:
    """The plans of one bound, by memory.

    `memory`: bytes of memory that were given, ascending.
    """

    label: str
    memory: Floats
    reads: Floats
    mixing: Floats
    is_on_front: NDArray[np.bool_]


def draw_plans(
    lines: Sequence[PlanLine],
    ticks: Sequence[tuple[float, str]],
    least: tuple[float, str] | None,
    title: str,
) -> Picture:
    """Draw reads and mixing against the memory.

    `ticks`: the memories that were given, ascending, and their texts.
    """
    picture = new_picture(11.0, 4.4)
    reads, mixing = picture.subplots(1, 2)
    for number, line in enumerate(lines):
        style = _style(number, len(lines))
        _draw_line(reads, line, line.reads, style)
        _draw_line(mixing, line, 100 * line.mixing, style)
    known = np.concatenate([line.reads for line in lines])
    top = float(np.nanmax(known, initial=1.0))
    span = max(top - 1.0, 0.2)
    reads.set_ylim(1.0 - 0.15 * span, 1.0 + 1.15 * span)
    shares = 100 * np.concatenate([line.mixing for line in lines])
    most = float(np.nanmax(shares, initial=100.0))
    # Room below for the crosses.
    mixing.set_ylim(-0.1 * most, 1.06 * most)
    reads.set_ylabel("mean reads of a chunk", fontsize=9)
    mixing.set_ylabel("mixing (% of a full shuffle)", fontsize=9)
    for axes in (reads, mixing):
        _name_memory(axes, ticks, ticks[-1][0] if least is None else max(least[0], ticks[-1][0]))
        if least is not None:
            axes.axvline(least[0], color="0.4", linestyle=":", linewidth=1.2)
    _draw_legend(mixing, lines, least)
    picture.suptitle(title, fontsize=10)
    return picture


def _style(number: int, count: int) -> dict[str, Any]:
    """Colour and width of a line; later ones are thinner, so that equal plans show both."""
    if count <= len(COLOURS):
        share = number / max(count - 1, 1)
        width = _WIDEST + share * (_THINNEST - _WIDEST) if count > 1 else 2.0
        return {"color": COLOURS[number], "linewidth": width}
    return {"color": colormaps["viridis"](0.95 * number / (count - 1)), "linewidth": _THINNEST}


def _draw_line(axes: Axes, line: PlanLine, values: Floats, style: dict[str, Any]) -> None:
    size = 3.0 + style["linewidth"]
    axes.plot(line.memory, values, marker="o", markersize=size, label=line.label, **style)
    best = line.is_on_front
    if best.any():
        axes.plot(
            line.memory[best], values[best], "o", color="black", markersize=12, fillstyle="none",
            label="front", zorder=4,
        )  # fmt: skip
    refused = line.memory[np.isnan(values)]
    if len(refused):
        axes.plot(
            refused, np.full(len(refused), 0.03), "x", color=_REFUSED, markersize=7,
            markeredgewidth=2, label="does not fit", transform=axes.get_xaxis_transform(), zorder=5,
        )  # fmt: skip


def _name_memory(axes: Axes, ticks: Sequence[tuple[float, str]], end: float) -> None:
    """A scale of doublings with ticks at memories that were given."""
    begin = ticks[0][0]
    axes.set_xscale("log", base=2)
    axes.set_xlim(begin / 1.5, end * 1.5)
    # Ticks that are nearer than this would write over each other.
    gap = np.log(end / begin * 1.5**2) / _MOST_MARKED
    shown: list[tuple[float, str]] = []
    for place, text in ticks:
        if not shown or np.log(place / shown[-1][0]) >= gap:
            shown.append((place, text))
    axes.xaxis.set_major_locator(FixedLocator([place for place, _ in shown]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([text for _, text in shown])
    axes.set_xlabel("memory of the loader", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)


def _draw_legend(axes: Axes, lines: Sequence[PlanLine], least: tuple[float, str] | None) -> None:
    step = -(-len(lines) // _MOST_NAMED)
    handles = [
        Line2D([], [], marker="o", label=line.label, **_style(number, len(lines)))
        for number, line in enumerate(lines)
        if not number % step
    ]
    if step > 1:
        handles.append(Line2D([], [], linestyle="", label=f"... {len(lines)} bounds"))
    mark: dict[str, Any] = {"linestyle": "", "color": "black"}
    if any(line.is_on_front.any() for line in lines):
        handles.append(
            Line2D(
                [],
                [],
                marker="o",
                markersize=10,
                fillstyle="none",
                label="no other is better",
                **mark,
            )
        )
    if any(np.isnan(line.reads).any() for line in lines):
        mark["color"] = _REFUSED
        handles.append(Line2D([], [], marker="x", markeredgewidth=2, label="does not fit", **mark))
    if least is not None:
        handles.append(Line2D([], [], color="0.4", linestyle=":", label=f"least: {least[1]}"))
    axes.legend(
        handles=handles, title="max_amplification", loc="upper left", bbox_to_anchor=(1.01, 1.0),
        fontsize=8, title_fontsize=8, frameon=False,
    )  # fmt: skip
