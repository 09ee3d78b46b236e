"""Cards of loaders: where they stand, and what is known of their epochs. Nothing is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from xloader.core.nbytes import show_nbytes
from xloader.core.options import LoaderOptions
from xloader.recipe.recipe import Recipe
from xloader.show.bars import draw_shares
from xloader.show.cards import Card, CardPart, CardSection, Drawing, Facts, Words
from xloader.show.cost_figures import FIGURE_WORDS, FigureTable
from xloader.show.sample_cards import sample_parts


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
    rows = [
        ("next iteration", begin),
        ("order", order + ", last batch dropped if short" * options.drop_last),
        ("memory", f"{show_nbytes(options.memory_nbytes)} allowed"),
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
