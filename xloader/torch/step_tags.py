"""What a sampler tells the worker that makes a batch: which step of which epoch of which plan."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xloader.core.options import LoaderOptions
from xloader.planning.plan import Plan


@dataclass(frozen=True)
class PlanTag:
    """What a sampler and the workers of its rank must have alike.

    Parameters
    ----------
    options : LoaderOptions
        What was asked for.
    plan : Plan
        The plan, of each worker.
    fingerprint : str
        Of the samples.
    """

    options: LoaderOptions
    plan: Plan
    fingerprint: str


@dataclass(frozen=True)
class StepTag:
    """One step of one pass over an epoch.

    Parameters
    ----------
    agreement : Agreement
        Whose step it is.
    epoch, step : int
        Which one.
    pass_number : int
        Which iteration of the sampler, as an epoch may be begun anew.
    num_rows : int
        Ids of the step, with those that fill it up.
    checksum : int
        Of these ids: a first id may find its way into other lists.
    first_step : int
        The step that the pass begins with.
    """

    agreement: PlanTag
    epoch: int
    step: int
    pass_number: int
    num_rows: int
    checksum: int
    first_step: int = 0

    @classmethod
    def of(
        cls,
        ids: Sequence[int],
        agreement: PlanTag,
        epoch: int,
        step: int,
        pass_number: int,
        first_step: int = 0,
    ) -> StepTag:
        """The ticket of a step that has some ids."""
        return cls(agreement, epoch, step, pass_number, len(ids), _checksum(ids), first_step)

    @property
    def is_first(self) -> bool:
        """Whether it is the first step of its worker in that pass."""
        return 0 <= self.step - self.first_step < self.agreement.plan.workers

    def is_of(self, ids: Sequence[int]) -> bool:
        """Whether some ids are those of the step, in their order."""
        return len(ids) == self.num_rows and _checksum(ids) == self.checksum


class FirstId(int):
    """The first sample id of a step, which carries its ticket through whatever lists ids.

    Examples
    --------
    >>> first = FirstId.of(7, None)
    >>> first == 7, isinstance(first, int), [10, 20, 30][FirstId.of(2, None)]
    (True, True, 30)
    """

    ticket: StepTag | None

    @classmethod
    def of(cls, number: int, ticket: StepTag | None) -> FirstId:
        """An id with a ticket."""
        first = cls(number)
        first.ticket = ticket
        return first

    def __reduce__(self) -> tuple[object, ...]:
        return FirstId.of, (int(self), self.ticket)


class BatchIds(list[int]):
    """The ids of one batch, with the ticket of its step.

    Parameters
    ----------
    ids : list of int
        The ids.
    ticket : Ticket
        The step that they are.
    """

    def __init__(self, ids: list[int], ticket: StepTag) -> None:
        super().__init__(ids)
        self.ticket = ticket

    @property
    def epoch(self) -> int:
        """The epoch that the batch is of."""
        return self.ticket.epoch

    @property
    def step(self) -> int:
        """Which batch of its rank it is, in that epoch."""
        return self.ticket.step

    def __reduce__(self) -> tuple[object, ...]:
        return BatchIds, (list(self), self.ticket)


def ticket_of(ids: Sequence[int]) -> StepTag | None:
    """The ticket that a list or its first id carries; None where there is none.

    Whether the list is that of the step, :meth:`StepTag.is_of` says.

    Examples
    --------
    >>> ticket_of([3, 1, 2]) is None
    True
    """
    ticket = getattr(ids, "ticket", None)
    if ticket is None and ids:
        ticket = getattr(ids[0], "ticket", None)
    return ticket


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(np.asarray(ids, np.int64).tobytes())
