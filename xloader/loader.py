"""The loader: what a training loop iterates."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal

from numpy.typing import NDArray

from xloader.batch import Batch
from xloader.demands import make_footprint
from xloader.engine.blocks import BlockReader, Stored
from xloader.engine.fields import Fields
from xloader.engine.gather import Gatherer
from xloader.engine.job import Delivery, Job
from xloader.engine.pool import BlockPool
from xloader.engine.run import Run
from xloader.engine.shelf import Shelf
from xloader.engine.steps import Walker
from xloader.errors import (
    AmplificationWarning,
    ClosedError,
    EmptySamplesError,
    MemoryBudgetError,
    MixingWarning,
    OptionError,
)
from xloader.explain import Explanation, explain_epoch, explain_world
from xloader.figures import show_nbytes
from xloader.iteration import Pass, Progress
from xloader.layout import make_layouts
from xloader.mixing import region_dim
from xloader.options import LoaderOptions
from xloader.plan import Epoch
from xloader.planning import enough_memory, make_plan, most_rows
from xloader.recipe import Recipe
from xloader.report import Report
from xloader.transforms import finish

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
        self._layouts = make_layouts(recipe)
        self.footprint = make_footprint(recipe, self._layouts)
        self._check_samples()
        self.plan = make_plan(self.footprint, self._layouts, options)
        self._epoch_number = 0
        self._run: Run | None = None
        self._progress: Progress | None = None
        self._is_closed = False
        self._has_warned = False
        self._planned: Epoch | None = None
        self._explained: dict[tuple[int, int], Explanation] = {}
        self._make_pools()

    def __len__(self) -> int:
        return self._epoch().num_steps

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self.footprint.num_samples

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter`` delivers."""
        return self._epoch_number

    @property
    def sampler(self) -> Loader:
        """The loader itself: trainers call ``loader.sampler.set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` delivers.

        Raises
        ------
        OptionError
            If it is negative.
        """
        if epoch < 0:
            raise OptionError("the epoch is negative", given=epoch, allowed=">= 0")
        self._epoch_number = epoch

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """What the next ``iter`` will cost. Nothing is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether to speak of this rank or of all ranks together.

        Raises
        ------
        OptionError
            If the scope is none of these.
        """
        if scope not in ("rank", "world"):
            raise OptionError("unknown scope", given=repr(scope), allowed="'rank' or 'world'")
        epoch = self._epoch()
        # A run under way may add to these meanwhile.
        kept = set() if self._shelf is None else self._shelf.loaded()
        if scope == "rank" and (epoch.epoch, len(kept)) in self._explained:
            return self._explained[epoch.epoch, len(kept)]
        source = self.recipe.source
        paths = {name: source.path_of(name) for name in self.footprint.variables}
        if scope == "world":
            return explain_world(epoch, self.options.world.world_size, paths)
        expected = explain_epoch(epoch, self.options.own_lanes, paths, kept)
        self._explained = {(epoch.epoch, len(kept)): expected}
        return expected

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
        """Stop whatever is under way and give the memory back. More than once is fine."""
        self._stop()
        # What was counted of the old pool is still reported.
        self._pool.clear()
        self._make_pools()
        self._is_closed = True

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
        if self._is_closed:
            raise ClosedError("the loader is closed", remedy="make a new one")
        self._stop()
        expected = self.explain()
        self._warn(expected)
        epoch = self._epoch()

        def move_on() -> None:
            # Another epoch may have been chosen while this one ran.
            if self.epoch == epoch.epoch:
                self.set_epoch(epoch.epoch + 1)

        job, asked = self._job(epoch), self.options.num_threads
        batches = Pass(job, expected, self.plan.budget, asked, self._deliver, move_on)
        self._run = batches.run
        self._progress = batches.progress
        return batches

    def __reduce__(self) -> tuple[object, ...]:
        # A loader travels as what it was asked for; threads, memory and progress stay behind.
        return Loader, (self.recipe, self.options, self._hand_over)

    def __repr__(self) -> str:
        return (
            f"<xloader.Loader: {len(self)} batches of {self.options.batch_size}, "
            f"epoch {self._epoch_number}>"
        )

    def _stop(self) -> None:
        # The run and not its iterator, which a garbage collection on one of the run's own threads
        # may have ended: then nobody has waited for them yet, nor taken their blocks back.
        if self._run is not None:
            self._run.close()
        self._run = None
        if os.getpid() != self._pid:
            # Blocks on their way at a fork never arrive in the child.
            self._make_pools()

    def _make_pools(self) -> None:
        """Memory of this process, none of it in use."""
        self._pid = os.getpid()
        self._shelf: Shelf | None = None
        self._pool = BlockPool(self.plan.pool_nbytes(len(self.options.own_lanes)))
        rows = most_rows(self.footprint, self.options)
        self._fields = Fields(self._layouts, rows, self.options.prefetch + 2)

    def _epoch(self) -> Epoch:
        """The order and schedule of the epoch to come, kept until another is asked for."""
        if self._planned is None or self._planned.epoch != self._epoch_number:
            self._planned = Epoch(
                self.footprint,
                self.plan,
                self.options.seed,
                self._epoch_number,
                self.options.drop_last,
            )
        return self._planned

    def _check_samples(self) -> None:
        num_samples, options = self.footprint.num_samples, self.options
        if num_samples < options.world.world_size:
            raise EmptySamplesError(
                "there is not a sample for each rank",
                given=f"{num_samples} samples, world_size={options.world.world_size}",
                allowed="at least one a rank",
                remedy="use fewer ranks, or a smaller stride",
            )

    def _warn(self, expected: Explanation) -> None:
        if self._has_warned or not self.options.shuffle or self.plan.is_resident:
            return
        self._has_warned = True
        is_poor = expected.mixing < expected.full_mixing / 2
        is_costly = expected.read_amplification > self.options.max_amplification
        if not is_poor and not is_costly:
            return
        enough = enough_memory(self.footprint, self._layouts, self.options)
        remedy = f"memory={show_nbytes(enough).replace(' ', '')!r} or smaller chunks would do"
        if self.options.spread is not None:
            remedy = f"with spread=None, {remedy}"
        if is_poor:
            warnings.warn(
                f"batches mix {expected.mixing:.1f} regions, a full shuffle "
                f"{expected.full_mixing:.1f}: {remedy}",
                MixingWarning,
                stacklevel=3,
            )
        if is_costly:
            warnings.warn(
                f"each chunk will be read {expected.read_amplification:.2f} times, more than "
                f"max_amplification={self.options.max_amplification}: {remedy}",
                AmplificationWarning,
                stacklevel=3,
            )

    def _job(self, epoch: Epoch) -> Job:
        options, plan, recipe = self.options, self.plan, self.recipe
        windows = self.footprint.windows
        stored = {
            v.name: Stored(
                recipe.axes_of(v.name),
                tuple(windows.dims.index(d) if d in windows.dims else None for d in v.dims),
                v.stored_dtype,
                v.packing,
            )
            for v in map(recipe.variable, self.footprint.variables)
        }
        lanes = epoch.lanes(options.own_lanes)
        peak = sum(lane.schedule.peak_nbytes for lane in lanes)
        if peak > self._pool.capacity and not plan.is_resident:
            # The plan sees to it that this does not happen; without room a run would wait for ever.
            raise MemoryBudgetError(
                f"epoch {epoch.epoch} needs more chunks at a time than its plan has room for",
                given=f"{peak} bytes of chunks",
                minimum_nbytes=plan.budget.minimum_nbytes(peak),
            )
        layouts = self._layouts
        in_flight = plan.budget.in_flight_nbytes // self.footprint.max_chunk_nbytes
        num_threads = min(options.num_threads, in_flight)
        together = plan.budget.in_flight_nbytes // num_threads
        gatherer = Gatherer(self.footprint, layouts, self._fields, stored)
        walker = Walker(
            self.footprint,
            gatherer.accesses,
            lanes,
            plan.lane_share,
            epoch.num_steps,
            is_resident=plan.is_resident,
            # On several ranks no one sees a global batch.
            region_dim=None if options.world.world_size > 1 else region_dim(self.footprint),
        )
        shelf = self._shelf or Shelf(
            self.footprint.groups, [len(needs.blocks) for needs in walker.groups]
        )
        if plan.is_resident:
            self._shelf = shelf
        return Job(
            walker=walker,
            groups=self.footprint.groups,
            fields=self._fields,
            reader=BlockReader(recipe.source, stored, together),
            gatherer=gatherer,
            finish=lambda arrays, ids: finish(recipe, layouts, arrays, ids),
            batch_size=most_rows(self.footprint, options),
            is_padded=options.world.world_size > 1,
            prefetch=options.prefetch,
            num_threads=num_threads,
            pool=self._pool,
            shelf=shelf,
            is_resident=plan.is_resident,
            in_flight_nbytes=plan.budget.in_flight_nbytes,
            fixed_nbytes=plan.budget.fixed_nbytes,
        )

    def _deliver(self, delivery: Delivery) -> Any:
        arrays = [self._hand_over(array) for array in delivery.arrays.values()]
        batch = Batch(arrays, delivery.arrays, delivery.ids, delivery.is_padding)
        if self.options.device is not None:
            batch = batch.to(self.options.device, non_blocking=True)
        if self.options.collate_fn is None:
            return batch
        return self.options.collate_fn(list(zip(*batch, strict=True)))
