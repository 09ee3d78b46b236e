"""`IterableDataset`: an iterable PyTorch dataset of whole batches, divided by ranks and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

import torch
from torch.utils.data import default_convert

from xloader.core.nans import OnNan, check_on_nan
from xloader.core.option_checks import MOST, check_whole
from xloader.core.options import PlanKeywords, check_epoch, make_options
from xloader.core.ranks import World, resolve_world
from xloader.errors import OptionError
from xloader.loader.batches.row_list import Rows
from xloader.loader.ranks.cursor import Position, RepeatWatch
from xloader.loader.ranks.memory_share import take_share
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.ranks.rank_resolver import RankResolver, memory_limit, process_group
from xloader.loader.ranks.state import another_option, read_state, save
from xloader.planning.explain import Explanation
from xloader.tensors.collate import collate
from xloader.tensors.item_transforms import ItemTransforms
from xloader.torch.chunk_sampler import check_options
from xloader.torch.lent_slots import MORE_SLOTS
from xloader.torch.misuse import (
    check_fetcher,
    refuse_dealing_twice,
    refuse_state,
    require_samples,
)
from xloader.torch.sampler_passes import StepPass
from xloader.torch.worker_reader import Worker, as_batch
from xloader.torch.worker_setup import (
    Process,
    preload_for_workers,
    sendable_errors,
    set_up_worker,
)
from xloader.transforms.rng import Chance, sample_keys

if TYPE_CHECKING:
    from xloader.samples.samples import Samples


MOST_WORKERS = 1024
"""Largest number of workers of a ``DataLoader``: shared memory has a place for each."""


class SharedCursor:
    """The position at which the next iteration starts, in memory shared by all processes.

    It has the verbs of `Cursor`. It counts no batches: a worker does not know which of its batches
    the training loop takes.
    """

    def __init__(self, is_shuffled: bool) -> None:
        self.repeats = RepeatWatch(is_shuffled, _shared(4))
        # Shared memory is the only way to reach workers that stay alive between epochs. `_number`
        # counts calls of `resume`. `_taken` holds, for each worker, the last call that it has
        # used. `_begun` and `_iteration` hold the last call that any worker has used, and in
        # which iteration: workers that start in a later one begin a whole epoch.
        self._epoch, self._step, self._number, self._begun, self._iteration = _shared(5)
        self._taken = _shared(MOST_WORKERS)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, as `Cursor.set_epoch` does."""
        epoch = check_epoch(epoch)
        self.repeats.clear()
        if epoch != self.epoch:
            self.resume(Position(epoch))

    def resume(self, position: Position) -> None:
        """Start the next iteration of every process at a step of the rank."""
        self.repeats.clear()
        self._epoch.fill_(position.epoch)
        self._step.fill_(position.step)
        self._number += 1
        if not position.step:
            self._taken.fill_(self._number)

    def start(self, process: Process) -> Position:
        """The position at which a process's next iteration starts, as a step of the rank."""
        is_resumed = self._taken[process.number] < self._number
        if self._begun == self._number and self._iteration != process.iteration:
            # An earlier iteration, which ended before this process started, has resumed already.
            is_resumed = False
        return Position(self.epoch, int(self._step) if is_resumed else 0)

    def begin(self, process: Process) -> None:
        """Begin a process's iteration at `start`. Its iteration after this one is a whole epoch."""
        if self._begun < self._number and self._taken[process.number] < self._number:
            self._iteration.fill_(process.iteration)
            self._begun.copy_(self._number)
        self._taken[process.number] = self._number


def _shared(size: int) -> torch.Tensor:
    numbers = torch.zeros(size, dtype=torch.int64)
    numbers.share_memory_()  # type: ignore[no-untyped-call]
    return numbers


@dataclass(eq=False)
class WorkerPass(StepPass):
    """Iterator over one worker's batches of an epoch, in one process.

    A ``DataLoader`` takes batches from its processes in turn, beginning with the first process. If
    the iteration begins at a step of another worker of the plan than the first, the processes swap
    parts: process 0 makes the steps of the worker whose turn it is.
    """

    rank_plan: RankPlan
    cursor: SharedCursor
    process: Process
    open_steps: Callable[[Position, int], Iterator[Any]]

    def state_dict(self) -> dict[str, Any]:
        """The position of this process, as plain JSON values under 2 KB."""
        return save(self.position, self.rank_plan)

    def _load(self, state: Mapping[str, Any]) -> Position:
        position, plan, seed = read_state(state, self.rank_plan)
        options = self.rank_plan.options
        if seed != options.seed:
            raise another_option("seed", options.seed, seed, f"pass seed={seed}")
        if plan != self.rank_plan.plan:
            allowed = "the options with which the state was saved"
            remedy = "pass the same memory, batch_size, prefetch_factor and other options"
            raise another_option("plan", "options that lead to another plan", allowed, remedy)
        if position.row and not self.is_single:
            given = f"a state within batch {position.step}, and a dataset of whole batches"
            raise another_option("batch_size", given, "batch_size=None", "pass batch_size=None")
        self.cursor.repeats.clear()
        return position

    def _first(self) -> Position:
        return self._later(self.cursor.start(self.process), self.process.number)

    def _open(self, position: Position) -> Iterator[Any]:
        if not self.process.number:
            # A DataLoader asks each worker for so many batches before it delivers one.
            is_worker = self.process.iteration != -1
            self.cursor.repeats.begin(position, is_worker * self.rank_plan.options.prefetch)
        self.cursor.begin(self.process)
        if position.step >= self.rank_plan.num_steps:
            return iter(())
        return self.open_steps(position, position.step % self.rank_plan.plan.workers)

    def _after(self, position: Position) -> Position:
        if not self.process.number:
            self.cursor.repeats.count()
        return self._later(position, self.rank_plan.plan.workers)

    def _later(self, position: Position, num_steps: int) -> Position:
        """The position some steps after another one, or at the end of its epoch."""
        return Position(position.epoch, min(position.step + num_steps, self.rank_plan.num_steps))


_UNBATCHED_SIZE = 32
"""Number of samples that are read together if the dataset yields single samples."""


class IterableDataset(torch.utils.data.IterableDataset[Any]):
    """Iterable dataset of batches, for a ``DataLoader``.

    Pass it to ``DataLoader(dataset, batch_size=None, num_workers=...)``. Batches arrive as a
    :class:`xloader.Batch` of tensors; a ``collate_fn`` of yours gets a batch of arrays.

    Parameters
    ----------
    samples : Samples
        The samples to read.
    batch_size : int or None, default 32
        Samples per batch, on each rank. None gives single samples: tuples of arrays.
    shuffle, memory, seed, drop_last, world, prefetch_factor, **options
        As for :class:`ChunkSampler`.
    transform, target_transform, transforms, on_nan
        As for :class:`MapDataset`.

    Raises
    ------
    MemoryBudgetError, OptionError
        As for :class:`ChunkSampler`; those that depend on the number of workers when the iteration
        begins.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> dataset = IterableDataset(xloader.open(ds).window(time=2), batch_size=2)
    >>> len(dataset), [batch.t2m.shape for batch in dataset]
    (3, [(2, 2, 4), (2, 2, 4), (1, 2, 4)])
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int | None = 32,
        *,
        shuffle: bool = True,
        memory: int | str | None = None,
        seed: int = 0,
        drop_last: bool = False,
        world: World | None = None,
        prefetch_factor: int = 2,
        transform: Callable[..., Any] | None = None,
        target_transform: Callable[..., Any] | None = None,
        transforms: Callable[..., Any] | None = None,
        on_nan: OnNan = "warn",
        **options: Unpack[PlanKeywords],
    ) -> None:
        check_options(options)
        require_samples(samples, "IterableDataset")
        self.samples = samples
        self.batch_size = batch_size
        self._transforms = ItemTransforms(transform, target_transform, transforms)
        self._transforms.check(samples.fields)
        chosen = make_options(
            batch_size=_UNBATCHED_SIZE if batch_size is None else batch_size,
            shuffle=shuffle,
            memory=memory,
            seed=seed,
            drop_last=drop_last,
            prefetch=prefetch_factor,
            world=world,
            on_nan=check_on_nan(on_nan),
            output="numpy",
            **options,
        )
        self._options = take_share(chosen, (samples.recipe,))
        self._cursor = SharedCursor(shuffle)
        # Plan now, so that options that cannot be planned are an error here.
        self._resolvers = {1: RankResolver(samples.recipe, self._options)}
        if process_group() is not None:
            # Forked workers cannot ask the other ranks.
            memory_limit(self._options, resolve_world(world))
        self._worker: Worker | None = None
        # Made before workers are, so that their batches refer to the samples of this process.
        _ = samples.recipe.token

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration delivers, in all workers.

        If this epoch was chosen by :meth:`resume`, it still begins at the step given there.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.

        Raises
        ------
        OptionError
            If the number is not a whole number from 0 on.
        """
        self._cursor.set_epoch(epoch)

    def resume(self, epoch: int, step: int) -> None:
        """Begin the next iteration where an earlier run stopped: :meth:`ChunkSampler.resume`.

        Parameters
        ----------
        epoch, step : int
            The epoch that was under way, and the number of batches of this rank that were trained
            on.

        Raises
        ------
        OptionError
            If there is no such epoch or step, or the step is above 0 and the dataset yields single
            samples.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> samples = xloader.open(ds).window(time=2)
        >>> whole = [batch.ids.tolist() for batch in IterableDataset(samples, batch_size=2)]
        >>> dataset = IterableDataset(samples, batch_size=2)
        >>> dataset.resume(epoch=0, step=1)
        >>> [batch.ids.tolist() for batch in dataset] == whole[1:]
        True
        """
        position = Position.checked(epoch, step, self._rank_plan(1).num_steps)
        if position.step and self.batch_size is None:
            raise OptionError(
                "a dataset with batch_size=None delivers samples one by one and cannot resume at "
                "a step",
                given=f"step={step}, batch_size=None",
                remedy="pass batch_size to the dataset, or use torchdata's StatefulDataLoader",
            )
        self._cursor.resume(position)

    def __len__(self) -> int:
        """Number of batches in an epoch on this rank, or of samples if ``batch_size`` is None."""
        rank_plan = self._rank_plan(1)
        return rank_plan.num_each if self.batch_size is None else rank_plan.num_steps

    def explain(
        self, scope: Literal["rank", "world"] = "rank", *, num_workers: int = 0
    ) -> Explanation:
        """Predict what the next iteration costs, summed over the workers. No value is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether the numbers are those of this rank or of all ranks together.
        num_workers : int, default 0
            Number of workers of the ``DataLoader``. The chunks that workers keep from earlier
            epochs are not known in this process: the prediction is for workers that have just
            started.

        Returns
        -------
        Explanation
            As from :meth:`Samples.explain`.
        """
        is_here = not num_workers and self._worker is not None and not self._worker.is_foreign
        kept = [self._worker.loaded()] if is_here and self._worker is not None else []
        rank_plan = self._rank_plan(num_workers)
        start = self._cursor.start(Process())
        left = rank_plan.remainder(start.epoch, start.step)
        num_more = MORE_SLOTS if num_workers else 0
        return rank_plan.with_notes(rank_plan.explain(left, scope, kept, num_more=num_more))

    def __iter__(self) -> Iterator[Any]:
        """Iterator over the batches of an epoch; in a worker, over the worker's own part of them.

        The iterator has a ``state_dict`` and a ``load_state_dict``, which torchdata's
        ``StatefulDataLoader`` asks for in each worker. The dataset has none.

        Raises
        ------
        RanksError
            If accelerate is about to divide the batches among ranks once more.
        OptionError
            If there are more than 1024 workers, or the ``DataLoader`` has a ``batch_size``.
        """
        refuse_dealing_twice("an IterableDataset of xloader")
        if self.batch_size is not None:
            check_fetcher(default_convert, collate)
        set_up_worker()
        process, allowed = Process.here(), f"<= {MOST_WORKERS}"
        if process.num_workers > MOST_WORKERS:
            raise OptionError("too many workers", given=process.num_workers, allowed=allowed)
        is_single = self.batch_size is None
        rank_plan = self._rank_plan(process.num_workers)
        if not process.number:
            rank_plan.warn_if_empty()
        return WorkerPass(is_single, rank_plan, self._cursor, process, self._open_steps)

    def __getattr__(self, name: str) -> NoReturn:
        raise refuse_state("IterableDataset", name, "call dataset.resume(epoch, step)")

    def __getstate__(self) -> dict[str, Any]:
        preload_for_workers()
        # Open stores and plans are not pickled: each process makes its own.
        state = {**self.__dict__, "_worker": None, "_resolvers": {}}
        world = resolve_world(self._options.world)
        if world.world_size > 1:
            # Worker processes have no process group to look their rank and their memory up in.
            memory_limit(self._options, world)
            state["_options"] = replace(self._options, world=world)
        return state

    def _open_steps(self, start: Position, number: int) -> Iterator[Any]:
        process = Process.here()
        rank_plan = self._rank_plan(process.num_workers)
        if not process.number:
            expected = rank_plan.explain(rank_plan.remainder(start.epoch, 0))
            rank_plan.warn(expected)
            if not process.num_workers:
                # Worker processes have no process group to ask.
                self._resolvers[1].begin(expected, start)
        worker = self._worker
        if worker is None or worker.is_foreign or worker.number != number:
            if worker is not None and not worker.is_foreign:
                worker.close()
            worker = self._worker = Worker(rank_plan, number)
        return self._rows(worker, start)

    def _rows(self, worker: Worker, start: Position) -> Iterator[Any]:
        """The rows of a worker's steps: batches of arrays, or lists of single samples.

        With transforms, the rows of a step are those that `ItemTransforms.apply` returns.
        """
        seed = self._rank_plan(0).options.seed
        with sendable_errors():
            for delivery in worker.steps(start.epoch, start.step):
                chance = Chance(seed, start.epoch, delivery.occurrences)
                rows: Any = as_batch(delivery, self.samples.recipe, chance)
                if self._transforms:
                    keys = sample_keys(seed, start.epoch, rows.ids, chance.occurrences)
                    rows = self._transforms.apply(rows, keys)
                elif self.batch_size is None:
                    rows = Rows(rows)
                yield rows
                del delivery, rows

    def _rank_plan(self, num_workers: int) -> RankPlan:
        key = check_whole("num_workers", max(num_workers, 1), 1, MOST)
        if key not in self._resolvers:
            self._resolvers[key] = RankResolver(self.samples.recipe, self._options, key)
        for resolver in self._resolvers.values():
            resolver.settle()
        return self._resolvers[key].rank_plan
