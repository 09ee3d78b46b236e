"""How the gathered batches of a loader become what it delivers: the same in any process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.options import LoaderOptions
from xloader.core.output_dtypes import convert_floats
from xloader.core.packing import Packing
from xloader.engine.buffers import Arrays
from xloader.engine.finishes import BatchFinish
from xloader.loader.batches.row_list import SampleNames
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.transforms.outputs import finish
from xloader.transforms.packed_fields import PackedField, normalized_packings, stored_layouts
from xloader.transforms.rng import Chance

HandOver = Callable[[NDArray[Any]], Any]
"""Converts a gathered array into what is delivered: a tensor, or the array itself."""


@dataclass(frozen=True, eq=False)
class Finishing:
    """The transforms and conversions of a loader's batches.

    `packed_fields`: fields that are gathered as stored, and stay so. `sample_names`: the ids of the
    samples, if they are a part of others.
    """

    recipe: Recipe
    options: LoaderOptions
    hand_over: HandOver
    packed_fields: tuple[PackedField, ...] = ()
    sample_names: SampleNames | None = None

    @cached_property
    def layouts(self) -> tuple[FieldLayout, ...]:
        """The fields as they are gathered."""
        return stored_layouts(make_layouts(self.recipe), self.packed_fields)

    @cached_property
    def packings(self) -> dict[str, Packing | None]:
        """How variables are unpacked as they are gathered, where it is not the variable's own way.

        None: the stored numbers are gathered as they are.
        """
        as_stored: dict[str, Packing | None] = {
            piece.variable: None
            for layout in make_layouts(self.recipe)
            if layout.name in self._as_stored
            for piece in layout.parts
        }
        return {**self._normalized, **as_stored}

    def of_epoch(self, epoch: int) -> BatchFinish:
        """The steps between a gathered batch of an epoch and a delivered one."""
        recipe, options, names = self.recipe, self.options, self.sample_names
        if names is not None:
            recipe = names.recipe
        unpacked, normalized = self._unpacked_layouts, self._normalized.keys()

        def transform(arrays: Arrays, ids: Ints, occurrences: Ints | None) -> Arrays:
            """Run the transforms of the recipe."""
            if names is not None:
                ids = names.of(ids)
            chance = Chance(options.seed, epoch, occurrences)
            return finish(recipe, unpacked, arrays, ids, chance, normalized)

        is_plain = not (recipe.steps or recipe.label_columns)
        nan_counts = {field.name: field.count_nans for field in self.packed_fields}
        return BatchFinish(
            None if is_plain else transform, self._convert, options.on_nan, nan_counts
        )

    @property
    def _as_stored(self) -> set[str]:
        return {field.name for field in self.packed_fields}

    @cached_property
    def _unpacked_layouts(self) -> tuple[FieldLayout, ...]:
        layouts = make_layouts(self.recipe)
        return tuple(layout for layout in layouts if layout.name not in self._as_stored)

    @cached_property
    def _normalized(self) -> dict[str, Packing]:
        return normalized_packings(self.recipe, self._unpacked_layouts)

    @property
    def _convert(self) -> Callable[[Arrays], Arrays] | None:
        if self.options.on_device.dtype is None:
            return None
        return partial(
            convert_floats,
            output_dtype=self.options.on_device.dtype,
            # Arrays of the user's functions may still be in use.
            is_own=not self.recipe.is_mapped,
            left_out=self._as_stored,
        )
