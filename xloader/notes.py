"""What of the samples may come as a surprise, told beside what an epoch will cost."""

from __future__ import annotations

from dataclasses import replace

from xloader.describing import overlap_note
from xloader.explain import Explanation
from xloader.recipe import Recipe
from xloader.regularity import irregular_steps


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
