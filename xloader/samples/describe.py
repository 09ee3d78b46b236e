"""Descriptions of samples, as text for the terminal and as HTML for notebooks."""

from __future__ import annotations

import html

from xloader.core.count_text import show_count
from xloader.errors import XloaderError
from xloader.loader.explain_notes import overlap_note, pad_note, points_notes, wrap_note
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.recipe.regularity import dropped_windows
from xloader.transforms.outputs import make_outputs

Rows = list[tuple[str, str]]


def as_text(recipe: Recipe) -> str:
    """Text that describes the samples: a title, then one line for each property."""
    rows = _rows(recipe)
    width = max(len(head) for head, _ in rows)
    lines = [f"    {head:<{width}}  {text}" for head, text in rows]
    return "\n".join([_title(recipe), *lines])


def as_html(recipe: Recipe) -> str:
    """HTML table that describes the samples, with the same rows as the text."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(head)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for head, text in _rows(recipe)
    )
    return f"<div><b>{html.escape(_title(recipe))}</b><table>{rows}</table></div>"


def last_verb(recipe: Recipe) -> str:
    """Name of the last step that a recipe records, for error messages."""
    if recipe.steps:
        return recipe.steps[-1].describe()
    if recipe.fields:
        return f"the field {recipe.fields[-1].name!r}"
    return "window" if recipe.windows else "open"


def _title(recipe: Recipe) -> str:
    if recipe.windows is None:
        return "<xloader.Samples, no windows yet>"
    return f"<xloader.Samples, {show_count(recipe.num_ids, 'sample')}>"


def _rows(recipe: Recipe) -> Rows:
    sizes = ", ".join(f"{dim}: {size}" for dim, size in recipe.dim_sizes.items())
    rows = [("source", recipe.source.name), ("dimensions", sizes)]
    rows += [("note", note) for note in recipe.source.notes]
    windows = recipe.windows
    if windows is None:
        return [*rows, ("variables", ", ".join(recipe.variables))]
    for dim, size, stride, dilation, end, count in zip(
        windows.dims,
        windows.window_sizes,
        windows.strides,
        windows.dilations,
        windows.ends,
        windows.num_positions,
        strict=True,
    ):
        spaced = f", dilation {dilation}" if dilation > 1 else ""
        spaced += {"stop": "", "wrap": ", wraps", "pad": ", centred"}[end]
        rows.append((f"window {dim}", f"{size}, stride {stride}{spaced}: {count} positions"))
    if dropped := dropped_windows(recipe):
        rows.append(("dropped", dropped))
    notes = overlap_note(recipe), wrap_note(recipe), pad_note(recipe)
    rows += [("note", note) for note in notes if note]
    if recipe.subset is not None:
        rows.append(("samples", recipe.subset.describe()))
        rows += [("kept", note) for note in recipe.subset.notes]
    rows += _field_rows(recipe)
    left_out = [("note", note) for note in points_notes(recipe)]
    return [*rows, *left_out, *(("then", step.describe()) for step in recipe.steps)]


def _field_rows(recipe: Recipe) -> Rows:
    try:
        outputs = make_outputs(recipe, make_layouts(recipe))
    except XloaderError as error:
        # Users print samples to find a fault, so printing must not fail because of it.
        return [("fields", f"none: {error}")]
    rows = []
    for output in outputs:
        dims = ", ".join(
            f"{dim}: {size}" for dim, size in zip(output.dims, output.shape, strict=True)
        )
        rows.append((output.name, f"({dims}) {output.dtype}"))
    return rows
