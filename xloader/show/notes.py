"""Notes on windows, points and steps of a recipe that a user should see."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import shorten

import numpy as np

from xloader.recipe.label_steps import dropped_windows, falling_times, open_circles
from xloader.recipe.recipe import Recipe
from xloader.transforms.fillna import Fillna
from xloader.transforms.normalize import Normalize
from xloader.transforms.outputs import Output
from xloader.transforms.statistics_forms import fields_without


def window_notes(recipe: Recipe) -> tuple[str, ...]:
    """Say what may surprise about the windows of samples, each a sentence; see also `gap_note`."""
    # With a subset, the number of windows is not the number of samples.
    what = "samples" if recipe.subset is None else "windows"
    notes = recipe.require_windows().overlap_note(what), _wrap_note(recipe), _pad_note(recipe)
    falling = (
        f"{dim} runs backwards: its labels descend, so later elements of a window are earlier times"
        for dim in falling_times(recipe)
    )
    return tuple(note for note in (*notes, *_unused_notes(recipe), *falling) if note)


def _unused_notes(recipe: Recipe) -> Iterator[str]:
    """Say along which dimensions strides leave elements between windows that none of them takes."""
    windows = recipe.require_windows()
    every = zip(windows.dims, windows.window_sizes, windows.dilations, windows.strides, strict=True)
    for (dim, size, dilation, stride), count in zip(every, windows.num_positions, strict=True):
        num_unused = stride - len(np.unique(np.arange(size) * dilation % stride))
        if num_unused and count > 1:
            yield (
                f"no window takes {num_unused:,} of every {stride:,} elements of {dim}, because "
                f"its stride is {stride:,}"
            )


def gap_note(recipe: Recipe) -> str:
    """Say which windows are left out because they cross a gap; empty if none does."""
    has_gaps = "gap" in recipe.require_windows().dropped
    return f"windows left out: {dropped_windows(recipe)}" if has_gaps else ""


def points_notes(recipe: Recipe) -> tuple[str, ...]:
    """A note on how many points of a table have no sample; none if each of them has one."""
    points = None if recipe.subset is None else recipe.subset.points
    return () if points is None or not points.left_out else (f"left out: {points.left_out}",)


def _wrap_note(recipe: Recipe) -> str:
    """Say how many windows wrap, and along which dimensions the labels do not close a circle."""
    windows = recipe.require_windows()
    count = windows.num_beyond("wrap")
    if not count:
        return ""
    dims = [dim for dim, wraps in zip(windows.dims, windows.wraps, strict=True) if wraps]
    note = f"{count:,} of {len(windows):,} windows wrap along {' or '.join(dims)}"
    for dim, text in open_circles(recipe).items():
        note += f"; the labels of {dim} do not go round the globe ({text})"
    return note


def _pad_note(recipe: Recipe) -> str:
    """Say how many windows reach beyond padded borders."""
    windows = recipe.require_windows()
    count = windows.num_beyond("pad")
    if not count:
        return ""
    pads = zip(windows.dims, windows.pads, strict=True)
    which = " or ".join(f"{dim} ({pad})" for dim, pad in pads if pad is not None)
    return f"{count:,} of {len(windows):,} windows are padded along {which}"


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
            targets = {name for name, _ in step.values}
            late += [name or "all variables" for name in targets if filled & {name, None}]
            filled |= targets
        elif isinstance(step, Normalize):
            names = [name for name, *_ in step.tables if name in used]
            normalized.update(names)
            floats = [name for name in names if used[name].dtype.kind == "f"]
            early += [name for name in floats if filled & {name, None}]
    notes = {
        "normalize leaves {} unchanged": [
            name if holders == [name] else f"{name} of {' and '.join(holders)}"
            for name, holders in (fields_without(recipe, normalized) if normalized else {}).items()
        ],
        "normalised twice: {}": [name for name, num in normalized.items() if num > 1],
        "fillna comes before normalize: filled values of {} are normalised too": early,
        "the second fillna finds nothing to fill in {}": late,
        "pad comes before normalize: the number beyond borders of {} is normalised too": [
            name for name in normalized if padded & set(used[name].dims)
        ],
        '{}: device=OnDevice(dtype="float32") of the loader converts floats': [
            f"{output.name} is float64{_cause(recipe, fields.get(output.name, ()))}"
            for output in outputs
            if output.dtype == np.float64
        ],
    }
    return tuple(
        text.format(shorten(", ".join(names), 160)) for text, names in notes.items() if names
    )


def _cause(recipe: Recipe, names: Sequence[str]) -> str:
    """Name the variables that make a field float64, if not all do; integers of 32 bits do, too."""
    wide = [x for x in names if np.result_type(recipe.variable(x).dtype, "f4") == np.float64]
    return f" because of {', '.join(wide)}" if 0 < len(wide) < len(names) else ""
