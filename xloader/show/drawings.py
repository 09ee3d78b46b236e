"""Small inline drawings of cards, as SVG without text: shares, counts, and stays in memory.

Colours are classes of the style of cards. A drawing has at most 20 kB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


def bars(
    kind: str, rows: Iterable[tuple[float, float, float]], width: float, opacity: float
) -> str:
    """Level bars of one width, as one path of few characters."""
    data = "".join(f"M{short(x)} {short(y)}h{short(length)}" for x, y, length in rows)
    return _path(kind, data, opacity, stroke="currentColor", stroke_width=width)


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


_MOST_BARS: Final = 700
_MOST_CHUNKS: Final = 100
"""The most stays, and chunks, that are drawn one by one."""
_STAY_COLUMNS, _STAY_ROWS = 100, 20
"""Cells of the drawing of more."""
_OPACITIES: Final = (0.3, 0.6, 1.0)
_MOST_NAMED: Final = 7


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


def draw_stays(
    lane: Ints, block: Ints, load: Floats, drop: Floats, num_blocks: int, steps: tuple[int, int]
) -> Drawing:
    """Draw the stays of chunks in memory: steps from left to right, chunks from the bottom up."""
    is_exact = len(block) <= _MOST_BARS and num_blocks <= _MOST_CHUNKS
    scale = WIDTH / max(steps[1] - steps[0], 1)
    if is_exact:
        row = float(np.clip(160 // max(num_blocks, 1), 2, 14))
        height = max(row * num_blocks, 14.0)
        ends = (load - steps[0]) * scale, (drop - steps[0]) * scale
        shapes = _single_bars(lane, block, ends, row, height)
    else:
        height = 6.0 * min(_STAY_ROWS, num_blocks)
        columns = _clipped(load - steps[0], scale), _clipped(drop - steps[0], scale)
        shapes = _dense_bars(lane, block, columns, num_blocks, height)
    shapes.append(outlined_boxes("xloader-cell", [(0.5, 0.5, WIDTH - 1, height - 1)]))
    lanes = np.unique(lane).tolist()
    legend = [(colour_class(one), f"lane {one}") for one in lanes[:_MOST_NAMED]]
    if len(lanes) <= 1:
        legend = []
    caption = (
        f"Across: steps {steps[0]:,} to {steps[1]:,}; up: {num_blocks:,} "
        f"chunk{'s' * (num_blocks != 1)}. "
        + ("A bar: a chunk in memory." if is_exact else "Stronger: more of the chunks in memory.")
    )
    if len(lanes) > _MOST_NAMED:
        caption += f" {len(lanes):,} lanes, in these colours in turn."
    return Drawing(drawing_of(f"Chunks in memory. {caption}", height, shapes), caption, legend)


def _single_bars(
    lane: Ints, block: Ints, ends: tuple[Floats, Floats], row: float, height: float
) -> list[str]:
    top = height - (block + 0.5) * row
    # Between thin bars a gap would blur.
    thick = row - 1 if row > 3 else row
    shapes = []
    for one in np.unique(lane).tolist():
        is_in_lane = lane == one
        widths = np.maximum(ends[1][is_in_lane] - ends[0][is_in_lane], 1.0)
        rows = zip(
            ends[0][is_in_lane].tolist(), top[is_in_lane].tolist(), widths.tolist(), strict=True
        )
        shapes.append(bars(colour_class(one), rows, thick, 1.0))
    return shapes


def _clipped(steps: Floats, scale: float) -> Ints:
    return np.clip(steps * scale * _STAY_COLUMNS / WIDTH, 0, _STAY_COLUMNS - 1).astype(np.int64)


def _dense_bars(
    lane: Ints, block: Ints, ends: tuple[Ints, Ints], num_blocks: int, height: float
) -> list[str]:
    """Cells in the colour of the lane with most chunks, stronger where more are in memory."""
    num_rows = min(_STAY_ROWS, num_blocks)
    row = block * num_rows // num_blocks
    lanes = np.unique(lane)
    places = [np.flatnonzero(lane == one) for one in lanes]
    counts = np.stack(
        [
            count_stays(row[place], (ends[0][place], ends[1][place]), (num_rows, _STAY_COLUMNS))
            for place in places
        ]
    )
    total, most = counts.sum(axis=0), counts.argmax(axis=0)
    top = max(float(np.percentile(total, 99.5)), 1.0)
    level = np.ceil(np.sqrt(np.minimum(total / top, 1.0)) * len(_OPACITIES)).astype(np.int64)
    # Levels of lanes of the same colour are one path.
    kind = np.where(level > 0, (lanes[most] % _MOST_NAMED) * len(_OPACITIES) + level, 0)
    thick = height / num_rows
    boxes: dict[int, list[tuple[float, float, float]]] = {}
    for number, cells in enumerate(kind):
        edges = np.flatnonzero(np.diff(cells, prepend=-1, append=-1))
        middle = height - (number + 0.5) * thick
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if cells[begin]:
                bar = float(begin), middle, float(end - begin)
                boxes.setdefault(int(cells[begin]), []).append(bar)
    shapes = [
        bars(
            colour_class((shade - 1) // len(_OPACITIES)),
            boxes[shade],
            thick,
            _OPACITIES[(shade - 1) % len(_OPACITIES)],
        )
        for shade in sorted(boxes)
    ]
    # Places that are numbers of columns take few characters.
    return [f'<g transform="scale({WIDTH / _STAY_COLUMNS:g},1)">{"".join(shapes)}</g>']


def count_stays(row: Ints, columns: tuple[Ints, Ints], shape: tuple[int, int]) -> Ints:
    """Number of stays that touch each cell; `columns` are those of their ends."""
    num_rows, width = shape[0], shape[1] + 1
    change = np.bincount(row * width + columns[0], minlength=num_rows * width)
    change -= np.bincount(row * width + columns[1] + 1, minlength=num_rows * width)
    return np.cumsum(change.reshape(num_rows, width), axis=1)[:, :-1]
