"""A store with badly chosen chunks, advised on and written anew: training before and after.

One chunk holds all times of a part of the map. Samples that are whole maps then need every chunk.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import xloader
from benchmarks import job_runs, ours
from benchmarks.job_runs import COUNT, JobRun
from benchmarks.layouts import DIMS, NUM_STEPS, Layout, Sizes, StoreSpec
from benchmarks.measure import MIB
from benchmarks.ours import Epoch
from benchmarks.stores import ensure_grown
from benchmarks.turns import Competitor
from xloader.errors import MemoryBudgetError

JOB_NBYTES: Final = 512 * MIB
TIMES: Final = 16
SCATTERED_TIMES: Final = 4
SCATTERED_SHARE: Final = 4
"""Data of which a copy may hold one in so many bytes."""
QUICK_TIMES: Final = 2


def make_cases(*, is_quick: bool) -> tuple[Layout, ...]:
    """Return the samples that are tried on stores with one chunk over all time."""
    num_steps = NUM_STEPS // 4
    maps = StoreSpec("all-time", (num_steps, 30, 30), num_steps=num_steps, variables=("t2m", "u10"))
    parts = dataclasses.replace(maps, name="all-time-parts", chunks=(num_steps, 45, 45))
    stride = {"time": 1, "lat": 30, "lon": 30}
    patches = {"time": 1, "lat": 60, "lon": 60}
    layouts = (
        Layout("maps", "whole maps of one step", maps, {"time": 1}, batch_size=8),
        Layout("patches", "patches 60 x 60", parts, patches, stride, memory_share=1 / 6),
    )
    return tuple(layout.shrink() for layout in layouts) if is_quick else layouts


@dataclass(frozen=True)
class EpochFigures:
    """An epoch over a store, as predicted and as measured.

    Parameters
    ----------
    chunks : tuple of int
    memory_nbytes : int
        The loader's memory: the samples' budget, or the least memory that suffices.
    predicted : dict
        The figures of the proposal.
    first, fastest : Epoch
        The first epoch, and the fastest that read as much.
    mixing_share : float
        Parts of the data that a batch draws from, as a share of a full shuffle's. The parts are
        the same for all chunks.
    """

    chunks: Sizes
    memory_nbytes: int
    predicted: dict[str, Any]
    first: Epoch
    fastest: Epoch
    mixing_share: float

    def to_dict(self) -> dict[str, Any]:
        """The figures by name."""
        used = self.fastest.used.seconds
        return {
            "chunks": list(self.chunks),
            "memory_nbytes": self.memory_nbytes,
            "predicted": self.predicted,
            "amplification": self.first.amplification,
            "mixing_share": self.mixing_share,
            "gb_per_second": self.fastest.delivered_nbytes / used / 1e9,
            "seconds": used,
        }


@dataclass(frozen=True)
class CopyFigures:
    """The cost of writing a store with other chunks, by xloader and by dask.

    Parameters
    ----------
    store : StoreSpec
    chunks : dict of str to int
        Chunks of the copy.
    memory_nbytes : int
        The memory that xloader's job was given.
    runs : dict of str to list of JobRun
    num_reads : dict of str to int
    left_out : dict of str to str
        Why one was not measured.
    """

    store: StoreSpec
    chunks: dict[str, int]
    memory_nbytes: int
    runs: dict[str, list[JobRun]]
    num_reads: dict[str, int]
    left_out: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The figures of each, and how many times faster xloader is."""
        best = {name: min(run.seconds for run in runs) for name, runs in self.runs.items()}
        return {
            "nbytes": self.store.nbytes,
            "chunks": self.chunks,
            "memory_mib": self.memory_nbytes / MIB,
            "left_out": self.left_out,
            "ways": {
                name: {
                    "seconds": seconds,
                    "gb_per_second": self.store.nbytes / seconds / 1e9,
                    "times_dask": best[DASK] / seconds if DASK in best else None,
                    "peak_mib": max(run.peak_nbytes for run in self.runs[name]) / MIB,
                    "reads_of_a_chunk": self.num_reads[name] / self.store.num_chunks,
                }
                for name, seconds in best.items()
            },
        }


@dataclass(frozen=True)
class CaseFigures:
    """All figures of one case.

    Parameters
    ----------
    layout : Layout
    text : str
        The advice in words.
    before, after : EpochFigures
    copies : tuple of CopyFigures
        With the data at hand, and with many times the data.
    """

    layout: Layout
    text: str
    before: EpochFigures
    after: EpochFigures
    copies: tuple[CopyFigures, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "advice": self.text,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "copies": [copy.to_dict() for copy in self.copies],
        }


Trained = tuple[Layout, Path, dict[str, Any]]
"""Samples, the store that they are read from, and what was predicted."""

XLOADER: Final = "materialize"
DASK: Final = "dask, ds.chunk().to_zarr()"


def measure(
    folder: Path,
    layout: Layout,
    path: Path,
    *,
    times: int,
    num_turns: int,
    num_cores: int,
) -> CaseFigures:
    """Measure training before and after, and the copy with better chunks."""
    samples = xloader.open(path).window(layout.window, stride=layout.stride)
    advice = samples.advise(
        batch_size=layout.batch_size, memory=layout.memory_nbytes, output="numpy"
    )
    best = advice.best
    if best is None:
        raise RuntimeError(f"no better chunks were proposed for {layout.title}:\n{advice}")
    chunks = {
        dim: best.chunks.get(dim, size) for dim, size in zip(DIMS, layout.store.shape, strict=True)
    }
    shards = None if best.shards is None else dict(best.shards)
    options: dict[str, Any] = {"chunks": chunks, "shards": shards, "memory": JOB_NBYTES}
    target = folder / f"{path.stem}-better.zarr"
    copies = [_copy(layout.store, path, target, layout.window, options, num_turns, num_cores)]
    sizes = (chunks["time"], chunks["lat"], chunks["lon"])
    spec = dataclasses.replace(layout.store, chunks=sizes, name=target.stem)
    share = _least_memory(layout, path) / layout.store.nbytes
    before = dataclasses.replace(layout, memory_share=share), path, _figures(advice.current)
    after = dataclasses.replace(layout, store=spec), target, _figures(best)
    epochs = _train(before, after, num_turns)
    if times > 1:
        grown, wide = ensure_grown(folder, layout.store, times, axis=1)
        # Chunks of the same size: those of whole maps would be that much larger.
        copies.append(_copy(grown, wide, target, layout.window, options, 1, num_cores))
        # Every chunk of whole maps needs all chunks of the source, and memory holds a part of them.
        grown, wide = ensure_grown(folder, layout.store, SCATTERED_TIMES, axis=1)
        scattered: dict[str, Any] = {"chunks": {**chunks, "lat": grown.lats}, "shards": None}
        scattered["memory"] = grown.nbytes // SCATTERED_SHARE
        copies.append(_copy(grown, wide, target, layout.window, scattered, 1, num_cores))
    shutil.rmtree(target, ignore_errors=True)
    return CaseFigures(
        layout,
        str(advice),
        *epochs,
        tuple(copies),
    )


def _figures(proposal: Any) -> dict[str, Any]:
    """The predicted figures of a proposal."""
    names = ("read_amplification", "mixing_share", "gb_per_s", "nbytes", "num_objects")
    told: dict[str, Any] = proposal.to_dict()
    return {name: told.get(name) for name in names}


def _copy(
    spec: StoreSpec,
    path: Path,
    target: Path,
    window: dict[str, int],
    options: dict[str, Any],
    num_turns: int,
    num_cores: int,
) -> CopyFigures:
    """Write a store with other chunks, by xloader and by dask in turns."""
    theirs = target.with_name(f"{target.stem}-dask.zarr")
    with ExitStack() as stack:
        ways = {
            XLOADER: Competitor(
                XLOADER, job_runs.play_materialize, path, spec, target, window, options
            ),
            DASK: Competitor(
                DASK, job_runs.play_dask_copy, path, spec, theirs, options["chunks"], num_cores
            ),
        }
        for way in ways.values():
            stack.enter_context(way)
            way.ready()
        # The first turn also warms up and counts the reads.
        counted = {name: way.turn(COUNT) for name, way in ways.items()}
        turns = [{name: way.turn() for name, way in ways.items()} for _ in range(num_turns)]
    ways[XLOADER].require(None)
    shutil.rmtree(theirs, ignore_errors=True)
    return CopyFigures(
        spec,
        options["chunks"],
        options["memory"],
        {name: [turn[name] for turn in turns] for name, way in ways.items() if way.absence is None},
        {name: run.num_reads for name, run in counted.items() if run is not None},
        {name: way.absence.reason for name, way in ways.items() if way.absence is not None},
    )


def _train(before: Trained, after: Trained, num_turns: int) -> tuple[EpochFigures, EpochFigures]:
    """Run epochs over both stores in turns."""
    shares = [_mixing_share(layout, path) for layout, path, _ in (before, after)]
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(Competitor(str(path), ours.play, layout, str(path)))
            for layout, path, _ in (before, after)
        ]
        for loader in loaders:
            loader.require(loader.ready())
        turns = [
            [loader.require(loader.turn()) for loader in loaders] for _ in range(1 + num_turns)
        ]
    found = []
    for (layout, _, told), share, (first, *later) in zip(
        (before, after), shares, zip(*turns, strict=True), strict=True
    ):
        # Where the memory holds all data, later epochs read nothing.
        alike = [epoch for epoch in later if epoch.num_reads == first.num_reads]
        fastest = min(alike or [first], key=lambda epoch: epoch.used.seconds)
        memory = layout.memory_nbytes
        found.append(EpochFigures(layout.store.chunks, memory, told, first, fastest, share))
    return found[0], found[1]


def _mixing_share(layout: Layout, path: Path) -> float:
    """Parts of the data that a batch draws from, as a share of a full shuffle's."""
    samples = xloader.open(path).window(layout.window, stride=layout.stride)
    options: Any = {"batch_size": layout.batch_size, "output": "numpy", "drop_last": True}
    with samples.loader(memory=layout.memory_nbytes, **options) as loader:
        batches = [batch.ids for batch in loader]
    shuffled = np.random.default_rng(0).permutation(len(samples))
    full = shuffled[: len(batches) * layout.batch_size].reshape(len(batches), -1)
    return _num_parts(samples, batches, layout) / _num_parts(samples, list(full), layout)


def _num_parts(samples: xloader.Samples, batches: Sequence[Any], layout: Layout) -> float:
    """The mean number of parts that batches draw from, of 64 in time and 3 by 3 in space."""
    parts = np.zeros(len(batches) * layout.batch_size, np.int64)
    begins = samples.positions(np.concatenate(batches))
    sizes = dict(zip(DIMS, layout.store.shape, strict=True))
    for dim in layout.window:
        count = 64 if dim == "time" else 3
        parts = parts * count + begins[dim].values * count // sizes[dim]
    return float(np.mean([len(set(own)) for own in parts.reshape(len(batches), -1).tolist()]))


def _least_memory(layout: Layout, path: Path) -> int:
    """The samples' budget, or the least memory that suffices for the store's chunks."""
    samples = xloader.open(path).window(layout.window, stride=layout.stride)
    options: Any = {"batch_size": layout.batch_size, "output": "numpy"}
    try:
        samples.loader(memory=layout.memory_nbytes, **options).close()
    except MemoryBudgetError as error:
        # One byte is lost where a share of the store is rounded down.
        return error.minimum_nbytes + 1
    return layout.memory_nbytes
