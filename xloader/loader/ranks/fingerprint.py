"""Hashes of everything that determines the samples, part by part.

A saved state holds them. Loading a state compares them with those of the loader's own samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from xloader.recipe.recipe import Recipe


def describe_samples(recipe: Recipe) -> dict[str, str]:
    """Hash each part of what determines the samples.

    Only the labels at both ends of the windowed dimensions are read, because another store of the
    same shape may hold other years.
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
    if recipe.num_taken is not None:
        parts["samples of an epoch"] = str(recipe.num_taken)
    return {
        name: hashlib.sha256(repr(part).encode()).hexdigest()[:12] for name, part in parts.items()
    }


def _ends(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """The first and the last label of each windowed dimension that has labels."""
    coordinates = recipe.source.coordinates(is_indexed=False)
    for dim in recipe.require_windows().dims:
        kept = recipe.kept_of(dim)
        if isinstance(kept, int) or not len(kept) or dim not in coordinates.coords:
            continue
        labels = coordinates[dim].variable.to_base_variable()
        if labels.dims == (dim,):
            try:
                yield dim, _text(labels[kept[0]].values), _text(labels[kept[-1]].values)
            except Exception:
                # Training needs no labels, so those that cannot be read are not compared.
                yield dim, "", ""


def _text(label: np.ndarray) -> str:
    if label.dtype.kind in "mM":
        # The unit of time that xarray decodes to depends on its version.
        label = label.astype(f"{label.dtype.kind}8[us]")
    value = label.item()
    # The text of other objects may contain their memory address.
    is_plain = label.dtype.kind != "O" or isinstance(value, str) or hasattr(value, "isoformat")
    return str(value) if is_plain else ""
