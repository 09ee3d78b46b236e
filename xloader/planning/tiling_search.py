"""Searches the plans of all tilings: tiles of one chunk and larger ones, one visit and several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from xloader.core.footprint import Footprint
from xloader.order.cohorts import Cohorts
from xloader.planning.budget import Budget
from xloader.planning.candidates import NEARLY_FULL, CandidateSearch, Tiling
from xloader.planning.goal import WORTH_READING, PlanGoal, best_of
from xloader.planning.mixing import full_mixing
from xloader.planning.plan import Plan
from xloader.planning.reduced_model import Candidate, model_lanes

LEAST_VISITS: Final = 2
"""Reads a chunk from which an epoch may come by a tile several times."""

_FEW_VISITS: Final = 8
"""Numbers of visits that are all tried. Of larger ones, each is a quarter more than the last."""

_AS_GOOD = 0.95
"""The fraction of the best mixing so far that the first candidates of a tiling must reach.

Without it, none of 350 plans changed, but plans of patches took up to four times as long to find.
"""

_STRICT_READS: Final = PlanGoal.max_amplification
"""The reads a chunk above which a plan is compared with the best one that reads less.

The search ends at the first plan that mixes nearly as well as a full shuffle. Where many reads are
allowed, that plan may read far more than others.
"""


@dataclass(frozen=True)
class TilingSearch:
    """The search among the tilings of a selection."""

    footprint: Footprint
    budget: Budget
    goal: PlanGoal
    finest: Tiling
    near: tuple[int, ...]

    @cached_property
    def full(self) -> float:
        """The mixing of a full shuffle."""
        return full_mixing(self.footprint, self._batch_size)

    @property
    def _batch_size(self) -> int:
        """Samples of a batch of the model, which may have fewer lanes."""
        return self.goal.global_batch // self.goal.lanes * model_lanes(self.goal.lanes)

    @cached_property
    def run_dim(self) -> int:
        """The windowed dimension along which runs go."""
        sizes = self.finest.cohorts.home_shape
        return max(self.near or range(len(sizes)), key=lambda dim: sizes[dim])

    def find(self) -> list[Candidate]:
        """Candidates with one visit of each tile; none if no plan with the given spread fits."""
        goal = self.goal
        candidates = self._find_within(goal)
        may_read_less = candidates and goal.max_amplification > _STRICT_READS
        if may_read_less and self.best(candidates).amplification > _STRICT_READS:
            strict = dataclasses.replace(goal, max_amplification=_STRICT_READS)
            candidates += self._find_within(strict)
        if not candidates and goal.spread is None:
            # With a spread of 0, only the chunks of one tile are needed at a time, and these fit.
            candidates = self._of(self.finest, dataclasses.replace(goal, spread=0)).find()
        return candidates

    def measured(self, plan: Plan) -> list[Candidate]:
        """The reads and the mixing of a plan of the finest tiling."""
        candidate = self._of(self.finest, self.goal).measure(plan)
        assert candidate is not None, "without runs, the most bytes of a tile say what fits"
        return [candidate]

    def find_visits(self, candidates: list[Candidate]) -> list[Candidate]:
        """Candidates with several visits that mix better than those with one."""
        # With more visits than a tile has samples, on average, some would hand out none.
        num_in_tile = -(-self.footprint.num_samples // self.finest.cohorts.num_used_tiles)
        most = min(int(self.goal.max_amplification), num_in_tile)
        if most < LEAST_VISITS:
            return []
        best = self.best(candidates)
        mixing = best.mixing if self.goal.allows(best) else 0.0
        better: list[Candidate] = []
        for sizes in dict.fromkeys([self.finest.sizes, best.plan.pace.tiling]):
            tiling = self._tiling(sizes)
            search = self._of(tiling, self.goal)
            per_tile = self.footprint.num_samples / tiling.cohorts.num_used_tiles
            for visits in _numbers_up_to(most):
                if mixing >= NEARLY_FULL * self.full:
                    return better
                wanted = WORTH_READING * mixing
                # While a batch is made in the middle of an epoch, so many more tiles come in.
                most_gain = self._batch_size * (visits - 1) / per_tile
                if mixing + most_gain < wanted:
                    continue
                more = search.with_visits(visits).find(least_mixing=max(wanted, 1e-9))
                better += [candidate for candidate in more if candidate.mixing >= wanted]
                mixing = max([mixing, *(candidate.mixing for candidate in better)])
        return better

    def best(self, candidates: list[Candidate]) -> Candidate:
        """The best candidate by the rules of `find_plan`."""
        return best_of(candidates, self.goal, self.full)

    def _find_within(self, goal: PlanGoal) -> list[Candidate]:
        """Candidates of the tilings, from the finest one on, until one is good enough."""
        candidates: list[Candidate] = []
        within: list[Candidate] = []
        cohorts = self.finest.cohorts
        for sizes in _tile_sizes(self.footprint, cohorts, self.near, self.run_dim):
            best = max((c.mixing for c in within), default=0.0)
            # A plan that mixes poorly is no reason to look at the next tiling in haste.
            least_mixing = _AS_GOOD * best if best >= self.full / 2 else 0.0
            candidates += self._of(self._tiling(sizes), goal).find(least_mixing)
            within = [c for c in candidates if goal.allows(c)]
            enough = [c for c in within if c.mixing >= NEARLY_FULL * self.full]
            if enough or any(
                c.amplification == 1.0 and c.mixing >= 0.9 * self.full for c in within
            ):
                break
        return candidates

    def _of(self, tiling: Tiling, goal: PlanGoal) -> CandidateSearch:
        """The search among the plans of one tiling."""
        return CandidateSearch(
            self.footprint,
            self.budget,
            goal,
            tiling,
            self.run_dim,
            self.full,
            may_run=bool(self.near),
        )

    def _tiling(self, sizes: tuple[int, ...]) -> Tiling:
        return self.finest if sizes == self.finest.sizes else Tiling.of(self.footprint, sizes)


def _numbers_up_to(most: int) -> Iterator[int]:
    """Numbers of visits to try, ascending."""
    number = LEAST_VISITS
    while number < most:
        yield number
        number = number + 1 if number < _FEW_VISITS else -(-number * 5 // 4)
    yield most


def _tile_sizes(
    footprint: Footprint, cohorts: Cohorts, near: tuple[int, ...], run_dim: int
) -> Iterator[tuple[int, ...]]:
    """Tile sizes to try: larger along all dimensions with neighbours, or along all but one."""
    num_blocks = [1 if axis is None else axis.num_blocks for axis in footprint.leading_axes]

    def grown(size: int, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of a tile with ``size`` blocks along ``dims``, and one block along the others."""
        # A tile that takes a whole dimension always has size 0, so that no tiling is tried twice.
        return tuple(
            (size if size < num_blocks[dim] else 0) if dim in dims else 1
            for dim in range(len(num_blocks))
        )

    other_dims = tuple(dim for dim in near if dim != run_dim)
    sizes = [grown(0, other_dims)]
    if any(count > 1 for dim, count in enumerate(cohorts.home_shape) if dim not in near):
        # Otherwise all samples would be in one tile, which does not fit: if it did, the plan
        # would already hold the whole selection.
        sizes.insert(0, grown(0, near))
    if other_dims:
        sizes += [grown(1, ()), grown(4, other_dims)]
    if len(other_dims) > 1:
        sizes.append(grown(4, near))
    yield from dict.fromkeys(sizes)


def neighbour_dims(footprint: Footprint, cohorts: Cohorts) -> tuple[int, ...]:
    """Dimensions along which neighbouring tiles of one block share a window or a chunk.

    A chunk that is computed may be shared: nothing is read when it is computed again.
    """
    dims = []
    for dim, pieces in enumerate(cohorts.pieces):
        shares = any(
            not group.is_computed
            and group.axes[dim] is not None
            and group.axes[dim] != footprint.leading_axes[dim]
            and not np.isin(pieces.tile_edges, group.axes[dim].edges).all()  # type: ignore[union-attr]
            for group in footprint.groups
        )
        if pieces.num_homes > 1 and (pieces.reach or shares):
            dims.append(dim)
    return tuple(dims)
