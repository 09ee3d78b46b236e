"""Drawings of the even pace, step by step: cohorts, runs, streams, intervals."""

from __future__ import annotations

import numpy as np
from canvas import WIDTH, Drawing
from example import BATCH, CHUNK, NUM_CHUNKS, SPAN, chunks_of, planned

_LEFT, _RIGHT = 20, WIDTH - 20
_SHOWN_BATCH = 12
"""The batch that is marked."""


def draw_cohorts() -> Drawing:
    """The samples of the first three tiles, by the tiles that they need."""
    page = Drawing(
        "cohorts", 246,
        "Samples that start at the steps 0 to 5 need tile 0 alone: a cohort of 6. Those that "
        "start at 6 and 7 need the tiles 0 and 1: a cohort of 2. And so on.",
    )  # fmt: skip
    count = 3 * CHUNK
    step = (_RIGHT - _LEFT) / count
    page.text(_LEFT, 18, "Three tiles, and the samples that start in them", bold=True)
    for tile in range(3):
        page.rect(_LEFT + tile * CHUNK * step, 28, CHUNK * step, 26, "faint", "ink")
        middle = _LEFT + (tile + 0.5) * CHUNK * step
        page.text(middle, 46, f"tile {tile}", anchor="middle")
        if tile:
            x = _LEFT + tile * CHUNK * step
            page.line([(x, 54), (x, 138)], "line", dash="2 4")
    groups: dict[tuple[int, ...], list[int]] = {}
    for start in range(count - SPAN + 1):
        needed = tuple(sorted(chunks_of(start)))
        groups.setdefault(needed, []).append(start)
        colour = str(len(needed) - 1)
        y = 70 + 16 * (start % 4)
        x = _LEFT + start * step
        page.line([(x + 3, y), (x + SPAN * step - 3, y)], colour, width=3)
        for place in (x + 5, x + SPAN * step - 5):
            page.dot(place, y, 3.5, colour)
    for tiles, starts in groups.items():
        colour = str(len(tiles) - 1)
        x0, x1 = _LEFT + starts[0] * step + 2, _LEFT + (starts[-1] + 1) * step - 2
        page.line([(x0, 142), (x0, 148), (x1, 148), (x1, 142)], colour, width=2)
        page.text((x0 + x1) / 2, 164, str(len(starts)), anchor="middle", bold=True)
    page.text(_LEFT, 186, "Brackets: samples that start there; with their number", "soft")
    page.line([(_LEFT, 206), (_LEFT + 24, 206)], "0", width=3)
    page.text(_LEFT + 32, 210, "need one tile: 12 such cohorts in the store, of 6 samples")
    page.line([(_LEFT, 230), (_LEFT + 24, 230)], "1", width=3)
    page.text(_LEFT + 32, 234, "need two tiles: 11 such cohorts, of 2 samples")
    return page


def streams() -> list[list[int]]:
    """The tiles of each stream, found from their positions."""
    plan = planned()
    positions = plan.positions
    found: list[list[int]] = [[] for _ in range(plan.explanation.streams)]
    for run in plan.runs:
        shortest = min(found, key=len)
        shortest.extend(run)
    turns = [tile for turn in zip(*found, strict=True) for tile in turn]
    assert turns == sorted(positions, key=positions.__getitem__)
    return found


def draw_runs() -> Drawing:
    """From tiles to positions: runs, shuffled and turned, dealt to streams."""
    plan, rows = planned(), streams()
    stream_of = {tile: str(number) for number, row in enumerate(rows) for tile in row}
    order = [tile for run in plan.runs for tile in run]
    page = Drawing(
        "runs", 372,
        f"Runs in shuffled order: {plan.runs}. Positions of the tiles, one tile from each stream "
        f"in turn: {sorted(plan.positions, key=plan.positions.__getitem__)}.",
    )  # fmt: skip
    cell = 36.0

    def put(tiles: list[int], y: float, ends: list[int], x: float = _LEFT) -> None:
        for tile in tiles:
            page.rect(x, y, cell, 26, stream_of[tile], "", opacity=0.3)
            page.rect(x, y, cell, 26, "", stream_of[tile])
            page.text(x + cell / 2, y + 18, str(tile), anchor="middle")
            x += cell + (12 if tile in ends else 0)

    page.text(_LEFT, 18, "1. Cut the 12 tiles into runs of 4 neighbours", bold=True)
    bounds = [max(run) for run in plan.runs]
    put(sorted(order), 28, bounds)
    page.text(_LEFT, 88, "2. Shuffle the runs, and turn each one round by chance", bold=True)
    put(order, 98, [run[-1] for run in plan.runs])
    page.text(_LEFT, 158, "3. Deal them to 3 streams", bold=True)
    for number, row in enumerate(rows):
        page.text(_LEFT, 186 + 32 * number, f"stream {number}", "soft")
        put(row, 168 + 32 * number, [], _LEFT + 74)
    page.text(_LEFT, 294, "4. Take one tile from each stream in turn", bold=True)
    put([tile for turn in zip(*rows, strict=True) for tile in turn], 304, [])
    for position in range(NUM_CHUNKS):
        middle = _LEFT + (position + 0.5) * cell
        page.text(middle, 346, str(position), "soft", size=12, anchor="middle")
    page.text(_LEFT, 364, "position of each tile", "soft")
    return page


def draw_cohort() -> Drawing:
    """How one cohort hands out its samples."""
    plan = planned()
    lane, spread = plan.lanes[0], plan.explanation.spread
    tile = 10
    position = plan.positions[tile]
    is_own = [chunks_of(int(i)) == {tile} for i in lane.ids]
    own = list(zip(lane.ids[is_own].tolist(), lane.keys[is_own].tolist(), strict=True))
    page = Drawing(
        "cohort", 150,
        f"Tile {tile} has position {position}. Its {len(own)} samples come at the keys "
        + ", ".join(f"{key:.2f} (sample {name})" for name, key in own),
    )  # fmt: skip
    left, slot = _LEFT + 20, (_RIGHT - _LEFT - 40) / (spread + 1)

    def at(key: float) -> float:
        return left + (key - position) * slot

    title = f"Tile {tile}: position {position}, spread {spread}, {len(own)} samples of its own"
    page.text(_LEFT, 18, title, bold=True)
    page.rect(at(position), 52, spread * slot, 26, "faint", "line", radius=3)
    for name, key in own:
        page.dot(at(key), 65, 6, "0")
        page.text(at(key), 45, str(name), size=13, anchor="middle")
    for tick in range(position, position + spread + 1):
        page.line([(at(tick), 78), (at(tick), 86)])
        page.text(at(tick), 101, str(tick), "soft", size=13, anchor="middle")
    page.text(at(position), 120, "moment: one later tile comes in at each number", "soft")
    page.text(at(position), 140, "above the dots: which sample, in random order", "soft")
    return page


def draw_pace() -> Drawing:
    """The whole epoch: when each tile is in memory, and when each sample comes."""
    plan = planned()
    lane, spread = plan.lanes[0], plan.explanation.spread
    stream_of = {tile: str(number) for number, row in enumerate(streams()) for tile in row}
    num_slots = max(plan.positions.values()) + spread + 1
    row_size, top, left = 27.0, 54, 52
    slot = (_RIGHT - left) / num_slots
    bottom = top + NUM_CHUNKS * row_size
    page = Drawing(
        "pace", int(bottom) + 92,
        "Tiles against moments. Each tile is in memory for some moments after its position, and "
        "its samples come at an even pace meanwhile.",
    )  # fmt: skip
    page.text(left, 18, "The epoch: tiles against time", bold=True)
    page.text(left, 36, "bar: the tile is in memory; mark: a sample comes", "soft")

    def y_of(tile: float) -> float:
        return top + (NUM_CHUNKS - 0.5 - tile) * row_size

    for tile, first, last in lane.stays:
        y, x = y_of(tile), left + first * slot
        size = (last - first + 1) * slot
        page.rect(x, y - 8, size, 16, stream_of[tile], opacity=0.25, radius=4)
        page.text(left - 8, y + 4, str(tile), "soft", size=13, anchor="end")
    shown = slice(_SHOWN_BATCH * BATCH, (_SHOWN_BATCH + 1) * BATCH)
    marked = set(lane.ids[shown].tolist())
    for name, key in zip(lane.ids.tolist(), lane.keys.tolist(), strict=True):
        needed = sorted(chunks_of(name))
        x, y = left + key * slot, y_of(float(np.mean(needed)))
        if len(needed) == 1:
            page.dot(x, y, 3.8, stream_of[needed[0]])
        else:
            page.diamond(x, y, 5.0, stream_of[needed[0]])
        if name in marked:
            page.dot(x, y, 8, "", "alert", 2)
    for number in range(0, num_slots + 1, 2):
        page.line([(left + number * slot, bottom), (left + number * slot, bottom + 5)])
        x = left + number * slot
        page.text(x, bottom + 19, str(number), "soft", size=12, anchor="middle")
    page.line([(left, bottom), (_RIGHT, bottom)])
    page.text(10, top - 6, "tile", "soft", size=13)
    page.text(_RIGHT, bottom + 36, "moment", "soft", size=13, anchor="end")
    y = bottom + 58
    page.dot(left + 6, y - 4, 3.8, "0")
    page.text(left + 18, y, "needs one tile")
    page.diamond(left + 136, y - 4, 5.0, "0")
    page.text(left + 148, y, "needs the tiles above and below")
    page.dot(left + 6, y + 19, 8, "", "alert", 2)
    names = ", ".join(map(str, sorted(marked)))
    page.text(left + 22, y + 24, f"batch {_SHOWN_BATCH}: samples {names}")
    page.text(_RIGHT, y + 24, "colour: stream", "soft", anchor="end")
    return page
