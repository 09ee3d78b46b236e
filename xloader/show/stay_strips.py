"""Which chunk is in memory when: a small drawing of the stays of an epoch.

It shows what `xloader.show.residence_plots` shows, from the same arrays, in at most 20 kB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.messages import show_count
from xloader.show.cards import Drawing
from xloader.show.svg_shapes import WIDTH, bars, colour_class, drawing_of, outlined_boxes

_MOST_BARS: Final = 700
_MOST_CHUNKS: Final = 100
"""The most stays, and chunks, that are drawn one by one."""
_NUM_COLUMNS, _NUM_ROWS = 100, 20
"""Cells of the drawing of more."""
_OPACITIES: Final = (0.3, 0.6, 1.0)
_MOST_NAMED: Final = 7

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
        height = 6.0 * min(_NUM_ROWS, num_blocks)
        columns = _clipped(load - steps[0], scale), _clipped(drop - steps[0], scale)
        shapes = _dense_bars(lane, block, columns, num_blocks, height)
    shapes.append(outlined_boxes("xloader-cell", [(0.5, 0.5, WIDTH - 1, height - 1)], 1.0))
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
    return np.clip(steps * scale * _NUM_COLUMNS / WIDTH, 0, _NUM_COLUMNS - 1).astype(np.int64)


def _dense_bars(
    lane: Ints, block: Ints, ends: tuple[Ints, Ints], num_blocks: int, height: float
) -> list[str]:
    """Cells in the colour of the lane with most chunks, stronger where more are in memory."""
    num_rows = min(_NUM_ROWS, num_blocks)
    row = block * num_rows // num_blocks
    lanes = np.unique(lane)
    counts = np.stack([_cells(row[lane == one], ends, lane == one, num_rows) for one in lanes])
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
    return [f'<g transform="scale({WIDTH / _NUM_COLUMNS:g},1)">{"".join(shapes)}</g>']


def _cells(row: Ints, ends: tuple[Ints, Ints], is_own: NDArray[np.bool_], num_rows: int) -> Ints:
    """Number of stays that touch each cell."""
    width = _NUM_COLUMNS + 1
    change = np.bincount(row * width + ends[0][is_own], minlength=num_rows * width)
    change -= np.bincount(row * width + ends[1][is_own] + 1, minlength=num_rows * width)
    return np.cumsum(change.reshape(num_rows, width), axis=1)[:, :-1]
