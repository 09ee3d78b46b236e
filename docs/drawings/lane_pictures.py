"""The drawing of lanes and ranks, before and after a restart."""

from __future__ import annotations

import numpy as np
from canvas import WIDTH, Drawing
from example import planned

_LEFT, _RIGHT = 20, WIDTH - 20
_MEMORY, _LANES, _STOP, _STEPS = "3MiB", 4, 5, 11
_MOST_READS = 1.4


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
