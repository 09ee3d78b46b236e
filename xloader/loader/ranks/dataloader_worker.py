"""One DataLoader worker of a rank, mostly in a process of its own: it makes its own batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xloader.core.nans import NanWarner
from xloader.engine.buffers import MakeMemory
from xloader.engine.job import Delivery
from xloader.engine.run import Run
from xloader.loader.ranks.job_factory import JobFactory, Share
from xloader.loader.ranks.rank_plan import RankPlan


class Worker:
    """Maker of every n-th batch of a rank with n workers. It reads what its own batches need."""

    def __init__(
        self,
        rank_plan: RankPlan,
        number: int,
        *,
        num_ready: int,
        num_cores: int,
        make_memory: MakeMemory | None = None,
    ) -> None:
        self._rank_plan = rank_plan
        self._number = number
        self._job_factory = JobFactory(
            rank_plan,
            num_ready=num_ready,
            num_cores=num_cores,
            share=replace(Share.whole(rank_plan), make_memory=make_memory),
        )
        self._run: Run | None = None
        self._nan_warner = NanWarner(rank_plan.options.on_nan)

    @property
    def is_foreign(self) -> bool:
        """Whether the process was forked since: threads and locks do not survive that."""
        return self._job_factory.is_foreign

    @property
    def number(self) -> int:
        """Number of this worker."""
        return self._number

    def loaded(self) -> set[tuple[int, int]]:
        """Set of the blocks in memory from earlier epochs, as (group, block)."""
        return self._job_factory.loaded()

    def steps(self, epoch: int, first_step: int = 0) -> Iterator[Delivery]:
        """Make this worker's batches of an epoch from a step on. An iteration under way ends."""
        self.close()
        numbers = self._rank_plan.sublanes(self._number)
        part = self._rank_plan.remainder(epoch, first_step)
        num_again = part.sublanes.num_again_of(numbers[0])
        if not part.sublanes.num_steps_of(numbers[0]):
            return
        job = self._job_factory.job(part, numbers)
        run = self._run = Run(job)
        try:
            for index in range(job.walker.num_steps):
                delivery = run.take()
                assert delivery is not None, "a run delivers as many batches as it has steps"
                if index >= num_again:
                    self._nan_warner.warn(delivery.nans)
                    yield delivery
                # This reference would keep the memory in use for one more step.
                del delivery
        finally:
            run.close()

    def close(self) -> None:
        """Stop the run under way. It may be called more than once."""
        if self._run is not None:
            self._run.close()
        self._run = None
