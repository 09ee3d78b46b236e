"""Small inline drawings of cards, as SVG without text: shares, counts, and stays in memory.

Colours are classes of the style of cards. A drawing has at most 20 kB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.messages import show_count
from xloader.show.cards import CardPart, CardSection, Drawing

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

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


def _path(kind: str, data: str, opacity: float = 1.0, **attributes: str | float) -> str:
    if opacity < 1:
        attributes["opacity"] = opacity
    texts = "".join(
        f' {name.replace("_", "-")}="{value if isinstance(value, str) else f"{value:g}"}"'
        for name, value in attributes.items()
    )
    return f'<path class="{kind}"{texts} d="{data}"/>' if data else ""


def _outline(boxes: Iterable[Box]) -> str:
    return "".join(
        f"M{short(x)} {short(y)}h{short(w)}v{short(h)}h{short(-w)}z" for x, y, w, h in boxes
    )


def filled_boxes(kind: str, boxes: Iterable[Box], opacity: float = 1.0) -> str:
    """Boxes of one colour, as one path."""
    return _path(kind, _outline(boxes), opacity)


def outlined_boxes(kind: str, boxes: Iterable[Box], dashes: str = "none") -> str:
    """Outlines of boxes, 1 pixel wide."""
    ink = "currentColor"
    return _path(
        kind, _outline(boxes), fill="none", stroke=ink, stroke_width=1, stroke_dasharray=dashes
    )


def bars(kind: str, rows: Iterable[Sequence[float]], width: float) -> str:
    """Level bars of one width, each from a left end with a length, as one short path."""
    data = "".join(f"M{short(x)} {short(y)}h{short(length)}" for x, y, length in rows)
    return _path(kind, data, stroke="currentColor", stroke_width=width)


def drawing_of(label: str, height: float, shapes: Iterable[str]) -> str:
    """The drawing, as an SVG element."""
    size = f'width="{WIDTH}" height="{short(height)}" viewBox="0 0 {WIDTH} {short(height)}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(shapes)}</svg>'


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


_MOST_BARS: Final = 600
_MOST_CHUNKS: Final = 100
"""The most stays, and chunks, that are drawn."""


@dataclass(frozen=True, eq=False)
class ResidenceTimes:
    """The residences of an epoch's chunks, and the regions that its batches draw from.

    A block stands for the chunks of several variables at one place. The blocks are those of the
    group of variables with the most bytes.
    """

    variables: tuple[str, ...]
    num_other: int
    num_blocks: int
    num_lanes: int
    num_steps: int
    first_step: int
    lane: Ints
    block: Ints
    load: Floats
    drop: Floats
    batches: Ints
    regions: Ints

    @property
    def title(self) -> str:
        """The number of loads and of chunks, in words, and what is not listed."""
        loads, chunks = show_count(len(self.block), "load"), show_count(self.num_blocks, "chunk")
        title = f"Chunks in memory: {loads} of {chunks}"
        if not self.num_other:
            return title
        return f"{title} (not drawn: those of {show_count(self.num_other, 'more variable')})"

    def thinned(self, most_stays: int, most_blocks: int) -> tuple[int, ResidenceTimes]:
        """The stays of every n-th block, so that bars can be told apart; and n, 1 for all."""
        blocks = np.unique(self.block)
        step = max(-(-len(self.block) // most_stays), -(-len(blocks) // most_blocks), 1)
        if step == 1:
            return 1, self
        is_kept = np.isin(self.block, blocks[::step])
        names = ("lane", "block", "load", "drop")
        kept: dict[str, Any] = {name: getattr(self, name)[is_kept] for name in names}
        return step, replace(self, **kept)


def draw_stays(times: ResidenceTimes) -> Drawing:
    """Draw the stays of chunks in memory: steps from left to right, chunks from the bottom up."""
    nth, drawn = times.thinned(_MOST_BARS, _MOST_CHUNKS)
    num_rows = min(max(times.num_blocks, 1), _MOST_CHUNKS)
    row = float(np.clip(160 // num_rows, 2, 14))
    height = row * num_rows
    steps = times.first_step, times.first_step + times.num_steps
    scale = WIDTH / max(times.num_steps, 1)
    left, right = (drawn.load - steps[0]) * scale, (drawn.drop - steps[0]) * scale
    middle = height - (drawn.block + 0.5) * height / max(times.num_blocks, 1)
    places = np.stack([left, middle, np.maximum(right - left, 1.0)], axis=1)
    # Between thin bars a gap would blur.
    thick = row - 1 if row > 3 else row
    lanes = np.unique(times.lane).tolist()
    shapes = [bars(colour_class(one), places[drawn.lane == one].tolist(), thick) for one in lanes]
    shapes.append(outlined_boxes("xloader-cell", [(0.5, 0.5, WIDTH - 1, height - 1)]))
    legend = [(colour_class(one), f"lane {one}") for one in lanes[:NUM_COLOURS]]
    caption = (
        f"Across: steps {steps[0]:,} to {steps[1]:,}; up: {show_count(times.num_blocks, 'chunk')}. "
        "A bar: a chunk in memory."
    )
    if nth > 1:
        caption += f" One of {nth:,} chunks is drawn."
    if len(lanes) > NUM_COLOURS:
        caption += f" {len(lanes):,} lanes, in these colours in turn."
    drawing = drawing_of(f"Chunks in memory. {caption}", height, shapes)
    return Drawing(drawing, caption, legend if len(lanes) > 1 else [])
