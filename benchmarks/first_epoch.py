"""A first epoch with memory for all data, beside what the machine allows.

python -m benchmarks.first_epoch                       # four layouts
python -m benchmarks.first_epoch --only steps1 --threads 8

The chunks are decoded into memory that nobody has touched before, which the system then has to find
and to clear. So the limit adds two times, by as many threads: a first write to each page of as much
memory, and decoding all chunks into it with the bare codec. A batch is a copy of decoded values,
which the limit leaves out. Beside it stands an epoch with little memory, which uses the same few
pages over and over.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.ours import samples_of
from benchmarks.reference import count_cores, decode_all, find_chunks, find_decoder
from benchmarks.stores import ensure_stores

NAMES: Final = ("steps1", "one-step", "straddling", "small")
NUM_TURNS: Final = 5
PIECE_NBYTES: Final = 1 << 22


def epoch_seconds(layout: Layout, place: str, memory: int, threads: int, *, skipped: int) -> float:
    """Seconds of an epoch of a new loader, after some that are not measured."""
    samples = samples_of(layout, place)
    with samples.loader(
        batch_size=layout.batch_size,
        memory=memory,
        threads=threads,
        output="numpy",
        on_nan="ignore",
    ) as loader:
        for _ in range(skipped):
            for _ in loader:
                pass
        begin = time.perf_counter()
        for _ in loader:
            pass
        return time.perf_counter() - begin


def touch(memory: NDArray[np.uint8], threads: int) -> float:
    """Seconds for a first write to all pages."""
    pieces = [memory[at : at + PIECE_NBYTES] for at in range(0, memory.size, PIECE_NBYTES)]
    with ThreadPoolExecutor(threads) as pool:
        begin = time.perf_counter()
        list(pool.map(lambda piece: piece.fill(1), pieces))
        return time.perf_counter() - begin


def limit_seconds(layout: Layout, place: str, threads: int) -> tuple[float, float]:
    """Seconds to touch memory for all data, and to decode all chunks into it."""
    chunks = find_chunks(Path(place), layout.store.variables)
    chunk_nbytes = layout.store.chunk_nbytes
    decode = find_decoder(Path(place) / layout.store.variables[0])
    # NumPy would ask for huge pages, which took three times as long on the machine measured.
    memory = np.frombuffer(mmap.mmap(-1, layout.store.nbytes + chunk_nbytes), np.uint8)
    touched = touch(memory, threads)
    begin = time.perf_counter()
    decode_all(chunks, decode, memory, chunk_nbytes, threads)
    return touched, time.perf_counter() - begin


def measure(layout: Layout, place: str, threads: int, num_turns: int) -> str:
    """A row of the table: medians over some turns."""
    rows = []
    for _ in range(num_turns):
        first = epoch_seconds(layout, place, 2 * layout.store.nbytes, threads, skipped=0)
        little = epoch_seconds(layout, place, layout.memory_nbytes, threads, skipped=1)
        touched, decoded = limit_seconds(layout, place, threads)
        rows.append((first, little, touched, decoded, (touched + decoded) / first))
    columns = [statistics.median(column) for column in zip(*rows, strict=True)]
    worst, best = min(row[-1] for row in rows), max(row[-1] for row in rows)
    numbers = " | ".join(f"{number:.2f}" for number in columns)
    return f"| {layout.title} | {numbers} ({worst:.2f} to {best:.2f}) |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_epoch")
    parser.add_argument("--only", nargs="+", default=list(NAMES), metavar="LAYOUT")
    parser.add_argument("--threads", type=int, default=count_cores())
    parser.add_argument("--turns", type=int, default=NUM_TURNS)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "xloader-bench"
    )
    options = parser.parse_args()
    layouts = [layout for layout in LAYOUTS if layout.name in options.only]
    places = ensure_stores(options.folder, [layout.store for layout in layouts])
    print(f"{options.threads} threads; seconds, medians of {options.turns} turns\n")
    print("| layout | first epoch | with little memory | first touch | decoding | limit / epoch |")
    print("|---|---|---|---|---|---|")
    for layout in layouts:
        place = str(places[layout.store])
        print(measure(layout, place, options.threads, options.turns), flush=True)


if __name__ == "__main__":
    main()
