"""How often elements along a line come, as a small drawing."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.html.cards import Drawing
from xloader.html.svg_shapes import WIDTH, colour_class, drawing_of, filled_boxes

_NUM_COLUMNS: Final = 310
_HEIGHT: Final = 36.0
_NEVER_HEIGHT: Final = 4.0
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
    heights = np.round(means / top * _HEIGHT, 1)
    boxes = [
        (begin * width, _HEIGHT - heights[begin], (end - begin) * width, heights[begin])
        for begin, end in _equal_runs(heights)
        if heights[begin]
    ]
    never = [
        (begin * width, _HEIGHT, (end - begin) * width, _NEVER_HEIGHT)
        for begin, end in _equal_runs(is_never)
        if is_never[begin]
    ]
    shapes = [filled_boxes(colour_class(0), boxes), filled_boxes(_NEVER_CLASS, never)]
    legend = [(colour_class(0), f"up to {float(counts.max(initial=0)):,.4g} times")]
    if never:
        legend.append((_NEVER_CLASS, "never"))
    caption = f"Across: {name}, {len(counts):,} elements."
    label = f"How often each element comes. {caption}"
    return Drawing(drawing_of(label, _HEIGHT + _NEVER_HEIGHT, shapes), caption, legend)


def _equal_runs(values: NDArray[Any]) -> list[tuple[int, int]]:
    """Begin and end of each run of equal values."""
    edges = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1], [True]]))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)) if len(values) else []
