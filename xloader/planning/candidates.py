"""Searches the plans of one tiling, by measuring a few of them on a reduced model.

More streams mix better, but the spread that fits the memory bounds them. The search goes in steps,
the cheapest first, and its cost does not grow with the number of tiles::

    fit       for a few shares of streams, the largest spread whose chunks fit: no reads counted
    score     one epoch of each, with its reads and its mixing
    confirm   more epochs of the best: with few tiles, epochs differ by chance
    descend   to smaller spreads, where one of them reads more than allowed
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from xloader.core.footprint import Footprint
from xloader.order.cohorts import Cohorts
from xloader.order.shuffle import Pace
from xloader.planning.budget import Budget
from xloader.planning.plan import Plan
from xloader.planning.reduced_model import Candidate, ReducedModel

FEW_TILES = 256
"""Tiles of a lane below which an epoch draws several lines of runs."""

NEARLY_FULL = 0.98
"""The fraction of a full shuffle's mixing at which the search for more mixing ends."""

_MODEL_DRAWS = 8
_NUM_FINALISTS, _MOST_FAILED = 3, 6
_MOST_DESCENTS = 6
"""Times that a spread which does not fit is reduced in proportion to the bytes it needs."""

_MANY_TILES = 32
"""Number of tiles at work at which one more or less does not matter."""

_STREAM_SHARES = (1.0, 0.85, 0.7, 0.5)
_COMPANION_SHARES = (1.0, 0.8, 0.65, 0.5, 0.35, 0.2)
_LOWER_SPREADS = (0.92, 0.84, 0.75)
_NUM_DESCENTS = 4
_NUM_CHAINS = 2
"""Number of scored trials that are followed to smaller spreads."""

_FEW_READS = 1.02
"""Reads per chunk up to which no smaller spread is tried to save reads."""

# Fractions of the best mixing so far: a scored trial with less is not followed to smaller spreads,
# and following one ends when the mixing falls below the second.
_HARDLY_LESS, _CLEARLY_LESS = 0.99, 0.97

_LONGER_RUNS = 1.25
_MANY_RUNS = 8.0
"""If real runs are this many times as long as the model's, more runs a stream cost nothing."""

# Multiples of the reads allowed beyond one per chunk. With more than the first, no other draw of
# the line of runs can succeed; with more than the second, no smaller spread can.
_HOPELESS, _FAR_BEYOND = 2.0, 5.0


@dataclass(frozen=True)
class PlanGoal:
    """The batch and the lanes of a plan, and the limits it must keep.

    Parameters
    ----------
    global_batch, lanes : int
        Samples of a step, over all ranks, and the number of lanes.
    max_amplification : float
        Allowed reads per distinct chunk needed.
    spread : int or None
        The spread that the user asks for; ``None`` leaves it to the search.
    """

    global_batch: int
    lanes: int
    max_amplification: float = 1.05
    spread: int | None = None


Rank = Callable[[Candidate], tuple[int, float, float]]


def preference(goal: PlanGoal, full: float) -> Rank:
    """The sort key that puts better candidates first, by the rules of `search.find_plan`."""

    def rank(candidate: Candidate) -> tuple[int, float, float]:
        """The sort key of one candidate."""
        if candidate.amplification <= goal.max_amplification:
            return 0, -candidate.mixing, candidate.amplification
        if candidate.mixing >= full / 2:
            return 1, candidate.amplification, -candidate.mixing
        return 2, -candidate.mixing, candidate.amplification

    return rank


def with_ahead(pace: Pace, budget: Budget, goal: PlanGoal, pool: int, tile: int) -> Plan:
    """A plan that decodes ahead in the memory that a pool of ``pool`` bytes leaves free."""
    ahead = min(budget.lane_nbytes - pool, max(tile, budget.ahead_nbytes))
    return make_plan(pace, budget, goal, pool, ahead)


def make_plan(
    pace: Pace,
    budget: Budget,
    goal: PlanGoal,
    pool: int,
    ahead: int,
    *,
    depth: int = 0,
    is_resident: bool = False,
) -> Plan:
    """A plan for a goal, with ``pool`` and ``ahead`` bytes for each lane's chunks."""
    return Plan(
        pace=pace,
        depth=depth,
        budget=budget,
        global_batch=goal.global_batch,
        max_amplification=goal.max_amplification,
        lane_pool_nbytes=pool,
        ahead_nbytes=ahead,
        is_resident=is_resident,
    )


@dataclass(frozen=True)
class CandidateSearch:
    """The search among the plans of one tiling.

    Parameters
    ----------
    footprint : Footprint
        The chunks that samples need.
    budget : Budget
        The memory of one process.
    goal : PlanGoal
        The batch, the lanes and the limits.
    tiling : tuple of int
        Per windowed dimension, the blocks of a tile; 0 for all of them.
    cohorts : Cohorts
        The cohorts of the tiling.
    need_nbytes : int
        The most bytes that the samples of one tile need together.
    run_dim : int
        The windowed dimension along which runs go.
    full : float
        The mixing of a full shuffle.
    """

    footprint: Footprint
    budget: Budget
    goal: PlanGoal
    tiling: tuple[int, ...]
    cohorts: Cohorts
    need_nbytes: int
    run_dim: int
    full: float

    def find(self, least_mixing: float = 0.0) -> list[Candidate]:
        """The best candidates of this tiling.

        A ``least_mixing`` above 0 says that other tilings already have plans that read no more than
        allowed. Then nothing is returned if the scored trials mix less or read far more than that.
        """
        if self.need_nbytes > self.budget.lane_nbytes:
            return []
        scored = list(self._scored(is_picky=least_mixing > 0))
        if max((c.mixing for c in scored), default=0.0) < least_mixing:
            return []
        by_mixing = sorted(scored, key=lambda c: -c.mixing)
        if (plain := self._without_runs(by_mixing)) is not None:
            return [plain]
        found = self._followed(by_mixing, least_mixing)
        if not found and not least_mixing:
            rank = preference(self.goal, self.full)
            found = self._confirmed(sorted(scored, key=rank))
        return [dataclasses.replace(c, plan=self._grown(c.plan)) for c in found]

    def _followed(self, by_mixing: list[Candidate], least_mixing: float) -> list[Candidate]:
        """The confirmed plans found from the best-mixing trials by going to smaller spreads."""
        found: list[Candidate] = []
        for number, first in enumerate(by_mixing):
            best = max((c.mixing for c in found), default=0.0)
            if best >= NEARLY_FULL * self.full or first.mixing < _HARDLY_LESS * best:
                break
            if number >= _NUM_CHAINS and (found or least_mixing):
                break
            found += self._within(first, least_mixing)
        return found

    def _without_runs(self, by_mixing: list[Candidate]) -> Candidate | None:
        """The plan without runs, if it reads and mixes well enough: runs only save reads."""
        for trial in by_mixing:
            if trial.plan.pace.run == 1 and trial.mixing >= 0.98 * by_mixing[0].mixing:
                return self._confirm(trial)
        return None

    @cached_property
    def tile_nbytes(self) -> int:
        """Decoded bytes of a tile, on average."""
        return -(-self.footprint.total_nbytes // self.cohorts.num_used_tiles)

    @cached_property
    def pool_nbytes(self) -> int:
        """Decoded bytes of each lane for chunks at work and kept."""
        return max(self.budget.lane_nbytes - self.tile_nbytes, self.need_nbytes)

    @cached_property
    def _num_tiles(self) -> int:
        return max(self.cohorts.num_used_tiles // self.goal.lanes, 1)

    @cached_property
    def _most(self) -> int:
        """The largest number of tiles at work that is worth trying."""
        enough = min(max(256, 8 * self.goal.global_batch), 1024)
        return min(self.pool_nbytes // self.tile_nbytes, self._num_tiles, enough)

    @cached_property
    def _model(self) -> ReducedModel:
        most = self._most if self.goal.spread is None else self.goal.spread
        return ReducedModel(
            self.footprint, self.cohorts, self.tiling, self.run_dim, most, self.goal.lanes
        )

    @cached_property
    def _reach(self) -> int:
        return self.cohorts.pieces[self.run_dim].reach

    @property
    def _is_small(self) -> bool:
        return self._num_tiles < FEW_TILES

    def _plan(self, spread: int, share: float = 0.0, runs_a_stream: float = 1.0) -> Plan | None:
        """A plan for the model, with runs in a share of the possible streams; 0 means no runs.

        ``None`` if runs would have a single tile.
        """
        draws = _MODEL_DRAWS if self._is_small else 1
        run = streams = 1
        if share:
            # With more streams, neighbouring tiles would not be in memory together.
            most_streams = spread // self._reach if 0 < self._reach <= spread else spread
            num_tiles = self._model.num_tiles
            streams = max(int(most_streams * share), 1)
            streams = max(min(streams, int(num_tiles / (2 * runs_a_stream))), 1)
            # Rounded up, because a few more runs than the streams can share equally would leave few
            # streams busy at the end of the epoch.
            run = min(math.ceil(num_tiles / (streams * runs_a_stream)), self._model.row_size)
            if run < 2:
                return None
        pace = Pace(self.tiling, self.run_dim, run, streams, spread, self.goal.lanes, draws)
        return with_ahead(pace, self.budget, self.goal, self.pool_nbytes, self.tile_nbytes)

    @property
    def _runs_a_stream(self) -> float:
        # With one run per stream, every epoch would sweep the data in the same way. With few tiles
        # there is no choice, as runs cannot be short.
        if self._is_small:
            return 1.0
        return 2.0 if self._model.run_factor < _MANY_RUNS else 4.0

    def _scored(self, is_picky: bool) -> Iterator[Candidate]:
        """For each share of streams, one measured epoch at the largest spread that fits."""
        seen: set[Pace] = set()
        fitting = self._num_tiles
        for share, most in self._looks():
            # Later shares have fewer streams, with which hardly more tiles fit.
            plan = self._fitting(share, most if self.goal.spread else min(most, fitting))
            if plan is None or plan.pace in seen:
                continue
            seen.add(plan.pace)
            fitting = plan.pace.spread * 9 // 8 + 1
            trial = self._measured(plan, is_picky=is_picky)
            if trial is not None:
                yield trial
                is_within = trial.amplification <= self.goal.max_amplification
                if is_within and trial.mixing >= NEARLY_FULL * self.full:
                    return
            elif is_picky:
                # Plans with fewer streams read about as much.
                return

    def _looks(self) -> Iterator[tuple[float, int]]:
        """Shares of streams to try, with the largest spread of each; a share of 0 has no runs."""
        most = self._most if self.goal.spread is None else self.goal.spread
        is_line = self.cohorts.pieces[self.run_dim].num_homes == 1
        has_companions = self._reach > most
        # Without runs, chunks of straddling windows are read again. In a subset these may be few.
        is_loose = self.footprint.subset is not None or self.goal.max_amplification > 1.2
        # Chunks of far tiles are held as well, which leaves room for fewer tiles.
        shares = _COMPANION_SHARES if has_companions and self.goal.spread is None else (1.0,)
        for spread in dict.fromkeys(int(most * share) for share in shares):
            if is_line or is_loose or not spread:
                yield 0.0, spread
            if has_companions and not is_line:
                yield 1.0, spread
        if not is_line and not has_companions:
            for share in _STREAM_SHARES[: 3 if self._is_small else 4]:
                yield share, most

    def _fitting(self, share: float, most: int) -> Plan | None:
        """The plan with the largest spread that fits, or with the given spread if that fits."""
        spread = most
        for _ in range(_MOST_DESCENTS):
            plan = self._plan(spread, share, self._runs_a_stream)
            if plan is None:
                return None
            at_work = self._model.at_work_nbytes(plan)
            if at_work <= self.pool_nbytes:
                return plan
            if self.goal.spread is not None or spread == 0:
                return None
            fitting = spread * self.pool_nbytes // at_work
            # Slightly less than in proportion, because a spread that just misses costs a full try.
            spread = min(spread - 1, fitting - fitting // _MANY_TILES)
        return None

    def _measured(self, plan: Plan | None, *, is_picky: bool = True) -> Candidate | None:
        if plan is None:
            return None
        hopeless = 1 + _HOPELESS * (self.goal.max_amplification - 1)
        return self._model.measure(plan, hopeless, is_picky=is_picky)

    def _grown(self, plan: Plan) -> Plan:
        pace = plan.pace
        if pace.run == 1:
            return plan
        run = min(int(pace.run * self._model.run_factor), self.cohorts.home_shape[self.run_dim])
        return dataclasses.replace(plan, pace=dataclasses.replace(pace, run=run))

    def _within(self, first: Candidate, least_mixing: float) -> Iterator[Candidate]:
        """Confirmed plans at a trial's spread or smaller ones.

        A smaller spread leaves more room to keep chunks that are needed again at the ends of runs,
        and mixes slightly less.
        """
        pace = first.plan.pace
        if first.amplification > 1 + _FAR_BEYOND * (self.goal.max_amplification - 1):
            return
        reach = self._reach if 0 < self._reach <= pace.spread else 1
        share = pace.streams * reach / max(pace.spread, 1) if pace.run > 1 else 0.0
        lower = (
            self._measured(self._plan(spread, share, self._runs_a_stream))
            for spread in self._lower_spreads(pace)
        )
        num_wanted, best = 2 if self._is_small else 1, 0.0
        for trial in itertools.chain([first], lower):
            if trial is not None and trial.mixing < max(least_mixing, _CLEARLY_LESS * best):
                return
            confirmed = self._confirm(trial)
            if confirmed is None:
                continue
            yield confirmed
            best = max(best, confirmed.mixing)
            num_wanted -= 1
            if num_wanted < 0 or (not num_wanted and confirmed.amplification <= _FEW_READS):
                return
        if not best and not self._is_small and share:
            longer = self._confirm(self._measured(self._plan(pace.spread, share, _LONGER_RUNS)))
            yield from () if longer is None else (longer,)

    def _lower_spreads(self, pace: Pace) -> list[int]:
        if self.goal.spread is not None or pace.run == 1:
            return []
        if self._is_small:
            # Spreads at which the runs fill all streams to the end of the epoch.
            found = {-(-self._model.num_tiles // run) for run in range(2, 33)}
            lower = sorted((s for s in found if 2 < s < 0.95 * pace.spread), reverse=True)
            return lower[:_NUM_DESCENTS] or [int(pace.spread * 0.8)]
        return [int(pace.spread * share) for share in _LOWER_SPREADS]

    def _confirm(self, trial: Candidate | None) -> Candidate | None:
        """The trial, if it stays within the amplification in other epochs too."""
        if trial is None or trial.amplification > self.goal.max_amplification:
            return None
        found = self._model.confirm(trial)
        if found is None or found.amplification > self.goal.max_amplification:
            return None
        return found

    def _confirmed(self, candidate_search: list[Candidate]) -> list[Candidate]:
        """The first trials that stay within the amplification in other epochs, else the others."""
        found: list[Candidate] = []
        failed: list[Candidate] = []
        for trial in candidate_search:
            confirmed = self._model.confirm(trial)
            if confirmed is None:
                continue
            is_within = confirmed.amplification <= self.goal.max_amplification
            (found if is_within else failed).append(confirmed)
            if len(found) == _NUM_FINALISTS or (not found and len(failed) == _MOST_FAILED):
                break
        return found or failed
