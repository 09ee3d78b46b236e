"""Reads the patches of a generator through xloader.

A loop over the generator reads all batches in order through a `Loader`. ``generator[i]`` reads one
batch through a cache of chunks, because the order in which a user asks for batches is not known
beforehand.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.cores import usable_cores
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_threads
from xloader.core.ranks import World
from xloader.core.windows import Windows
from xloader.engine.cached_reader import CachedReader
from xloader.errors import MemoryBudgetError
from xloader.loader.loader import Loader
from xloader.recipe.recipe import Field, Recipe
from xloader.samples.samples import Samples
from xloader.sources.arrays.dask_views import survives_fork
from xloader.sources.open.open_source import open_source
from xloader.sources.stores.per_process import PerProcess
from xloader.xbatcher.batches import Frames
from xloader.xbatcher.patches import Line

_MOST_NBYTES: Final = 4 * 2**20
"""Largest size in bytes of the patches that are gathered at a time, if there are several.

It is large enough to spread the cost of a step over many patches. It is small because all these
patches stay in memory as long as one of them is in use.
"""

_SHARE: Final = 64
"""Patches gathered at a time take at most this fraction of the memory: one 64th."""

Arrays = dict[str, NDArray[Any]]
"""Arrays by the name of their variable."""


def make_samples(
    dataset: xr.Dataset,
    names: tuple[str, ...],
    lines: Sequence[Line],
    selection: tuple[tuple[str, range], ...] = (),
) -> Samples:
    """Samples that are the patches along some lines, with one field for each variable.

    Their dimensions are in stored order.
    """
    sizes = dict(dataset.sizes)
    sizes.update((dim, len(kept)) for dim, kept in selection)
    windows = Windows(
        tuple(str(line.dim) for line in lines),
        tuple(sizes[line.dim] for line in lines),
        tuple(line.size for line in lines),
        tuple(line.stride for line in lines),
        (1,) * len(lines),
    )
    fields = tuple(Field(name, (name,), has_channels=False) for name in names)
    source = open_source(dataset, variables=names)
    return Samples(Recipe(source, names, selection, windows, fields))


class Reader:
    """Reader of the patches of some variables, by batch."""

    def __init__(self, frames: Frames, memory: int | str, threads: int | None) -> None:
        self._args = frames, memory, threads
        self._patches = frames.patches
        self._memory_nbytes = parse_nbytes(memory)
        self._threads = threads
        dataset, names = frames.dataset, frames.names
        # A DataLoader forks its workers on Linux. Stores that survive a fork are opened again in
        # the worker; samples of any other store raise an error at the first read.
        self._here = PerProcess(
            partial(make_samples, dataset, names, frames.patches.lines),
            "the store",
            is_forkable=True,
            is_remade=survives_fork(dataset, names),
        )
        self._here.get()
        self._cached: dict[tuple[int, int], CachedReader | None] = {}
        self._idle: dict[tuple[int, range, int], Loader] = {}

    def __reduce__(self) -> tuple[object, ...]:
        # Threads and chunks in memory cannot be pickled.
        return Reader, self._args

    @property
    def samples(self) -> Samples:
        """Samples that are the patches, in patch order, for use in this process."""
        return self._here.get()

    def read(self, batch: int, num_shares: int) -> Arrays:
        """Read the patches of one batch.

        Chunks that were used last stay in memory for later calls. If the memory is too small for
        the chunks of one patch, no chunks are kept, and each call reads all its chunks again.
        """
        key = os.getpid(), num_shares
        kept = self._cached
        if key not in kept:
            # One entry is enough. A forked child cannot use the parent's cache, and a cache for
            # another share of the memory would take memory besides.
            kept = {key: self._cached_reader(self._memory_nbytes // num_shares)}
            self._cached = kept
        cached, ids = kept[key], self._patches.ids_of(batch)
        return self.samples[ids].as_dict() if cached is None else cached.read(ids)

    def read_all(self, batches: range, num_shares: int) -> Iterator[Arrays]:
        """Read the patches of consecutive batches, each chunk as few times as memory allows.

        The patches of each variable in one batch, shape ``(num_patches, ...)``.
        """
        if not batches:
            return
        key = os.getpid(), batches, num_shares
        # A loader runs one epoch at a time, so it is taken out of the dict while it is in use. A
        # second loop at the same time makes a loader of its own.
        loader = self._idle.pop(key, None) or self._loader(batches, num_shares)
        try:
            rows = (
                {name: array[row : row + 1] for name, array in stacked.as_dict().items()}
                for stacked in loader
                for row in range(stacked.num_samples)
            )
            for batch in batches:
                count = math.prod(map(len, self._patches.ranges_of(batch)))
                yield _joined(list(islice(rows, count)))
        finally:
            self._idle = {key: loader}

    def _cached_reader(self, memory_nbytes: int) -> CachedReader | None:
        """A reader that keeps chunks, or None if the memory is too small for one patch's chunks."""
        rows = _rows_together(self.samples, memory_nbytes)
        num_cores = check_threads(self._threads) or usable_cores()
        try:
            return CachedReader.of(
                self.samples.recipe, memory_nbytes, rows, prefetch=0, num_cores=num_cores
            )
        except MemoryBudgetError:
            return None

    def _loader(self, batches: range, num_shares: int) -> Loader:
        """A loader of the patches of some batches, in order."""
        memory_nbytes = self._memory_nbytes // num_shares
        samples = self.samples
        if not self._patches.is_in_order:
            samples = samples.select(np.concatenate([self._patches.ids_of(n) for n in batches]))
        elif len(batches) < len(self._patches):
            first = int(self._patches.ids_of(batches[0])[0])
            last = int(self._patches.ids_of(batches[-1])[-1])
            samples = samples.select(slice(first, last + 1))
        return samples.loader(
            batch_size=_rows_together(samples, memory_nbytes),
            shuffle=False,
            memory=memory_nbytes,
            output="numpy",
            threads=self._threads,
            # With xbatcher, users divide the data among the training processes themselves. So
            # every process reads all batches of its generator: rank 0 of 1.
            world=World(),
            # The user gets xarray objects, in which NaN is normal, and converts them later.
            on_nan="ignore",
        )


def _rows_together(samples: Samples, memory_nbytes: int) -> int:
    """Number of patches that are gathered at a time."""
    shapes, dtypes = samples.shapes, samples.dtypes
    nbytes = sum(int(np.prod(shapes[k])) * dtypes[k].itemsize for k in samples.fields)
    together = min(_MOST_NBYTES, memory_nbytes // _SHARE) // nbytes
    return max(1, min(together, len(samples)))


def _joined(rows: list[Arrays]) -> Arrays:
    """The patches of a batch, from those of one row each. A single one is a view."""
    if len(rows) == 1:
        return rows[0]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
