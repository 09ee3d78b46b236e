"""A pass over all samples in batches, in the order that reads fewest chunks."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from xloader.core.options import LoaderOptions
from xloader.errors import MemoryBudgetError
from xloader.loader.loader import Loader
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.transforms.outputs import make_outputs

_MOST_ROWS: Final = 256
"""Most samples of a batch, unless the caller says otherwise."""
_BATCH_SHARE: Final = 32
"""Of the memory, the part that a batch may take."""


def batch_sweep(
    recipe: Recipe, memory_nbytes: int, threads: int | None, batch_size: int | None = None
) -> Loader:
    """A loader of NumPy batches in ascending or shuffled order, whichever reads fewer chunks.

    Parameters
    ----------
    recipe : Recipe
        The samples, without weights.
    memory_nbytes : int
        Memory of the loader, in bytes.
    threads : int, optional
        Number of threads that load; by default one for each core.
    batch_size : int, optional
        Samples in a batch; by default as many as take a small part of the memory, 256 at most.

    Raises
    ------
    MemoryBudgetError
        If the memory is too small; the error gives the minimum that is enough.
    """
    rows = _num_rows(recipe, memory_nbytes) if batch_size is None else batch_size
    try:
        return _cheapest(recipe, rows, memory_nbytes, threads)
    except MemoryBudgetError:
        if batch_size is not None or rows == 1:
            raise
        return _cheapest(recipe, 1, memory_nbytes, threads)


def _cheapest(recipe: Recipe, rows: int, memory_nbytes: int, threads: int | None) -> Loader:
    ascending, shuffled = (
        Loader(
            recipe,
            LoaderOptions(
                batch_size=rows,
                shuffle=shuffle,
                memory=memory_nbytes,
                threads=threads,
                output="numpy",
                rank=0,
                world_size=1,
                on_nan="ignore",
                max_amplification=1.0,
            ),
            np.asarray,
        )
        for shuffle in (False, True)
    )
    # Ids that ascend are kinder to caches, so they win where both read the same chunks.
    if shuffled.explain().num_reads < ascending.explain().num_reads:
        ascending.close()
        return shuffled
    shuffled.close()
    return ascending


def _num_rows(recipe: Recipe, memory_nbytes: int) -> int:
    """Number of samples in a batch, so that batches take a small part of the memory."""
    outputs = make_outputs(recipe, make_layouts(recipe))
    sample_nbytes = sum(math.prod(out.shape) * out.dtype.itemsize for out in outputs)
    fitting = memory_nbytes // (_BATCH_SHARE * max(sample_nbytes, 1))
    return max(min(_MOST_ROWS, fitting, recipe.num_ids), 1)
