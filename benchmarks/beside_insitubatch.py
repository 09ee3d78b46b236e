"""xloader beside insitubatch: the same stores, batches, cores and memory, in one run.

python -m benchmarks.beside_insitubatch FOLDER

insitubatch needs Python 3.12 and newer libraries than those of ``constraints.txt``, so this wants
an environment of its own, with insitubatch and with what xloader depends on. Both deliver shuffled
epochs of single time steps, in NumPy batches of 16 that mix at least 128 steps, each turn in a new
process, each pass with a new loader. The stores are made in FOLDER, once.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import xloader
from xloader.testing.waves import VARIABLE_ATTRS, WaveSpec, ensure_store

LAYOUTS = {"16 steps per chunk": 16, "1 step per chunk": 1}
MEMORY, ENOUGH = 512 << 20, 4 << 30
BATCH_SIZE, NUM_MIXED, NUM_TURNS = 16, 128, 3
Epoch = Callable[[int], Iterator[dict[str, Any]]]


@contextmanager
def ours(store: Path, chunk_steps: int, memory: int) -> Iterator[Epoch]:
    """Epochs of xloader."""
    samples = xloader.open(str(store)).window(time=1, stride={"time": 1})
    with samples.loader(batch_size=BATCH_SIZE, memory=memory, output="numpy") as loader:

        def epoch(number: int) -> Iterator[dict[str, Any]]:
            loader.set_epoch(number)
            return (batch.as_dict() for batch in loader)

        yield epoch


@contextmanager
def theirs(store: Path, chunk_steps: int, memory: int) -> Iterator[Epoch]:
    """Epochs of insitubatch."""
    from insitubatch import InSituDataset, obstore_store, open_geometries, split_by_chunk

    opened = obstore_store(f"file://{store}")
    arrays = open_geometries(opened, variables=list(VARIABLE_ATTRS))
    split = split_by_chunk(arrays["t2m"], fractions=(1.0, 0.0, 0.0))
    options = {"batch_size": BATCH_SIZE, "block_chunks": NUM_MIXED // chunk_steps}
    data = InSituDataset(opened, split, arrays, cache_budget_bytes=memory, **options)

    def epoch(number: int) -> Iterator[dict[str, Any]]:
        data.set_epoch(number)
        return (batch.arrays for batch in data.train)

    yield epoch
    data.close()


TOOLS = {"xloader": ours, "insitubatch": theirs}


def forget(store: Path) -> None:
    """Ask the system to forget what it keeps of a store."""
    for path in store.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(epoch: Iterator[dict[str, Any]]) -> tuple[float, float, int]:
    """The GB/s of an epoch, the seconds to its first batch, and its samples."""
    begin, nbytes, first, count = time.perf_counter(), 0, 0.0, 0
    for batch in epoch:
        first = first or time.perf_counter() - begin
        nbytes += sum(np.asarray(values).nbytes for values in batch.values())
        count += len(next(iter(batch.values())))
    return nbytes / (time.perf_counter() - begin) / 1e9, first, count


def one_process(tool: str, store: Path, chunk_steps: int) -> dict[str, float]:
    """Figures of one tool on one store, in this process."""
    figures, counts = {}, []
    for state in ("cold", "warm"):
        if state == "cold":
            forget(store)
        with TOOLS[tool](store, chunk_steps, MEMORY) as epoch:
            figures[state], figures[f"first {state}"], count = timed(epoch(0))
            counts.append(count)
    figures["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**20
    with TOOLS[tool](store, chunk_steps, ENOUGH) as epoch:
        timed(epoch(0))
        figures["kept"], _, count = timed(epoch(1))
        counts.append(count)
    return figures | {"samples": min(counts)}


def main(folder: Path) -> None:
    """Measure in turns, and print a table."""
    print(", ".join(f"{name} {version(name)}" for name in ("insitubatch", "zarr", "numpy")))
    print(f"{os.cpu_count()} cores, {MEMORY >> 20} MiB, medians of {NUM_TURNS} turns\n")
    print("| store | tool | cold | warm | kept in memory | first batch, cold | warm | peak |")
    print("|---|---|---|---|---|---|---|---|")
    for layout, chunk_steps in LAYOUTS.items():
        spec = WaveSpec(num_steps=1024, num_lats=181, num_lons=360, chunk_steps=chunk_steps)
        store = folder.resolve() / f"by-{chunk_steps}.zarr"
        ensure_store(store, spec)
        os.sync()
        turns: dict[str, list[dict[str, float]]] = {tool: [] for tool in TOOLS}
        for _ in range(NUM_TURNS):
            for tool, figures in turns.items():
                line = [sys.executable, "-m", __spec__.name, tool, str(store), str(chunk_steps)]
                done = subprocess.run(line, check=True, capture_output=True, text=True)
                figures.append(json.loads(done.stdout))
                assert figures[-1]["samples"] == spec.num_steps
        for tool, figures in turns.items():
            middle = {name: statistics.median(f[name] for f in figures) for name in figures[0]}
            speeds = [f"{middle[name]:.2f} GB/s" for name in ("cold", "warm", "kept")]
            waits = [f"{1e3 * middle[f'first {name}']:.0f} ms" for name in ("cold", "warm")]
            row = [layout, tool, *speeds, *waits, f"{middle['peak']:.0f} MiB"]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] in TOOLS:
        print(json.dumps(one_process(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        main(Path(sys.argv[1]))
