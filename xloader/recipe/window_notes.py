"""Notes on the windows of samples: which are left out, and which reach beyond the data.

Descriptions of samples show them, and so do explanations of what an epoch reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xloader.recipe.recipe import Recipe
from xloader.recipe.regularity import dropped_windows, falling_times, open_circles


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
