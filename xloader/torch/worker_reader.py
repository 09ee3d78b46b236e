"""What a map-style dataset has in one process: runs of the plan it was told of, or a cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from xloader.core.axis import Ints
from xloader.core.messages import warn_caller
from xloader.core.nans import OnNan, look_for_nans, warn_of_nans
from xloader.core.options import usable_cores
from xloader.engine.block_reader import BlockReader
from xloader.engine.buffers import Fields
from xloader.engine.cached_reader import CachedReader
from xloader.engine.gather import Gatherer
from xloader.engine.job import Delivery
from xloader.errors import MemoryBudgetError, OptionError, WorkersWarning
from xloader.loader.batch import Batch
from xloader.loader.job_factory import stored_variables
from xloader.loader.rank_plan import RankPlan
from xloader.loader.worker import Worker
from xloader.planning.cache_budget import cache_budget
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.torch.step_tags import PlanTag, StepTag
from xloader.torch.worker_watch import end_in_time
from xloader.transforms.run import finish

PREFETCH = 2
"""Batches of a worker that wait for the training loop, as a ``DataLoader`` has it by default."""


@dataclass
class _Way:
    """One worker's share of a pass, under way in this process."""

    worker: Worker
    epoch: int
    pass_number: int
    next_step: int
    steps: Iterator[Delivery]


class WorkerReader:
    """Serves one process: batches of the plan, where it is told the step, or of any ids.

    Parameters
    ----------
    recipe : Recipe
        The data behind the samples.
    memory_nbytes : int
        Of all workers of a rank: this one has its share.
    threads : int, optional
        Threads that load and gather; by default this worker's share of the cores.
    on_nan : {"warn", "raise", "ignore"}
        What to do about NaN.
    """

    def __init__(
        self, recipe: Recipe, memory_nbytes: int, threads: int | None, on_nan: OnNan = "warn"
    ) -> None:
        self._recipe = recipe
        self._memory_nbytes = memory_nbytes
        self._threads = threads
        self._on_nan = on_nan
        self._num_read = 0
        self._has_warned_of_nans = False
        self._pid = os.getpid()
        end_in_time()
        info = get_worker_info()
        self._num_workers = 1 if info is None else info.num_workers
        self._is_first = info is None or info.id == 0
        self._is_worker = info is not None
        self._plan_tag: PlanTag | None = None
        self._rank_plan: RankPlan | None = None
        self._ways: dict[int, _Way] = {}
        self._workers: dict[int, Worker] = {}
        self._cache: CachedReader | None = None
        self._cache_size = 0
        self._has_warned = False

    @property
    def is_foreign(self) -> bool:
        """Whether this came over a fork, where its threads and locks do not live."""
        return os.getpid() != self._pid

    def step(self, step_tag: StepTag, ids: Sequence[int]) -> Delivery | None:
        """The batch of a step, made by the plan; None where it does not come as planned."""
        if reason := _why_not(step_tag, ids):
            self._leave_plan(reason)
            return None
        self._check_plan_tag_is_kept(step_tag.plan_tag)
        number = step_tag.step % step_tag.plan_tag.plan.workers
        way = self._ways.get(number)
        place = step_tag.epoch, step_tag.pass_number, step_tag.step
        if way is None or (way.epoch, way.pass_number, way.next_step) != place:
            if not step_tag.is_first:
                self._leave_plan(f"step {step_tag.step} came out of turn, as with in_order=False")
                return None
            way = self._begin(step_tag, number)
        # A way that fails is not gone on with, which is no news beside its error.
        del self._ways[number]
        has_warned, self._has_warned = self._has_warned, True
        delivery = next(way.steps)
        self._has_warned = has_warned
        own = ~delivery.is_padding
        assert (delivery.ids == ids)[own].all(), "samplers and workers have one order"
        way.next_step += step_tag.plan_tag.plan.workers
        self._ways[number] = way
        return delivery

    def read(self, ids: Ints) -> Batch:
        """Any samples, read through a cache of decoded chunks."""
        arrays = self._cache_for(max(len(ids), 1)).read(ids)
        arrays = finish(self._recipe, make_layouts(self._recipe), arrays, ids)
        nans = look_for_nans(self._on_nan, self._num_read, arrays, ids)
        self._num_read += 1
        if nans and self._on_nan == "warn" and not self._has_warned_of_nans:
            self._has_warned_of_nans = True
            warn_of_nans(nans)
        return Batch(arrays.values(), arrays, ids)

    def close(self) -> None:
        """Stop the threads and give the memory back. More than once is fine."""
        self._stop()
        if self._cache is not None:
            self._cache.close()
        self._cache = None

    @property
    def _num_cores(self) -> int:
        return self._threads or num_cores(self._num_workers)

    def _check_plan_tag_is_kept(self, plan_tag: PlanTag) -> None:
        if self._plan_tag == plan_tag:
            return
        if plan_tag.fingerprint != self._recipe.fingerprint:
            raise OptionError(
                "a ChunkSampler deals ids of other samples than the dataset has",
                given="a sampler and a dataset that were made of different samples",
                allowed="the same samples for both, select and weighted included",
                remedy="pass one samples to MapDataset and ChunkSampler, or use data_loader()",
            )
        self._stop()
        self._plan_tag = plan_tag
        # Batches are made here, so what becomes of them is for the dataset to say.
        options = replace(plan_tag.options, on_nan=self._on_nan)
        self._rank_plan = RankPlan(self._recipe, options, plan=plan_tag.plan)
        planned = plan_tag.plan.workers
        if planned != self._num_workers:
            is_fine = planned % self._num_workers == 0
            self._warn(
                f"a DataLoader has {self._num_workers} workers, and its ChunkSampler planned for "
                f"{planned}: "
                + (
                    f"each chunk is still read once, with {planned // self._num_workers} parts of "
                    "the memory in each"
                    if is_fine
                    else "batches come to other workers than planned, and chunks are read again "
                    "and again"
                )
                + "; pass num_workers to both, or use data_loader()"
            )

    def _begin(self, step_tag: StepTag, number: int) -> _Way:
        if self._cache is not None:
            self._cache.close()
            self._cache = None
        self._dismiss(number)
        if number not in self._workers:
            assert self._rank_plan is not None
            options = step_tag.plan_tag.options
            self._workers[number] = Worker(
                self._rank_plan,
                number,
                # In a worker process, what waits lies in memory that is shared with the parent.
                num_ready=1 if self._is_worker else options.prefetch,
                num_cores=options.threads or self._num_cores,
            )
        worker = self._workers[number]
        steps = worker.steps(step_tag.epoch, step_tag.first_step)
        way = _Way(worker, step_tag.epoch, step_tag.pass_number, step_tag.step, steps)
        self._ways[number] = way
        return way

    def _dismiss(self, number: int) -> None:
        """End the workers whose steps come to other processes once this one has a worker's."""
        # A pass that does not begin with step 0 deals them out otherwise than the one before.
        for other in [n for n in self._workers if (n - number) % self._num_workers]:
            self._workers.pop(other).close()
            self._ways.pop(other, None)

    def _leave_plan(self, reason: str) -> None:
        self._warn(
            f"a DataLoader does not take batches as planned ({reason}): they are read through a "
            "cache, and chunks again and again; use data_loader()"
        )

    def _warn(self, message: str) -> None:
        # Each worker would say the same.
        if self._is_first and not self._has_warned:
            self._has_warned = True
            warn_caller(message, WorkersWarning)

    def _stop(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._ways.clear()

    def _cache_for(self, batch_size: int) -> CachedReader:
        """A cache that was made for such batches; if there is no room for that, the last one."""
        cache = self._cache
        if cache is None or batch_size > self._cache_size:
            try:
                made = self._make_cache(batch_size)
            except MemoryBudgetError:
                if cache is None:
                    raise
                # It reads them in parts.
                made = cache
            else:
                self.close()
            self._cache, self._cache_size, cache = made, batch_size, made
        return cache

    def _make_cache(self, batch_size: int) -> CachedReader:
        layouts = make_layouts(self._recipe)
        footprint = make_footprint(self._recipe, layouts)
        budget = cache_budget(
            footprint,
            layouts,
            self._memory_nbytes,
            batch_size,
            PREFETCH,
            num_workers=self._num_workers,
        )
        rows = min(batch_size, footprint.num_samples)
        fields = Fields(layouts, rows, PREFETCH + 2)
        stored = stored_variables(self._recipe, footprint)
        in_flight = budget.in_flight_nbytes
        num_threads = min(self._num_cores, in_flight // footprint.max_chunk_nbytes)
        return CachedReader(
            footprint,
            BlockReader(self._recipe.source, stored, in_flight // num_threads),
            Gatherer(footprint, layouts, fields, stored),
            fields,
            batch_size=rows,
            capacity_nbytes=budget.lane_nbytes,
            in_flight_nbytes=in_flight,
            num_threads=num_threads,
            retry_policy=self._recipe.retry_policy,
        )


def _why_not(step_tag: StepTag, ids: Sequence[int]) -> str:
    """Why a list is not that of its step; nothing where it is."""
    if len(ids) != step_tag.num_rows:
        return f"it has batches of {len(ids)}, and its ChunkSampler planned {step_tag.num_rows}"
    if not step_tag.is_of(ids):
        return "its ids were dealt out anew, as by another sampler"
    return ""


def num_cores(num_workers: int) -> int:
    """Cores that each of several workers has for itself."""
    return max(usable_cores() // max(num_workers, 1), 1)


def as_batch(delivery: Delivery) -> Batch:
    """What the engine delivers, as a batch of arrays."""
    arrays: dict[str, Any] = delivery.arrays
    return Batch(arrays.values(), arrays, delivery.ids, np.asarray(delivery.is_padding))
