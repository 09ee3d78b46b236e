"""The drawing of what memory buys."""

from __future__ import annotations

from functools import cache

from canvas import WIDTH, Drawing
from example import many_samples

_LEFT, _RIGHT = 20, WIDTH - 20
_MEMORIES = ("6MiB", "8MiB", "12MiB", "16MiB", "24MiB", "32MiB", "48MiB")


@cache
def plans() -> list[tuple[float, float, float, float]]:
    """Memory in MiB, mixing, reads per chunk and a full shuffle's mixing, for 90 chunks."""
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

    page.text(left, 18, "places that a batch of 16 draws from", "soft")
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
    page.text(left, 320, "numbers at the dots: reads per chunk", "soft")
    return page
