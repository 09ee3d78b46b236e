"""Drawings of lanes and ranks: who reads what, before and after a restart."""

from __future__ import annotations

import numpy as np
from canvas import WIDTH, Drawing
from example import CHUNK, planned

_LEFT, _RIGHT = 20, WIDTH - 20
_MEMORY, _LANES, _STOP, _STEPS = "3MiB", 4, 5, 11
_MOST_READS = 1.4


def draw_lanes() -> Drawing:
    """The line of tiles, cut into lanes of equal numbers of samples."""
    plan = planned(_MEMORY, _LANES, _MOST_READS)
    line = [tile for run in plan.runs for tile in run]
    sizes = [len(lane.ids) for lane in plan.lanes]
    page = Drawing(
        "lanes", 178,
        f"Tiles in the order of the shuffled runs: {line}. Four lanes of {sizes} samples.",
    )  # fmt: skip
    scale = (_RIGHT - _LEFT) / sum(sizes)
    page.text(_LEFT, 18, "The shuffled runs, one after the other, cut into 4 lanes", bold=True)
    x = float(_LEFT)
    firsts = {run[0] for run in plan.runs}
    for tile in line:
        width = (sum(sizes) - tile * CHUNK if tile == max(line) else CHUNK) * scale
        page.rect(x, 32, width, 26, "faint", "line")
        if tile in firsts:
            page.line([(x, 28), (x, 62)], "ink", width=2.5)
        page.text(x + width / 2, 50, str(tile), anchor="middle")
        x += width
    begin = 0
    for lane, size in enumerate(sizes):
        x0, x1 = _LEFT + begin * scale, _LEFT + (begin + size) * scale
        page.rect(x0 + 1, 72, x1 - x0 - 2, 24, str(lane), opacity=0.35, radius=3)
        page.text((x0 + x1) / 2, 89, f"lane {lane}: {size}", anchor="middle")
        if lane:
            page.line([(x0, 26), (x0, 100)], "alert", width=1.5, dash="4 3")
        begin += size
    page.text(_LEFT, 120, "upper row: tiles; thick lines: where a run begins", "soft")
    page.text(_LEFT, 140, "lower row: lanes, with their numbers of samples", "soft")
    extra = plan.explanation.num_reads - len(line)
    words = f"dashed: cuts. {extra} more reads, for tiles of other lanes"
    page.text(_LEFT, 160, words, "soft")
    return page


def draw_restart() -> Drawing:
    """Steps against lanes: four ranks, then two."""
    plan = planned(_MEMORY, _LANES, _MOST_READS)
    batches = np.array(plan.batches[:_STEPS])
    page = Drawing(
        "restart", 290,
        "Global batches by step, one sample of each lane: "
        + "; ".join(str(batch.tolist()) for batch in batches),
    )  # fmt: skip
    left, top, row = 64, 62, 36
    cell = (_RIGHT - left - 12) / _STEPS
    for step in range(_STEPS):
        x = left + step * cell + (12 if step >= _STOP else 0)
        page.text(x + cell / 2, top - 8, str(step), "soft", size=13, anchor="middle")
        for lane in range(_LANES):
            rank = lane if step < _STOP else lane // 2
            y = top + lane * row
            page.rect(x + 1, y + 1, cell - 2, row - 2, str(rank), opacity=0.35, radius=3)
            name = str(batches[step][lane])
            page.text(x + cell / 2, y + 22, name, anchor="middle")
    for lane in range(_LANES):
        page.text(left - 8, top + lane * row + 22, f"lane {lane}", "soft", size=13, anchor="end")
    page.text(left - 8, top - 8, "step", "soft", size=13, anchor="end")
    stop = left + _STOP * cell + 6
    bottom = top + _LANES * row
    page.line([(stop, 26), (stop, bottom + 8)], "alert", width=2, dash="5 4")
    page.text((left + stop) / 2, 24, "4 ranks", anchor="middle", bold=True)
    page.text((stop + _RIGHT) / 2, 24, "2 ranks", anchor="middle", bold=True)
    page.text(stop, bottom + 24, "saved after step 4, loaded on 2 ranks", "alert", anchor="middle")
    for rank in range(_LANES):
        x = left + rank * 84
        page.rect(x, bottom + 44, 14, 14, str(rank), opacity=0.35, radius=3)
        page.text(x + 20, bottom + 56, f"rank {rank}")
    page.text(_RIGHT, bottom + 78, "numbers in the cells: samples", "soft", anchor="end")
    return page
