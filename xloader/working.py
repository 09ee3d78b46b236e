"""One worker of a rank, in its own process: the batches that are its own, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from xloader.carrier import Carrier
from xloader.engine.job import Delivery
from xloader.engine.run import Run
from xloader.explain import Cached, Explanation
from xloader.itinerary import Itinerary
from xloader.nans import warn_of_nans
from xloader.plan import Epoch, Lane
from xloader.remainder import Remainder


class Worker:
    """Makes every ``workers``-th batch of a rank, reading no chunk that is another worker's.

    Parameters
    ----------
    itinerary : Itinerary
        What the rank does, planned for as many workers as there are.
    number : int
        Which of them this is: it makes the steps ``number``, ``number + workers``, ...
    num_ready : int
        Batches that are made, or wait for delivery, while the consumer is busy.
    num_cores : int
        Threads that load and gather, at most.
    """

    def __init__(
        self, itinerary: Itinerary, number: int, *, num_ready: int, num_cores: int
    ) -> None:
        self._itinerary = itinerary
        self._number = number
        self._carrier = Carrier(itinerary, num_ready=num_ready, num_cores=num_cores)
        self._run: Run | None = None
        self._has_warned = False

    @property
    def is_foreign(self) -> bool:
        """Whether this came over a fork, where its threads and locks do not live."""
        return self._carrier.is_foreign

    @property
    def number(self) -> int:
        """Which of the workers this is."""
        return self._number

    def loaded(self) -> set[tuple[int, int]]:
        """Blocks in memory from earlier epochs, as (group, block)."""
        return self._carrier.loaded()

    def steps(self, epoch: int, first_step: int = 0) -> Iterator[Delivery]:
        """Its batches of an epoch from a step on, in order. An iteration under way ends.

        Parameters
        ----------
        epoch : int
        first_step : int, default 0
            The first step of the rank that is left: those of this worker that come before it
            are not made, nor is anything read for them.
        """
        self.close()
        numbers = self._itinerary.sublanes(self._number)
        part, num_passed = rest_of(self._itinerary.remainder(epoch, first_step), numbers)
        if not part.sublanes.num_steps_of(numbers[0]):
            return
        job = self._carrier.job(part, numbers)
        run = self._run = Run(job)
        try:
            for index in range(job.walker.num_steps):
                delivery = run.take()
                assert delivery is not None, "a run delivers as many batches as it has steps"
                if index >= num_passed:
                    self._warn(delivery)
                    yield delivery
                # The consumer may keep it; here it would hold its memory one step longer.
                del delivery
        finally:
            run.close()

    def _warn(self, delivery: Delivery) -> None:
        is_asked = self._itinerary.options.on_nan == "warn"
        if delivery.nans and is_asked and not self._has_warned:
            self._has_warned = True
            warn_of_nans(delivery.nans)

    def close(self) -> None:
        """Stop what is under way. More than once is fine."""
        if self._run is not None:
            self._run.close()
        self._run = None


def rest_of(part: Epoch | Remainder, numbers: Sequence[int]) -> tuple[Epoch | Remainder, int]:
    """What a process carries out of what is left of an epoch.

    Where padding alone is left, the row that it repeats is of the batch before.

    Parameters
    ----------
    part : Epoch or Remainder
    numbers : sequence of int
        The process's sublanes.

    Returns
    -------
    part : Epoch or Remainder
        What it carries out.
    num_passed : int
        Batches at the beginning of that which are made once more, and not delivered.
    """
    if isinstance(part, Remainder) and _has_padding_only(part, numbers):
        return _one_step_earlier(part), 1
    return part, 0


def carried_out(
    itinerary: Itinerary, part: Epoch | Remainder, scope: Literal["rank", "world"] = "rank"
) -> Epoch | Remainder:
    """What is left of an epoch, with what has to be made once more for it, by `rest_of`.

    Parameters
    ----------
    itinerary : Itinerary
    part : Epoch or Remainder
    scope : {"rank", "world"}
        Whose processes carry it out.
    """
    if not isinstance(part, Remainder):
        return part
    own = [n for n in itinerary.processes(scope) if _has_padding_only(part, n)]
    if not own:
        return part
    return _Rewound(part.whole, part.first_step, part.footprint, frozenset(chain(*own)))


def explain_rest(
    itinerary: Itinerary,
    part: Epoch | Remainder,
    scope: Literal["rank", "world"] = "rank",
    cached: Sequence[Cached] = (),
) -> Explanation:
    """What is left of an epoch will cost, summed over the workers. Nothing is read.

    Parameters
    ----------
    itinerary : Itinerary
    part : Epoch or Remainder
    scope, cached
        As for `Itinerary.explain`.
    """
    expected = itinerary.explain(part, scope, cached)
    carried = carried_out(itinerary, part, scope)
    if carried is part:
        return expected
    found = itinerary.explain(carried, scope, cached)
    # What is made once more is not delivered.
    return replace(found, num_samples=expected.num_samples)


@dataclass(frozen=True)
class _Rewound(Remainder):
    """A remainder some of whose sublanes begin one step of theirs earlier."""

    rewound: frozenset[int]

    def num_steps_of(self, numbers: Sequence[int]) -> int:
        """Steps that a process makes, the one that is made once more among them."""
        return super().num_steps_of(numbers) + (numbers[0] in self.rewound)

    def lanes(self, chosen: Iterable[int]) -> list[Lane]:
        """Lanes as of `Remainder.lanes`, some of them with one step more."""
        numbers = list(chosen)
        earlier = _one_step_earlier(self)
        return [
            lane if number not in self.rewound else earlier.lanes([number])[0]
            for number, lane in zip(numbers, super().lanes(numbers), strict=True)
        ]


def _has_padding_only(part: Remainder, numbers: Sequence[int]) -> bool:
    """Whether steps are left to a process, and none of its samples."""
    sublanes = part.sublanes
    if not part.first_step or not sublanes.num_steps_of(numbers[0]):
        return False
    spans = [(number, *sublanes.span(number)) for number in numbers]
    return all(
        end - begin <= sublanes.num_done_of(number) * sublanes.share for number, begin, end in spans
    )


def _one_step_earlier(part: Remainder) -> Remainder:
    """A remainder that has one step more of each worker."""
    first_step = max(part.first_step - part.plan.workers, 0)
    return Remainder(part.whole, first_step, part.footprint)
