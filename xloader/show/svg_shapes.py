"""Shapes of inline drawings, as SVG without text. Colours are classes of the style of cards."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

NUM_COLOURS: Final = 7
"""Number of colours that lanes and parts have in turn; see the style of cards."""

WIDTH: Final = 620
"""Width of drawings in CSS pixels. Narrow pages shrink them."""

Box = tuple[float, float, float, float]
"""Left, top, width and height."""


def colour_class(number: int) -> str:
    """The class of a colour. Colours come again after the last one."""
    return f"xloader-c{number % NUM_COLOURS}"


def short(number: float) -> str:
    """A number with one digit after the point, as short as it can be."""
    return f"{number:.1f}".removesuffix(".0")


def _path_of(boxes: Iterable[Box]) -> str:
    return "".join(
        f"M{short(x)} {short(y)}h{short(w)}v{short(h)}h{short(-w)}z" for x, y, w, h in boxes
    )


def filled_boxes(kind: str, boxes: Iterable[Box], opacity: float = 1.0) -> str:
    """Boxes of one colour, as one path."""
    path = _path_of(boxes)
    faint = f' opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<path class="{kind}"{faint} d="{path}"/>' if path else ""


def outlined_boxes(kind: str, boxes: Iterable[Box], width: float = 1.5, dashes: str = "") -> str:
    """Outlines of boxes."""
    path = _path_of(boxes)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<path class="{kind}" fill="none" stroke="currentColor" '
        f'stroke-width="{width:g}"'
        f'{dashed} d="{path}"/>'
        if path
        else ""
    )


def bars(
    kind: str, rows: Iterable[tuple[float, float, float]], width: float, opacity: float
) -> str:
    """Level bars of one width, as one path of few characters."""
    path = "".join(f"M{short(x)} {short(y)}h{short(length)}" for x, y, length in rows)
    faint = f' opacity="{opacity:g}"' if opacity < 1 else ""
    return (
        f'<path class="{kind}" stroke="currentColor" stroke-width="{width:g}"{faint} d="{path}"/>'
        if path
        else ""
    )


def drawing_of(label: str, height: float, shapes: Iterable[str]) -> str:
    """The drawing, as an SVG element."""
    size = f'width="{WIDTH}" height="{short(height)}" viewBox="0 0 {WIDTH} {short(height)}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(shapes)}</svg>'
