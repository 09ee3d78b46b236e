"""Reads the samples of one batch at a time, in any order, through a cache of chunks.

``generator[i]`` uses it: the order in which a user asks for batches is not known beforehand.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.engine.block_reader import BlockReader
from xloader.engine.buffers import Fields
from xloader.engine.cached_reader import CachedReader
from xloader.engine.gather import Gatherer
from xloader.errors import MemoryBudgetError
from xloader.loader.job_factory import stored_variables
from xloader.planning.cache_budget import cache_budget
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.samples.samples import Samples

Arrays = dict[str, NDArray[Any]]
"""Arrays by the name of their field."""


class SingleReads:
    """Reader of any samples, which keeps the chunks that were used last.

    Parameters
    ----------
    samples : Samples
        The samples to read, without transforms.
    num_rows : int
        Number of samples that are read at a time.
    memory_nbytes : int
        Bytes for kept chunks, for chunks that are being read and for the samples read at a time.
        If this is too little for the chunks of one sample, no chunks are kept, and each call
        reads all its chunks again.
    num_threads : int
        Largest number of threads that read.
    """

    def __init__(
        self, samples: Samples, num_rows: int, memory_nbytes: int, num_threads: int
    ) -> None:
        self._samples = samples
        recipe = samples.recipe
        layouts = make_layouts(recipe)
        footprint = make_footprint(recipe, layouts)
        self._cached: CachedReader | None = None
        try:
            budget = cache_budget(footprint, layouts, memory_nbytes, num_rows, prefetch=0)
        except MemoryBudgetError:
            return
        num_threads = min(num_threads, budget.in_flight_nbytes // footprint.max_chunk_nbytes)
        stored = stored_variables(recipe, footprint)
        fields = Fields(layouts, num_rows, 2)
        self._cached = CachedReader(
            footprint,
            BlockReader(recipe.source, stored, budget.in_flight_nbytes // num_threads),
            Gatherer(footprint, layouts, fields, stored),
            fields,
            batch_size=num_rows,
            capacity_nbytes=budget.lane_nbytes,
            in_flight_nbytes=budget.in_flight_nbytes,
            num_threads=num_threads,
            retry_policy=recipe.retry_policy,
        )

    def read(self, ids: Ints) -> Arrays:
        """Read samples.

        Parameters
        ----------
        ids : numpy.ndarray
            Ids of the samples, int64.

        Returns
        -------
        dict of str to numpy.ndarray
            The samples by field, shape ``(len(ids), ...)``.
        """
        if self._cached is None:
            return self._samples[ids].as_dict()
        return dict(self._cached.read(ids))
