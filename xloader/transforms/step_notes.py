"""Notes on transforms and on float64, for descriptions of samples and of what an epoch reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from textwrap import shorten

import numpy as np

from xloader.recipe.recipe import Recipe
from xloader.transforms.fillna import Fillna
from xloader.transforms.normalize import Normalize
from xloader.transforms.outputs import Output
from xloader.transforms.statistics_forms import fields_without


def step_notes(recipe: Recipe, outputs: Sequence[Output]) -> tuple[str, ...]:
    """Notes on what normalize leaves out or does twice, on what comes before it, and on float64.

    `outputs`: the fields as delivered; none if the loader converts floats.
    """
    fields = {field.name: field.variables for field in recipe.gathered_fields}
    used = {name: recipe.variable(name) for names in fields.values() for name in names}
    windows = recipe.require_windows()
    pads = zip(windows.dims, windows.pads, strict=True)
    padded = {dim for dim, pad in pads if isinstance(pad, float) and not math.isnan(pad)}
    normalized: Counter[str] = Counter()
    filled: set[str | None] = set()
    early, late = [], []
    for step in recipe.steps:
        if isinstance(step, Fillna):
            names = {name for name, _ in step.values}
            late += [name or "all variables" for name in names if filled & {name, None}]
            filled |= names
        elif isinstance(step, Normalize):
            own = [name for name, *_ in step.tables if name in used]
            normalized.update(own)
            floats = [name for name in own if used[name].dtype.kind == "f"]
            early += [name for name in floats if filled & {name, None}]
    told = {
        "normalize leaves {} unchanged": [
            name if own == [name] else f"{name} of {' and '.join(own)}"
            for name, own in (fields_without(recipe, normalized) if normalized else {}).items()
        ],
        "normalised twice: {}": [name for name, num in normalized.items() if num > 1],
        "fillna comes before normalize: filled values of {} are normalised too": early,
        "the second fillna finds nothing to fill in {}": late,
        "pad comes before normalize: the number beyond borders of {} is normalised too": [
            name for name in normalized if padded & set(used[name].dims)
        ],
        '{}: output_dtype="float32" of the loader converts floats': [
            f"{output.name} is float64{_cause(recipe, fields.get(output.name, ()))}"
            for output in outputs
            if output.dtype == np.float64
        ],
    }
    return tuple(
        text.format(shorten(", ".join(names), 160)) for text, names in told.items() if names
    )


def _cause(recipe: Recipe, names: Sequence[str]) -> str:
    """Name the variables that make a field float64, if not all do; integers of 32 bits do, too."""
    wide = [x for x in names if np.result_type(recipe.variable(x).dtype, "f4") == np.float64]
    return f" because of {', '.join(wide)}" if 0 < len(wide) < len(names) else ""
