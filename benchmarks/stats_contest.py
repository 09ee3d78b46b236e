"""Statistics of a store beside the speed of the loader, and beside dask."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import job_runs, ours
from benchmarks.job_runs import COUNT, JobRun
from benchmarks.layouts import QUICK_STEPS, STEPS, Layout, StoreSpec
from benchmarks.measure import MIB
from benchmarks.turns import Competitor

STORE: Final = dataclasses.replace(STEPS, name="labelled", has_labels=True)
QUICK_STORE: Final = dataclasses.replace(STORE, num_steps=QUICK_STEPS)

WAYS: Final[dict[str, dict[str, Any]]] = {
    "mean, std, min, max": {},
    "by month": {"by": "month"},
    "of each cell": {"dim": "time"},
    "3 quantiles": {"quantiles": (0.01, 0.5, 0.99)},
    "differences over 6 h": {"leads": ("6h",)},
    "area-weighted": {"weights": "area"},
}
DASK: Final = "dask, mean, std, min, max"
LOADER: Final = "loader, one epoch"


@dataclass(frozen=True)
class StatsFigures:
    """The cost of statistics, by kind.

    Parameters
    ----------
    store : StoreSpec
    runs : dict of str to list of JobRun
        The turns of each kind, the loader's and dask's among them.
    num_reads : dict of str to int
        Reads of chunks in a turn apart.
    left_out : dict of str to str
        Why a kind was not measured.
    """

    store: StoreSpec
    runs: dict[str, list[JobRun]]
    num_reads: dict[str, int]
    left_out: dict[str, str]

    def seconds(self, name: str) -> float:
        """The best time of a kind."""
        return min(run.seconds for run in self.runs[name])

    def to_dict(self) -> dict[str, Any]:
        """The figures of each kind, with ratios to the loader and to dask."""
        num_chunks = self.store.num_chunks
        found = {}
        for name in self.runs:
            seconds = self.seconds(name)
            found[name] = {
                "seconds": seconds,
                "gb_per_second": self.store.nbytes / seconds / 1e9,
                "of_loader": self.seconds(LOADER) / seconds,
                "times_dask": self.seconds(DASK) / seconds if DASK in self.runs else None,
                "peak_mib": max(run.peak_nbytes for run in self.runs[name]) / MIB,
                "reads_of_a_chunk": self.num_reads[name] / num_chunks
                if name in self.num_reads
                else None,
            }
        return {"nbytes": self.store.nbytes, "kinds": found, "left_out": self.left_out}


def measure(spec: StoreSpec, path: Path, num_turns: int, num_cores: int) -> StatsFigures:
    """Compute statistics of a store in turns with the loader and with dask."""
    layout = Layout("labelled", "labelled", spec, {"time": 1}, batch_size=8)
    with ExitStack() as stack:

        def competitor(name: str, play: Any, *args: object) -> Competitor:
            return stack.enter_context(Competitor(name, play, *args))

        loader = competitor(LOADER, ours.play, layout, str(path))
        jobs = {
            name: competitor(name, job_runs.play_stats, path, spec, options)
            for name, options in WAYS.items()
        }
        jobs[DASK] = competitor(DASK, job_runs.play_dask_stats, path, spec, num_cores)
        loader.require(loader.ready())
        for job in jobs.values():
            job.ready()
        runs: dict[str, list[JobRun]] = {LOADER: [], **{name: [] for name in jobs}}
        # The first turn warms up, and counts the reads.
        loader.require(loader.turn())
        counted = {name: job.turn(COUNT) for name, job in jobs.items()}
        for _ in range(num_turns):
            epoch = loader.require(loader.turn())
            runs[LOADER].append(JobRun(epoch.used.seconds, epoch.peak_nbytes))
            for name, job in jobs.items():
                run = job.turn()
                if run is not None:
                    runs[name].append(run)
    left_out = {}
    for name, job in jobs.items():
        if job.absence is not None:
            left_out[name] = job.absence.reason
            print(f"{name}: {job.absence.details}", file=sys.stderr)
    return StatsFigures(
        spec,
        {name: held for name, held in runs.items() if held},
        {name: run.num_reads for name, run in counted.items() if run is not None},
        left_out,
    )
