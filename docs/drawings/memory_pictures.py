"""Drawings of mixing: regions, what memory buys, and the ends of an epoch."""

from __future__ import annotations

from functools import cache

import numpy as np
from canvas import WIDTH, Drawing
from chunk_pictures import cut, mean_regions
from example import CHUNK, NUM_CHUNKS, full_shuffle, many_samples, planned, regions_of

from xloader import World

_LEFT, _RIGHT = 20, WIDTH - 20
_MEMORIES = ("6MiB", "8MiB", "12MiB", "16MiB", "24MiB", "32MiB", "48MiB")
_ENDS_MEMORY, _NUM_EPOCHS = "16MiB", 20


def draw_regions() -> Drawing:
    """One batch of several plans, over the regions of the store."""
    page = Drawing(
        "regions", 270, "The chunks and regions that one batch of four samples draws from."
    )
    left, right = 176, _RIGHT - 66
    width = (right - left) / NUM_CHUNKS
    for region in range(3):
        x = left + region * 4 * width
        page.rect(x + 1, 26, 4 * width - 2, 22, "faint", radius=3)
        page.text(x + 2 * width, 42, f"region {region}", anchor="middle")
    for chunk in range(NUM_CHUNKS):
        middle = left + (chunk + 0.5) * width
        page.text(middle, 64, str(chunk), "soft", size=12, anchor="middle")
    page.text(left - 12, 64, "chunk", "soft", size=12, anchor="end")
    page.text(_RIGHT, 42, "regions", "soft", anchor="end")
    rows = []
    for memory in ("2MiB", "2.25MiB", "2.5MiB"):
        plan = planned(memory)
        batches = cut(tuple(plan.lanes[0].ids.tolist()))
        words = (memory.replace("M", " M"), _streams(plan.explanation.streams))
        rows.append((words, batches, "0"))
    rows.append((("full shuffle", "any memory"), cut(full_shuffle()), "line"))
    for row, ((name, more), batches, colour) in enumerate(rows):
        y = 100 + 44 * row
        mean = mean_regions(batches)
        typical = min(batches[4:], key=lambda batch: abs(len(regions_of(batch)) - mean))
        page.text(left - 12, y - 2, name, anchor="end", bold=True)
        page.text(left - 12, y + 14, more, "soft", size=13, anchor="end")
        page.line([(left, y), (right, y)], "faint")
        seen: dict[int, int] = {}
        for chunk in sorted(i // CHUNK for i in typical):
            seen[chunk] = seen.get(chunk, 0) + 1
            shift = 11 * (seen[chunk] - 1)
            page.dot(left + (chunk + 0.5) * width, y - shift + 4, 5, colour)
        page.text(_RIGHT - 4, y + 4, f"{len(regions_of(typical))}", anchor="end", bold=True)
        page.text(_RIGHT - 4, y + 19, f"mean {mean:.1f}", "soft", size=12, anchor="end")
    return page


def _streams(count: int) -> str:
    return f"{count} stream" + "s" * (count > 1)


@cache
def plans() -> list[tuple[float, float, float, float]]:
    """Memory in MiB, mixing, reads a chunk and a full shuffle's mixing, for 90 chunks."""
    found = []
    for memory in _MEMORIES:
        told = many_samples().explain(batch_size=16, memory=memory)
        found.append((float(memory[:-3]), told.mixing, told.read_amplification, told.full_mixing))
    return found


def draw_memory() -> Drawing:
    """Mixing against memory."""
    points = plans()
    full = points[0][3]
    page = Drawing(
        "memory", 330,
        "Mixing against memory, for 90 chunks of 0.5 MiB: "
        + "; ".join(f"{m:g} MiB {mixing:.1f}" for m, mixing, _, _ in points)
        + f"; a full shuffle {full:.1f}.",
    )  # fmt: skip
    left, right, top, bottom = 60, _RIGHT - 10, 40, 262

    def at(memory: float, mixing: float) -> tuple[float, float]:
        return left + memory / 50 * (right - left), bottom - mixing / 15 * (bottom - top)

    page.text(left, 18, "regions that a batch of 16 draws from", "soft")
    for tick in (0, 5, 10, 15):
        y = at(0, tick)[1]
        page.line([(left, y), (right, y)], "faint")
        page.text(left - 8, y + 4, str(tick), "soft", size=13, anchor="end")
    for memory in range(0, 51, 10):
        x = at(memory, 0)[0]
        page.line([(x, bottom), (x, bottom + 5)])
        page.text(x, bottom + 20, str(memory), "soft", size=13, anchor="middle")
    page.text(right, bottom + 40, "memory, MiB (the store decodes to 45 MiB)", "soft", anchor="end")
    y = at(0, full)[1]
    page.line([(left, y), (right, y)], "ink", dash="6 4", width=1.5)
    page.text(right, y + 18, f"a full shuffle: {full:.1f}", anchor="end")
    y = at(0, full / 2)[1]
    page.line([(left, y), (right, y)], "alert", dash="2 4", width=1.5)
    page.text(right, y - 6, "half of it: below, a warning", anchor="end")
    page.line([at(memory, mixing) for memory, mixing, _, _ in points], "0", width=2)
    for memory, mixing, reads, _ in points:
        x, y = at(memory, mixing)
        page.dot(x, y, 5, "0")
        below = mixing < full
        page.text(x + (10 if below else 0), y + (5 if below else -11), f"{reads:.2f}", size=13,
                  anchor="start" if below else "middle")  # fmt: skip
    page.text(left, 320, "numbers at the dots: reads a chunk", "soft")
    return page


@cache
def regions_by_step() -> tuple[np.ndarray, float]:
    """Mean regions of the batches of each step over some epochs, and a full shuffle's mixing."""
    loader = many_samples().loader(
        batch_size=16, memory=_ENDS_MEMORY, output="numpy", world=World()
    )
    counts = []
    for epoch in range(_NUM_EPOCHS):
        loader.set_epoch(epoch)
        times = loader.explain()._times
        assert times is not None
        counts.append(times().regions)
    return np.mean(counts, axis=0), loader.explain().full_mixing


def draw_ends() -> Drawing:
    """The regions of batches from the first to the last step of an epoch."""
    mean, full = regions_by_step()
    page = Drawing(
        "ends", 250,
        "Regions a batch draws from, by step of the epoch: fewer in the first and last batches "
        f"({mean[0]:.1f} and {mean[-1]:.1f}) than in the middle ({mean[len(mean) // 2]:.1f}).",
    )  # fmt: skip
    left, right, top, bottom = 60, _RIGHT - 10, 36, 196

    def at(step: float, count: float) -> tuple[float, float]:
        return left + step / len(mean) * (right - left), bottom - count / 16 * (bottom - top)

    page.text(left, 18, f"regions of a batch of 16, mean of {_NUM_EPOCHS} epochs", "soft")
    for tick in (0, 5, 10, 15):
        y = at(0, tick)[1]
        page.line([(left, y), (right, y)], "faint")
        page.text(left - 8, y + 4, str(tick), "soft", size=13, anchor="end")
    for step in range(0, len(mean) + 1, 20):
        x = at(step, 0)[0]
        page.line([(x, bottom), (x, bottom + 5)])
        page.text(x, bottom + 20, str(step), "soft", size=13, anchor="middle")
    page.text(right, bottom + 40, "step of the epoch", "soft", anchor="end")
    y = at(0, full)[1]
    page.line([(left, y), (right, y)], "ink", dash="6 4", width=1.5)
    page.text(right - 90, y + 18, f"a full shuffle: {full:.1f}", anchor="end")
    page.line([at(step + 0.5, float(c)) for step, c in enumerate(mean)], "0", width=2)
    return page
