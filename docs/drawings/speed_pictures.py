"""The chart of the benchmarks: shuffled epochs beside the limit of the machine."""

from __future__ import annotations

import csv
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
