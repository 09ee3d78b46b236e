"""Cards of samples, batches and loaders. No value is looked at, and nothing is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.core.options import LoaderOptions
from xloader.errors import XloaderError
from xloader.recipe.label_steps import dropped_windows, irregular_note, irregular_steps
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.show.cards import Card, CardPart, CardSection, CardTable, Drawing, Facts, Words
from xloader.show.cost_figures import FIGURE_WORDS, FigureTable
from xloader.show.drawings import draw_shares
from xloader.show.notes import points_notes, step_notes, window_notes
from xloader.show.window_drawings import draw_window
from xloader.transforms.normalize import in_words
from xloader.transforms.outputs import make_outputs

Rows = list[tuple[str, str]]


def sample_facts(recipe: Recipe) -> dict[str, Rows]:
    """Describe the samples of a recipe, by title of a section. No data is read."""
    sizes = ", ".join(f"{dim}: {size}" for dim, size in recipe.dim_sizes.items())
    data = [("source", recipe.source.name), ("dimensions", sizes)]
    data += [("note", note) for note in recipe.source.notes]
    if recipe.windows is None:
        return {"data": [*data, ("variables", ", ".join(recipe.variables))]}
    return {
        "data": data,
        "windows": _window_rows(recipe),
        "fields": [*_field_rows(recipe), *(("note", note) for note in points_notes(recipe))],
        "methods": [("then", in_words(step)) for step in recipe.steps],
    }


def sample_parts(recipe: Recipe, *, is_open: bool = True) -> list[CardPart]:
    """The parts of a card of samples: their facts, and a window on the grid of chunks."""
    sections: list[CardPart] = []
    for title, rows in sample_facts(recipe).items():
        drawn = _drawn(recipe) if title == "windows" else []
        if rows:
            sections.append(CardSection(title, [Facts(rows), *drawn], is_open))
    return sections


def _window_rows(recipe: Recipe) -> Rows:
    windows = recipe.require_windows()
    rows = []
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
    uneven = irregular_steps(recipe, only_times=True).items()
    notes = (*(irregular_note(dim, steps) for dim, steps in uneven), *window_notes(recipe))
    rows += [("note", note) for note in notes]
    if recipe.subset is not None:
        rows.append(("samples", recipe.subset.describe()))
        rows += [("kept", note) for note in recipe.subset.notes]
        rows += [("note", note) for note in [recipe.subset.shortage] if note]
    return rows


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
    return rows + [("note", note) for note in step_notes(recipe, outputs)]


def _drawn(recipe: Recipe) -> list[Drawing]:
    try:
        drawing = draw_window(recipe, make_layouts(recipe))
    except XloaderError:
        # As for the fields: too many chunks to plan for are an error of the plan.
        return []
    return [] if drawing is None else [drawing]


_MOST_IDS: Final = 8


def batch_card(
    fields: Mapping[str, Any],
    ids: Ints | None,
    is_padding: NDArray[np.bool_] | None,
    source: NDArray[np.str_] | None,
    recipe: Recipe | None,
) -> Card:
    """The card of a batch."""
    rows = [[name, *_looks(array)] for name, array in fields.items()]
    known = [] if ids is None else ids.tolist()
    shown = ", ".join(map(str, known[:_MOST_IDS])) + ", ..." * (len(known) > _MOST_IDS)
    facts = [("ids", shown or "none")]
    if is_padding is not None and (num_padding := int(np.count_nonzero(is_padding))):
        facts.append(("padding", f"{show_count(num_padding, 'row')} filled up with others"))
    if source is not None:
        names, counts = np.unique(source, return_counts=True)
        named_counts = zip(names.tolist(), counts.tolist(), strict=True)
        facts.append(("sets", ", ".join(f"{name} {count:,}" for name, count in named_counts)))
    heads = ["field", "shape", "dtype", "size", "where"]
    parts: list[CardPart] = [CardTable(heads, rows, num_left=len(heads)), Facts(facts)]
    if recipe is not None:
        parts.append(
            CardSection("samples", sample_parts(recipe), is_open=False, summary="of these rows")
        )
    title = "rebuilt without ids" if ids is None else f"num_samples={len(ids)}"
    return Card("Batch", title, parts)


def _looks(array: Any) -> list[str]:
    """Shape, dtype, size and place of an array or tensor; for anything else, its type."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        return ["", type(array).__name__, "", ""]
    size = getattr(array, "nbytes", None)
    where = "host" if isinstance(array, np.ndarray) else str(getattr(array, "device", ""))
    return [
        str(tuple(array.shape)),
        str(array.dtype).removeprefix("torch."),
        show_nbytes(size) if isinstance(size, int) else "",
        where,
    ]


def loader_card(
    title: str,
    summary: str,
    facts: Sequence[tuple[str, str]],
    expected: Mapping[str, FigureTable] | None,
    measured: FigureTable | None,
    recipes: Mapping[str, Recipe],
    drawing: Drawing | None = None,
) -> Card:
    """The card of a loader.

    `expected`: None for a loader that keeps none.
    """
    parts: list[CardPart] = [Facts(facts, FIGURE_WORDS), *([] if drawing is None else [drawing])]
    if expected is not None and not expected:
        words = "Call explain() to see what an epoch will read."
        parts.append(Words([words]))
    for name, figures in (expected or {}).items():
        parts.append(CardSection("explanation", figures._card_parts(), summary=name))
    if measured is not None:
        words = "of the epoch begun last"
        parts.append(CardSection("report", measured._card_parts(), summary=words))
    for name, recipe in recipes.items():
        parts.append(CardSection(name, sample_parts(recipe), is_open=False))
    return Card(title, summary, parts)


def option_facts(
    options: LoaderOptions, epoch: int, step: int, num_steps: int | None, *, is_closed: bool = False
) -> list[tuple[str, str]]:
    """Rows on the options of a loader, and on what comes next.

    `num_steps`: batches of an epoch; None if they are not known yet.
    """
    batches = "" if num_steps is None else f" of {num_steps:,}"
    begin = f"epoch {epoch:,}, batch {step + 1:,}{batches}"
    if is_closed or num_steps == 0:
        begin = "none: the loader is closed" if is_closed else "none: an epoch has no batch"
    device = options.on_device.device
    order = f"shuffled, seed {options.seed}" if options.shuffle else "not shuffled"
    if options.steps is not None:
        order += f", epochs of {show_count(options.steps, 'step')}"
    rows = [
        ("next iteration", begin),
        ("order", order + ", last batch dropped if short" * options.drop_last),
        ("memory", f"{options.memory_in_words} allowed"),
        ("output", options.output if device is None else f"on {device}"),
    ]
    if options.world is not None:
        rows.append(("rank", f"{options.world.rank} of {options.world.world_size}"))
    if options.processes:
        rows.append(("processes", f"{options.processes:,}"))
    if options.threads is not None:
        rows.append(("threads", f"{options.threads:,}"))
    return rows


def show_rest(epoch: int, step: int) -> str:
    """The part of an epoch that begins at a batch, in words."""
    begun = f" from batch {step + 1:,}" if step else ""
    return f"of epoch {epoch:,}{begun}"


def draw_weights(weights: Mapping[str, Fraction]) -> Drawing:
    """Draw the proportions of several sets."""
    return draw_shares("Rows of a batch", {name: float(weight) for name, weight in weights.items()})
