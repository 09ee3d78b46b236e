"""One worker of a rank, in its own process: the batches that are its own, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from xloader.core.nans import warn_of_nans
from xloader.engine.job import Delivery
from xloader.engine.run import Run
from xloader.loader.job_factory import JobFactory
from xloader.loader.padding import _has_padding_only, _Rewound, rest_of
from xloader.loader.rank_plan import RankPlan
from xloader.planning.epoch import Epoch
from xloader.planning.explain import Cached, Explanation
from xloader.planning.remainder import Remainder


class Worker:
    """Makes every ``workers``-th batch of a rank, reading no chunk that is another worker's.

    Parameters
    ----------
    rank_plan : RankPlan
        What the rank does, planned for as many workers as there are.
    number : int
        Which of them this is: it makes the steps ``number``, ``number + workers``, ...
    num_ready : int
        Batches that are made, or wait for delivery, while the consumer is busy.
    num_cores : int
        Threads that load and gather, at most.
    """

    def __init__(self, rank_plan: RankPlan, number: int, *, num_ready: int, num_cores: int) -> None:
        self._rank_plan = rank_plan
        self._number = number
        self._job_factory = JobFactory(rank_plan, num_ready=num_ready, num_cores=num_cores)
        self._run: Run | None = None
        self._has_warned = False

    @property
    def is_foreign(self) -> bool:
        """Whether this came over a fork, where its threads and locks do not live."""
        return self._job_factory.is_foreign

    @property
    def number(self) -> int:
        """Which of the workers this is."""
        return self._number

    def loaded(self) -> set[tuple[int, int]]:
        """Blocks in memory from earlier epochs, as (group, block)."""
        return self._job_factory.loaded()

    def steps(self, epoch: int, first_step: int = 0) -> Iterator[Delivery]:
        """Its batches of an epoch from a step on, in order. An iteration under way ends.

        Parameters
        ----------
        epoch : int
        first_step : int, default 0
            The first step of the rank that is left: those of this worker that come before it
            are not made, nor is anything read for them.
        """
        self.close()
        numbers = self._rank_plan.sublanes(self._number)
        part, num_passed = rest_of(self._rank_plan.remainder(epoch, first_step), numbers)
        if not part.sublanes.num_steps_of(numbers[0]):
            return
        job = self._job_factory.job(part, numbers)
        run = self._run = Run(job)
        try:
            for index in range(job.walker.num_steps):
                delivery = run.take()
                assert delivery is not None, "a run delivers as many batches as it has steps"
                if index >= num_passed:
                    self._warn(delivery)
                    yield delivery
                # The consumer may keep it; here it would hold its memory one step longer.
                del delivery
        finally:
            run.close()

    def _warn(self, delivery: Delivery) -> None:
        is_asked = self._rank_plan.options.on_nan == "warn"
        if delivery.nans and is_asked and not self._has_warned:
            self._has_warned = True
            warn_of_nans(delivery.nans)

    def close(self) -> None:
        """Stop what is under way. More than once is fine."""
        if self._run is not None:
            self._run.close()
        self._run = None


def carried_out(
    rank_plan: RankPlan, part: Epoch | Remainder, scope: Literal["rank", "world"] = "rank"
) -> Epoch | Remainder:
    """What is left of an epoch, with what has to be made once more for it, by `rest_of`.

    Parameters
    ----------
    rank_plan : RankPlan
    part : Epoch or Remainder
    scope : {"rank", "world"}
        Whose processes carry it out.
    """
    if not isinstance(part, Remainder):
        return part
    own = [n for n in rank_plan.processes(scope) if _has_padding_only(part, n)]
    if not own:
        return part
    return _Rewound(part.whole, part.first_step, part.footprint, frozenset(chain(*own)))


def explain_rest(
    rank_plan: RankPlan,
    part: Epoch | Remainder,
    scope: Literal["rank", "world"] = "rank",
    cached: Sequence[Cached] = (),
) -> Explanation:
    """What is left of an epoch will cost, summed over the workers. Nothing is read.

    Parameters
    ----------
    rank_plan : RankPlan
    part : Epoch or Remainder
    scope, cached
        As for `RankPlan.explain`.
    """
    expected = rank_plan.explain(part, scope, cached)
    carried = carried_out(rank_plan, part, scope)
    if carried is part:
        return expected
    found = rank_plan.explain(carried, scope, cached)
    # What is made once more is not delivered.
    return replace(found, num_samples=expected.num_samples)
