"""How cost grows with the data while the memory budget stays fixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import ours
from benchmarks.layouts import STEPS, TILES, Layout
from benchmarks.measure import Effort
from benchmarks.results import Result
from benchmarks.stores import ensure_grown, ensure_stores
from benchmarks.turns import Competitor

TIMES: Final = (1, 4, 16)
QUICK_TIMES: Final = (1, 2, 4)
LEAST_SHARE: Final = 0.9
"""Speed with the most data must be at least this share of the speed with the least data."""

LAYOUTS: Final = (
    Layout(
        "steps3",
        "time-chunked, window 3",
        dataclasses.replace(STEPS, num_steps=240),
        {"time": 3},
        stride={"time": 1},
        batch_size=4,
        memory_share=0.5,
    ),
    Layout(
        "straddling",
        "tiled, straddling patches 60 x 60",
        dataclasses.replace(TILES, num_steps=240),
        {"time": 1, "lat": 60, "lon": 60},
        memory_share=0.5,
    ),
)
"""Layouts with the least data. The memory stays the same for all amounts of data."""


@dataclass(frozen=True)
class Growth:
    """The results of one layout on growing amounts of data.

    Parameters
    ----------
    results : tuple of Result
        From the least data to the most.
    """

    results: tuple[Result, ...]

    @property
    def share(self) -> float:
        """Ratio of the speed with the most data to the speed with the least data."""
        speeds = [result.delivered.gb_per_second for result in self.results]
        return speeds[-1] / speeds[0]

    @property
    def is_held(self) -> bool:
        """Whether more data hardly slow the layout down."""
        return self.share >= LEAST_SHARE


def measure(
    folder: Path, layouts: Sequence[Layout], times: Sequence[int], effort: Effort
) -> list[Growth]:
    """Measure each layout at several multiples of its data; the sizes take turns."""
    ensure_stores(folder, [layout.store for layout in layouts])
    return [_grow(folder, layout, times, effort) for layout in layouts]


def _grow(folder: Path, layout: Layout, times: Sequence[int], effort: Effort) -> Growth:
    grown = []
    for number in times:
        spec, path = ensure_grown(folder, layout.store, number)
        share = layout.memory_share / number
        grown.append((dataclasses.replace(layout, store=spec, memory_share=share), path))
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(Competitor(str(path), ours.play, larger, str(path)))
            for larger, path in grown
        ]
        plans = [loader.require(loader.ready()) for loader in loaders]
        turns = [
            [loader.require(loader.turn()) for loader in loaders]
            for _ in range(1 + effort.num_turns)
        ]
    results = []
    for (larger, _), plan, (first, *epochs) in zip(
        grown, plans, zip(*turns, strict=True), strict=True
    ):
        results.append(Result(larger, plan, first, tuple(epochs)))
    return Growth(tuple(results))
