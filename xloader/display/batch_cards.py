"""The card of a batch: its fields, rows and samples. No value is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.count_text import show_count
from xloader.core.nbytes import show_nbytes
from xloader.display.sample_cards import sample_parts
from xloader.html.cards import Card, CardPart, CardSection, CardTable, Facts
from xloader.recipe.recipe import Recipe

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
        told = zip(names.tolist(), counts.tolist(), strict=True)
        facts.append(("sets", ", ".join(f"{name} {count:,}" for name, count in told)))
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
