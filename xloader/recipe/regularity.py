"""Checks of the labels of windowed dimensions: irregular steps, gaps, circles that stay open.

Windows run across irregular steps unless they are gaps that windows leave out, so an explanation
names them. It also names longitudes along which windows wrap but which do not go round the globe.
"""

from __future__ import annotations

from typing import Final

from xloader.recipe.label_steps import find_steps
from xloader.recipe.recipe import Recipe

FULL_TURN: Final = 360
"""Degrees of a circle."""

OPEN_SHARE: Final = 0.01
"""The part of a full turn by which labels may miss it."""


def irregular_steps(recipe: Recipe, *, only_times: bool = False) -> dict[str, str]:
    """Describe the irregular steps of each windowed dimension whose windows run across them.

    A dimension is left out if its samples reach over one element only, if windows that cross gaps
    are left out, or if it has no labels that are numbers or times.
    """
    windows = recipe.require_windows()
    found = {}
    for dim, reach, segments in zip(windows.dims, windows.extents, windows.segments, strict=True):
        steps = find_steps(recipe, dim, only_times=only_times) if reach > 1 else None
        if steps is not None:
            own = steps.describe() if segments is None else "", steps.describe_uneven()
            found[dim] = ", ".join(filter(None, own))
    return {dim: text for dim, text in found.items() if text}


def irregular_note(dim: str, steps: str) -> str:
    """Say in a sentence what `irregular_steps` says of a dimension."""
    return f"{dim}: steps are irregular: {steps}; windows run across them"


def falling_times(recipe: Recipe) -> list[str]:
    """The dimensions whose times fall, and along which samples reach over several elements."""
    windows = recipe.require_windows()
    return [
        dim
        for dim, reach in zip(windows.dims, windows.extents, strict=True)
        if reach > 1 and (steps := find_steps(recipe, dim, only_times=True)) and steps.is_falling
    ]


def open_circles(recipe: Recipe) -> dict[str, str]:
    """Describe the dimensions along which windows wrap, and whose labels do not close a circle.

    Only labels in degrees are looked at: their steps must add up to 360 degrees within 1 %.
    """
    windows, coords = recipe.require_windows(), recipe.source.coordinates()
    found = {}
    for dim, size, wraps in zip(windows.dims, windows.dim_sizes, windows.wraps, strict=True):
        if not wraps or dim not in coords.indexes:
            continue
        steps = find_steps(recipe, dim)
        if not str(coords[dim].attrs.get("units", "")).startswith("degree") or steps is None:
            continue
        turn = size * steps.span
        if not abs(abs(turn) - FULL_TURN) <= OPEN_SHARE * FULL_TURN:
            found[dim] = f"{size:,} steps of {steps.text} degrees: {abs(turn):g} of {FULL_TURN}"
    return found


def dropped_windows(recipe: Recipe) -> str:
    """Say how many windows are left out, and why; an empty text if none are."""
    windows = recipe.require_windows()
    reasons = []
    if count := windows.dropped.get("gap", 0):
        gaps = []
        for dim, segments in zip(windows.dims, windows.segments, strict=True):
            if segments is not None and (steps := find_steps(recipe, dim)) is not None:
                gaps.append(f"{dim} ({steps.describe()})")
        which = "window that crosses" if count == 1 else "windows that cross"
        reasons.append(f"{count:,} {which} a gap along {' or '.join(gaps)}")
    if count := windows.dropped.get("end", 0):
        which = "window that leaves" if count == 1 else "windows that leave"
        reasons.append(f"{count:,} {which} the array")
    return "; ".join(reasons)
