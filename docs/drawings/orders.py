"""Draws three orders of one epoch: `python docs/drawings/orders.py [folder]`.

Every number and every bar is that of a real epoch over a small store: the ids that the loader
delivered, the reads that its report counted, and what `explain` says of a full shuffle.
"""

from __future__ import annotations

import sys
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

import xloader

NUM_CHUNKS, CHUNK, BATCH = 24, 16, 16
IN_MEMORY = 10
NUM_SAMPLES = NUM_CHUNKS * CHUNK
CHUNK_NBYTES = CHUNK * 64 * 4
MEMORY = IN_MEMORY * CHUNK_NBYTES
BATCH_SHOWN = 11
STATIC = Path(__file__).resolve().parents[1] / "_static"

WIDTH, LEFT, TOP, ROW = 320, 28, 26, 8
PLOT = WIDTH - LEFT - 8
HEIGHT = TOP + NUM_CHUNKS * ROW + 34
STYLE = """
.xl{color:var(--pst-color-text-base,#24292f);font-family:system-ui,sans-serif;font-size:13px}
.xl text{fill:currentColor}.xl .in{fill:#3f8fd2;opacity:.5}.xl .read{fill:#e8710a}
.xl .used{fill:currentColor;opacity:.85}.xl .batch{fill:currentColor;opacity:.16}
.xl .axis{stroke:currentColor;opacity:.55;fill:none}.xl .head{font-size:15px;font-weight:600}
@media (prefers-color-scheme:dark){.xl{color:var(--pst-color-text-base,#e6edf3)}}
"""


@dataclass(frozen=True)
class DrawnOrder:
    """An order of the epoch and what it costs."""

    name: str
    title: str
    ids: np.ndarray
    stays: list[tuple[int, int, int]]
    """Chunk, and where in the epoch it is loaded and dropped."""

    @property
    def decodes(self) -> float:
        """How often a chunk is decoded, on average."""
        return len(self.stays) / NUM_CHUNKS

    @property
    def chunks_of_a_batch(self) -> float:
        """Number of distinct chunks of a batch, on average."""
        batches = (self.ids // CHUNK).reshape(-1, BATCH)
        return float(np.mean([len(set(batch)) for batch in batches.tolist()]))

    @property
    def caption(self) -> str:
        """Both numbers in words."""
        times = f"{self.decodes:.1f} times" if self.decodes > 1 else "once"
        mixed = round(self.chunks_of_a_batch)
        return f"each chunk decoded {times}; a batch has {mixed} chunk{'s' * (mixed > 1)}"


def make_samples(folder: str) -> xloader.Samples:
    """Samples of one step each, in 24 chunks of 16 steps."""
    values = np.random.default_rng(0).normal(size=(NUM_SAMPLES, 64)).astype("float32")
    path = f"{folder}/epoch.zarr"
    encoding = {"t2m": {"chunks": (CHUNK, 64)}}
    ds = xr.Dataset({"t2m": (("time", "cell"), values)})
    ds.to_zarr(path, mode="w", zarr_format=3, consolidated=False, encoding=encoding)
    return xloader.open(path).window(time=1)


def stays_in_cache(ids: np.ndarray, room: int) -> list[tuple[int, int, int]]:
    """The stays of chunks in a cache that drops the least recently used one when it is full."""
    loaded: OrderedDict[int, int] = OrderedDict()
    stays = []
    for place, chunk in enumerate((ids // CHUNK).tolist()):
        if chunk not in loaded:
            if len(loaded) == room:
                stays.append((*loaded.popitem(last=False), place))
            loaded[chunk] = place
        loaded.move_to_end(chunk)
    return stays + [(chunk, load, len(ids)) for chunk, load in loaded.items()]


def stays_until_used(ids: np.ndarray) -> list[tuple[int, int, int]]:
    """The stays of chunks that are loaded when first needed and dropped after their last use."""
    places = [np.flatnonzero(ids // CHUNK == chunk) for chunk in range(NUM_CHUNKS)]
    return [(chunk, int(at[0]), int(at[-1]) + 1) for chunk, at in enumerate(places)]


def epoch_of(samples: xloader.Samples, *, shuffle: bool) -> tuple[np.ndarray, int]:
    """The ids that a loader delivers in its first epoch, and the chunks that it reads."""
    batches = 2 * BATCH * 64 * 4
    with samples.loader(
        batch_size=BATCH,
        shuffle=shuffle,
        seed=3,
        memory=MEMORY + batches,
        prefetch=1,
        output="numpy",
    ) as loader:
        ids = np.concatenate([batch.ids for batch in loader])
        return ids, loader.report().num_reads


def most_held(stays: list[tuple[int, int, int]]) -> int:
    """The greatest number of chunks that are in memory together."""
    return max(sum(load <= place < drop for _, load, drop in stays) for place in range(NUM_SAMPLES))


def find_orders(samples: xloader.Samples) -> list[DrawnOrder]:
    """A full shuffle, the order of the store, and the order that xloader plans."""
    shuffled = np.random.default_rng(0).permutation(NUM_SAMPLES)
    ascending, num_ascending = epoch_of(samples, shuffle=False)
    paced, num_reads = epoch_of(samples, shuffle=True)
    stays = [stays_in_cache(shuffled, IN_MEMORY), *map(stays_until_used, (ascending, paced))]
    if not num_reads == num_ascending == NUM_CHUNKS or most_held(stays[2]) > IN_MEMORY:
        raise AssertionError("the drawing says that each chunk is read once, and 10 are in memory")
    return [
        DrawnOrder("shuffled", "A full shuffle", shuffled, stays[0]),
        DrawnOrder("ascending", "In the order of the store", ascending, stays[1]),
        DrawnOrder("paced", "xloader", paced, stays[2]),
    ]


def x_of(place: float) -> float:
    """The horizontal place of a sample."""
    return LEFT + PLOT * place / NUM_SAMPLES


def draw(order: DrawnOrder) -> str:
    """The inside of one panel."""
    bottom = TOP + NUM_CHUNKS * ROW
    at = BATCH * BATCH_SHOWN
    left, width, centre = x_of(at), x_of(at + BATCH) - x_of(at), x_of(at + BATCH / 2)
    height = bottom - TOP + 6
    parts = [
        f'<rect class="batch" x="{left:.1f}" y="{TOP - 3}" width="{width:.1f}" height="{height}"/>',
        f'<text x="{centre:.1f}" y="{TOP - 8}" text-anchor="middle">a batch</text>',
    ]
    for kind, mark in (("in", None), ("read", 2)):
        path = "".join(
            f"M{x_of(load):.1f} {TOP + chunk * ROW + 1}"
            f"h{mark or x_of(drop) - x_of(load):.1f}v{ROW - 2}"
            f"h-{mark or x_of(drop) - x_of(load):.1f}z"
            for chunk, load, drop in sorted(order.stays)
        )
        parts.append(f'<path class="{kind}" d="{path}"/>')
    dots = "".join(
        f"M{x_of(place + 0.3):.1f} {TOP + chunk * ROW + 3}h1v2h-1z"
        for place, chunk in enumerate((order.ids // CHUNK).tolist())
    )
    parts.append(f'<path class="used" d="{dots}"/>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP - 3}V{bottom + 3}H{LEFT + PLOT}"/>')
    parts.append(f'<text x="{LEFT}" y="{bottom + 20}">samples of an epoch →</text>')
    middle = (TOP + bottom) // 2
    parts.append(
        f'<text transform="rotate(-90 {LEFT - 9} {middle})" x="{LEFT - 9}" y="{middle}" '
        f'text-anchor="middle">{NUM_CHUNKS} chunks</text>'
    )
    return "".join(parts)


def svg(inside: str, width: int, height: int, label: str) -> str:
    """A picture that takes its ink from the page, or from the reader's theme outside of one."""
    return (
        f'<svg class="xl" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{label}"><style>{STYLE}</style>{inside}</svg>\n'
    )


def legend(x: int, y: int) -> str:
    """What the three marks mean."""
    return (
        f'<rect class="read" x="{x}" y="{y - 9}" width="3" height="9"/>'
        f'<text x="{x + 9}" y="{y}">a chunk is read and decoded</text>'
        f'<rect class="in" x="{x + 210}" y="{y - 9}" width="26" height="9"/>'
        f'<text x="{x + 243}" y="{y}">it is in memory</text>'
        f'<rect class="used" x="{x + 372}" y="{y - 6}" width="3" height="3"/>'
        f'<text x="{x + 381}" y="{y}">a sample is cut from it</text>'
    )


def draw_all(orders: list[DrawnOrder]) -> dict[str, str]:
    """The text of each file by its name."""
    gap, head = 16, 44
    labels = [f"{order.title}: {order.caption}" for order in orders]
    files = {
        f"order_{order.name}.svg": svg(draw(order), WIDTH, HEIGHT, label)
        for order, label in zip(orders, labels, strict=True)
    }
    inside = ""
    for number, order in enumerate(orders):
        decoded, mixed = order.caption.split("; ")
        inside += (
            f'<g transform="translate({number * (WIDTH + gap)} 0)">'
            f'<text class="head" x="{LEFT}" y="18">{order.title}</text>'
            f'<text x="{LEFT}" y="36">{decoded}</text><text x="{LEFT}" y="53">{mixed}</text>'
            f'<g transform="translate(0 {head + 16})">{draw(order)}</g></g>'
        )
    height = head + 16 + HEIGHT + 18
    inside += legend(LEFT, height - 10)
    width = len(orders) * WIDTH + (len(orders) - 1) * gap
    return {**files, "three_orders.svg": svg(inside, width, height, ". ".join(labels))}


def main(folder: Path) -> None:
    """Write the pictures into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        orders = find_orders(make_samples(temporary))
    for name, text in draw_all(orders).items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else STATIC)
