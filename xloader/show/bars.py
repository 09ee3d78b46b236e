"""Bars and strips in cards: shares of a whole, counts along a dimension, time by stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.messages import show_count
from xloader.show.cards import CardPart, CardSection, Drawing
from xloader.show.svg_shapes import WIDTH, colour_class, drawing_of, filled_boxes

_NUM_COLUMNS: Final = 310
_STRIP_HEIGHT: Final = 36.0
_NEVER_STRIP_HEIGHT: Final = 4.0
_NEVER_CLASS: Final = colour_class(5)


def draw_counts(name: str, counts: NDArray[Any]) -> Drawing:
    """Draw counts along a line: a column for each element, or its mean over neighbours.

    Elements that never come are marked below the line, also single ones among many.
    """
    num = min(len(counts), _NUM_COLUMNS)
    edges = np.arange(num + 1) * len(counts) // max(num, 1)
    sizes = np.diff(edges)
    means = np.add.reduceat(counts.astype(float), edges[:-1]) / sizes if num else np.zeros(0)
    is_never = np.minimum.reduceat(counts, edges[:-1]) == 0 if num else np.zeros(0, bool)
    width, top = WIDTH / max(num, 1), max(float(means.max(initial=0)), 1e-9)
    heights = np.round(means / top * _STRIP_HEIGHT, 1)
    boxes = [
        (begin * width, _STRIP_HEIGHT - heights[begin], (end - begin) * width, heights[begin])
        for begin, end in _equal_runs(heights)
        if heights[begin]
    ]
    never = [
        (begin * width, _STRIP_HEIGHT, (end - begin) * width, _NEVER_STRIP_HEIGHT)
        for begin, end in _equal_runs(is_never)
        if is_never[begin]
    ]
    shapes = [filled_boxes(colour_class(0), boxes), filled_boxes(_NEVER_CLASS, never)]
    legend = [(colour_class(0), f"up to {float(counts.max(initial=0)):,.4g} times")]
    if never:
        legend.append((_NEVER_CLASS, "never"))
    caption = f"Across: {name}, {len(counts):,} elements."
    label = f"How often each element comes. {caption}"
    return Drawing(drawing_of(label, _STRIP_HEIGHT + _NEVER_STRIP_HEIGHT, shapes), caption, legend)


def _equal_runs(values: NDArray[Any]) -> list[tuple[int, int]]:
    """Begin and end of each run of equal values."""
    edges = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1], [True]]))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)) if len(values) else []


_HEIGHT = 14
REST_CLASS = "xloader-ground"


def draw_shares(
    caption: str, parts: Mapping[str, float], rest: str = "", first_colour: int = 0
) -> Drawing:
    """Draw parts of a whole as a bar."""
    total = sum(parts.values()) or 1.0
    shapes, legend, left = [], [], 0.0
    number = first_colour
    for name, size in parts.items():
        kind = REST_CLASS if name == rest else colour_class(number)
        number += name != rest
        width = size / total * WIDTH
        shapes.append(filled_boxes(kind, [(left, 0.0, width, _HEIGHT)] if width > 0.05 else []))
        legend.append((kind, f"{name} {size / total:.0%}"))
        left += width
    return Drawing(drawing_of(caption, _HEIGHT, shapes), caption, legend)


def time_parts(
    seconds: float, wait_seconds: float, busy_seconds: Mapping[str, float], num_threads: int
) -> list[CardPart]:
    """Bars of the time of the training loop and of the loader's threads.

    `seconds`: seconds of the epoch. `wait_seconds`: seconds in which the consumer waited.
    `busy_seconds`: seconds of the threads by stage.
    """
    if seconds <= 0:
        return []
    waited = min(wait_seconds, seconds)
    training = {"waited for batches": waited, "at work": seconds - waited}
    busy = sum(busy_seconds.values())
    idle = max(num_threads * seconds - busy, 0.0)
    return [
        CardSection(
            "time",
            [
                draw_shares("The training loop", training, "at work", 5),
                draw_shares(_threads(num_threads), {**busy_seconds, "idle": idle}, "idle"),
            ],
        )
    ]


def _threads(num_threads: int) -> str:
    return f"{show_count(num_threads, 'thread')} of the loader"
