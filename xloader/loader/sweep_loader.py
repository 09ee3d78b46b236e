"""The loader of a pass over samples in batches, in the order that reads fewest chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from xloader.core.options import LoaderOptions, PlanRules
from xloader.core.ranks import World
from xloader.errors import MemoryBudgetError
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.loader import Loader
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.transforms.outputs import make_outputs

_MOST_ROWS: Final = 256
"""Most samples of a batch, unless the caller says otherwise."""
_BATCH_SHARE: Final = 32
"""Of the memory, the share that a batch may take."""


def make_sweep_loader(
    make: Callable[..., Loader],
    recipe: Recipe,
    options: LoaderOptions,
    sample_names: SampleNames | None = None,
    batch_size: int | None = None,
) -> Loader:
    """A loader of NumPy batches in ascending or shuffled order, whichever reads fewer chunks."""
    rows = batch_size
    if rows is None:
        rows = _num_rows(recipe, options.memory_nbytes)
    sweep_options = LoaderOptions(
        batch_size=rows,
        seed=options.seed,
        memory=options.memory_nbytes,
        threads=options.threads,
        output="numpy",
        world=World(),
        on_nan="ignore",
        plan=PlanRules(max_amplification=1.0),
    )
    try:
        ascending, shuffled = (
            make(
                recipe,
                replace(sweep_options, shuffle=shuffle),
                np.asarray,
                sample_names=sample_names,
            )
            for shuffle in (False, True)
        )
    except MemoryBudgetError:
        if batch_size is not None or rows == 1:
            raise
        return make_sweep_loader(make, recipe, options, sample_names, batch_size=1)
    # Ids that ascend are kinder to caches, so they win where both read the same chunks.
    if shuffled.explain().num_reads < ascending.explain().num_reads:
        ascending.close()
        return shuffled
    shuffled.close()
    return ascending


def _num_rows(recipe: Recipe, memory_nbytes: int) -> int:
    """Number of samples in a batch, so that batches take a small part of the memory."""
    outputs = make_outputs(recipe, make_layouts(recipe))
    sample_nbytes = sum(out.nbytes for out in outputs)
    fitting = memory_nbytes // (_BATCH_SHARE * max(sample_nbytes, 1))
    return max(min(_MOST_ROWS, fitting, recipe.num_ids), 1)
