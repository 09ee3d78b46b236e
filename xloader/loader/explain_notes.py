"""Notes on surprising properties of the samples, shown with the predicted cost of an epoch."""

from __future__ import annotations

from dataclasses import replace

from xloader.engine.compiled_gather import gather_in_words
from xloader.planning.explain import Explanation
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe
from xloader.recipe.regularity import irregular_steps


def with_notes(
    expected: Explanation, recipe: Recipe, layouts: tuple[FieldLayout, ...], *more: str
) -> Explanation:
    """Add notes on the samples to a prediction: irregular labels, windows without overlap.

    Only the labels of windowed dimensions are read, once for each source.

    Parameters
    ----------
    expected : Explanation
        The prediction. Notes that it already has are replaced.
    recipe : Recipe
        The samples, with windows.
    layouts : tuple of FieldLayout
        The layouts of its fields.
    *more : str
        Further notes; empty ones are left out.

    Returns
    -------
    Explanation
        The prediction with its notes.
    """
    notes = tuple(note for note in (*more, overlap_note(recipe)) if note)
    copied = [
        (part.variable, variable.stored_dtype, variable.packing, layout.dtype)
        for layout in layouts
        for part in layout.parts
        for variable in [recipe.variable(part.variable)]
    ]
    gather, steps = gather_in_words(copied), irregular_steps(recipe)
    return replace(expected, gather=gather, irregular_steps=steps, notes=notes)


def overlap_note(recipe: Recipe) -> str:
    """Say how many samples overlapping windows would give, if no stride was chosen.

    Parameters
    ----------
    recipe : Recipe
        The samples.

    Returns
    -------
    str
        The note; empty without windows, or where the stride was chosen.
    """
    if recipe.windows is None:
        return ""
    # With a subset, the number of windows is not the number of samples.
    return recipe.windows.overlap_note("samples" if recipe.subset is None else "windows")
