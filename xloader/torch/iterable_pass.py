"""One iteration of an `IterableDataset` in one process, and its position.

Workers of a ``DataLoader`` get the epoch and the step to begin with through shared memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from xloader.core.options import check_epoch
from xloader.loader.ranks.cursor import Position, RepeatWatch
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.ranks.state import Saver, another_option, read_state

MOST_WORKERS = 1024
"""Largest number of workers of a ``DataLoader``: shared memory has a place for each."""


class Process(NamedTuple):
    """The process that iterates: the training process, or a worker of a ``DataLoader``."""

    number: int = 0
    iteration: int = -1

    @classmethod
    def of(cls, info: Any) -> Process:
        """The process that ``get_worker_info`` describes."""
        # PyTorch draws a seed for each iterator and adds the worker's number to it. Without the
        # number, the seed identifies the iterator.
        return cls() if info is None else cls(info.id, info.seed - info.id)


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


class WorkerPass(Iterator[Any]):
    """Iterator over one worker's batches of an epoch, in one process.

    A ``DataLoader`` takes batches from its processes in turn, beginning with the first process. If
    the iteration begins at a step of another worker of the plan than the first, the processes swap
    parts: process 0 makes the steps of the worker whose turn it is.
    """

    def __init__(
        self,
        rank_plan: RankPlan,
        cursor: SharedCursor,
        process: Process,
        open_steps: Callable[[Position, int], Iterator[Any]],
        *,
        is_single: bool,
    ) -> None:
        self._rank_plan = rank_plan
        self._num_steps = rank_plan.num_steps
        self._saver = Saver(rank_plan)
        self._cursor = cursor
        self._process = process
        self._open_steps = open_steps
        self._is_single = is_single
        self._start: Position | None = None
        self._position: Position | None = None
        self._steps: Iterator[Any] = iter(())
        self._rows: Iterator[Any] = iter(())

    @property
    def position(self) -> Position:
        """The position of this process, after the batches or samples that were taken from it."""
        start = self._cursor.start(self._process)
        return self._position or self._start or self._after(start, self._process.number)

    def __next__(self) -> Any:
        position = self._position or self._begin()
        if not self._is_single:
            rows = next(self._steps)
            self._position = self._next(position)
            return rows
        if not operator.length_hint(self._rows):
            self._rows = iter(next(self._steps))
        row = next(self._rows)
        is_done = not operator.length_hint(self._rows)
        self._position = (
            self._next(position) if is_done else replace(position, row=position.row + 1)
        )
        return row

    def state_dict(self) -> dict[str, Any]:
        """The position of this process, as plain JSON values under 2 KB."""
        return self._saver.save(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of a saved state. Nothing is read."""
        position, plan, seed = read_state(state, self._rank_plan)
        options = self._rank_plan.options
        if seed != options.seed:
            raise another_option("seed", options.seed, seed, f"pass seed={seed}")
        if plan != self._rank_plan.plan:
            allowed = "the options with which the state was saved"
            remedy = "pass the same memory, batch_size, prefetch_factor and other options"
            raise another_option("plan", "options that lead to another plan", allowed, remedy)
        if position.row and not self._is_single:
            given = f"a state within batch {position.step}, and a dataset of whole batches"
            raise another_option("batch_size", given, "batch_size=None", "pass batch_size=None")
        self._cursor.repeats.clear()
        self._start, self._position = position, None
        self._steps, self._rows = iter(()), iter(())

    def _begin(self) -> Position:
        # Only at the first batch: trainers ask for an iterator before they set the epoch.
        position = self._position = self.position
        if not self._process.number:
            # A DataLoader asks each worker for so many batches before it delivers one.
            is_worker = self._process.iteration != -1
            self._cursor.repeats.begin(position, is_worker * self._rank_plan.options.prefetch)
        self._cursor.begin(self._process)
        if position.step < self._num_steps:
            self._steps = self._open_steps(position, position.step % self._rank_plan.plan.workers)
        if position.row:
            self._rows = iter(next(self._steps)[position.row :])
        return position

    def _next(self, position: Position) -> Position:
        """The position after a step that this process has given, which is counted."""
        if not self._process.number:
            self._cursor.repeats.count()
        return self._after(position)

    def _after(self, position: Position, num_steps: int | None = None) -> Position:
        """The position some steps after another one; by default, this process's next step."""
        more = self._rank_plan.plan.workers if num_steps is None else num_steps
        return Position(position.epoch, min(position.step + more, self._num_steps))
