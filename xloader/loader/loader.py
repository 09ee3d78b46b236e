"""The loader: the iterable over batches that a training loop uses.

It combines the rank plan (what to read and deliver), the job factory (memory and readers) and one
iterator at a time. The iterator counts its batches at the loader's cursor, so that the position can
be saved and loaded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from xloader.core.footprint import Footprint
from xloader.core.messages import names_function
from xloader.core.nans import NanWarner
from xloader.core.options import LoaderOptions
from xloader.engine.batches import Delivery
from xloader.errors import OptionError
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.batches.device_path import DevicePath, refusal_of
from xloader.loader.batches.row_list import Rows, SampleNames
from xloader.loader.engines import Engine
from xloader.loader.epoch_iterator import EpochIterator, EpochRun, closed_loader
from xloader.loader.ranks.cursor import Cursor, Position
from xloader.loader.ranks.job_factory import explain_ranks
from xloader.loader.ranks.rank_resolver import RankResolver
from xloader.loader.ranks.state import read_state
from xloader.loader.reports.explain_notes import processes_note, rank_note
from xloader.loader.reports.progress import NOTHING_YET, BarCounts, EpochProgress, make_bar
from xloader.loader.trainer_attributes import TrainerAttributes
from xloader.planning.epoch import Epoch
from xloader.planning.plan import Plan
from xloader.planning.remainder import Remainder
from xloader.recipe.recipe import Recipe
from xloader.transforms.packed_fields import PackedField
from xloader.transforms.rng import Chance

if TYPE_CHECKING:
    from xloader.engine.run import Run
    from xloader.loader.reports.batch_variance import BatchVariance
    from xloader.loader.reports.report import Report
    from xloader.planning.explain import Explanation
    from xloader.show.canvas import Picture
    from xloader.show.cards import Card

HandOver = Callable[[NDArray[Any]], Any]
"""Converts a gathered array into what is delivered: a tensor, or the array itself."""


class Loader(TrainerAttributes):
    """Iterable over shuffled batches that reads each chunk as few times as the memory allows.

    It is made by :meth:`Samples.loader`. Each ``iter`` is one epoch. After a complete epoch, the
    next ``iter`` delivers the next one. After a break in the middle, it starts the same epoch
    again from its first batch.

    Parameters
    ----------
    recipe : Recipe
        The data behind the samples.
    options : LoaderOptions
        The options of :meth:`Samples.loader`.
    hand_over : callable
        Converts a gathered array into what is delivered.
    packed_fields : sequence of PackedField
        Fields that are gathered as stored. The device unpacks them.
    device_path : DevicePath, optional
        Brings the batches to a device in place of ``hand_over``.
    sample_names : SampleNames, optional
        The ids of the samples, if they are a part of others. Batches have these ids. Only for
        threads of this process, and not for a device.

    Attributes
    ----------
    label : str
        Begins warnings: which of several sets of samples they are about. Empty for one set.

    Raises
    ------
    MemoryBudgetError
        If the memory is too small. The error gives the minimum that suffices.
    EmptySamplesError
        If there are fewer samples than ranks.
    LanesError
        If the lanes do not divide the global batch, or the ranks do not divide the lanes. If
        ``lanes`` is given and the ranks are not known yet, this error and that about memory are
        raised at the first use.

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

    def __init__(
        self,
        recipe: Recipe,
        options: LoaderOptions,
        hand_over: HandOver,
        packed_fields: Sequence[PackedField] = (),
        device_path: DevicePath | None = None,
        sample_names: SampleNames | None = None,
    ) -> None:
        self.recipe = recipe
        self.options = options
        self._hand_over = hand_over
        self._packed_fields = tuple(packed_fields)
        self._device_path = device_path
        self._sample_names = sample_names
        self.label = ""
        self._resolver = RankResolver(recipe, options)
        self._cursor = Cursor(options.shuffle)
        # The iterator itself is not kept: one that nobody holds is collected, and ends its run.
        self._run: Run | None = None
        self._progress: EpochProgress | None = None
        self._is_closed = False
        self._nan_warner = NanWarner(options.on_nan)
        self._explained: dict[tuple[Position, int], Explanation] = {}
        self._carried: Engine | None = None
        self._locks: dict[int, threading.RLock] = {}
        # Made before processes are, so that their batches refer to the recipe of this one.
        _ = recipe.token

    @property
    def device_path(self) -> DevicePath | None:
        """The way of the batches to a device; None if they stay as gathered."""
        return self._device_path

    @property
    def footprint(self) -> Footprint:
        """The chunks of the source that the samples need."""
        return self._resolver.rank_plan.footprint

    @property
    def plan(self) -> Plan:
        """The plan of all epochs."""
        return self._resolver.rank_plan.plan

    def __len__(self) -> int:
        """Number of batches of an epoch on this rank."""
        return self._resolver.settle().num_steps

    @property
    def num_samples(self) -> int:
        """Number of samples of an epoch, over all ranks."""
        return self._resolver.rank_plan.num_samples

    @property
    def rank(self) -> int:
        """Number of this process among those that divide the samples, from 0."""
        return self._resolver.settle().options.world.rank

    @property
    def world_size(self) -> int:
        """Number of processes that divide the samples."""
        return self._resolver.settle().options.world.world_size

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next ``iter`` delivers."""
        return self._cursor.epoch

    @property
    def batch_size(self) -> int:
        """Number of samples of a batch of one rank."""
        return self.options.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` delivers, from its first step on.

        An iterator that has not been asked for a batch yet switches to this epoch as well. If it
        is the epoch of a state that was just loaded, the position of that state is kept.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.

        Raises
        ------
        OptionError
            If the number is not a whole one, is negative or is too large.
        """
        self._cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the loader: after the last batch that was yielded.

        Returns
        -------
        dict
            Plain JSON values, under 2 KB. The state of any rank restores all ranks. A state
            saved after the last batch of an epoch continues with the next epoch.

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
        return self._resolver.save(self._cursor.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position of a loader of the same samples. No chunk is read yet.

        The loader adopts the plan and the seed of the state. It then delivers the batches that
        the other loader would have delivered, on any number of ranks that divides the state's
        lanes. The next ``iter`` delivers the remainder of the state's epoch. It reads only chunks
        that were in memory when the state was saved, or that had not been read by then.

        Parameters
        ----------
        state : dict
            The return value of :meth:`state_dict` on any rank, also after a round trip through
            JSON.

        Raises
        ------
        StateError
            If the state is damaged, or was saved with other samples, another global batch or
            another ``shuffle`` or ``drop_last``.
        LanesError
            If the ranks do not divide the state's lanes. The error names rank counts that do.
        MemoryBudgetError
            If the plan of the state needs more memory than this loader has.
        ClosedError
            If the loader is closed.
        """
        self._check_open()
        position = self._resolver.load(state)
        self._stop()
        self._explained = {}
        self._cursor.load(position, self._resolver.rank_plan.num_steps)

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """Predict what the next ``iter`` will read and hold in memory. No chunk of data is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether to count this rank alone or all ranks together.

        Returns
        -------
        Explanation
            The prediction.

        Raises
        ------
        OptionError
            If the scope is neither of these.
        """
        return self.explain_from(self._cursor.start, scope)

    def preview(self, num_rows: int = 3, *, channel: str | Sequence[str] | None = None) -> Picture:
        """Draw the first batch that the next ``iter`` would deliver. The loader does not move on.

        The samples are read on their own, without the loader's memory and threads, so an iteration
        under way goes on undisturbed.

        Parameters
        ----------
        num_rows : int, default 3
            The most rows of the batch that are drawn.
        channel : str or sequence of str, optional
            As for :meth:`Samples.plot`.

        Returns
        -------
        matplotlib.figure.Figure
            The rows, as :meth:`Batch.plot` draws them. The title says epoch, step, shapes, dtypes
            and bytes, and the share of NaN where there is any. A ``device_transform`` and a
            ``collate_fn`` are not called.

        Raises
        ------
        EmptySamplesError
            If no batch is left.
        ChunkError
            If a chunk of the batch cannot be read.
        UnknownNameError
            If no field has the channel.
        MissingDependencyError
            If matplotlib is not installed.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> loader = xloader.open(ds).window(time=2).loader(batch_size=4, output="numpy")
        >>> print(loader.preview().get_suptitle())
        First of 2 batches of epoch 0: 4 samples, 256 B
        t2m (4, 2, 4) float64
        >>> len(list(loader))
        2
        """
        return self.preview_from(self._cursor.start, num_rows, channel)

    def batch_variance(
        self, variable: str | None = None, num_batches: int = 64, *, epoch: int | None = None
    ) -> BatchVariance:
        """Measure how much the means of batches vary, against those of a full shuffle.

        That is the noise which a training's gradient sees, in place of the count of regions that
        ``explain().mixing`` is. The plan says which samples some batches of the epoch have. These
        samples are read once, and nothing else: the loader does not move on. Often that is most
        chunks of an epoch. It takes the loader's ``memory``, beside that of an iteration under way.

        Parameters
        ----------
        variable : str, optional
            Name of a variable, in all fields that have it; by default all variables of all fields,
            each with a ratio of its own. Chunks of other variables are not read then, unless there
            is a transform that may need them. After :meth:`Samples.map` or a recorded method it is
            the name of a channel, or of a field without named channels.
        num_batches : int, default 64
            Global batches that are looked at, one in each of so many equal parts of the epoch, so
            that its ends count as much as they are long. All, if the epoch has no more than that.
            With 64 the standard error is at most about a fifth of the ratio.
        epoch : int, optional
            Number of the epoch; by default the one that the next ``iter`` delivers, from its begin.

        Returns
        -------
        BatchVariance
            The ratio of the variances, its standard error, and the effective batch size.

        Raises
        ------
        EmptySamplesError
            If the epoch has fewer than two full batches.
        OptionError
            If ``num_batches`` or ``epoch`` is outside its range.
        UnknownNameError
            If no field has the variable.
        UnsupportedDataError
            If a field holds no real numbers.
        MemoryBudgetError
            If the loader's memory is too small to read the samples beside the sums.
        ChunkError
            If a chunk cannot be read, also with ``on_error="skip"``.

        Notes
        -----
        With :math:`m_b` the means of :math:`K` of the epoch's :math:`n` global batches of :math:`B`
        samples, and all squares summed over elements,

        .. code-block:: text

           M     = B * sum((m_b - mean of all m_b)**2) / (K - 1)           among batches
           W     = sum((sample - mean of its batch)**2)                    within batches
           S2    = ((n - 1) * M + n / K * W) / (n * B - 1)                 variance of all samples
           ratio = M / S2

        This is the design effect of cluster sampling (Kish, *Survey Sampling*, Wiley, 1965), with
        the variances of Cochran, *Sampling Techniques*, Wiley, 1977, section 9.4. It is exact for
        the epoch if all batches are taken. An epoch of few batches may exceed ``B`` a little: the
        greatest ratio is ``(n * B - 1) / (n - 1)``.

        The values are those that are delivered, after all transforms, but before ``output_dtype``,
        ``device_transform`` and ``collate_fn``. At most 4,096 elements of each sample and variable
        are looked at, evenly over the sample, and fewer if their sums would take more than 1/16
        of the memory. An element that is NaN or infinite in some sample is left out and counted. A
        sample that occurs several times is read and transformed once. A function of
        :meth:`Samples.map` that combines samples sees others than in training. All ranks find the
        same figures, each by reading all of the samples; ranks that share samples
        (:meth:`Samples.slab`) find those of their own slabs.

        Examples
        --------
        The samples of a batch are equal, so a batch is worth one sample:

        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.repeat(np.arange(64.0), 4)[:, None])})
        >>> samples = xloader.open(ds).window(time=1)
        >>> with samples.loader(batch_size=4, shuffle=False, output="numpy") as loader:
        ...     found = loader.batch_variance("t2m")
        >>> round(found.ratio, 1), round(found.effective_batch_size, 1), found.num_reads
        (4.0, 1.0, 1)
        """
        from xloader.loader.variance_measurement import measure_batch_variance

        self._check_open()
        number = self.epoch if epoch is None else epoch
        rank_plan = self._resolver.settle()
        return measure_batch_variance(rank_plan, number, variable, num_batches, Loader)

    def preview_from(
        self, start: Position, num_rows: int = 3, channel: str | Sequence[str] | None = None
    ) -> Picture:
        """Draw as `preview` does, for an iteration that would start at a position."""
        from xloader.loader.preview import draw_preview

        self._check_open()
        return draw_preview(self._resolver.settle(), self._left(start), start, num_rows, channel)

    def explain_from(
        self, start: Position, scope: Literal["rank", "world"] = "rank"
    ) -> Explanation:
        """Predict as `explain` does, for an iteration that would start at a position."""
        rank_plan = self._resolver.settle()
        if scope == "rank":
            expected = self._expected(start)
        else:
            expected = explain_ranks(rank_plan, self._left(start), scope)
        refusal = refusal_of(self._device_path)
        noted = rank_plan.with_notes(expected, self._packed_fields, refusal)
        more = processes_note(self.recipe, rank_plan.options), rank_note(rank_plan.options, scope)
        return replace(noted, notes=(*noted.notes, *filter(None, more)))

    def move_to(self, position: Position) -> None:
        """Start the next iteration at a position."""
        self._cursor.resume(position)

    def state_at(self, position: Position) -> dict[str, Any]:
        """The state as `state_dict` gives it, for any position."""
        return self._resolver.save(position)

    def check_state(self, state: object) -> None:
        """Raise the errors of `load_state_dict`, without loading the state."""
        read_state(state, self._resolver.settle())

    def report(self) -> Report:
        """Measurements of the epoch under way, or of the last one.

        Returns
        -------
        Report
            The amounts read, and the speed.

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
        return replace(self._progress.report(), pinning_refusal=refusal_of(self._device_path))

    def progress(self, **tqdm_options: Any) -> Any:
        """Iterate over an epoch with a progress bar of tqdm, in a terminal or a notebook.

        The bar counts batches. It also shows the decoded bytes read a second, and the share of the
        time in which the training loop waited for a batch. It begins where the next ``iter``
        begins, also after :meth:`load_state_dict`.

        Parameters
        ----------
        **tqdm_options
            Keyword arguments of ``tqdm.auto.tqdm``, such as ``desc``. By default, only rank 0 shows
            a bar: pass ``disable=False`` for all ranks, ``disable=True`` for none.

        Returns
        -------
        tqdm.tqdm
            The bar. Iterate over it in place of the loader; ``set_postfix`` adds figures to it.

        Raises
        ------
        MissingDependencyError
            If tqdm is not installed.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> loader = xloader.open(ds).window(time=2).loader(batch_size=4, output="numpy")
        >>> [len(batch.ids) for batch in loader.progress(disable=True)]
        [4, 1]
        """
        return make_bar(self, self._cursor.start.step, tqdm_options)

    def close(self) -> None:
        """Stop the threads and release the memory. It may be called more than once.

        It returns within two seconds. A thread that is stuck in a read is left behind, and ends
        by itself once the read returns. A closed loader cannot be iterated any more.
        """
        self._is_closed = True
        with self._lock:
            self._stop()
            if self._carried is not None:
                self._carried.clear()
            if self._device_path is not None:
                self._device_path.close()

    def __iter__(self) -> Iterator[Any]:
        """Deliver the batches of one epoch: of the next epoch each time, or the rest of a state."""
        with self._lock:
            self._check_open()
            # Before the run stops: a thread that waits for the run's next batch is told why.
            number = self._cursor.begin()
            self._stop()
            expected = self._expected(self._cursor.start)
            rank_plan = self._resolver.rank_plan
            if self._device_path is not None and rank_plan.num_steps:
                self._device_path.check(rank_plan.batch_size, rank_plan.rows.last_size)
            rank_plan.warn(expected, self.label)
            self._resolver.begin(expected, self._cursor.start)
            return EpochIterator(self._cursor, number, self._begin, self._deliver)

    def __reduce__(self) -> tuple[object, ...]:
        # Only the arguments are pickled: threads, memory and position belong to this process.
        arguments = (self.recipe, self.options, self._hand_over, self._packed_fields)
        return Loader, (*arguments, self._device_path, self._sample_names)

    def __repr__(self) -> str:
        return f"<xloader.Loader: {self._in_words()}>"

    def _repr_html_(self) -> str:
        return self.card().to_html()

    def card(self) -> Card:
        """The loader as notebooks show it. Nothing is planned, and no data is read."""
        from xloader.show.sample_cards import loader_card, option_facts, show_rest

        # Ranks are not settled, and nothing is planned: to show a loader must not change it.
        planned, at = self._resolver.planned, self._cursor.start
        num_steps = None if planned is None else planned.num_steps
        explained = self._explained.items()
        return loader_card(
            "xloader.Loader",
            self._in_words(),
            option_facts(self.options, at.epoch, at.step, num_steps, is_closed=self._is_closed),
            {show_rest(start.epoch, start.step): cost for (start, _), cost in explained},
            None if self._progress is None else self.report(),
            {"samples": self.recipe},
        )

    def _in_words(self) -> str:
        planned = self._resolver.planned
        count = "" if planned is None else f"{planned.num_steps} "
        return f"{count}batches of {self.batch_size}, epoch {self.epoch}"

    @property
    def _lock(self) -> threading.RLock:
        """Lock under which iterations begin and end, one at a time: they share the memory."""
        # One per process: a lock held by another thread during a fork stays locked in the child.
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def bar_counts(self) -> BarCounts:
        """The counters of the epoch under way, or of the last one, for a progress bar."""
        progress = self._progress
        return NOTHING_YET if progress is None else progress.bar_counts()

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_loader()

    def _left(self, start: Position) -> Epoch | Remainder:
        """The epoch, or remainder of one, that an iteration from a position on yields."""
        return self._resolver.rank_plan.remainder(start.epoch, start.step)

    def _expected(self, start: Position) -> Explanation:
        """Prediction for an iteration of this rank. No labels are read."""
        rank_plan, left = self._resolver.settle(), self._left(start)
        kept = self._engine().loaded()
        key = start, sum(map(len, kept))
        if key not in self._explained:
            self._explained = {key: rank_plan.explain(left, cached=kept)}
        return self._explained[key]

    def _begin(self) -> EpochRun:
        """Stop the run under way, and make the next one."""
        with self._lock:
            self._stop()
            start = self._cursor.start
            expected, rank_plan = self._expected(start), self._resolver.rank_plan
            remainder = self._left(start)
            run = self._engine().begin(remainder)
            progress = EpochProgress(
                expected,
                run.tally,
                rank_plan.plan.budget,
                rank_plan.options.num_threads,
                rank_plan.batch_size,
                rank_plan.is_direct,
                rank_plan.footprint.groups,
                self.options.processes > 0,
            )
            self._run, self._progress = run, progress
            self._cursor.restart()
            num_again = remainder.sublanes.num_again_of(rank_plan.sublanes()[0])
            return EpochRun(run, progress, start, rank_plan.num_steps, num_again)

    def _engine(self) -> Engine:
        """The engine of the present rank plan, made anew when the plan has changed."""
        rank_plan, engine = self._resolver.rank_plan, self._carried
        if engine is None or engine.rank_plan is not rank_plan:
            if engine is not None:
                engine.clear()
            engine = Engine(
                rank_plan,
                self._packed_fields,
                self._device_path,
                self._hand_over,
                self._sample_names,
            )
            self._carried = engine
        return engine

    def _stop(self) -> None:
        # The run is closed even if its iterator was: a garbage collection on one of the run's own
        # threads may have done that, which neither waits for the threads nor frees their blocks.
        if self._run is not None:
            self._run.close()
        self._run = None
        if self._carried is not None:
            self._carried.refresh()

    def _deliver(self, delivery: Delivery, epoch: int) -> Any:
        try:
            self._nan_warner.warn(delivery.nans)
            if delivery.collated is not None:
                return delivery.collated.value
            batch = self._batch(delivery, epoch)
        finally:
            # A warning may be an error. The device's memory must come back all the same.
            delivery.release()
        if self.options.collate_fn is None:
            return batch
        with names_function(f"collate_fn on a batch of {len(batch.ids)} samples"):
            return self.options.collate_fn(Rows(batch))

    def _batch(self, delivery: Delivery, epoch: int) -> Batch:
        seed, times = self._resolver.rank_plan.options.seed, delivery.occurrences
        names = self._sample_names
        recipe = self.recipe if names is None else names.recipe
        ids = delivery.ids if names is None else names.of(delivery.ids)
        origin = BatchOrigin.of(recipe, seed, epoch, times)
        if self._device_path is not None:
            return self._device_path.deliver(delivery, Chance(seed, epoch, times), origin)
        arrays = [self._hand_over(array) for array in delivery.arrays.values()]
        return Batch(arrays, delivery.arrays, ids, delivery.is_padding, origin)
