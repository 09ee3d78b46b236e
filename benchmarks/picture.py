"""A plot of how cost grows: planning, memory and speed against the size of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import Growth
from benchmarks.measure import MIB
from benchmarks.results import Result

_DPI = 150


def draw(grown: Sequence[Growth], path: Path) -> None:
    """Write a PNG of three graphs with one line for each layout; grey marks what is allowed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    planning, memory, speed = figure.subplots(1, 3)
    _draw_lines(planning, grown, lambda result: 1e3 * result.plan.seconds)
    _draw_allowed(planning, grown, lambda result: 1e3 * result.allowed_plan_seconds)
    planning.set_title("Planning, ms")
    _draw_lines(memory, grown, lambda result: result.peak_nbytes / MIB)
    _draw_allowed(memory, grown, lambda result: result.allowed_nbytes / MIB)
    memory.set_title("Peak memory, MiB")
    _draw_lines(speed, grown, lambda result: result.delivered.gb_per_second)
    speed.set_title("Delivered, GB/s")
    for axes in (planning, memory, speed):
        axes.set_ylim(bottom=0)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("data, GB decoded")
        sizes = [_gb(result) for result in grown[0].results]
        axes.set_xticks(sizes, [f"{size:.2g}" for size in sizes])
        axes.minorticks_off()
    speed.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, format="png")


def _draw_lines(axes: Any, grown: Sequence[Growth], value: Callable[[Result], float]) -> None:
    for growth in grown:
        axes.plot(
            [_gb(result) for result in growth.results],
            [value(result) for result in growth.results],
            marker="o",
            label=growth.results[0].layout.title,
        )


def _draw_allowed(axes: Any, grown: Sequence[Growth], value: Callable[[Result], float]) -> None:
    for growth in grown:
        axes.plot(
            [_gb(result) for result in growth.results],
            [value(result) for result in growth.results],
            color="0.7",
            linestyle="--",
        )


def _gb(result: Result) -> float:
    return result.layout.store.nbytes / 1e9
