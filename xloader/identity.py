"""What fixes which samples there are, part by part: what a saved state is held against."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from xloader.recipe import Recipe


def describe_samples(recipe: Recipe) -> dict[str, str]:
    """What fixes which samples there are, each part by a short hash.

    Values are not read, but for the labels at both ends of the windowed dimensions: a store of
    the same shape may be of other years.

    Parameters
    ----------
    recipe : Recipe
    """
    parts = {
        "store": recipe.source.fingerprint,
        "variables": recipe.variables,
        "selection": recipe.selection,
        "labels": list(_ends(recipe)),
        "windows": recipe.windows,
        "fields": recipe.fields,
        "transforms": [step.describe() for step in recipe.steps],
        "subset": "" if recipe.subset is None else recipe.subset.digest,
    }
    return {
        name: hashlib.sha256(repr(part).encode()).hexdigest()[:12] for name, part in parts.items()
    }


def _ends(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """The first and the last label of each windowed dimension that has an index."""
    coordinates = recipe.source.coordinates()
    for dim in recipe.require_windows().dims:
        kept = recipe.kept_of(dim)
        if dim in coordinates.indexes and not isinstance(kept, int) and len(kept):
            labels = coordinates[dim].variable.to_base_variable()
            yield dim, _text(labels[kept[0]].values), _text(labels[kept[-1]].values)


def _text(label: np.ndarray) -> str:
    # Versions of xarray differ in the unit of time that they decode to.
    value = label.astype("datetime64[us]") if label.dtype.kind == "M" else label
    return str(value.item())
