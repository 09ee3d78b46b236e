"""The results for a layout: figures, ratios, and whether its targets were met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.layouts import Layout, Target
from benchmarks.measure import MIB, PAGE_NBYTES, Speed
from benchmarks.ours import Epoch, Plan

ALWAYS = (Target("memory", 1.0), Target("plan", 1.0))
"""The ratio of allowed to used must be at least 1, for memory and for planning time."""


@dataclass(frozen=True)
class Verdict:
    """Whether a target was met; None if its figure was not measured.

    Parameters
    ----------
    target : Target
    value : float or None
        The value of the figure.
    """

    target: Target
    value: float | None

    @property
    def is_held(self) -> bool | None:
        """Whether the target was met; None if its figure was not measured."""
        return None if self.value is None else self.target.is_held(self.value)

    def __str__(self) -> str:
        name, bound = self.target.figure, f"{self.target.bound:g}"
        if self.value is None:
            return f"not measured: {name}"
        said = "held" if self.is_held else "missed"
        return f"{said}: {name} {self.value:.3g} of {bound}"


@dataclass(frozen=True)
class Result:
    """All measurements of one layout.

    Parameters
    ----------
    layout : Layout
    plan : Plan
    first : Epoch
        The first epoch, which warms up.
    epochs : tuple of Epoch
        The epochs that count.
    limit_seconds : float, optional
        The shortest time that the reference needs.
    shuffled, sequential : mapping of str to (Speed or str)
        The best speed of each other library by name, or the reason why there is none.
    """

    layout: Layout
    plan: Plan
    first: Epoch
    epochs: tuple[Epoch, ...]
    limit_seconds: float | None = None
    shuffled: Mapping[str, Speed | str] = field(default_factory=dict)
    sequential: Mapping[str, Speed | str] = field(default_factory=dict)

    @property
    def best(self) -> Epoch:
        """The fastest epoch."""
        return min(self.epochs, key=lambda epoch: epoch.used.seconds)

    @property
    def delivered(self) -> Speed:
        """The speed at which batches came."""
        return Speed(self.best.delivered_nbytes, self.best.used.seconds)

    @property
    def decoded(self) -> Speed:
        """The speed at which chunks were read and decoded in the fastest epoch."""
        nbytes = self.best.num_reads * self.layout.store.chunk_nbytes
        return Speed(nbytes, self.best.used.seconds)

    @property
    def cpu_seconds_per_gb(self) -> float:
        """CPU seconds per 10^9 delivered bytes."""
        return self.best.used.cpu_seconds / (self.best.delivered_nbytes / 1e9)

    @property
    def fault_share(self) -> float:
        """Page faults in the last epoch, as a share of the delivered pages."""
        last = self.epochs[-1]
        return last.used.num_faults * PAGE_NBYTES / last.delivered_nbytes

    @property
    def peak_nbytes(self) -> int:
        """The largest memory in use, minus the memory after ``explain()``."""
        return max(epoch.peak_nbytes for epoch in self.epochs)

    @property
    def allowed_nbytes(self) -> int:
        """The largest memory allowed."""
        return int(1.1 * self.plan.memory_nbytes) + 32 * MIB

    @property
    def allowed_plan_seconds(self) -> float:
        """The longest planning time allowed."""
        return 0.05 + 1e-6 * self.plan.num_tiles

    @property
    def fastest_sequential(self) -> tuple[str, Speed] | None:
        """The library that reads the store sequentially at the highest speed, and its speed."""
        speeds = [(name, s) for name, s in self.sequential.items() if isinstance(s, Speed)]
        return max(speeds, key=lambda item: item[1].gb_per_second, default=None)

    @property
    def figures(self) -> dict[str, float]:
        """The figures that have targets, by name: ratios of xloader to others; more is better."""
        figures = {
            "samples/s": self.best.num_samples / self.best.used.seconds,
            "memory": self.allowed_nbytes / max(self.peak_nbytes, 1),
            "plan": self.allowed_plan_seconds / self.plan.seconds,
        }
        if self.limit_seconds is not None:
            figures["reference"] = self.limit_seconds / self.best.used.seconds
        if self.fastest_sequential is not None:
            fastest = self.fastest_sequential[1]
            figures["sequential"] = self.decoded.gb_per_second / fastest.gb_per_second
        for name, speed in self.shuffled.items():
            if isinstance(speed, Speed):
                figures[name] = self.delivered.gb_per_second / speed.gb_per_second
        return figures

    @property
    def verdicts(self) -> list[Verdict]:
        """A verdict for each target of the layout."""
        figures = self.figures
        targets = (*self.layout.targets, *ALWAYS)
        return [Verdict(target, figures.get(target.figure)) for target in targets]
