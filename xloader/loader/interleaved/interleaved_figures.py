"""The cost of an epoch of several sets: sums of what was predicted, or measured, of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xloader.core.cores import usable_cores
from xloader.loader.batches.batch import Batch
from xloader.loader.interleaved.composed_run import NUM_HELD
from xloader.loader.loader import Loader
from xloader.loader.reports.advice import too_short
from xloader.loader.reports.progress import BarCounts
from xloader.loader.reports.report import Report
from xloader.show.cost_figures import Figures, SetShare, sum_variables

_SUMS: Final = (
    *("num_requests", "num_retries", "num_missing", "num_threads", "num_ahead", "ahead_seconds"),
    *("wait_seconds", "lock_wait_seconds", "core_wait_seconds"),
)
"""Figures of a report that are sums over the sets, beside those of `summed`."""


def summed(sets: Mapping[str, Figures]) -> dict[str, Any]:
    """The figures of several sets that are sums: reads, bytes, regions and dropped windows."""
    figures = list(sets.values())
    variables = {f"{name}/{v}": cost for name, s in sets.items() for v, cost in s.variables.items()}
    dropped: Counter[str] = Counter()
    for cost in figures:
        dropped.update(cost.dropped_windows)
    names = ("mixing", "full_mixing", "num_dropped_windows")
    return {
        **sum_variables(variables),
        **{name: sum(getattr(cost, name) for cost in figures) for name in names},
        "dropped_windows": dict(dropped),
        "is_exact": all(cost.is_exact for cost in figures),
        "sets": sets,
    }


@dataclass
class ComposedProgress:
    """Counters of the composed batches delivered so far."""

    loaders: Mapping[str, Loader]
    shares: Mapping[str, SetShare]
    composed_nbytes: int
    begin: float = 0.0
    end: float = 0.0
    num_steps: int = 0
    num_samples: int = 0
    num_skipped: int = 0
    delivered_nbytes: int = 0

    def start(self) -> None:
        """Note that a batch is asked for. Only the first call counts."""
        self.begin = self.begin or time.perf_counter()

    def add(self, delivery: Batch) -> None:
        """Count a batch."""
        self.num_steps += 1
        num_skipped = int(np.count_nonzero(delivery.is_padding))
        self.num_skipped += num_skipped
        self.num_samples += len(delivery.ids) - num_skipped
        self.delivered_nbytes += sum(int(array.nbytes) for array in delivery)
        self.end = time.perf_counter()

    def bar_counts(self) -> BarCounts:
        """The counters for a progress bar."""
        set_counts = [loader._bar_counts() for loader in self.loaders.values()]
        seconds = self.end - self.begin if self.num_steps else 0.0
        read_nbytes = sum(counts.read_nbytes for counts in set_counts)
        waited = sum(counts.wait_seconds for counts in set_counts)
        return BarCounts(self.begin, read_nbytes, seconds, waited)

    def report(self) -> Report:
        """The report of an epoch of several sets."""
        reports = {name: loader.report() for name, loader in self.loaders.items()}
        every = reports.values()
        seconds = self.end - self.begin if self.num_steps else 0.0
        num_nan = {f"{n}/{f}": num for n, r in reports.items() for f, num in r.num_nan.items()}
        skipped = tuple(
            (f"{name}/{variable}", index)
            for name, report in reports.items()
            for variable, index in report.skipped_chunks
        )
        busy: Counter[str] = Counter()
        for report in every:
            busy.update(report.busy_seconds)
        held = min(self.num_steps, NUM_HELD) * self.composed_nbytes
        return Report(
            num_samples=self.num_samples,
            num_steps=self.num_steps,
            peak_nbytes=held + sum(report.peak_nbytes for report in every),
            shares=self.shares,
            num_skipped_samples=self.num_skipped,
            skipped_chunks=skipped,
            num_nan=num_nan,
            delivered_nbytes=self.delivered_nbytes,
            seconds=seconds,
            busy_seconds=dict(busy),
            # Each set counts all of the process.
            cpu_seconds=max((report.cpu_seconds for report in every), default=0.0),
            num_cores=max((report.num_cores for report in every), default=usable_cores()),
            least_seconds=max((report.least_seconds for report in every), default=0.0),
            **_worst_wait(reports, seconds),
            **{name: sum(getattr(report, name) for report in every) for name in _SUMS},
            **summed(reports),
        )


def _worst_wait(reports: Mapping[str, Report], seconds: float) -> dict[str, Any]:
    """The bottleneck of several sets, and advice on it."""
    if seconds and (caution := too_short(seconds)):
        return {"bottleneck": "unclear", "advice": caution}
    waits = {name: report.wait_seconds for name, report in reports.items()}
    if not waits or sum(waits.values()) < seconds / 10:
        return {"bottleneck": "consumer", "advice": "The training loop is slower than the loader."}
    name = max(waits, key=waits.__getitem__)
    stage, busy = reports[name].bottleneck, reports[name].busy_seconds
    if stage == "consumer" and busy:
        # While one set is waited for, the others have a slow consumer.
        stage = max(busy, key=busy.__getitem__)
    advice = (
        f"The set {name!r} was waited for longest, {waits[name]:.2f} s; "
        f"report().sets[{name!r}] says more."
    )
    return {"bottleneck": stage, "advice": advice}
