"""One pass of a stream of batches in one process, and where it stands."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from xloader.errors import StateError
from xloader.itinerary import Itinerary
from xloader.torch.places import Place, Saver, read_place

MOST_WORKERS = 1024
"""Workers of a ``DataLoader`` that can be told where to go on."""


class SharedPlace:
    """Where the next iteration begins, in memory that all processes share that this travels to."""

    def __init__(self) -> None:
        # Workers that live on are told in no other way. Each takes its own flag back, so that
        # nobody writes what another one may write.
        self._numbers = torch.zeros(2, dtype=torch.int64)
        self._is_resuming = torch.zeros(MOST_WORKERS, dtype=torch.uint8)
        for shared in (self._numbers, self._is_resuming):
            shared.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch."""
        return int(self._numbers[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose an epoch: its beginning, or where it was to be resumed."""
        if epoch != self.epoch:
            self._is_resuming.zero_()
        self._numbers[0] = epoch

    def resume(self, place: Place) -> None:
        """Begin the next iteration of every process at a step of the rank."""
        self._numbers[0], self._numbers[1] = place.epoch, place.step
        self._is_resuming.fill_(place.step > 0)

    def coming(self, process: int = 0) -> Place:
        """Where the rank's next iteration begins, as one of its processes has to take it."""
        return Place(self.epoch, int(self._numbers[1]) if self._is_resuming[process] else 0)

    def take(self, process: int) -> None:
        """Begin, in one process: its iteration after that is one of a whole epoch."""
        self._is_resuming[process] = 0


class Stream(Iterator[Any]):
    """One pass in one process, which makes the steps of one of the plan's workers.

    A ``DataLoader`` takes batches of its processes in turn, from the first process on. So where
    a pass begins at a step that is not the first worker's, each process takes another's part.

    Parameters
    ----------
    itinerary : Itinerary
        Planned for as many workers as there are.
    shared : SharedPlace
        Where the pass begins.
    process : int
        Which of the workers' processes this is.
    open_steps : callable
        Called at the first batch with a `Place` and the number of one of the plan's workers;
        gives the rows of each step of that worker from there on.
    is_single : bool
        Whether rows come one by one.
    """

    def __init__(
        self,
        itinerary: Itinerary,
        shared: SharedPlace,
        process: int,
        open_steps: Callable[[Place, int], Iterator[Any]],
        *,
        is_single: bool,
    ) -> None:
        self._itinerary = itinerary
        self._num_steps = itinerary.num_steps
        self._saver = Saver(itinerary)
        self._shared = shared
        self._process = process
        self._open_steps = open_steps
        self._is_single = is_single
        self._start: Place | None = None
        self._place: Place | None = None
        self._steps: Iterator[Any] = iter(())
        self._rows: Iterator[Any] = iter(())

    @property
    def place(self) -> Place:
        """Where this process stands: behind what was taken of it."""
        coming = self._shared.coming(self._process)
        return self._place or self._start or self._after(coming, self._process)

    def __next__(self) -> Any:
        place = self._place or self._begin()
        if not self._is_single:
            rows = next(self._steps)
            self._place = self._after(place)
            return rows
        if not operator.length_hint(self._rows):
            self._rows = iter(next(self._steps))
        row = next(self._rows)
        is_done = not operator.length_hint(self._rows)
        self._place = self._after(place) if is_done else replace(place, row=place.row + 1)
        return row

    def state_dict(self) -> dict[str, Any]:
        """Where this process stands, as plain JSON values under 2 KB."""
        return self._saver.save(self.place)

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
        position, place = read_place(state, self._itinerary)
        options = self._itinerary.options
        if position.seed != options.seed:
            raise _other("seed", options.seed, position.seed, f"pass seed={position.seed}")
        if position.plan != self._itinerary.plan:
            remedy = "pass the memory, batch_size, prefetch_factor and other options of then"
            raise _other("plan", "options that plan otherwise", "the options of then", remedy)
        if place.row and not self._is_single:
            given = f"a state within batch {place.step}, and whole batches"
            raise _other("batch_size", given, "batch_size=None", "pass batch_size=None")
        self._start, self._place = place, None
        self._steps, self._rows = iter(()), iter(())

    def _begin(self) -> Place:
        # Not before the first batch: trainers ask for an iterator before they tell the epoch.
        place = self._place = self.place
        self._shared.take(self._process)
        if place.step < self._num_steps:
            self._steps = self._open_steps(place, place.step % self._itinerary.plan.workers)
        if place.row:
            self._rows = iter(next(self._steps)[place.row :])
        return place

    def _after(self, place: Place, num_steps: int | None = None) -> Place:
        """The place so many steps later; by default, the next step of this process."""
        more = self._itinerary.plan.workers if num_steps is None else num_steps
        return Place(place.epoch, min(place.step + more, self._num_steps))


def _other(name: str, given: object, allowed: object, remedy: str) -> StateError:
    return StateError(
        f"the state was saved with another {name}",
        given=given,
        allowed=allowed,
        remedy=remedy,
    )
