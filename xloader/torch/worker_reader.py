"""`WorkerReader`: reads the batches of a `MapDataset` in one process.

It follows the plan where ids carry step tags, and reads other ids through a cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xloader.core.axis import Ints
from xloader.core.cores import usable_cores
from xloader.core.messages import warn_caller
from xloader.core.nans import NanWarner, look_for_nans
from xloader.core.options import LoaderOptions
from xloader.engine.batches import Delivery
from xloader.engine.cached_reader import CachedReader
from xloader.engine.run import Run
from xloader.errors import MemoryBudgetError, OptionError, WorkersWarning
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.ranks.finishing import Finishing
from xloader.loader.ranks.job_factory import JobFactory
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.torch.lent_slots import memory_to_lend
from xloader.torch.sampler_passes import PlanTag, StepTag
from xloader.torch.worker_setup import Process, set_up_worker
from xloader.transforms.outputs import finish
from xloader.transforms.rng import Chance


class Worker(JobFactory):
    """Maker of every n-th batch of a rank with n workers. It reads what its own batches need."""

    def __init__(self, rank_plan: RankPlan, number: int) -> None:
        self.number = number
        options, num_workers = rank_plan.options, Process.here().num_workers
        super().__init__(
            rank_plan,
            Finishing(rank_plan.recipe, options, np.asarray),
            # In a worker process, batches wait in memory shared with the training process.
            num_ready=1 if num_workers else options.prefetch,
            num_cores=options.threads or num_cores(num_workers),
            make_memory=memory_to_lend(rank_plan),
        )
        self._run: Run | None = None
        self._nan_warner = NanWarner(options.on_nan)

    def steps(self, epoch: int, first_step: int = 0) -> Iterator[Delivery]:
        """Make this worker's batches of an epoch from a step on. An iteration under way ends."""
        self.close()
        numbers = self.rank_plan.sublanes(self.number)
        remainder = self.rank_plan.remainder(epoch, first_step)
        num_again = remainder.sublanes.num_again_of(numbers[0])
        if not remainder.sublanes.num_steps_of(numbers[0]):
            return
        run = self._run = self.run(remainder, numbers)
        try:
            for index in range(run.num_steps):
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


PREFETCH = 2
"""Number of batches of a worker that wait for the training loop: a ``DataLoader``'s default."""


@dataclass
class _Share:
    """One worker of the plan in this process, and its steps of a pass that is under way."""

    worker: Worker
    steps: Iterator[Delivery]
    passing: tuple[int, int] | None = None
    next_step: int = 0


class WorkerReader:
    """Reads batches in one process: steps of the plan if ids carry step tags, else any ids."""

    def __init__(self, recipe: Recipe, options: LoaderOptions) -> None:
        self._recipe = recipe
        self._options = options
        self._num_read = 0
        self._nan_warner = NanWarner(options.on_nan)
        self._pid = os.getpid()
        set_up_worker()
        process = Process.here()
        self._num_workers = max(process.num_workers, 1)
        self._is_first = not process.number
        self._plan_tag: PlanTag | None = None
        self._rank_plan: RankPlan | None = None
        self._shares: dict[int, _Share] = {}
        self._cache: CachedReader | None = None
        self._cache_size = 0
        self._has_warned = False

    @property
    def is_foreign(self) -> bool:
        """Whether a fork has copied this object, whose threads and locks belong to the parent."""
        return os.getpid() != self._pid

    def step(self, step_tag: StepTag, ids: Sequence[int]) -> Delivery | None:
        """Make the batch of a step by the plan."""
        if not step_tag.is_of(ids):
            reason = "its ids were distributed again, as by another sampler"
            if len(ids) != step_tag.num_rows:
                planned = f"its ChunkSampler planned {step_tag.num_rows}"
                reason = f"it has batches of {len(ids)}, but {planned}"
            self._leave_plan(reason)
            return None
        self._check_plan_tag_is_kept(step_tag.plan_tag)
        num_workers = step_tag.plan_tag.plan.workers
        number, passing = step_tag.step % num_workers, (step_tag.epoch, step_tag.pass_number)
        share = self._shares.get(number)
        # A trainer that resumes takes the ids of the steps that it skips, and begins in the middle.
        if share is None or share.passing != passing:
            share = self._begin(step_tag, number)
        elif share.next_step != step_tag.step:
            self._leave_plan(f"step {step_tag.step} is out of order, as with in_order=False")
            return None
        # A share that raises is not continued: its next step begins anew.
        share.passing = None
        delivery = next(share.steps)
        is_sample = ~delivery.is_padding
        assert (delivery.ids == ids)[is_sample].all(), "samplers and workers have one order"
        share.passing, share.next_step = passing, step_tag.step + num_workers
        return delivery

    def read(self, ids: Ints) -> Batch:
        """Read any samples through a cache of decoded chunks."""
        arrays = self._cache_for(max(len(ids), 1)).read(ids)
        arrays = finish(self._recipe, make_layouts(self._recipe), arrays, ids)
        nans = look_for_nans(self._options.on_nan, self._num_read, arrays, ids)
        self._num_read += 1
        self._nan_warner.warn(nans)
        return Batch(arrays.values(), arrays, ids, origin=BatchOrigin(self._recipe))

    def close(self) -> None:
        """Stop the threads and free the memory. It can be called more than once."""
        self._stop()
        if self._cache is not None:
            self._cache.close()
        self._cache = None

    def _check_plan_tag_is_kept(self, plan_tag: PlanTag) -> None:
        if self._plan_tag == plan_tag:
            return
        if plan_tag.fingerprint != self._recipe.fingerprint:
            raise OptionError(
                "a ChunkSampler and its dataset have different samples",
                remedy="pass the same samples to MapDataset and ChunkSampler, or use data_loader()",
            )
        self._stop()
        self._plan_tag = plan_tag
        # Batches are checked for NaN in this process, so the dataset's option holds.
        threads = plan_tag.options.threads or self._options.threads
        options = replace(plan_tag.options, on_nan=self._options.on_nan, threads=threads)
        self._rank_plan = RankPlan(self._recipe, options, plan=plan_tag.plan)
        planned = plan_tag.plan.workers
        if planned != self._num_workers:
            is_fine = planned % self._num_workers == 0
            self._warn(
                f"a DataLoader has {self._num_workers} workers, but its ChunkSampler planned for "
                f"{planned}: "
                + (
                    "each chunk is still read once, and each worker uses "
                    f"{planned // self._num_workers} times the memory planned for one worker"
                    if is_fine
                    else "batches go to other workers than planned, and each chunk may be read "
                    "many times"
                )
                + "; pass the same num_workers to both, or use data_loader()"
            )

    def _begin(self, step_tag: StepTag, number: int) -> _Share:
        if self._cache is not None:
            self._cache.close()
            self._cache = None
        # Steps of a process are those of the plan's worker ``number``, and of every
        # ``num_workers``-th one from there. A DataLoader gives the first step of a pass to its
        # first process, so a pass that begins at another step than the one before assigns the
        # plan's workers to other processes.
        for other in [n for n in self._shares if (n - number) % self._num_workers]:
            self._shares.pop(other).worker.close()
        assert self._rank_plan is not None
        share = self._shares.get(number)
        worker = Worker(self._rank_plan, number) if share is None else share.worker
        steps = worker.steps(step_tag.epoch, step_tag.step - number)
        self._shares[number] = _Share(worker, steps)
        return self._shares[number]

    def _leave_plan(self, reason: str) -> None:
        self._warn(
            f"a DataLoader does not follow the plan ({reason}): batches are read through a cache, "
            "and each chunk may be read many times; use data_loader()"
        )

    def _warn(self, message: str) -> None:
        # Only in the first worker: each would give the same warning.
        if self._is_first and not self._has_warned:
            self._has_warned = True
            warn_caller(message, WorkersWarning)

    def _stop(self) -> None:
        for share in self._shares.values():
            share.worker.close()
        self._shares.clear()

    def _cache_for(self, batch_size: int) -> CachedReader:
        """A cache for batches of some size; the last one if memory is too small for a new one."""
        if self._cache is not None and batch_size <= self._cache_size:
            return self._cache
        try:
            made = CachedReader.of(
                self._recipe,
                self._options.memory_nbytes,
                batch_size,
                prefetch=PREFETCH,
                num_cores=self._options.threads or num_cores(self._num_workers),
                num_workers=self._num_workers,
            )
        except MemoryBudgetError:
            if self._cache is None:
                raise
            # A smaller cache reads larger batches in parts.
            made = self._cache
        else:
            self.close()
        self._cache, self._cache_size = made, batch_size
        return made


def num_cores(num_workers: int) -> int:
    """Number of cores for each of several workers, 1 at least."""
    return max(usable_cores() // max(num_workers, 1), 1)


def as_batch(delivery: Delivery, recipe: Recipe, chance: Chance) -> Batch:
    """A batch of arrays, from what the engine delivers."""
    arrays, origin = delivery.arrays, BatchOrigin.of(recipe, chance)
    return Batch(arrays.values(), arrays, delivery.ids, np.asarray(delivery.is_padding), origin)
