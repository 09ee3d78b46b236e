"""Step tags, which tell a worker the step, epoch and plan that a batch of ids belongs to.

A sampler attaches them to the first id of each batch, and the dataset in a worker reads them
there. The list carries no tag, because a ``DataLoader`` puts single ids into lists of its own.
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


def step_tag_of(ids: Sequence[int]) -> StepTag | None:
    """The step tag that the first of some ids carries; None if there is none.

    `StepTag.is_of` tells whether the list is the one that the tag was made for.
    """
    return getattr(ids[0], "step_tag", None) if ids else None


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(np.asarray(ids, np.int64).tobytes())
