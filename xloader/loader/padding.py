"""Remainders of an epoch in which a process has only padding left.

Padding repeats the last row of the process before it. A process that resumes with nothing but
padding therefore makes one batch again, without delivering it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xloader.planning.epoch import Epoch, Lane
from xloader.planning.remainder import Remainder


def rest_of(part: Epoch | Remainder, numbers: Sequence[int]) -> tuple[Epoch | Remainder, int]:
    """The steps that a process makes for its part of what is left of an epoch.

    Where only padding is left, the row that it repeats is in the batch before. The process makes
    that batch again.

    Parameters
    ----------
    part : Epoch or Remainder
        The epoch, or what is left of it.
    numbers : sequence of int
        Numbers of the process's sub-lanes.

    Returns
    -------
    part : Epoch or Remainder
        The steps to make.
    num_passed : int
        Number of batches at their beginning that are not delivered: 0 or 1.
    """
    if isinstance(part, Remainder) and _has_padding_only(part, numbers):
        return _one_step_earlier(part), 1
    return part, 0


@dataclass(frozen=True)
class _Rewound(Remainder):
    """A remainder in which some sub-lanes begin one of their steps earlier.

    Parameters
    ----------
    rewound : frozenset of int
        Numbers of these sub-lanes. The other parameters are those of `Remainder`.
    """

    rewound: frozenset[int]

    def num_steps_of(self, numbers: Sequence[int]) -> int:
        """Number of steps that a process makes, including the one that is made again."""
        return super().num_steps_of(numbers) + (numbers[0] in self.rewound)

    def lanes(self, chosen: Iterable[int]) -> list[Lane]:
        """Lanes as in `Remainder.lanes`. Those that begin earlier have one step more."""
        numbers = list(chosen)
        earlier = _one_step_earlier(self)
        return [
            lane if number not in self.rewound else earlier.lanes([number])[0]
            for number, lane in zip(numbers, super().lanes(numbers), strict=True)
        ]


def _has_padding_only(part: Remainder, numbers: Sequence[int]) -> bool:
    """Whether a process has steps left, but none of its samples."""
    sublanes = part.sublanes
    if not part.first_step or not sublanes.num_steps_of(numbers[0]):
        return False
    spans = [(number, *sublanes.span(number)) for number in numbers]
    return all(
        end - begin <= sublanes.num_done_of(number) * sublanes.share for number, begin, end in spans
    )


def _one_step_earlier(part: Remainder) -> Remainder:
    """The remainder with one step more of each worker."""
    first_step = max(part.first_step - part.plan.workers, 0)
    return Remainder(part.whole, first_step, part.footprint)
