"""What of the samples may come as a surprise, told beside what an epoch will cost."""

from __future__ import annotations

from dataclasses import replace

from xloader.planning.explain import Explanation
from xloader.recipe.recipe import Recipe
from xloader.recipe.regularity import irregular_steps


def with_notes(expected: Explanation, recipe: Recipe, *more: str) -> Explanation:
    """A prediction with what may come as a surprise about its samples.

    Of the store, only the labels of windowed dimensions are read, and once for each source.

    Parameters
    ----------
    expected : Explanation
        The prediction. Notes that it has are left out.
    recipe : Recipe
        The samples, with windows.
    *more : str
        Notes that are known already; empty ones do not count.
    """
    notes = tuple(note for note in (*more, overlap_note(recipe)) if note)
    return replace(expected, irregular_steps=irregular_steps(recipe), notes=notes)


def overlap_note(recipe: Recipe) -> str:
    """What overlapping windows would give where nobody asked for a stride; else nothing."""
    if recipe.windows is None:
        return ""
    # With a subset, samples are some of the windows.
    return recipe.windows.overlap_note("samples" if recipe.subset is None else "windows")
