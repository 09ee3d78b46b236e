"""The drawings of the guides: windows and leads, gaps, splits, patches."""

from __future__ import annotations

from collections.abc import Iterable

from canvas import WIDTH, Drawing

STEP = 24
"""Pixels of a time step."""

LEFT = 60


def draw_window() -> Drawing:
    """A window of five steps, its fields, and the window after it."""
    drawing = Drawing("window", 164, "Windows over a row of time steps, with inputs and a target")
    _times(drawing, 22, range(18))
    for y, first, words in ((66, 2, "sample 2"), (104, 3, "sample 3")):
        drawing.text(0, y + 15, words, "soft", size=13)
        _bar(drawing, y, first, 2, "0", "inputs" if first == 2 else "")
        _bar(drawing, y, first + 2, 2)
        _bar(drawing, y, first + 4, 1, "1", "target, time=4" if first == 2 else "")
    drawing.text(0, 157, "a lead", "soft", size=13)
    _bar(drawing, 142, 2, 2, "0")
    _bar(drawing, 142, 14, 1, "1", 'target, time="+12"')
    drawing.line([(_x(4) + 4, 152), (_x(14) - 4, 152)], "soft", arrow=True)
    return drawing


def draw_gap() -> Drawing:
    """Times of which two lack, and the windows that remain."""
    drawing = Drawing(
        "gap", 190, "Windows of four steps beside a gap: those that cross it are left out"
    )
    there = [step for step in range(18) if step not in (8, 9)]
    _times(drawing, 22, there)
    drawing.text(_x(9), 62, "not in the store", "soft", size=13, anchor="middle")
    for row, first in enumerate((3, 4, 5, 7, 10, 11)):
        crosses = 4 < first < 10
        y = 74 + 19 * row
        if crosses:
            for start, size in ((first, 8 - first), (10, first - 4)):
                _bar(drawing, y, start, size, line="alert")
        else:
            _bar(drawing, y, first, 4, "0")
        words = "left out" if crosses else ""
        drawing.text(WIDTH, y + 13, words, "alert", size=13, anchor="end")
    return drawing


def draw_split() -> Drawing:
    """Two parts of a time axis, and the windows that are in neither."""
    drawing = Drawing(
        "split", 180, "Two parts of the times; windows that cross the edge are in none"
    )
    _times(drawing, 22, range(18))
    edge = _x(10)
    for x, y, words, colour in ((_x(5), 66, "train", "0"), (_x(14), 66, "valid", "2")):
        drawing.text(x, y, words, colour, anchor="middle", bold=True)
    for row, first in enumerate((6, 7, 8, 9, 10)):
        y = 76 + 19 * row
        crosses = 6 < first < 10
        if crosses:
            _bar(drawing, y, first, 4, line="alert")
            drawing.text(WIDTH, y + 13, "in no part", "alert", size=13, anchor="end")
        else:
            _bar(drawing, y, first, 4, "0" if first == 6 else "2")
    drawing.line([(edge, 14), (edge, 176)], "ink", dash="4 3")
    return drawing


def draw_patches() -> Drawing:
    """Three ways to cut a map: side by side, with overlap, at random."""
    drawing = Drawing(
        "patches", 190, "A map cut into patches side by side, with overlap, at random"
    )
    kinds = (
        ("side by side", [(y, x) for y in (0, 4, 8) for x in (0, 4, 8)]),
        ("overlap by half", [(y, x) for y in range(0, 9, 2) for x in range(0, 9, 2)]),
        ("at random", [(0, 1), (6, 0), (3, 5), (8, 7), (1, 8)]),
    )
    for column, (words, corners) in enumerate(kinds):
        left = 6 + 186 * column
        drawing.rect(left, 6, 156, 156, "faint", "line", opacity=0.6)
        for y, x in corners:
            place = (left + 13 * x, 6 + 13 * y, 52, 52)
            drawing.rect(*place, str(column % 3), opacity=0.2)
            drawing.rect(*place, line=str(column % 3))
        drawing.text(left + 78, 184, words, anchor="middle")
    return drawing


def _x(step: float) -> float:
    return LEFT + STEP * step


def _times(drawing: Drawing, y: float, steps: Iterable[int]) -> None:
    """A row of time steps, of which some may lack."""
    drawing.text(0, y + 15, "time", "soft", size=13)
    for step in steps:
        drawing.rect(_x(step) + 1, y, STEP - 2, 22, "faint", "line")


def _bar(
    drawing: Drawing,
    y: float,
    first: int,
    size: int,
    fill: str = "",
    words: str = "",
    line: str = "",
) -> None:
    """Some steps of a window: a field, or a dashed outline of what is not used."""
    outline = line or fill or "line"
    dash = "" if fill else "3 2"
    drawing.rect(
        _x(first) + 2, y, STEP * size - 4, 15, fill, outline, dash=dash, radius=3, opacity=0.9
    )
    if words:
        drawing.text(_x(first) + 2, y - 5, words, fill, size=13)
