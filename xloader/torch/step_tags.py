"""Step tags, which tell a worker the step, epoch and plan that a batch of ids belongs to.

A sampler attaches them to ids, and the dataset in a worker reads them. The first id carries a tag
too, because a ``DataLoader`` puts single ids into lists of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xloader.core.options import LoaderOptions
from xloader.planning.plan import Plan


@dataclass(frozen=True)
class PlanTag:
    """Plan and options that a sampler and the workers of its rank must have in common."""

    options: LoaderOptions
    plan: Plan
    fingerprint: str


@dataclass(frozen=True)
class StepTag:
    """Identification of one step of one pass over an epoch."""

    plan_tag: PlanTag
    epoch: int
    step: int
    pass_number: int
    num_rows: int
    checksum: int

    @classmethod
    def of(
        cls, ids: Sequence[int], plan_tag: PlanTag, epoch: int, step: int, pass_number: int
    ) -> StepTag:
        """The tag of a step with certain ids."""
        return cls(plan_tag, epoch, step, pass_number, len(ids), _checksum(ids))

    def is_of(self, ids: Sequence[int]) -> bool:
        """Whether a list holds exactly the ids of the step, in their order."""
        return len(ids) == self.num_rows and _checksum(ids) == self.checksum


class FirstId(int):
    """The first sample id of a step: an int that carries the step tag into any list of ids."""

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
    """The ids of one batch: a list that carries the step tag."""

    def __init__(self, ids: list[int], step_tag: StepTag) -> None:
        super().__init__(ids)
        self.step_tag = step_tag

    @property
    def epoch(self) -> int:
        """The epoch that the batch belongs to."""
        return self.step_tag.epoch

    @property
    def step(self) -> int:
        """Number of the batch in that epoch, among those of its rank."""
        return self.step_tag.step

    def __reduce__(self) -> tuple[object, ...]:
        return BatchIds, (list(self), self.step_tag)


def step_tag_of(ids: Sequence[int]) -> StepTag | None:
    """The step tag that a list or its first id carries; None if there is none.

    :meth:`StepTag.is_of` tells whether the list is the one that the tag was made for.
    """
    step_tag = getattr(ids, "step_tag", None)
    if step_tag is None and ids:
        step_tag = getattr(ids[0], "step_tag", None)
    return step_tag


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(np.asarray(ids, np.int64).tobytes())
