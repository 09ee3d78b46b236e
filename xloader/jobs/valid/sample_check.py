"""The check that samples are put to, and the chunks that must be read for it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

from xloader.core.footprint import Footprint
from xloader.jobs.valid.sweep_line import Places, SweepLine, choose_places
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe


def may_hold_nan(recipe: Recipe, variable: str) -> bool:
    """Whether a variable can hold NaN. Integers can if they are packed with fill values.

    Computed variables count as valid: samples are chosen by what is stored.
    """
    stored = recipe.variable(variable)
    if stored.is_computed:
        return False
    if stored.packing is None:
        return stored.dtype.kind == "f"
    return bool(stored.packing.fills) or stored.packing.stored_dtype.kind == "f"


@dataclass(frozen=True, eq=False)
class SampleCheck:
    """Which samples hold enough valid elements: what is asked, and how windows are swept for it."""

    recipe: Recipe
    layouts: tuple[FieldLayout, ...]
    at_least: float

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles leave out cached properties.
        return SampleCheck, tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def footprint(self) -> Footprint | None:
        """The chunks of variables that may hold NaN, which are read; None if there are none."""
        recipe = self.recipe
        read = tuple(
            replace(
                layout, parts=tuple(p for p in layout.parts if may_hold_nan(recipe, p.variable))
            )
            for layout in self.layouts
        )
        if not any(layout.parts for layout in read):
            return None
        return make_footprint(recipe, tuple(layout for layout in read if layout.parts))

    @cached_property
    def line(self) -> SweepLine:
        """All blocks that are read, in the order of the sweep."""
        assert self.footprint is not None
        return SweepLine.of(self.footprint, self.places)

    @cached_property
    def parts(self) -> tuple[SweepLine, SweepLine]:
        """The blocks of variables without the sweep dimension, and the others."""
        return self.line.apart(self.places)

    @property
    def places(self) -> Places:
        """The windows that are counted."""
        return self._chosen[0]

    @property
    def num_along(self) -> int:
        """Most windows along the sweep that one block reaches into."""
        return self._chosen[1]

    @cached_property
    def _chosen(self) -> tuple[Places, int]:
        return choose_places(self.recipe, self.layouts, self.footprint)
