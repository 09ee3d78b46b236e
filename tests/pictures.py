"""Looks at pictures of matplotlib as a reader does: ticks in view, and texts that can be read."""

from __future__ import annotations

import itertools
from typing import Any


def seen_ticks(axis: Any) -> list[str]:
    """The texts of an axis's ticks that lie within its view, of a picture that was drawn."""
    low, high = sorted(axis.get_view_interval())
    return [
        text.get_text()
        for place, text in zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
        if low <= place <= high
    ]


def assert_legible(picture: Any) -> None:
    """Assert that neighbouring ticks do not touch, and that all text lies within the picture."""
    picture.canvas.draw()
    whole = picture.bbox
    for axes in picture.axes:
        boxes = [text.get_window_extent() for text in axes.get_xticklabels() if text.get_text()]
        for left, right in itertools.pairwise(boxes):
            assert left.x1 < right.x0
        legend = axes.get_legend()
        texts = [*picture.texts, axes.xaxis.label, axes.yaxis.label]
        for text in (*texts, *(legend.get_texts() if legend else ())):
            if not text.get_text():
                continue
            box = text.get_window_extent()
            assert whole.x0 < box.x0 - 3, text
            assert box.x1 + 3 < whole.x1, text
            assert whole.y0 <= box.y0, text
            assert box.y1 <= whole.y1, text
