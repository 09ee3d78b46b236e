"""Charts of the benchmarks: epochs beside the limit of the machine, and what orders cost."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from canvas import WIDTH, Drawing

_TABLE = Path(__file__).parents[1] / "_static" / "benchmarks" / "speeds.csv"
_SHOWN = {
    "time-chunked, window 1": "single maps, 16 per chunk",
    "time-chunked, window 3": "windows of 3 maps",
    "one step a chunk, window 1": "single maps, 1 per chunk",
    "tiled, aligned patches 90 x 90": "patches that are chunks",
    "tiled, straddling patches 60 x 60": "patches across chunks",
    "shards, whole fields of 4 steps": "whole maps from shards",
}
"""The layouts in the chart, in the reader's words."""
_READERS = {"xloader": "0", "isel, 2 workers": "1", "xbatcher": "3"}
_NAMES = ("xloader", "DataLoader over xarray, 2 workers", "xbatcher")


def shares() -> dict[str, list[float]]:
    """The speed of each reader as a share of the limit, by layout."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        rows = {row["layout"]: row for row in csv.DictReader(file)}
    found = {}
    for layout, words in _SHOWN.items():
        own = float(rows[layout]["reference"])
        others = [float(rows[layout][name].split()[0]) for name in list(_READERS)[1:]]
        found[words] = [own, *(own / times for times in others)]
    return found


def draw_speeds() -> Drawing:
    """Speed beside the machine's limit, of three readers in some layouts."""
    table = shares()
    page = Drawing(
        "speeds", 96 + 52 * len(table),
        "Speed as a share of the machine's limit: "
        + "; ".join(
            f"{layout}: " + ", ".join(f"{n} {s:.2f}" for n, s in zip(_NAMES, row, strict=True))
            for layout, row in table.items()
        ),
    )  # fmt: skip
    left, right, top = 196, WIDTH - 66, 40
    bottom = top + 52 * len(table)
    page.text(20, 18, "Shuffled batches: share of what the machine can decode", bold=True)
    for percent in (0, 50, 100):
        x = left + percent / 100 * (right - left)
        page.line([(x, top - 8), (x, bottom)], "line" if percent == 100 else "faint")
        page.text(x, bottom + 18, f"{percent} %", "soft", size=13, anchor="middle")
    for number, (layout, row) in enumerate(table.items()):
        y = top + 52 * number
        page.text(left - 10, y + 24, layout, size=13, anchor="end")
        for place, (share, colour) in enumerate(zip(row, _READERS.values(), strict=True)):
            page.rect(left, y + 14 * place, share * (right - left), 12, colour)
        page.text(left + row[0] * (right - left) + 5, y + 10.5, f"{row[0]:.0%}", size=13)
    x = 20
    for name, colour in zip(_NAMES, _READERS.values(), strict=True):
        page.rect(x, bottom + 36, 14, 14, colour)
        page.text(x + 20, bottom + 48, name, size=13)
        x += 50 + 7 * len(name)
    return page


def losses(order: str) -> list[tuple[float, float, float]]:
    """Memory in chunks, loss beside a full shuffle in percent, and its error, on the waves."""
    found = []
    with (_TABLE.parent / "learning.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, _, number = row["order"].partition(", ")
            if row["data"] == "waves" and name == order and "max" not in number:
                loss, error = (float(part.strip(" %")) for part in row["against full"].split("±"))
                count = int(number.split()[0]) if number else 0
                # A buffer holds most steps twice, and reads through two chunks.
                memory = 2 * count + 2 if order == "shuffle buffer" else count
                found.append((memory, loss, error))
    return found


def draw_losses() -> Drawing:
    """Validation loss beside a full shuffle, against memory."""
    page = Drawing(
        "losses", 330,
        "Validation loss above that of a full shuffle, in percent, against chunks in memory: "
        + "; ".join(
            f"{order} " + ", ".join(f"{memory:g}: {loss:.1f}" for memory, loss, _ in losses(order))
            for order in ("xloader", "shuffle buffer")
        ),
    )  # fmt: skip
    left, right, top, bottom = 60, WIDTH - 20, 40, 250

    def at(memory: float, loss: float) -> tuple[float, float]:
        x = left + (math.log2(memory) - 0.7) / 5.5 * (right - left)
        return x, bottom - (loss + 2) / 26 * (bottom - top)

    page.text(left, 18, "validation loss above that of a full shuffle, %", "soft")
    for tick in (0, 5, 10, 15, 20):
        y = at(2, tick)[1]
        page.line([(left, y), (right, y)], "faint" if tick else "line")
        page.text(left - 8, y + 4, str(tick), "soft", size=13, anchor="end")
    for memory in (2, 4, 8, 16, 32, 64):
        x = at(memory, 0)[0]
        page.text(x, bottom + 18, str(memory), "soft", size=13, anchor="middle")
    page.text(right, bottom + 38, "memory, in chunks of 90", "soft", anchor="end")
    for order, colour in (("xloader", "0"), ("shuffle buffer", "1")):
        points = losses(order)
        page.line([at(memory, loss) for memory, loss, _ in points], colour, width=2)
        for memory, loss, error in points:
            page.line([at(memory, loss - error), at(memory, loss + error)], colour, width=1.5)
            page.dot(*at(memory, loss), 5, colour)
    for order, place in (("sequential", -6), ("chunks in turn", 16)):
        ((_, loss, _),) = losses(order)
        y = at(2, loss)[1]
        page.line([(left, y), (right, y)], "soft", dash="4 4")
        page.text(right, y + place, order, "soft", size=13, anchor="end")
    page.dot(left + 6, bottom + 62, 5, "0")
    page.text(left + 18, bottom + 67, "xloader")
    page.dot(left + 106, bottom + 62, 5, "1")
    page.text(left + 118, bottom + 67, "shuffle buffer, which reads each chunk twice")
    return page
