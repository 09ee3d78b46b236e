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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from xloader.core.footprint import Footprint
from xloader.order.cohorts import Cohorts, cut_cohorts
from xloader.order.shuffle import Pace
from xloader.order.tile_needs import tile_nbytes
from xloader.planning.plan import Budget, Plan
from xloader.planning.reduced_model import Candidate, PlanGoal, ReducedModel

FEW_TILES = 256
"""Tiles of a lane below which an epoch draws several lines of runs.

From here on, an epoch has enough runs that chance hardly changes its reads.
"""

NEARLY_FULL = 0.98
"""The fraction of a full shuffle's mixing at which the search for more mixing ends.

There are at most 2 % left to gain.
"""

_MODEL_DRAWS = 8
"""Lines of runs that an epoch of the model draws at most.

A real epoch draws more, so it stays within the allowed reads at least as often as the model's.
"""

_MOST_DESCENTS = 6
"""Times that a spread which does not fit is reduced in proportion to the bytes it needs.

Each time costs a schedule.
"""

_MANY_TILES = 32
"""A spread that does not fit is reduced by one part in so many beyond proportion.

Otherwise the next spread misses by a tile or two, and costs another schedule.
"""

_STREAM_SHARES = (1.0, 0.85, 0.7, 0.5)
"""Shares of the possible streams to score. Fewer streams have longer runs, and read less."""

_COMPANION_SHARES = (1.0, 0.8, 0.65, 0.5, 0.35, 0.2)
"""Shares of the largest spread to score if companions take memory too.

Companions may take more memory than the tiles, so the shares go farther down.
"""

_LOWER_SPREADS = (0.92, 0.84, 0.75)
"""Shares of a trial's spread that are tried after it, where it reads too much."""

_NUM_DESCENTS = 4
"""With few tiles, the number of smaller spreads to try: they are steps of whole runs."""

_NUM_CHAINS = 2
"""Scored trials that are followed to smaller spreads. It bounds the time."""

_HARDLY_LESS = 0.99
"""The fraction of the best mixing so far that a scored trial needs to be followed.

By the rules of `find_plan`, plans within 1 % of the best mixing are alike.
"""

_CLEARLY_LESS = 0.97
"""The fraction of the best mixing so far at which following a trial to smaller spreads ends.

It is less than the fraction above, as a step to a smaller spread may lose mixing by chance.
"""

_MANY_RUNS = 8.0
"""If real runs are this many times as long as the model's, each stream has twice as many.

Such long runs have few ends, so that twice as many runs cost hardly any reads.
"""

_HOPELESS = 2.0
"""The multiple of the allowed reads beyond one per chunk from which no other draw is made.

Each draw of the line of runs costs a schedule, and draws of one plan read about as much.
"""

_FAR_BEYOND = 5.0
"""The multiple of the allowed reads beyond one per chunk from which no smaller spread is tried."""


@dataclass(frozen=True)
class Tiling:
    """A tiling and its cohorts."""

    sizes: tuple[int, ...]
    cohorts: Cohorts
    need_nbytes: int

    @classmethod
    def of(cls, footprint: Footprint, sizes: tuple[int, ...]) -> Tiling:
        """Cut the cohorts of a tiling."""
        cohorts = cut_cohorts(footprint, sizes)
        return cls(sizes, cohorts, tile_nbytes(footprint, cohorts))


@dataclass(frozen=True)
class CandidateSearch:
    """The search among the plans of one tiling."""

    footprint: Footprint
    budget: Budget
    goal: PlanGoal
    tiling: Tiling
    run_dim: int
    full: float
    visits: int = 1
    may_run: bool = True

    def with_visits(self, visits: int) -> CandidateSearch:
        """The search among plans with another number of visits, on the same reduced model."""
        copy = dataclasses.replace(self, visits=visits)
        copy.__dict__["_model"] = self._model
        return copy

    def measure(self, plan: Plan) -> Candidate | None:
        """The reads and the mixing of a plan; ``None`` if its chunks do not fit."""
        return self._model.measure(plan, hopeless=math.inf)

    def find(self, least_mixing: float = 0.0) -> list[Candidate]:
        """The best candidates of this tiling.

        A ``least_mixing`` above 0 says that other tilings already have plans that read no more
        than allowed. Then nothing is returned if the scored trials mix less or read far more than
        that.
        """
        if self.tiling.need_nbytes > self.budget.lane_nbytes:
            return []
        scored = list(self._scored(is_picky=least_mixing > 0))
        if max((c.mixing for c in scored), default=0.0) < least_mixing:
            return []
        by_mixing = sorted(scored, key=lambda c: -c.mixing)
        if (plain := self._without_runs(by_mixing)) is not None:
            return [plain]
        confirmed = self._followed(by_mixing, least_mixing)
        if not confirmed and not least_mixing:
            # None stays within the allowed reads, so those that fit at all are left.
            confirmed = [c for trial in by_mixing if (c := self._model.confirm(trial)) is not None]
            confirmed = confirmed or self._below(by_mixing)
        return [dataclasses.replace(c, plan=self._grown(c.plan)) for c in confirmed]

    def _followed(self, by_mixing: list[Candidate], least_mixing: float) -> list[Candidate]:
        """The confirmed plans found from the best-mixing trials by going to smaller spreads."""
        confirmed: list[Candidate] = []
        for number, first in enumerate(by_mixing):
            best = max((c.mixing for c in confirmed), default=0.0)
            if best >= NEARLY_FULL * self.full or first.mixing < _HARDLY_LESS * best:
                break
            if number >= _NUM_CHAINS and (confirmed or least_mixing):
                break
            confirmed += self._within(first, least_mixing)
        return confirmed

    def _below(self, by_mixing: list[Candidate]) -> list[Candidate]:
        """Plans without runs at smaller spreads than trials that fit in one epoch alone."""
        for trial in by_mixing:
            pace = trial.plan.pace
            if pace.run > 1 or self.goal.spread is not None:
                continue
            for share in _LOWER_SPREADS:
                lower = self._measured(self._plan(int(pace.spread * share), 0.0), is_picky=False)
                confirmed = None if lower is None else self._model.confirm(lower)
                if confirmed is not None:
                    return [confirmed]
        return []

    def _without_runs(self, by_mixing: list[Candidate]) -> Candidate | None:
        """The plan without runs, if it reads and mixes well enough: runs only save reads."""
        for trial in by_mixing:
            if trial.plan.pace.run == 1 and trial.mixing >= 0.98 * by_mixing[0].mixing:
                return self._confirm(trial)
        return None

    @property
    def cohorts(self) -> Cohorts:
        """The cohorts of the tiling."""
        return self.tiling.cohorts

    @cached_property
    def tile_nbytes(self) -> int:
        """Decoded bytes of a tile, on average."""
        return -(-self.footprint.total_nbytes // self.cohorts.num_used_tiles)

    @cached_property
    def pool_nbytes(self) -> int:
        """Decoded bytes of each lane for chunks at work and kept."""
        return max(self.budget.lane_nbytes - self.tile_nbytes, self.tiling.need_nbytes)

    @cached_property
    def _num_tiles(self) -> int:
        return max(self.cohorts.num_used_tiles // self.goal.lanes, 1)

    @cached_property
    def _most(self) -> int:
        """The given spread, or the largest number of tiles at work that is worth trying."""
        if self.goal.spread is not None:
            return self.goal.spread
        enough = min(max(256, 8 * self.goal.global_batch), 1024)
        return min(self.pool_nbytes // self.tile_nbytes, self._num_tiles, enough)

    @cached_property
    def _model(self) -> ReducedModel:
        return ReducedModel(
            self.footprint,
            self.cohorts,
            self.tiling.sizes,
            self.run_dim,
            self._most,
            self.goal.lanes,
        )

    @cached_property
    def _reach(self) -> int:
        return self.cohorts.pieces[self.run_dim].reach

    def _reach_within(self, spread: int) -> int:
        """The reach, or 1 if windows do not straddle, or reach farther than the spread."""
        return self._reach if 0 < self._reach <= spread else 1

    @property
    def _is_small(self) -> bool:
        return self._num_tiles < FEW_TILES

    def _plan(self, spread: int, share: float) -> Plan | None:
        """A plan for the model, with runs in a share of the possible streams; 0 means no runs.

        ``None`` if runs would have a single tile.
        """
        draws = _MODEL_DRAWS if self._is_small else 1
        run = streams = 1
        if share:
            num_tiles = self._model.num_tiles
            # With more streams, neighbouring tiles would not be in memory together.
            streams = max(int(spread // self._reach_within(spread) * share), 1)
            streams = max(min(streams, num_tiles // (2 * self._runs_a_stream)), 1)
            # Rounded up, because a few more runs than the streams can share equally would leave few
            # streams busy at the end of the epoch.
            run = min(-(-num_tiles // (streams * self._runs_a_stream)), self._model.row_size)
            if run < 2:
                return None
        pace = Pace(
            self.tiling.sizes,
            self.run_dim,
            run,
            streams,
            spread,
            self.goal.lanes,
            draws,
            visits=self.visits,
        )
        return self.goal.plan(pace, self.budget, self.pool_nbytes, self.tile_nbytes)

    @property
    def _runs_a_stream(self) -> int:
        # With one run per stream, every epoch would sweep the data in the same way. With few tiles
        # there is no choice, as runs cannot be short.
        if self._is_small:
            return 1
        return 2 if self._model.run_factor < _MANY_RUNS else 4

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
                if self.goal.allows(trial) and trial.mixing >= NEARLY_FULL * self.full:
                    return
            elif is_picky:
                # Plans with fewer streams read about as much.
                return

    def _looks(self) -> Iterator[tuple[float, int]]:
        """Shares of streams to try, with the largest spread of each; a share of 0 has no runs."""
        most = self._most
        is_line = not self.may_run or self.cohorts.pieces[self.run_dim].num_homes == 1
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
            plan = self._plan(spread, share)
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
        num_at_work = pace.streams * self._reach_within(pace.spread)
        share = num_at_work / max(pace.spread, 1) if pace.run > 1 else 0.0
        lower = (self._measured(self._plan(spread, share)) for spread in self._lower_spreads(pace))
        num_wanted = 2 if self._is_small else 1
        for trial in itertools.chain([first], lower):
            if trial is not None and trial.mixing < least_mixing:
                return
            confirmed = self._confirm(trial)
            if confirmed is not None:
                yield confirmed
                least_mixing = max(least_mixing, _CLEARLY_LESS * confirmed.mixing)
                num_wanted -= 1
                # Where chunks are read hardly more than once, no smaller spread saves reads.
                if num_wanted < 0 or (not num_wanted and confirmed.amplification <= 1.02):
                    return

    def _lower_spreads(self, pace: Pace) -> list[int]:
        if self.goal.spread is not None or pace.run == 1:
            return []
        if self._is_small:
            # Spreads at which the runs fill all streams to the end of the epoch.
            spreads = {-(-self._model.num_tiles // run) for run in range(2, 33)}
            lower = sorted((s for s in spreads if 2 < s < 0.95 * pace.spread), reverse=True)
            return lower[:_NUM_DESCENTS] or [int(pace.spread * 0.8)]
        return [int(pace.spread * share) for share in _LOWER_SPREADS]

    def _confirm(self, trial: Candidate | None) -> Candidate | None:
        """The trial, if it stays within the amplification in other epochs too."""
        if trial is None or not self.goal.allows(trial):
            return None
        return self._model.confirm(trial, is_picky=True)
