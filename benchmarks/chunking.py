"""A store with badly chosen chunks, advised on and written anew: training before and after.

One chunk holds all times of a part of the map. Samples that are whole maps then need every chunk.
"""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xloader
from benchmarks import job_runs, ours
from benchmarks.job_runs import COUNT, JobRun
from benchmarks.layouts import DIMS, NUM_STEPS, QUICK_STEPS, Layout, Sizes, StoreSpec
from benchmarks.measure import MIB
from benchmarks.ours import Epoch
from benchmarks.stores import ensure_grown
from benchmarks.turns import Competitor
from xloader.errors import MemoryBudgetError

JOB_NBYTES: Final = 128 * MIB
TIMES: Final = 16
QUICK_TIMES: Final = 2


def make_cases(*, is_quick: bool) -> tuple[Layout, ...]:
    """Return the samples that are tried on stores with one chunk over all time."""
    num_steps = QUICK_STEPS if is_quick else NUM_STEPS // 4
    maps = StoreSpec("all-time", (num_steps, 30, 30), num_steps=num_steps, variables=("t2m", "u10"))
    parts = dataclasses.replace(maps, name="all-time-parts", chunks=(num_steps, 45, 45))
    return (
        Layout("maps", "whole maps of one step", maps, {"time": 1}),
        Layout(
            "patches",
            "patches 60 x 60 of 4 steps",
            parts,
            {"time": 4, "lat": 60, "lon": 60},
            stride={"time": 1, "lat": 30, "lon": 30},
        ),
    )


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
    epoch : Epoch
        The fastest epoch.
    """

    chunks: Sizes
    memory_nbytes: int
    predicted: dict[str, Any]
    epoch: Epoch

    def to_dict(self) -> dict[str, Any]:
        """The figures by name."""
        used = self.epoch.used.seconds
        return {
            "chunks": list(self.chunks),
            "memory_nbytes": self.memory_nbytes,
            "predicted": self.predicted,
            "amplification": self.epoch.amplification,
            "mixing": self.epoch.mixing,
            "full_mixing": self.epoch.full_mixing,
            "gb_per_second": self.epoch.delivered_nbytes / used / 1e9,
            "seconds": used,
        }


@dataclass(frozen=True)
class CopyFigures:
    """The cost of writing a store with other chunks, by xloader and by dask.

    Parameters
    ----------
    store : StoreSpec
    memory_nbytes : int
        The memory that xloader's job was given.
    runs : dict of str to list of JobRun
    num_reads : dict of str to int
    left_out : dict of str to str
        Why one was not measured.
    """

    store: StoreSpec
    memory_nbytes: int
    runs: dict[str, list[JobRun]]
    num_reads: dict[str, int]
    left_out: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The figures of each, and how many times faster xloader is."""
        best = {name: min(run.seconds for run in runs) for name, runs in self.runs.items()}
        return {
            "nbytes": self.store.nbytes,
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
    before, after = _train(layout, path, dataclasses.replace(layout, store=spec), target, num_turns)
    if times > 1:
        grown, wide = ensure_grown(folder, layout.store, times, axis=1)
        # Only the base's chunks: a whole map would be a chunk of many times the size.
        copies.append(_copy(grown, wide, target, layout.window, options, 1, num_cores))
    shutil.rmtree(target, ignore_errors=True)
    return CaseFigures(
        layout,
        str(advice),
        EpochFigures(layout.store.chunks, before[0], _figures(advice.current), before[1]),
        EpochFigures(sizes, after[0], _figures(best), after[1]),
        tuple(copies),
    )


def _figures(proposal: Any) -> dict[str, Any]:
    """The predicted figures of a proposal."""
    names = ("read_amplification", "mixing", "full_mixing", "gb_per_s", "nbytes", "num_objects")
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
        options["memory"],
        {name: [turn[name] for turn in turns] for name, way in ways.items() if way.absence is None},
        {name: run.num_reads for name, run in counted.items() if run is not None},
        {name: way.absence.reason for name, way in ways.items() if way.absence is not None},
    )


def _train(
    layout: Layout, path: Path, better: Layout, target: Path, num_turns: int
) -> tuple[tuple[int, Epoch], tuple[int, Epoch]]:
    """Run epochs over both stores in turns; return the memory and the fastest epoch of each."""
    least = _least_memory(layout, path)
    before = dataclasses.replace(layout, memory_share=least / layout.store.nbytes)
    with (
        Competitor("before", ours.play, before, str(path)) as first,
        Competitor("after", ours.play, better, str(target)) as second,
    ):
        for loader in (first, second):
            loader.require(loader.ready())
        turns = [
            [loader.require(loader.turn()) for loader in (first, second)]
            for _ in range(1 + num_turns)
        ]
    fastest = [
        min(epochs, key=lambda epoch: epoch.used.seconds) for epochs in zip(*turns[1:], strict=True)
    ]
    return (least, fastest[0]), (better.memory_nbytes, fastest[1])


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
