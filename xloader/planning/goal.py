"""The goal of a plan: its batch, its lanes and its limits, and which of two plans is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from xloader.order.shuffle import Pace
from xloader.planning.budget import Budget
from xloader.planning.plan import Plan
from xloader.planning.reduced_model import Candidate


@dataclass(frozen=True)
class PlanGoal:
    """The batch and the lanes of a plan, and the limits it must keep."""

    global_batch: int
    lanes: int
    max_amplification: float = 1.05
    spread: int | None = None

    def allows(self, candidate: Candidate) -> bool:
        """Whether a candidate reads no more than allowed."""
        return candidate.amplification <= self.max_amplification

    def plan(
        self,
        pace: Pace,
        budget: Budget,
        pool: int,
        tile: int,
        *,
        depth: int = 0,
        is_resident: bool = False,
    ) -> Plan:
        """A plan for this goal, which decodes ahead in the memory that the pool leaves free."""
        return Plan(
            pace=pace,
            depth=depth,
            budget=budget,
            global_batch=self.global_batch,
            max_amplification=self.max_amplification,
            lane_pool_nbytes=pool,
            ahead_nbytes=min(budget.lane_nbytes - pool, max(tile, budget.ahead_nbytes)),
            is_resident=is_resident,
        )


WORTH_READING: Final = 1.05
"""The mixing that a plan which reads far more must reach, as a multiple of the other's.

Mixing is measured on a few batches of a model, and may be off by nearly as much.
"""

_FAR_LESS: Final = 0.8
"""The share of the reads of a plan below which another plan reads far less."""

Rank = Callable[[Candidate], tuple[int, float, float]]


def preference(goal: PlanGoal, full: float) -> Rank:
    """The sort key that puts better candidates first, by the rules of `find_plan`."""

    def rank(candidate: Candidate) -> tuple[int, float, float]:
        """The sort key of one candidate."""
        if goal.allows(candidate):
            return 0, -candidate.mixing, candidate.amplification
        if candidate.mixing >= full / 2:
            return 1, candidate.amplification, -candidate.mixing
        return 2, -candidate.mixing, candidate.amplification

    return rank


def best_of(candidates: list[Candidate], goal: PlanGoal, full: float) -> Candidate:
    """The candidate with the fewest reads among those nearly as good as the preferred one.

    Nearly as good are candidates of the same class of `preference` that mix within 1 % of it, or
    within a few per cent if they read far less.
    """
    rank = preference(goal, full)
    best = min(candidates, key=rank)

    def is_alike(candidate: Candidate) -> bool:
        """Whether another candidate is nearly as good as the best one."""
        reads_far_less = candidate.amplification <= _FAR_LESS * best.amplification
        share = 1 / WORTH_READING if reads_far_less else 0.99
        return rank(candidate)[0] == rank(best)[0] and candidate.mixing >= share * best.mixing

    alike = [candidate for candidate in candidates if is_alike(candidate)]
    return min(alike, key=lambda c: (c.amplification, -c.mixing))
