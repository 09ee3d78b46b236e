"""Descriptions of samples, as text for the terminal and as HTML for notebooks."""

from __future__ import annotations

from xloader.core.count_text import show_count
from xloader.errors import printable
from xloader.recipe.recipe import Recipe
from xloader.transforms.normalize import in_words


def as_text(recipe: Recipe) -> str:
    """Text that describes the samples: a title, then one line for each property."""
    from xloader.display.sample_cards import sample_facts

    rows = [[printable(cell, kept="") for cell in row] for row in sample_facts(recipe).rows]
    width = max(len(head) for head, _ in rows)
    lines = [f"    {head:<{width}}  {text}" for head, text in rows]
    return "\n".join([f"<xloader.Samples, {_size(recipe)}>", *lines])


def as_html(recipe: Recipe) -> str:
    """HTML that describes the samples: the rows of the text, and a drawing of a window."""
    from xloader.display.sample_cards import sample_parts
    from xloader.html.cards import Card

    return Card("xloader.Samples", _size(recipe), sample_parts(recipe)).to_html()


def last_verb(recipe: Recipe) -> str:
    """Name of the last step that a recipe records, for error messages."""
    if recipe.steps:
        return in_words(recipe.steps[-1])
    if recipe.fields:
        return f"the field {recipe.fields[-1].name!r}"
    return "window" if recipe.windows else "open"


def _size(recipe: Recipe) -> str:
    return "no windows yet" if recipe.windows is None else show_count(recipe.num_ids, "sample")
