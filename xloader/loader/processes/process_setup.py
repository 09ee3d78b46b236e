"""The part of a loader that its worker processes get when they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xloader.errors import OptionError
from xloader.loader.ranks.finishing import Finishing


@dataclass(frozen=True)
class ProcessSetup:
    """How batches are finished, and how they lie in slots: the same for all processes.

    `hand_over`: converts an array into what ``collate_fn`` gets. `num_rows`, `room_nbytes`: of a
    slot, as `Fields` has them.
    """

    finishing: Finishing
    hand_over: Callable[[Any], Any]
    num_rows: int
    room_nbytes: int

    def pickled(self) -> bytes:
        """The setup as bytes. Functions of a script or a notebook are part of them."""
        import cloudpickle

        try:
            return bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise OptionError(
                f"{self._culprit()} cannot be sent to worker processes ({error})",
                given=f"processes={self.finishing.options.processes}",
                allowed="functions and data that can be pickled",
                remedy="open files inside the function that uses them, and use no locks, which "
                "processes cannot share; or leave processes= out, as threads share everything",
            ) from error

    def _culprit(self) -> str:
        import cloudpickle

        recipe, collate_fn = self.finishing.recipe, self.finishing.options.collate_fn
        steps = {f"the transform {step.describe()}": step for step in recipe.steps}
        parts = {**steps, "the collate_fn": collate_fn, "the data": recipe.source}
        for name, part in parts.items():
            try:
                cloudpickle.dumps(part)
            except Exception:
                return name
        return "the samples"
