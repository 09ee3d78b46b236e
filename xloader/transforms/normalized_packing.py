"""Packed numbers that are unpacked and normalised in one look-up.

Packed numbers of one or two bytes are unpacked through a table of all their values. If the first
transform normalises such a variable with one mean and one standard deviation, it is done to the
table. The values are the same to the last bit, and no pass over the batch is needed.
"""

from __future__ import annotations

from dataclasses import replace

from xloader.core.packing import Packing
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe
from xloader.transforms.normalize import Normalize


def normalized_packings(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> dict[str, Packing]:
    """The packings of the variables that can be normalised while they are unpacked."""
    first = recipe.steps[0] if recipe.steps else None
    # A number that stands for elements outside is normalised like those inside.
    has_numbers = any(isinstance(pad, float) for pad in recipe.require_windows().pads)
    if not isinstance(first, Normalize) or has_numbers:
        return {}
    dtypes = [(part.variable, layout.dtype) for layout in layouts for part in layout.parts]
    found = {}
    for name in dict(dtypes):
        packing = recipe.variable(name).packing
        if packing is None or packing.table is None:
            continue
        # In another dtype, values would be rounded before they are normalised, and not afterwards.
        is_alike = all(dtype == packing.dtype for variable, dtype in dtypes if variable == name)
        change = first.change_of(name, packing.dtype)
        if is_alike and change is not None:
            found[name] = replace(packing, change=change)
    return found
