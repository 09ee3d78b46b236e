"""A small drawing in SVG, in colours for light and for dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH: Final = 540
"""Width of every drawing, in pixels: small enough that its text is still read on a phone."""

# The colours of each theme by role. Series colours are those of Okabe and Ito (2008), which
# colour-blind people can tell apart; on dark pages, the two darkest are lighter.
THEMES: Final = {
    "light": {
        "ink": "#24292f",
        "soft": "#59636e",
        "line": "#8c959f",
        "faint": "#d8dee4",
        "0": "#0072B2",
        "1": "#D98200",
        "2": "#009E73",
        "3": "#B65C91",
        "alert": "#D55E00",
    },
    "dark": {
        "ink": "#e6edf3",
        "soft": "#a6b0ba",
        "line": "#7d8590",
        "faint": "#3d444d",
        "0": "#56B4E9",
        "1": "#F0B429",
        "2": "#2FC79B",
        "3": "#DE93BF",
        "alert": "#FF8A4C",
    },
}

_MARGIN: Final = 14
"""Pixels between a drawing and the text below it."""

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass
class Drawing:
    """Shapes and texts on a transparent page.

    Colours are roles of a theme: "ink", "soft", "line", "faint", "alert", or "0" to "3" for series.

    Parameters
    ----------
    name : str
        Name of the file, without ending.
    height : int
        Height in pixels.
    title : str
        What the drawing shows, for readers who do not see it.
    """

    name: str
    height: int
    title: str
    _parts: list[str] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "",
        line: str = "",
        *,
        opacity: float = 1.0,
        radius: float = 0.0,
        dash: str = "",
    ) -> None:
        """Draw a rectangle."""
        shape = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        corner = f' rx="{_n(radius)}"' if radius else ""
        self._parts.append(f"<rect {shape}{corner}{_paint(fill, line, opacity, dash)}/>")

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: str = "line",
        *,
        width: float = 1.0,
        dash: str = "",
        arrow: bool = False,
    ) -> None:
        """Draw a line through points; with ``arrow``, its end has a head."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        style = f' fill="none" stroke="{{{colour}}}" stroke-width="{_n(width)}"'
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<polyline points="{path}"{style}{dashes}/>')
        if arrow:
            (x0, y0), (x1, y1) = points[-2:]
            size = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-9)
            u, v = (x1 - x0) / size, (y1 - y0) / size
            left = (x1 - 6 * u - 3 * v, y1 - 6 * v + 3 * u)
            right = (x1 - 6 * u + 3 * v, y1 - 6 * v - 3 * u)
            head = " ".join(f"{_n(x)},{_n(y)}" for x, y in ((x1, y1), left, right))
            self._parts.append(f'<polygon points="{head}" fill="{{{colour}}}"/>')

    def dot(
        self, x: float, y: float, radius: float, fill: str = "", line: str = "", width: float = 1.5
    ) -> None:
        """Draw a circle."""
        shape = f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"'
        self._parts.append(f"<circle {shape}{_paint(fill, line, 1.0, '', width)}/>")

    def diamond(self, x: float, y: float, radius: float, fill: str) -> None:
        """Draw a square that stands on a corner."""
        corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
        points = " ".join(f"{_n(a)},{_n(b)}" for a, b in corners)
        self._parts.append(f'<polygon points="{points}"{_paint(fill, "", 1.0, "")}/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = "ink",
        *,
        size: int = 14,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write a line of text, whose base line is at ``y``."""
        place = f'x="{_n(x)}" y="{_n(y)}" font-size="{size}" fill="{{{colour}}}"'
        side = "" if anchor == "start" else f' text-anchor="{anchor}"'
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(f"<text {place}{side}{weight}>{escape(words, quote=False)}</text>")

    def render(self, theme: str) -> str:
        """The drawing as an SVG file, in the colours of a theme."""
        height = self.height + _MARGIN
        size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" role="img">'
        lines = [head, f"<title>{escape(self.title, quote=False)}</title>", *self._parts, "</svg>"]
        text = "\n".join(lines) + "\n"
        for role, colour in THEMES[theme].items():
            text = text.replace(f"{{{role}}}", colour)
        return text


def _paint(fill: str, line: str, opacity: float, dash: str, width: float = 1.0) -> str:
    parts = [f'fill="{{{fill}}}"' if fill else 'fill="none"']
    if line:
        parts.append(f'stroke="{{{line}}}" stroke-width="{_n(width)}"')
    if dash:
        parts.append(f'stroke-dasharray="{dash}"')
    if opacity < 1.0:
        parts.append(f'opacity="{_n(opacity)}"')
    return " " + " ".join(parts)


def _n(value: float) -> str:
    """A number as short as it can be, to a tenth of a pixel."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
