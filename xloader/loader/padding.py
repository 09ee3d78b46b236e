"""Epochs of which only padding is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xloader.planning.epoch import Epoch, Lane
from xloader.planning.remainder import Remainder


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
