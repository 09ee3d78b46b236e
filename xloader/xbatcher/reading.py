"""Reads patches through xloader: in order for a loop, or any of them for ``generator[i]``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.nbytes import parse_nbytes
from xloader.core.options import LoaderOptions
from xloader.core.windows import Windows
from xloader.loader.loader import Loader
from xloader.recipe.recipe import Field, Kept, Recipe
from xloader.samples.samples import Samples
from xloader.sources.open.open_source import open_source
from xloader.sources.views.fork_safety import survives_fork
from xloader.xbatcher.patches import Patches
from xloader.xbatcher.single import SingleReads

_MOST_NBYTES: Final = 4 * 2**20
"""Of patches that are made together: enough to be cheap, and little to keep for one of them."""

_SHARE: Final = 64
"""Of the memory at most this part is for patches that are made together."""

Arrays = dict[str, NDArray[Any]]


def make_samples(dataset: xr.Dataset, names: tuple[str, ...], patches: Patches) -> Samples:
    """The patches of some variables as samples, a field for each.

    Parameters
    ----------
    dataset : xarray.Dataset
        Where they are.
    names : tuple of str
        The variables.
    patches : Patches
        The patches; their numbers are the samples' ids.
    """
    lines = patches.lines
    windows = Windows(
        tuple(str(line.dim) for line in lines),
        tuple(dataset.sizes[line.dim] for line in lines),
        tuple(line.size for line in lines),
        tuple(line.stride for line in lines),
        (1,) * len(lines),
    )
    return windowed(dataset, names, windows)


def windowed(
    dataset: xr.Dataset,
    names: tuple[str, ...],
    windows: Windows,
    selection: tuple[tuple[str, Kept], ...] = (),
) -> Samples:
    """Samples with a field for each variable, its dimensions as they are stored."""
    fields = tuple(Field(name, (name,), has_channels=False) for name in names)
    source = open_source(dataset, variables=names)
    return Samples(Recipe(source, names, selection, windows, fields))


class Reader:
    """Reads patches of variables in chunks.

    Parameters
    ----------
    dataset : xarray.Dataset
        Where the variables are.
    names : tuple of str
        The variables.
    patches : Patches
        Their patches, and which of them make a batch.
    memory : int or str
        Bytes that reading may use.
    threads : int, optional
        Threads that read; the cores that the process may use by default.
    """

    def __init__(
        self,
        dataset: xr.Dataset,
        names: tuple[str, ...],
        patches: Patches,
        memory: int | str,
        threads: int | None,
    ) -> None:
        self._dataset = dataset
        self._names = names
        self._samples = make_samples(dataset, names, patches)
        self._pid = os.getpid()
        self._patches = patches
        self._memory_nbytes = parse_nbytes(memory)
        self._threads = threads
        self._single: dict[tuple[int, int], SingleReads] = {}
        self._idle: dict[tuple[int, range, int], Loader] = {}

    @property
    def samples(self) -> Samples:
        """The patches, by number, as this process may read them."""
        if os.getpid() != self._pid and survives_fork(self._dataset, self._names):
            # A DataLoader forks its workers on Linux. Other stores refuse their first read there.
            self._pid = os.getpid()
            self._samples = make_samples(self._dataset, self._names, self._patches)
        return self._samples

    def read(self, batch: int, num_shares: int) -> Arrays:
        """The patches of one batch, by variable, shape ``(num_patches, ...)``.

        Chunks that were used last stay, in one share of the memory of as many as are given.
        """
        key = os.getpid(), num_shares
        single = self._single.get(key)
        if single is None:
            nbytes = self._memory_nbytes // num_shares
            rows = self._rows_together(self.samples, nbytes)
            # Where another process or share was, its chunks are of no more use.
            single = SingleReads(self.samples, rows, nbytes, self._options(nbytes).num_threads)
            self._single = {key: single}
        return single.read(self._patches.ids_of(batch))

    def read_all(self, batches: range, num_shares: int) -> Iterator[Arrays]:
        """The patches of batches in turn, each chunk read as seldom as the memory allows.

        Parameters
        ----------
        batches : range
            Numbers of the batches, which count up by 1.
        num_shares : int
            How many processes share the memory.
        """
        if not batches:
            return
        key = os.getpid(), batches, num_shares
        # Whoever iterates meanwhile gets a loader of its own: a loader has one epoch at a time.
        loader = self._idle.pop(key, None) or self._loader(batches, num_shares)
        try:
            rows = _RowTaker(iter(loader))
            for batch in batches:
                yield rows.take(_num_patches(self._patches, batch))
        finally:
            self._idle = {key: loader}

    def _loader(self, batches: range, num_shares: int) -> Loader:
        memory_nbytes = self._memory_nbytes // num_shares
        samples = self.samples
        if not self._patches.is_in_order:
            samples = samples.select(np.concatenate([self._patches.ids_of(n) for n in batches]))
        elif len(batches) < len(self._patches):
            first = int(self._patches.ids_of(batches[0])[0])
            last = int(self._patches.ids_of(batches[-1])[-1])
            samples = samples.select(slice(first, last + 1))
        options = self._options(memory_nbytes, self._rows_together(samples, memory_nbytes))
        return Loader(samples.recipe, options, np.asarray)

    def _options(self, memory_nbytes: int, batch_size: int = 1) -> LoaderOptions:
        # Whoever trains in several processes has shared out the data already, as with xbatcher.
        return LoaderOptions(
            batch_size=batch_size,
            shuffle=False,
            memory=memory_nbytes,
            output="numpy",
            threads=self._threads,
            rank=0,
            world_size=1,
            # Batches are xarray's, and a function of the user's makes tensors of them later.
            on_nan="ignore",
        )

    @staticmethod
    def _rows_together(samples: Samples, memory_nbytes: int) -> int:
        shapes, dtypes = samples.shapes, samples.dtypes
        nbytes = sum(int(np.prod(shapes[k])) * dtypes[k].itemsize for k in samples.fields)
        together = min(_MOST_NBYTES, memory_nbytes // _SHARE) // nbytes
        return max(1, min(together, len(samples)))


def part_of(count: int, part: int, num_parts: int) -> range:
    """One of some contiguous parts of ``0 .. count - 1``, as equal as can be."""
    return range(part * count // num_parts, (part + 1) * count // num_parts)


def _num_patches(patches: Patches, batch: int) -> int:
    return int(np.prod([len(along) for along in patches.ranges_of(batch)], dtype=np.int64))


class _RowTaker:
    """Takes rows from stacked arrays as they come."""

    def __init__(self, stacked: Iterator[Any]) -> None:
        self._stacked = stacked
        self._arrays: Mapping[str, NDArray[Any]] = {}
        self._begin = 0
        self._end = 0

    def take(self, count: int) -> Arrays:
        """The next rows, as views where one stack has them all."""
        pieces: list[Arrays] = []
        missing = count
        while missing:
            if self._begin == self._end:
                batch = next(self._stacked)
                self._arrays, self._begin, self._end = batch.as_dict(), 0, batch.num_samples
            taken = min(missing, self._end - self._begin)
            rows = slice(self._begin, self._begin + taken)
            pieces.append({name: array[rows] for name, array in self._arrays.items()})
            self._begin += taken
            missing -= taken
        if len(pieces) == 1:
            return pieces[0]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
