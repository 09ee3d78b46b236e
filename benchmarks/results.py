"""What came of a layout: figures, ratios, and whether they are what they must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.layouts import Layout, Target
from benchmarks.measure import MIB, PAGE_NBYTES, Speed
from benchmarks.ours import Epoch, Plan

ALWAYS = (Target("memory", 1.0), Target("plan", 1.0))
"""What is allowed over what was used must be at least 1, for memory and for planning."""


@dataclass(frozen=True)
class Verdict:
    """Whether a target was held; None where its figure was not measured.

    Parameters
    ----------
    target : Target
    value : float or None
        The figure.
    """

    target: Target
    value: float | None

    @property
    def is_held(self) -> bool | None:
        """Whether it was held."""
        return None if self.value is None else self.target.is_held(self.value)

    def __str__(self) -> str:
        name, bound = self.target.figure, f"{self.target.bound:g}"
        if self.value is None:
            return f"not measured: {name}"
        said = "held" if self.is_held else "missed"
        return f"{said}: {name} {self.value:.3g} of {bound}"


@dataclass(frozen=True)
class Result:
    """What came of a layout.

    Parameters
    ----------
    layout : Layout
    plan : Plan
    first : Epoch
        The first, which warms up.
    epochs : tuple of Epoch
        Those that count.
    limit_seconds : float, optional
        What the reference needs at best.
    shuffled, sequential : mapping of str to (Speed or str)
        By name, the best speed of others, or why there is none.
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
        """How fast batches came."""
        return Speed(self.best.delivered_nbytes, self.best.used.seconds)

    @property
    def decoded(self) -> Speed:
        """How fast chunks were read and decoded meanwhile."""
        nbytes = self.best.num_reads * self.layout.store.chunk_nbytes
        return Speed(nbytes, self.best.used.seconds)

    @property
    def cpu_seconds_per_gb(self) -> float:
        """CPU seconds for each 10^9 bytes delivered."""
        return self.best.used.cpu_seconds / (self.best.delivered_nbytes / 1e9)

    @property
    def fault_share(self) -> float:
        """Pages that had to be given in the last epoch, as a share of those delivered."""
        last = self.epochs[-1]
        return last.used.num_faults * PAGE_NBYTES / last.delivered_nbytes

    @property
    def peak_nbytes(self) -> int:
        """The most memory over that after ``explain()``."""
        return max(epoch.peak_nbytes for epoch in self.epochs)

    @property
    def allowed_nbytes(self) -> int:
        """The most memory that it may be."""
        return int(1.1 * self.plan.memory_nbytes) + 32 * MIB

    @property
    def allowed_plan_seconds(self) -> float:
        """The longest that planning may take."""
        return 0.05 + 1e-6 * self.plan.num_tiles

    @property
    def fastest_sequential(self) -> tuple[str, Speed] | None:
        """Who reads the store fastest from one end to the other."""
        speeds = [(name, s) for name, s in self.sequential.items() if isinstance(s, Speed)]
        return max(speeds, key=lambda item: item[1].gb_per_second, default=None)

    @property
    def figures(self) -> dict[str, float]:
        """By name, what targets are set for: ratios of ours to others, the more the better."""
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
        """Whether each target of the layout was held."""
        figures = self.figures
        targets = (*self.layout.targets, *ALWAYS)
        return [Verdict(target, figures.get(target.figure)) for target in targets]
