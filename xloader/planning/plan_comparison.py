"""Plans for several memories and bounds of amplification beside each other, and the best of them.

A plan is on the *front* if no other one reads as few chunks, mixes as well and needs as little
memory, and is better in one of these. Of plans whose figures read alike, one is on the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xloader.core.messages import require_matplotlib, show_count
from xloader.core.nbytes import show_nbytes
from xloader.planning.explain import Explanation
from xloader.show.cards import Card, CardPart, CardTable, Words, text_of
from xloader.show.cost_figures import FIGURE_WORDS
from xloader.show.json_values import values_by_name

if TYPE_CHECKING:
    from xloader.show.canvas import Picture


@dataclass(frozen=True)
class ComparedPlan:
    """One plan of a comparison, or the reason why there is none.

    Parameters
    ----------
    memory_nbytes : int
        The memory that was given, in bytes.
    max_amplification : float
        The bound of the reads a chunk that was given.
    explanation : Explanation or None
        What the plan costs; None if the memory is too small for any plan.
    minimum_nbytes : int or None
        The smallest memory that would do, if there is no plan.
    is_on_front : bool
        Whether no other plan is as good in reads, mixing and memory, and better in one of them. Of
        plans with equal figures, only the one that was given the least memory, and then the lowest
        bound, is on the front.
    """

    memory_nbytes: int
    max_amplification: float
    explanation: Explanation | None
    minimum_nbytes: int | None = None
    is_on_front: bool = False

    @property
    def mixing_share(self) -> float | None:
        """Mixing as a share of that of a full shuffle; None without a plan."""
        explanation = self.explanation
        return (
            None if explanation is None else explanation.mixing / max(explanation.full_mixing, 1e-9)
        )

    def to_dict(self) -> dict[str, Any]:
        """The given numbers, and the figures of the plan; None where there is no plan."""
        values = values_by_name(self, "mixing_share") | plan_costs(self.explanation)
        del values["explanation"]
        return values

    def cells(self) -> list[str]:
        """The texts of a row: one for each heading of `PlanComparison`."""
        given = [show_nbytes(self.memory_nbytes), f"{self.max_amplification:g}"]
        explanation = self.explanation
        if explanation is None or self.mixing_share is None:
            need = f"needs {show_nbytes(self.minimum_nbytes)}" if self.minimum_nbytes else "none"
            return [*given, "-", "-", "-", "-", need, ""]
        return [
            *given,
            f"{explanation.num_reads:,}",
            f"{explanation.read_amplification:.3f}",
            f"{explanation.mixing:.1f}",
            f"{self.mixing_share:.0%}",
            show_nbytes(explanation.peak_nbytes),
            "*" if self.is_on_front else "",
        ]


def plan_costs(explanation: Explanation | None) -> dict[str, Any]:
    """The figures by which plans are compared; each None without a plan."""
    names = ("num_reads", "read_nbytes", "read_amplification", "mixing", "full_mixing")
    return {name: getattr(explanation, name, None) for name in (*names, "peak_nbytes")}


_HEADS = (
    *("memory", "max_amplification", "reads", "reads per chunk", "mixing", "of a full shuffle"),
    *("peak memory", "front"),
)


_FRONT = (
    "on the front: no other plan is as good in reads, mixing and memory, and better in one of "
    "them; of plans with equal figures, the one that was given least."
)


@dataclass(frozen=True)
class PlanComparison:
    """Plans of the same samples beside each other; :meth:`xloader.Samples.compare_plans` makes it.

    ``print(comparison)`` shows a row for each plan. A star marks the plans on the front: no other
    plan is as good in reads, mixing and memory, and better in one of them.

    Attributes
    ----------
    plans : tuple of ComparedPlan
        The plans, by memory and then by the bound of amplification.
    """

    plans: tuple[ComparedPlan, ...]

    @property
    def front(self) -> tuple[ComparedPlan, ...]:
        """The plans on the front, in the same order."""
        return tuple(plan for plan in self.plans if plan.is_on_front)

    def to_dict(self) -> dict[str, Any]:
        """The plans as a list of flat dicts, in types that JSON can hold."""
        return {"plans": [plan.to_dict() for plan in self.plans]}

    def plot(self) -> Picture:
        """Draw the reads a chunk and the mixing against the memory, a line for each bound.

        Rings mark the plans on the front. Crosses mark memories that are too small for a plan, and
        a dotted line the smallest one that is not.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.ones((60, 4)))})
        >>> samples = xloader.open(ds).window(time=3)
        >>> figure = samples.compare_plans(memory=["1MiB", "4MiB"]).plot()
        >>> figure.axes[0].get_ylabel()
        'mean reads of a chunk'
        """
        require_matplotlib()
        from xloader.show.epoch_plots import draw_plans

        needs = [plan.minimum_nbytes for plan in self.plans if plan.minimum_nbytes]
        shown = show_count(len(self.plans), "plan")
        summary = f"{shown}, of which {len(self.front):,} on the front: fewest reads, most mixing, "
        summary = f"{summary}least memory" if self.front else f"{shown}, none of which fits"
        rows = [
            (
                plan.memory_nbytes,
                plan.max_amplification,
                getattr(plan.explanation, "read_amplification", None),
                plan.mixing_share,
                plan.is_on_front,
            )
            for plan in self.plans
        ]
        return draw_plans(np.array(rows, np.float64), min(needs, default=None), summary)

    def _parts(self, note: str) -> list[CardPart]:
        rows = [plan.cells() for plan in self.plans]
        starred = [number for number, plan in enumerate(self.plans) if plan.is_on_front]
        table = CardTable(_HEADS, rows, num_left=0, marked=starred, hints=FIGURE_WORDS)
        return [table, *([Words([f"{note} {_FRONT}"])] if starred else [])]

    def __str__(self) -> str:
        return text_of(self._parts("*"))

    def _repr_html_(self) -> str:
        parts = self._parts("Bold, with a star:")
        return Card("PlanComparison", show_count(len(self.plans), "plan"), parts).to_html()


def mark_front(plans: Sequence[ComparedPlan]) -> tuple[ComparedPlan, ...]:
    """Mark the plans that no other plan beats, and of those that read alike the cheapest."""
    costs = np.array([_costs(plan) for plan in plans]).reshape(-1, 3)
    cheapest: dict[tuple[str, ...], ComparedPlan] = {}
    for plan in sorted(plans, key=lambda p: (p.memory_nbytes, p.max_amplification)):
        cost = np.array(_costs(plan))
        is_beaten = ((costs <= cost).all(axis=1) & (costs < cost).any(axis=1)).any()
        if plan.explanation is not None and not is_beaten:
            # After the memory and the bound, a row has the figures.
            cheapest.setdefault(tuple(plan.cells()[2:-1]), plan)
    kept = {id(plan) for plan in cheapest.values()}
    return tuple(replace(plan, is_on_front=id(plan) in kept) for plan in plans)


def _costs(plan: ComparedPlan) -> tuple[float, float, float]:
    """Numbers of which less is better; infinite without a plan."""
    explanation = plan.explanation
    if explanation is None:
        return np.inf, np.inf, np.inf
    return explanation.num_reads, -explanation.mixing, explanation.peak_nbytes
