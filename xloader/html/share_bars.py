"""Parts of a whole, side by side in one bar."""

from __future__ import annotations

from collections.abc import Mapping

from xloader.html.cards import Drawing
from xloader.html.svg_shapes import WIDTH, colour_class, drawing_of, filled_boxes

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
