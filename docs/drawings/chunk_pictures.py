"""Drawings of chunks, of what an order decodes, and of what its batches draw from."""

from __future__ import annotations

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
    planned,
    regions_of,
    small_samples,
)

_LEFT, _RIGHT = 20, WIDTH - 20


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


def mean_chunks(batches: list[list[int]]) -> float:
    """Chunks that a batch draws from on average: those in which its samples begin."""
    return sum(len({i // CHUNK for i in batch}) for batch in batches) / len(batches)


def mean_regions(batches: list[list[int]]) -> float:
    """Regions that a batch draws from on average."""
    return sum(len(regions_of(batch)) for batch in batches) / len(batches)


def cut(order: tuple[int, ...]) -> list[list[int]]:
    """The full batches of an order."""
    return [list(order[k : k + BATCH]) for k in range(0, len(order) - BATCH + 1, BATCH)]


def orders() -> dict[str, tuple[int, ...]]:
    """The three orders that the pages compare."""
    own = tuple(planned().lanes[0].ids.tolist())
    return {"in order": tuple(range(94)), "full shuffle": full_shuffle(), "xloader": own}


def decodes() -> list[tuple[str, int, float]]:
    """What ways of reading decode in an epoch, and the regions that a batch draws from."""
    every = orders()
    order = every["full shuffle"]
    options = {"batch_size": BATCH, "memory": MEMORY, "prefetch": 0}
    samples = small_samples()
    mixing = {name: mean_regions(cut(ids)) for name, ids in every.items()}
    lru = samples.explain(order, cache="lru", **options).num_reads
    known = samples.explain(order, **options).num_reads
    in_order = samples.explain(every["in order"], cache="lru", **options).num_reads
    return [
        ("full shuffle, sample by sample", count_decodes(order), mixing["full shuffle"]),
        ("the same, with a cache", lru, mixing["full shuffle"]),
        ("the same, future known", known, mixing["full shuffle"]),
        ("in order, with a cache", in_order, mixing["in order"]),
        ("xloader", planned().explanation.num_reads, mixing["xloader"]),
    ]


def draw_decodes() -> Drawing:
    """How many chunks are decoded in an epoch, in five ways."""
    ways = decodes()
    page = Drawing(
        "decodes", 60 + 34 * len(ways),
        "Chunks decoded in an epoch, and regions in a batch: "
        + "; ".join(f"{name} {count}, {mixing:.1f}" for name, count, mixing in ways),
    )  # fmt: skip
    begin, most = 236, max(count for _, count, _ in ways)
    scale = 170 / most
    page.text(begin, 18, "chunks decoded", "soft")
    page.text(_RIGHT, 18, "regions a batch", "soft", anchor="end")
    for row, (name, count, mixing) in enumerate(ways):
        y = 32 + 34 * row
        is_own = name == "xloader"
        page.text(begin - 12, y + 16, name, anchor="end", bold=is_own)
        page.rect(begin, y, count * scale, 22, "0" if is_own else "line", radius=2)
        page.text(begin + count * scale + 6, y + 16, str(count), bold=is_own)
        page.text(_RIGHT - 30, y + 16, f"{mixing:.1f}", anchor="middle", bold=is_own)
    floor = begin + NUM_CHUNKS * scale
    bottom = 36 + 34 * len(ways)
    page.line([(floor, 26), (floor, bottom)], "alert", dash="4 3")
    page.text(begin, bottom + 16, f"dashed: the store has {NUM_CHUNKS} chunks", "soft")
    return page


def draw_orders() -> Drawing:
    """Which chunks each batch draws from, in three orders."""
    captions = {
        "in order": "In order: cheap, but a batch sees one place",
        "full shuffle": "Full shuffle: mixed, but each chunk comes back often",
        "xloader": "xloader: mixed, and each chunk is in memory once",
    }
    reads = {name: count for name, count, _ in decodes()}
    counts = {
        "in order": reads["in order, with a cache"],
        "full shuffle": reads["full shuffle, sample by sample"],
        "xloader": reads["xloader"],
    }
    page = Drawing("orders", 546, "Batches against chunks: " + "; ".join(captions.values()))
    left, row_size = 64, 10.0
    for number, (name, order) in enumerate(orders().items()):
        top = 44 + 178 * number
        batches = cut(order)
        column = (_RIGHT - left) / len(batches)
        page.text(left, top - 26, captions[name], bold=True)
        told = f"{counts[name]} chunks decoded, {mean_regions(batches):.1f} regions a batch"
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
