"""The part of a loader that its worker processes get when they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xloader.core.options import LoaderOptions
from xloader.errors import OptionError
from xloader.planning.plan import Plan
from xloader.recipe.recipe import Recipe
from xloader.transforms.packed_fields import PackedField


@dataclass(frozen=True)
class ProcessSetup:
    """The samples, options and plan, the same for all processes of a loader.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    options : LoaderOptions
        The options, with the rank.
    plan : Plan
        The plan.
    hand_over : callable
        Converts an array into what ``collate_fn`` gets.
    packed_fields : tuple of PackedField
        Fields that are gathered as stored.
    """

    recipe: Recipe
    options: LoaderOptions
    plan: Plan
    hand_over: Callable[[Any], Any]
    packed_fields: tuple[PackedField, ...]

    def pickled(self) -> bytes:
        """The setup as bytes. Functions of a script or a notebook are part of them.

        Raises
        ------
        OptionError
            If something cannot be pickled. The error names it.
        """
        import cloudpickle

        try:
            return bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise OptionError(
                f"{self._culprit()} cannot be sent to worker processes ({error})",
                given=f"processes={self.options.processes}",
                allowed="functions and data that can be pickled",
                remedy="open files inside the function that uses them, and use no locks, which "
                "processes cannot share; or leave processes= out, as threads share everything",
            ) from error

    def _culprit(self) -> str:
        import cloudpickle

        steps = {f"the transform {step.describe()}": step for step in self.recipe.steps}
        parts = {**steps, "the collate_fn": self.options.collate_fn, "the data": self.recipe.source}
        for name, part in parts.items():
            try:
                cloudpickle.dumps(part)
            except Exception:
                return name
        return "the samples"
