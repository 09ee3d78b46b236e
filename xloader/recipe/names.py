"""Names that xloader adds to those of the data: of dimensions, coordinates and channels."""

from __future__ import annotations

import numpy as np

from xloader.recipe.recipe import Recipe

SAMPLE = "sample"
"""The dimension that counts the samples of a batch."""


LABEL = "_label"
"""Suffix of a coordinate that holds the labels of each sample along a dimension."""


CHANNEL = "channel"
"""The leading dimension of a field whose variables are stacked."""


def channel_names(recipe: Recipe, name: str, flat: tuple[str, ...]) -> list[str]:
    """Names of the channels of a variable whose dimensions ``flat`` become channels."""
    names = [name]
    for dim in flat:
        labels = _short_labels(recipe, dim)
        names = [f"{head}_{label}" for head in names for label in labels]
    return names


def _short_labels(recipe: Recipe, dim: str) -> list[str]:
    coords = recipe.source.coordinates()
    if dim not in coords.indexes:
        return [str(index) for index in range(recipe.dim_sizes[dim])]
    kept = recipe.kept_of(dim)
    assert not isinstance(kept, int)
    labels = coords[dim].to_numpy()[np.asarray(kept, np.int64)]
    if labels.dtype.kind == "M":
        return [text.removesuffix("T00:00:00") for text in np.datetime_as_string(labels, "s")]
    if labels.dtype.kind == "m":
        # The longest unit of which all are multiples: 6h and 24h, not 6h and 1D.
        for unit in ("D", "h", "m", "s", "ms", "us"):
            span = np.timedelta64(1, unit)
            if not np.isnat(labels).any() and (labels % span == np.timedelta64(0)).all():
                return [f"{label // span}{unit}" for label in labels]
    # "%.15g" writes 500.0 as 500, and 0.1 as 0.1.
    return [f"{label:.15g}" if labels.dtype.kind == "f" else str(label) for label in labels]
