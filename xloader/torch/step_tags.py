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
    plan_tag : PlanTag
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

    plan_tag: PlanTag
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
        plan_tag: PlanTag,
        epoch: int,
        step: int,
        pass_number: int,
        first_step: int = 0,
    ) -> StepTag:
        """The step tag of a step that has some ids."""
        return cls(plan_tag, epoch, step, pass_number, len(ids), _checksum(ids), first_step)

    @property
    def is_first(self) -> bool:
        """Whether it is the first step of its worker in that pass."""
        return 0 <= self.step - self.first_step < self.plan_tag.plan.workers

    def is_of(self, ids: Sequence[int]) -> bool:
        """Whether some ids are those of the step, in their order."""
        return len(ids) == self.num_rows and _checksum(ids) == self.checksum


class FirstId(int):
    """The first sample id of a step, which carries its step tag through whatever lists ids.

    Examples
    --------
    >>> first = FirstId.of(7, None)
    >>> first == 7, isinstance(first, int), [10, 20, 30][FirstId.of(2, None)]
    (True, True, 30)
    """

    step_tag: StepTag | None

    @classmethod
    def of(cls, number: int, step_tag: StepTag | None) -> FirstId:
        """An id with a step tag."""
        first = cls(number)
        first.step_tag = step_tag
        return first

    def __reduce__(self) -> tuple[object, ...]:
        return FirstId.of, (int(self), self.step_tag)


class BatchIds(list[int]):
    """The ids of one batch, with the step tag of its step.

    Parameters
    ----------
    ids : list of int
        The ids.
    step_tag : StepTag
        The step that they are.
    """

    def __init__(self, ids: list[int], step_tag: StepTag) -> None:
        super().__init__(ids)
        self.step_tag = step_tag

    @property
    def epoch(self) -> int:
        """The epoch that the batch is of."""
        return self.step_tag.epoch

    @property
    def step(self) -> int:
        """Which batch of its rank it is, in that epoch."""
        return self.step_tag.step

    def __reduce__(self) -> tuple[object, ...]:
        return BatchIds, (list(self), self.step_tag)


def step_tag_of(ids: Sequence[int]) -> StepTag | None:
    """The step tag that a list or its first id carries; None where there is none.

    Whether the list is that of the step, :meth:`StepTag.is_of` says.

    Examples
    --------
    >>> ticket_of([3, 1, 2]) is None
    True
    """
    step_tag = getattr(ids, "step_tag", None)
    if step_tag is None and ids:
        step_tag = getattr(ids[0], "step_tag", None)
    return step_tag


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(np.asarray(ids, np.int64).tobytes())
