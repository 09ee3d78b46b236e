"""Drawings of chunks, of three orders, and of an epoch as the library plans it."""

from __future__ import annotations

import numpy as np
from canvas import WIDTH, Drawing
from example import (
    BATCH,
    CHUNK,
    MEMORY,
    NUM_CHUNKS,
    SPAN,
    chunks_of,
    count_decodes,
    full_shuffle,
    places_of,
    planned,
    small_samples,
)

_LEFT, _RIGHT = 20, WIDTH - 20
_SHOWN_BATCH = 12
"""The batch that is marked."""


def draw_chunks() -> Drawing:
    """The store, its chunks, and three samples."""
    page = Drawing(
        "chunks", 262,
        "96 time steps in 12 chunks of 8. A sample takes one step as input and the step two later "
        "as target. Most samples lie in one chunk; those at a border need two.",
    )  # fmt: skip
    width = (_RIGHT - _LEFT) / NUM_CHUNKS
    page.text(_LEFT, 18, "The store: 96 time steps in 12 chunks of 8", bold=True)
    for chunk in range(NUM_CHUNKS):
        page.rect(_LEFT + chunk * width, 28, width, 26, "faint" if chunk < SPAN else "", "line")
        page.text(_LEFT + (chunk + 0.5) * width, 46, str(chunk), anchor="middle")
    step = (_RIGHT - _LEFT) / (SPAN * CHUNK)
    page.line([(_LEFT, 54), (_LEFT, 90)], "line", dash="3 3")
    page.line([(_LEFT + SPAN * width, 54), (_RIGHT, 90)], "line", dash="3 3")
    for number in range(SPAN * CHUNK):
        page.rect(_LEFT + number * step, 92, step, 22, "", "faint")
        middle = _LEFT + (number + 0.5) * step
        page.text(middle, 107, str(number), "soft", size=12, anchor="middle")
    for chunk in range(SPAN):
        page.rect(_LEFT + chunk * CHUNK * step, 92, CHUNK * step, 22, "", "ink")
    border = _LEFT + CHUNK * step
    page.line([(border, 153), (border, 188)], "alert", dash="4 3")
    for row, start in enumerate((1, 6, 12)):
        y = 128 + 32 * row
        for part, (fill, line) in enumerate((("0", "0"), ("", "line"), ("1", "1"))):
            page.rect(_LEFT + (start + part) * step, y, step, 20, fill, line)
        needed = len(chunks_of(start))
        words = f"sample {start}: {needed} chunk" + ("s" if needed > 1 else "")
        page.text(_LEFT + (start + SPAN) * step + 8, y + 15, words)
    page.rect(_LEFT, 234, 14, 14, "0")
    page.text(_LEFT + 20, 246, "input")
    page.rect(_LEFT + 70, 234, 14, 14, "1")
    page.text(_LEFT + 90, 246, "target")
    page.text(_LEFT + 150, 246, "numbers in small type are time steps", "soft")
    return page


def mean_places(batches: list[list[int]]) -> float:
    """Places that a batch draws from on average."""
    return sum(len(places_of(batch)) for batch in batches) / len(batches)


def cut(order: tuple[int, ...]) -> list[list[int]]:
    """The full batches of an order."""
    return [list(order[k : k + BATCH]) for k in range(0, len(order) - BATCH + 1, BATCH)]


def orders() -> dict[str, tuple[int, ...]]:
    """The three orders that the pages compare."""
    own = tuple(planned().lanes[0].ids.tolist())
    return {"in order": tuple(range(94)), "full shuffle": full_shuffle(), "xloader": own}


def count_reads() -> dict[str, int]:
    """Chunks decoded in an epoch of each order."""
    every = orders()
    kept = {"batch_size": BATCH, "memory": MEMORY, "prefetch": 0}
    return {
        "in order": small_samples().explain(every["in order"], cache="lru", **kept).num_reads,
        "full shuffle": count_decodes(every["full shuffle"]),
        "xloader": planned().explanation.num_reads,
    }


def draw_orders() -> Drawing:
    """Which chunks each batch draws from, in three orders."""
    captions = {
        "in order": "In order: cheap, but a batch sees one place",
        "full shuffle": "Full shuffle: mixed, but each chunk comes back often",
        "xloader": "xloader: mixed, and each chunk is in memory once",
    }
    counts = count_reads()
    page = Drawing("orders", 546, "Batches against chunks: " + "; ".join(captions.values()))
    left, row_size = 64, 10.0
    for number, (name, order) in enumerate(orders().items()):
        top = 44 + 178 * number
        batches = cut(order)
        column = (_RIGHT - left) / len(batches)
        page.text(left, top - 26, captions[name], bold=True)
        told = f"{counts[name]} chunks decoded, {mean_places(batches):.1f} places per batch"
        page.text(left, top - 9, told, "soft")
        if name == "xloader":
            for chunk, (begin, end) in _stays_in_batches().items():
                y = top + (NUM_CHUNKS - 1 - chunk) * row_size
                x, size = left + begin * column, (end - begin + 1) * column
                page.rect(x, y + 1, size, row_size - 2, "faint", radius=2)
        for place, batch in enumerate(batches):
            for chunk in sorted({i // CHUNK for i in batch}):
                y = top + (NUM_CHUNKS - 1 - chunk) * row_size
                page.rect(left + place * column + 2, y + 2, column - 4, row_size - 4, "0")
        page.rect(left, top, _RIGHT - left, NUM_CHUNKS * row_size, "", "line")
        for chunk in (0, NUM_CHUNKS - 1):
            y = top + (NUM_CHUNKS - chunk) * row_size - 1
            page.text(left - 6, y, str(chunk), "soft", size=12, anchor="end")
        page.text(14, top + 64, "chunk", "soft")
    foot = 44 + 178 * 2 + NUM_CHUNKS * row_size + 18
    page.text(left, foot, "batches of an epoch, from left to right", "soft")
    page.rect(_RIGHT - 160, foot - 11, 14, 12, "faint", radius=2)
    page.text(_RIGHT, foot, "chunk is in memory", "soft", anchor="end")
    return page


def _stays_in_batches() -> dict[int, tuple[int, int]]:
    """The first and the last full batch that needs each chunk, of xloader's order."""
    stays: dict[int, tuple[int, int]] = {}
    for number, batch in enumerate(cut(orders()["xloader"])):
        for chunk in set().union(*(chunks_of(i) for i in batch)):
            stays[chunk] = (stays.get(chunk, (number, 0))[0], number)
    return stays


def draw_pace() -> Drawing:
    """The whole epoch: when each chunk is in memory, and when each sample comes."""
    (lane,) = planned().lanes
    num_slots = 1 + max(last for _, _, last in lane.stays)
    row_size, top, left = 27.0, 54, 52
    slot = (_RIGHT - left) / num_slots
    bottom = top + NUM_CHUNKS * row_size
    page = Drawing(
        "pace", int(bottom) + 92,
        "Chunks against time. Each chunk is in memory once, for a while, and its samples come at "
        "an even pace meanwhile.",
    )  # fmt: skip
    page.text(left, 18, "An epoch: chunks against time", bold=True)
    page.text(left, 36, "bar: the chunk is in memory; mark: a sample comes", "soft")

    def y_of(chunk: float) -> float:
        return top + (NUM_CHUNKS - 0.5 - chunk) * row_size

    for chunk, first, last in lane.stays:
        y, x = y_of(chunk), left + first * slot
        page.rect(x, y - 8, (last - first + 1) * slot, 16, "line", opacity=0.3, radius=4)
        page.text(left - 8, y + 4, str(chunk), "soft", size=13, anchor="end")
    shown = slice(_SHOWN_BATCH * BATCH, (_SHOWN_BATCH + 1) * BATCH)
    marked = set(lane.ids[shown].tolist())
    for name, key in zip(lane.ids.tolist(), lane.keys.tolist(), strict=True):
        needed = sorted(chunks_of(name))
        x, y = left + key * slot, y_of(float(np.mean(needed)))
        if len(needed) == 1:
            page.dot(x, y, 3.8, "0")
        else:
            page.diamond(x, y, 5.0, "1")
        if name in marked:
            page.dot(x, y, 8, "", "alert", 2)
    page.line([(left, bottom), (_RIGHT, bottom)])
    page.text(left - 8, top - 6, "chunk", "soft", size=13, anchor="end")
    page.text(_RIGHT, bottom + 20, "time", "soft", size=13, anchor="end")
    y = bottom + 42
    page.dot(left + 6, y - 4, 3.8, "0")
    page.text(left + 18, y, "needs one chunk")
    page.diamond(left + 162, y - 4, 5.0, "1")
    page.text(left + 174, y, "needs the chunks above and below")
    page.dot(left + 6, y + 19, 8, "", "alert", 2)
    names = ", ".join(map(str, sorted(marked)))
    page.text(left + 22, y + 24, f"one batch: samples {names}")
    return page
