"""One pass of a stream of batches in one process, and where it stands."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from xloader.errors import StateError
from xloader.loader.rank_plan import RankPlan
from xloader.loader.state import Position, Saver, read_state

MOST_WORKERS = 1024
"""Workers of a ``DataLoader`` that can be told where to go on."""


class Process(NamedTuple):
    """Who iterates: the process that trains, or a worker of a ``DataLoader``'s iterator.

    Parameters
    ----------
    number : int
        Which of the workers.
    iteration : int
        What the workers of one iterator have in common, and those of no other.
    """

    number: int = 0
    iteration: int = -1

    @classmethod
    def of(cls, info: Any) -> Process:
        """The process that ``get_worker_info`` tells of."""
        # PyTorch draws a seed for each iterator, and adds the worker's number.
        return cls() if info is None else cls(info.id, info.seed - info.id)


class SharedPosition:
    """Where the next iteration begins, in memory that all processes share that this travels to."""

    def __init__(self) -> None:
        # Workers that live on are told in no other way. Each notes for itself which resumption it
        # has taken, and the first one in which iteration: a later one is not resumed.
        self._epoch, self._step, self._number, self._begun, self._iteration = _shared(5)
        self._taken = _shared(MOST_WORKERS)

    @property
    def epoch(self) -> int:
        """The epoch."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose an epoch: its beginning, or where it was to be resumed."""
        if epoch != self.epoch:
            self._taken.fill_(self._number)
        self._epoch.fill_(epoch)

    def resume(self, position: Position) -> None:
        """Begin the next iteration of every process at a step of the rank."""
        self._epoch.fill_(position.epoch)
        self._step.fill_(position.step)
        self._number += 1
        if not position.step:
            self._taken.fill_(self._number)

    def coming(self, process: Process) -> Position:
        """Where a process's next iteration begins, as a step of the rank."""
        is_resumed = self._taken[process.number] < self._number
        if self._begun == self._number and self._iteration != process.iteration:
            # It was taken in an iteration that ended before this process had begun.
            is_resumed = False
        return Position(self.epoch, int(self._step) if is_resumed else 0)

    def take(self, process: Process) -> None:
        """Begin: the process's next iteration is one of a whole epoch."""
        if self._begun < self._number and self._taken[process.number] < self._number:
            self._iteration.fill_(process.iteration)
            self._begun.copy_(self._number)
        self._taken[process.number] = self._number


def _shared(size: int) -> torch.Tensor:
    numbers = torch.zeros(size, dtype=torch.int64)
    numbers.share_memory_()  # type: ignore[no-untyped-call]
    return numbers


class WorkerPass(Iterator[Any]):
    """One pass in one process, which makes the steps of one of the plan's workers.

    A ``DataLoader`` takes batches of its processes in turn, from the first process on. So where
    a pass begins at a step that is not the first worker's, each process takes another's part.

    Parameters
    ----------
    rank_plan : RankPlan
        Planned for as many workers as there are.
    shared : SharedPosition
        Where the pass begins.
    process : Process
        Whose pass it is.
    open_steps : callable
        Called at the first batch with a `Position` and the number of one of the plan's workers;
        gives the rows of each step of that worker from there on.
    is_single : bool
        Whether rows come one by one.
    """

    def __init__(
        self,
        rank_plan: RankPlan,
        shared: SharedPosition,
        process: Process,
        open_steps: Callable[[Position, int], Iterator[Any]],
        *,
        is_single: bool,
    ) -> None:
        self._rank_plan = rank_plan
        self._num_steps = rank_plan.num_steps
        self._saver = Saver(rank_plan)
        self._shared = shared
        self._process = process
        self._open_steps = open_steps
        self._is_single = is_single
        self._start: Position | None = None
        self._position: Position | None = None
        self._steps: Iterator[Any] = iter(())
        self._rows: Iterator[Any] = iter(())

    @property
    def position(self) -> Position:
        """Where this process stands: behind what was taken of it."""
        coming = self._shared.coming(self._process)
        return self._position or self._start or self._after(coming, self._process.number)

    def __next__(self) -> Any:
        position = self._position or self._begin()
        if not self._is_single:
            rows = next(self._steps)
            self._position = self._after(position)
            return rows
        if not operator.length_hint(self._rows):
            self._rows = iter(next(self._steps))
        row = next(self._rows)
        is_done = not operator.length_hint(self._rows)
        self._position = (
            self._after(position) if is_done else replace(position, row=position.row + 1)
        )
        return row

    def state_dict(self) -> dict[str, Any]:
        """Where this process stands, as plain JSON values under 2 KB."""
        return self._saver.save(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where such a process stood. Nothing is read.

        Raises
        ------
        StateError
            If it is damaged, or of other samples, or of other options: later epochs, which
            workers begin that have seen no state, must be of the same plan.
        LanesError
            If the ranks do not divide its lanes.
        MemoryBudgetError
            If its plan needs more memory.
        """
        position, plan, seed = read_state(state, self._rank_plan)
        options = self._rank_plan.options
        if seed != options.seed:
            raise _other("seed", options.seed, seed, f"pass seed={seed}")
        if plan != self._rank_plan.plan:
            remedy = "pass the memory, batch_size, prefetch_factor and other options of then"
            raise _other("plan", "options that plan otherwise", "the options of then", remedy)
        if position.row and not self._is_single:
            given = f"a state within batch {position.step}, and whole batches"
            raise _other("batch_size", given, "batch_size=None", "pass batch_size=None")
        self._start, self._position = position, None
        self._steps, self._rows = iter(()), iter(())

    def _begin(self) -> Position:
        # Not before the first batch: trainers ask for an iterator before they tell the epoch.
        position = self._position = self.position
        self._shared.take(self._process)
        if position.step < self._num_steps:
            self._steps = self._open_steps(position, position.step % self._rank_plan.plan.workers)
        if position.row:
            self._rows = iter(next(self._steps)[position.row :])
        return position

    def _after(self, position: Position, num_steps: int | None = None) -> Position:
        """Where that is, so many steps later; by default, the next step of this process."""
        more = self._rank_plan.plan.workers if num_steps is None else num_steps
        return Position(position.epoch, min(position.step + more, self._num_steps))


def _other(name: str, given: object, allowed: object, remedy: str) -> StateError:
    return StateError(
        f"the state was saved with another {name}",
        given=given,
        allowed=allowed,
        remedy=remedy,
    )
