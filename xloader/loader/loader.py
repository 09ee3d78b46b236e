"""The loader: what a training loop iterates."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from numpy.typing import NDArray

from xloader.core.footprint import Footprint
from xloader.core.messages import names_function
from xloader.core.nans import warn_of_nans
from xloader.core.options import LoaderOptions, check_epoch
from xloader.engine.job import Delivery
from xloader.engine.run import Run
from xloader.errors import ClosedError, OptionError
from xloader.loader.batch import Batch
from xloader.loader.epoch_iterator import EpochIterator, EpochRun, make_epoch_run
from xloader.loader.job_factory import JobFactory, name_chunks
from xloader.loader.padding import rest_of
from xloader.loader.progress import EpochProgress
from xloader.loader.rank_resolution import RankResolver
from xloader.loader.report import Report
from xloader.loader.row_list import Rows
from xloader.loader.state import Position
from xloader.loader.worker import carried_out, explain_rest
from xloader.planning.epoch import Epoch
from xloader.planning.explain import Explanation, shared_blocks
from xloader.planning.plan import Plan
from xloader.planning.remainder import Remainder
from xloader.recipe.recipe import Recipe

HandOver = Callable[[NDArray[Any]], Any]
"""Makes what is delivered from a gathered array: a tensor, or the array itself."""


class Loader:
    """Iterates over shuffled batches, reading each chunk as seldom as the memory allows.

    Made by :meth:`Samples.loader`. Each ``iter`` is one epoch; after a complete one the next
    begins by itself. To break out and iterate again is to begin the same epoch anew.

    Parameters
    ----------
    recipe : Recipe
        The data behind the samples.
    options : LoaderOptions
        The options.
    hand_over : callable
        Makes what is delivered from a gathered array.

    Raises
    ------
    MemoryBudgetError
        If the memory is too small, with the minimum that would do.
    EmptySamplesError
        If there is not a sample for each rank.
    LanesError
        If lanes do not divide the global batch, or ranks do not divide the lanes. With ``lanes``
        and no ranks known yet, this and too little memory are errors of the first use.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = xloader.open(ds).window(time=2, stride=1)
    >>> with samples.loader(batch_size=4, output="numpy") as loader:
    ...     sizes = [len(batch.ids) for batch in loader]
    >>> sizes, loader.report().num_reads
    ([4, 4, 1], 1)
    """

    def __init__(self, recipe: Recipe, options: LoaderOptions, hand_over: HandOver) -> None:
        self.recipe = recipe
        self.options = options
        self._hand_over = hand_over
        self._resolver = RankResolver(recipe, options)
        self._epoch_number = 0
        # Batches of that epoch that were yielded, and whether the next pass goes on from there.
        self._step = 0
        self._is_resuming = False
        self._pass_number = 0
        # Weakly: an iterator that is thrown away ends its run.
        self._pass: weakref.ref[EpochIterator] | None = None
        self._run: Run | None = None
        self._progress: EpochProgress | None = None
        self._is_closed = False
        self._has_warned = False
        self._explained: dict[tuple[int, int, int], Explanation] = {}
        self._carried: JobFactory | None = None
        self._locks: dict[int, threading.RLock] = {}

    @property
    def footprint(self) -> Footprint:
        """What samples need of the source."""
        return self._resolver.rank_plan.footprint

    @property
    def plan(self) -> Plan:
        """The plan of all epochs."""
        return self._resolver.rank_plan.plan

    def __len__(self) -> int:
        return self._resolver.settle().num_steps

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._resolver.rank_plan.num_samples

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter`` delivers."""
        return self._epoch_number

    @property
    def sampler(self) -> Loader:
        """The loader itself: trainers call ``loader.sampler.set_epoch``."""
        return self

    @property
    def batch_sampler(self) -> Loader:
        """The loader itself: trainers that look for a sampler look here first."""
        return self

    @property
    def batch_size(self) -> int:
        """Samples of a batch, on each rank."""
        return self.options.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` delivers, from its first step on.

        So does an iterator that was not asked for a batch yet. The epoch of a state that was
        loaded keeps the position of that state.

        Raises
        ------
        OptionError
            If there is none such.
        """
        epoch = check_epoch(epoch)
        if epoch != self._epoch_number:
            self._epoch_number, self._step, self._is_resuming = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after the last batch that was yielded.

        Returns
        -------
        dict
            Plain JSON values, under 2 KB: whatever the rank, they restore all ranks. A state
            saved after the last batch of an epoch goes on with the next one.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> samples = xloader.open(ds).window(time=2, stride=1)
        >>> loader = samples.loader(batch_size=4, output="numpy")
        >>> for batch in loader:
        ...     state = loader.state_dict()
        ...     break
        >>> other = samples.loader(batch_size=4, output="numpy")
        >>> other.load_state_dict(state)
        >>> len(list(other)), state["epoch"], state["step"]
        (2, 0, 1)
        """
        return self._resolver.save(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a loader of the same samples stood. Nothing is read yet.

        The state's plan and seed are adopted, so that what comes is what would have come there:
        on any number of ranks that divides its lanes. The next ``iter`` delivers the rest of its
        epoch, reading no more than what was in memory then, and what had not been read.

        Parameters
        ----------
        state : dict
            What :meth:`state_dict` gave, of any rank, perhaps by way of JSON.

        Raises
        ------
        StateError
            If it is damaged, or of other samples or another global batch.
        LanesError
            If the ranks do not divide its lanes, with those that do.
        MemoryBudgetError
            If its plan needs more memory than this loader has.
        """
        self._check_open()
        position = self._resolver.load(state)
        self._stop()
        self._explained = {}
        self._epoch_number, self._step = position.epoch, position.step
        if 0 < position.step == self._resolver.rank_plan.num_steps:
            self._epoch_number, self._step = position.epoch + 1, 0
        self._is_resuming = self._step > 0

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """What the next ``iter`` will cost. No value is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether to speak of this rank or of all ranks together.

        Raises
        ------
        OptionError
            If the scope is none of these.
        """
        rank_plan = self._resolver.settle()
        if scope == "rank":
            return rank_plan.with_notes(self._expected())
        left = self._left()
        expected = explain_rest(rank_plan, left, scope)
        carried = carried_out(rank_plan, left, scope)
        blocks = shared_blocks(carried, rank_plan.processes(scope))
        shared = replace(expected, shared_chunks=name_chunks(rank_plan, blocks))
        return rank_plan.with_notes(shared)

    def report(self) -> Report:
        """What was read and how fast, of the epoch under way or last ended.

        Raises
        ------
        OptionError
            If no epoch has begun.
        """
        if self._progress is None:
            raise OptionError(
                "there is nothing to report yet",
                allowed="a report after a first batch",
                remedy="iterate over the loader, or call explain() for the prediction",
            )
        return self._progress.report()

    def close(self) -> None:
        """Stop whatever is under way and give the memory back. More than once is fine.

        It returns within two seconds. A thread that is stuck in a read is left behind, and ends
        by itself if it ever comes back.
        """
        self._is_closed = True
        with self._lock:
            self._stop()
            if self._carried is not None:
                self._carried.clear()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            self._check_open()
            if self._pass is not None and (previous := self._pass()) is not None:
                previous.replace()
            self._stop()
            expected = self._expected()
            self._resolver.rank_plan.warn(expected)
            self._resolver.begin(expected, Position(self._epoch_number, self._first_step))
            started = EpochIterator(self._begin, self._deliver)
            self._pass = weakref.ref(started)
            return started

    def __reduce__(self) -> tuple[object, ...]:
        # A loader travels as what it was asked for; threads, memory and progress stay behind.
        return Loader, (self.recipe, self.options, self._hand_over)

    def __repr__(self) -> str:
        planned = self._resolver.planned
        count = "" if planned is None else f"{planned.num_steps} "
        return f"<xloader.Loader: {count}batches of {self.batch_size}, epoch {self._epoch_number}>"

    @property
    def _lock(self) -> threading.RLock:
        """One iteration begins, or ends, at a time: they share the memory."""
        # By process: what another thread held while forking is never released in the child.
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the loader is closed", remedy="make a new one")

    @property
    def _position(self) -> Position:
        """Where it stands, behind the last batch that was yielded."""
        return Position(self._epoch_number, self._step)

    @property
    def _first_step(self) -> int:
        """Where the next pass begins."""
        return self._step if self._is_resuming else 0

    def _left(self) -> Epoch | Remainder:
        """What the next pass yields."""
        return self._resolver.rank_plan.remainder(self._epoch_number, self._first_step)

    def _expected(self) -> Explanation:
        """What the next pass of this rank will cost, for which no label is read."""
        rank_plan, left = self._resolver.settle(), self._left()
        kept = self._job_factory().loaded()
        key = self._epoch_number, self._first_step, len(kept)
        if key not in self._explained:
            self._explained = {key: explain_rest(rank_plan, left, cached=[kept])}
        return self._explained[key]

    def _begin(self) -> EpochRun:
        """Make what the next pass carries out, in the place of what was under way."""
        with self._lock:
            return self._make_epoch_run()

    def _make_epoch_run(self) -> EpochRun:
        self._stop()
        expected, number, rank_plan = self._expected(), self._epoch_number, self._resolver.rank_plan
        numbers = rank_plan.sublanes()
        part, num_passed = rest_of(self._left(), numbers)
        job = self._job_factory().job(part, numbers)
        step = self._step = self._first_step
        pass_number = self._pass_number

        def count(num_steps: int) -> None:
            nonlocal step
            step += num_steps
            # Another epoch may have been chosen meanwhile; or chosen, and this one again.
            if self._epoch_number == number:
                self._step = step
                # Not with iter: trainers ask for an iterator and throw it away.
                self._is_resuming = False
                if step == rank_plan.num_steps:
                    self._epoch_number, self._step = number + 1, 0

        def is_overtaken() -> bool:
            # As DataLoader does it; Lightning asks for an iterator before it tells the epoch.
            return self._epoch_number != number and self._pass_number == pass_number

        epoch_run = make_epoch_run(
            job,
            expected,
            rank_plan.plan.budget,
            self.options.num_threads,
            num_passed=num_passed,
            count=count,
            is_overtaken=is_overtaken,
        )
        self._run, self._progress = epoch_run.run, epoch_run.progress
        return epoch_run

    def _job_factory(self) -> JobFactory:
        """What carries the rank plan out as it stands."""
        own, job_factory = self._resolver.rank_plan, self._carried
        if job_factory is None or job_factory.rank_plan is not own:
            if job_factory is not None:
                job_factory.clear()
            options = own.options
            job_factory = JobFactory(own, num_ready=options.prefetch, num_cores=options.num_threads)
            self._carried = job_factory
        return job_factory

    def _stop(self) -> None:
        # The run and not its iterator, which a garbage collection on one of the run's own threads
        # may have ended: then nobody has waited for them yet, nor taken their blocks back.
        if self._run is not None:
            self._run.close()
        self._run = None
        self._pass_number += 1
        if self._carried is not None and self._carried.is_foreign:
            self._carried.renew()

    def _deliver(self, delivery: Delivery) -> Any:
        if delivery.nans and self.options.on_nan == "warn" and not self._has_warned:
            self._has_warned = True
            warn_of_nans(delivery.nans)
        arrays = [self._hand_over(array) for array in delivery.arrays.values()]
        batch = Batch(arrays, delivery.arrays, delivery.ids, delivery.is_padding)
        if self.options.device is not None:
            batch = batch.to(self.options.device, non_blocking=True)
        if self.options.collate_fn is None:
            return batch
        with names_function(f"collate_fn on a batch of {len(batch.ids)} samples"):
            return self.options.collate_fn(Rows(batch))
