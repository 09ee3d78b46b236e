"""Counts of the epoch that the user iterates: for its report, and for its progress bar."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from xloader.compiled.library import load_library
from xloader.core.cores import usable_cores
from xloader.core.messages import require_tqdm
from xloader.engine.batches import Delivery
from xloader.engine.tally import Tally
from xloader.loader.batches.device_path import DevicePath
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.reports.advice import advise, show_rate
from xloader.loader.reports.bottleneck import EpochEffort, SeriesRecorder
from xloader.loader.reports.report import Report
from xloader.planning.explain import Explanation
from xloader.show.cost_figures import Figures, measured_variables, sum_variables

_COUNTED = (
    *("peak_nbytes", "num_requests", "num_retries", "num_missing", "wait_seconds", "num_ahead"),
    "ahead_seconds",
)
"""Figures of a report that a tally has under the same names."""
_ESTIMATED = (
    *("seconds", "num_threads", "busy_seconds", "lock_wait_seconds", "core_wait_seconds"),
    *("least_seconds", "bottleneck", "num_cores"),
)
"""Figures of a report that `EpochEffort` has under the same names."""


@dataclass(kw_only=True)
class Progress(ABC):
    """Counters of the batches delivered so far. They stay readable after the iterator has ended."""

    begin: float = 0.0
    end: float = 0.0
    num_steps: int = 0
    num_samples: int = 0
    num_skipped: int = 0
    delivered_nbytes: int = 0

    def start(self) -> None:
        """Note that a batch is asked for. Only the first call counts."""
        self.begin = self.begin or time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds from the first request to the last batch."""
        return self.end - self.begin if self.num_steps else 0.0

    @abstractmethod
    def add(self, delivery: Any) -> None:
        """Count a batch."""

    @abstractmethod
    def _bar_counts(self) -> tuple[int, float, float]:
        """Decoded bytes, seconds, and seconds of waiting. A bar asks ten times a second."""

    @abstractmethod
    def report(self) -> Report:
        """Make the report of the epoch so far."""


@dataclass
class EpochProgress(Progress):
    """Counters of the batches of one set of samples."""

    expected: Explanation
    tally: Tally
    rank_plan: RankPlan
    device_path: DevicePath | None = None
    cpu_begin: float = 0.0
    cpu_end: float = 0.0
    num_padding: int = 0
    num_full: int = 0
    num_regions: int = 0
    num_nan: dict[str, int] = field(default_factory=dict)
    recorder: SeriesRecorder = field(default_factory=SeriesRecorder)

    def start(self) -> None:
        """Note that a batch is asked for, also on the clock of the process."""
        self.cpu_begin = self.cpu_begin or time.process_time()
        super().start()

    def add(self, delivery: Delivery) -> None:
        """Count a batch."""
        self.num_steps += 1
        self.num_samples += len(delivery.step.ids) - delivery.num_skipped
        self.num_padding += len(delivery.ids) - len(delivery.step.ids)
        self.num_skipped += delivery.num_skipped
        for nans in delivery.nans:
            self.num_nan[nans.field] = self.num_nan.get(nans.field, 0) + nans.num
        self.delivered_nbytes += delivery.nbytes
        regions = delivery.step.num_regions
        if regions is not None and len(delivery.ids) == self.rank_plan.batch_size:
            self.num_full += 1
            self.num_regions += regions
        self.end, self.cpu_end = time.perf_counter(), time.process_time()
        if self.tally.is_recorded:
            self.tally.refresh()
        self.recorder.add(self.num_steps, self.seconds, self.delivered_nbytes, self.tally)

    def _bar_counts(self) -> tuple[int, float, float]:
        self.tally.refresh()
        return self.tally.read_nbytes, self.seconds, self.tally.wait_seconds

    def report(self) -> Report:
        """Make the report of the epoch so far."""
        self.tally.refresh()
        tally, expected, effort = self.tally, self.expected, self._effort()
        variables = measured_variables(
            self.rank_plan.footprint.groups,
            expected.variables,
            tally.variable_reads,
            tally.group_nbytes,
        )
        of_plan = {field.name: getattr(expected, field.name) for field in fields(Figures)}
        counted = {name: getattr(tally, name) for name in _COUNTED}
        estimated = {name: getattr(effort, name) for name in _ESTIMATED}
        # Processes that finish batches are on cores too.
        finish = tally.work["finish"]
        other_cpu_seconds = finish.cpu_seconds if self.rank_plan.options.processes else 0.0
        measured = {
            "num_samples": self.num_samples,
            "num_padding": self.num_padding,
            "num_steps": self.num_steps,
            "mixing": self.num_regions / self.num_full if self.num_full else expected.mixing,
            "is_exact": True,
            "num_skipped_samples": self.num_skipped,
            "skipped_chunks": tuple(sorted(tally.skipped)),
            "num_nan": dict(self.num_nan),
            "delivered_nbytes": self.delivered_nbytes,
            "advice": advise(effort),
            "cpu_seconds": effort.cpu_seconds + other_cpu_seconds,
            "pinning_refusal": self.device_path.refusal if self.device_path else "",
            # Threads go on counting meanwhile, so the totals are sums of what was found.
            **sum_variables(variables),
        }
        # The schedule of the epoch would take memory for as long as a report is kept.
        planned = replace(expected, _times=None)
        figures = {**of_plan, **counted, **estimated, **measured}
        series = None
        if self.num_steps:
            series = self.recorder.series(effort.seconds, self.delivered_nbytes, tally)
        return Report(**figures, _expected=planned, _series=series)

    def _effort(self) -> EpochEffort:
        expected, tally, rank_plan = self.expected, self.tally, self.rank_plan
        needed = expected.num_reads / (expected.read_amplification or 1.0)
        return EpochEffort(
            tally,
            rank_plan.plan.budget,
            num_threads=tally.num_threads,
            num_asked=rank_plan.options.num_threads,
            seconds=self.seconds or tally.wait_seconds,
            num_samples=self.num_samples,
            delivered_nbytes=self.delivered_nbytes,
            read_amplification=tally.num_reads / needed if needed else 0.0,
            is_direct=rank_plan.is_direct,
            cpu_seconds=self.cpu_end - self.cpu_begin if self.num_steps else 0.0,
            num_cores=usable_cores(),
            # Before Python 3.13 there is no such function, and always a lock.
            has_lock=getattr(sys, "_is_gil_enabled", lambda: True)(),
            why_numpy=load_library()[1],
        )


_FORMAT = (
    "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}, "
    "{decoded} decoded, {waited} waited{postfix}]"
)


def bar_fields(
    read_nbytes: int = 0, seconds: float = 0.0, wait_seconds: float = 0.0
) -> dict[str, str]:
    """The texts of the fields of a bar's format."""
    # The first batch may be waited for, and not be there yet.
    whole = max(seconds, wait_seconds) or math.inf
    return {"decoded": show_rate(read_nbytes / whole), "waited": f"{wait_seconds / whole:.0%}"}


def make_bar(
    loader: Any,
    progress: Callable[[], Progress | None],
    first_step: int,
    options: Mapping[str, Any],
) -> Any:
    """Make a bar that is iterated in place of a loader."""
    require_tqdm()
    # Imported only here: it looks for a notebook, and imports IPython's widgets there.
    from tqdm.auto import tqdm

    before = getattr(progress(), "begin", 0.0)

    def format_dict(bar: Any) -> dict[str, Any]:
        counted = progress()
        shown = bar_fields()
        # Until this epoch begins, the counters are those of another one.
        if counted is not None and counted.begin != before:
            read_nbytes, seconds, wait_seconds = counted._bar_counts()
            shown = bar_fields(read_nbytes, seconds, wait_seconds)
        return {**tqdm.format_dict.fget(bar), **shown}

    bar_class = type("LoaderBar", (tqdm,), {"format_dict": property(format_dict)})
    defaults = {
        "desc": f"epoch {loader.epoch}",
        "total": len(loader),
        "initial": first_step,
        "disable": loader.rank != 0,
        "unit": "batch",
        "bar_format": _FORMAT,
    }
    return bar_class(loader, **{**defaults, **options})
