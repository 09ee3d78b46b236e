"""Positions in epochs, and the cursor that every loader and sampler keeps its position with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xloader.core.messages import warn_caller
from xloader.core.option_checks import is_whole
from xloader.core.options import check_epoch
from xloader.errors import EpochWarning, OptionError

_PEEKS = 2
"""How often an epoch may be begun anew after its first batch alone: to look at a batch is usual."""


@dataclass(frozen=True)
class Position:
    """A position in an epoch: the batch and the row that come next."""

    epoch: int
    step: int = 0
    row: int = 0

    @classmethod
    def checked(cls, epoch: Any, step: Any, num_steps: int) -> Position:
        """Make a position from numbers that a caller gave, after checking them."""
        if not is_whole(step) or not 0 <= step <= num_steps:
            raise OptionError(
                "an epoch does not have this step", given=repr(step), allowed=f"0 to {num_steps}"
            )
        return cls(check_epoch(epoch), int(step))


class RepeatWatch:
    """Warns once if a shuffled epoch begins anew, so that the same batches come again."""

    def __init__(self, is_shuffled: bool, counts: Any = None) -> None:
        self._is_shuffled = is_shuffled
        # The epoch of the last iteration, the batches that it gave, how often that epoch was left
        # after one batch, and whether the warning was given.
        self._counts = [0] * 4 if counts is None else counts

    def clear(self) -> None:
        """Forget the last iteration: where the next one begins was chosen on purpose."""
        self._counts[1] = self._counts[2] = 0

    def count(self) -> None:
        """Note that the iteration gives a batch."""
        self._counts[1] += 1

    def begin(self, start: Position, lead: int = 0) -> None:
        """Warn if the iteration that begins gives batches that the one before it has given."""
        if self._counts[0] != start.epoch:
            self.clear()
        num_taken = int(self._counts[1]) - lead
        self._counts[0], self._counts[1] = start.epoch, 0
        if not self._is_shuffled or num_taken < 1 or start != Position(start.epoch):
            return
        self._counts[2] += num_taken == 1
        if self._counts[3] or (num_taken == 1 and self._counts[2] <= _PEEKS):
            return
        self._counts[3] = 1
        warn_caller(
            f"epoch {start.epoch} begins anew, and gives the same batches in the same order again: "
            "call set_epoch(epoch) before each epoch for others; to go on where the loop left off, "
            "call load_state_dict(loader.state_dict()), or resume(epoch, step) of a sampler or an "
            "IterableDataset",
            EpochWarning,
        )


class Cursor:
    """The position in an epoch, and the position at which the next iteration starts.

    An iteration starts at the first step of the epoch. The exception is the iteration that follows
    `resume`: it starts at the position given there.
    """

    def __init__(self, is_shuffled: bool = False) -> None:
        self.repeats = RepeatWatch(is_shuffled)
        self.position = Position(0)
        self.num_begun = 0
        self._is_resuming = False

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return self.position.epoch

    @property
    def start(self) -> Position:
        """The position at which the next iteration starts."""
        return self.position if self._is_resuming else Position(self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. If it is the present one, a position given to `resume` stays valid."""
        epoch = check_epoch(epoch)
        self.repeats.clear()
        if epoch != self.epoch:
            self.resume(Position(epoch))

    def resume(self, position: Position) -> None:
        """Start the next iteration at a position."""
        self.repeats.clear()
        self.position, self._is_resuming = position, True

    def load(self, position: Position, num_steps: int) -> None:
        """Start the next iteration at the position of a state.

        At the end of an epoch, that is the first step of the next epoch.
        """
        is_over = 0 < position.step == num_steps
        self.resume(Position(position.epoch + 1) if is_over else position)

    def begin(self) -> int:
        """Begin an iteration.

        Until `count` is called, a further iteration starts at the same position: trainers make
        iterators that they never use.
        """
        self.num_begun += 1
        return self.num_begun

    def restart(self) -> None:
        """Move to `start`, once everything for the iteration is made."""
        self.position = self.start

    def count(self, position: Position, num_steps: int) -> None:
        """Note the position that an iteration has reached. At its end, the next epoch is chosen."""
        # The user may have chosen another epoch meanwhile.
        if position.epoch == self.epoch:
            is_over = position.step == num_steps
            self.position = Position(position.epoch + 1) if is_over else position
            self._is_resuming = False
