"""XarraySource: variables of any xarray backing, read block by block through xarray itself."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import ChunkError, CorruptChunkError, ReadTimeoutError, XloaderError
from xloader.sources import catalog
from xloader.sources.attempts import current
from xloader.sources.base import Cut, Described, Fetched, Outcome, Read, Variable
from xloader.sources.chunk_sizes import Sizes, compact, span_of
from xloader.sources.chunk_slices import shift, take
from xloader.sources.datasets.dask_blocks import compute_blocks, is_on_cluster
from xloader.sources.fetched import Deferred, Values
from xloader.sources.file_stamps import StampedFiles
from xloader.sources.per_process import PerProcess
from xloader.sources.store_watch import FileWatch, Watch
from xloader.sources.stores.access_errors import cause_of, told_of
from xloader.sources.stores.file_openers import Gate
from xloader.sources.stores.redaction import Secrets
from xloader.sources.views.xarray_views import held_by, is_loaded

BLOCK_NBYTES: Final = 4 * 2**20
"""4 MiB: the block size of variables that have no chunks of their own."""


class XarraySource(Described):
    """Variables of an ``xr.Dataset`` of any backing, block by block.

    Parameters
    ----------
    variables : mapping of str to Variable
        What is offered, as `describe` makes it.
    open_dataset : callable
        Gives the dataset, once in each process. It has to pickle where the source is to.
    name : str
        Where the data comes from, for messages.
    key : str, optional
        What a damaged block is said to lie in; the name by default.
    words : mapping of str to str, optional
        How variables are read, in words, where there is more to say than what holds them.
    together : mapping of str to Hashable, optional
        The same for variables whose blocks share dask tasks, as `share_tasks` has it.
    is_forkable : bool, default False
        Whether the dataset may be read in a forked child: true of plain memory only.
    is_shared : bool, default False
        Whether ``open_dataset`` gives a dataset that this process already uses.
    secrets : tuple of str
        Texts that no error may tell.
    files : StampedFiles, optional
        The files that are read, as they were opened: none of them may change.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        *,
        open_dataset: Callable[[], xr.Dataset],
        name: str,
        key: str = "",
        words: Mapping[str, str] | None = None,
        together: Mapping[str, Hashable] | None = None,
        is_forkable: bool = False,
        is_shared: bool = False,
        secrets: tuple[str, ...] = (),
        files: StampedFiles | None = None,
    ) -> None:
        self._watch = None if files is None else FileWatch(name, files)
        self._variables = dict(variables)
        self._name = name
        self._words = dict(words or {})
        self._together = dict(together or {})
        self._key = key or name
        self._secrets = Secrets(secrets)
        self._fingerprint = catalog.fingerprint(
            self._variables, dict.fromkeys(self._variables, os.path.basename(key))
        )
        self._handle = PerProcess(open_dataset, name, is_forkable=is_forkable)
        # Apart from what is read, so that looking at labels here leaves a forked child free.
        self._coordinates = PerProcess(open_dataset, name, is_forkable=is_forkable)
        if is_shared:
            self._handle.get()
            self._coordinates.get()

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words."""
        if variable in self._words:
            return self._words[variable]
        array = self._coordinates.get()[variable].variable
        return f"block by block through xarray: {backing(array)}"

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates, lazily, with no data variable."""
        return self._coordinates.get().coords.to_dataset()

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """One for all files that are read, where it is known which."""
        return [] if self._watch is None else [self._watch]

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """The same for blocks of variables that share dask tasks; see `Source.bundle_of`."""
        return self._together.get(variable, variable), chunk

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Compute blocks where a cluster does; elsewhere nothing yet. See `Source.fetch`."""
        if not any(self.is_waiting(read.variable) for read in reads):
            return Deferred(partial(self._read, reads))
        begin = time.perf_counter()
        values = list(self._values_of(reads))
        self._note_read()
        return Values(values, Outcome(0, len(reads), time.perf_counter() - begin))

    def is_waiting(self, variable: str) -> bool:
        """Whether a cluster computes the variable's blocks."""
        return is_on_cluster() and self._coordinates.get().variables[variable].chunks is not None

    def values(self, read: Read) -> NDArray[Any]:
        """What a read gives; whatever xarray raises passes."""
        array = self._handle.get().variables[read.variable]
        variable = self._variables[read.variable]
        return current().ask(self._key, lambda: self._values(array, variable, read.chunk, read.cut))

    def _read(self, reads: Sequence[Read], outs: Sequence[NDArray[Any]]) -> Outcome:
        for read, out, values in zip(reads, outs, self._values_of(reads), strict=True):
            with self._chunk_errors(read):
                np.copyto(out, values, casting="same_kind")
        self._note_read()
        return Outcome(num_missing=0, num_requests=len(reads))

    def _note_read(self) -> None:
        if self._watch is not None:
            self._watch.note_read()

    def _look(self) -> None:
        if self._watch is not None:
            self._watch.look()

    def _values_of(self, reads: Sequence[Read]) -> Iterator[NDArray[Any]]:
        """What each read gives, in their order: dask tasks that they share run once."""
        dataset = self._handle.get()
        computed = [r for r in reads if dataset.variables[r.variable].chunks is not None]
        together = self._values_together(computed)
        for read in reads:
            if together and dataset.variables[read.variable].chunks is not None:
                yield together.popleft()
                continue
            with self._chunk_errors(read):
                values = self.values(read)
            yield values

    def _values_together(self, reads: Sequence[Read]) -> deque[NDArray[Any]]:
        """What several blocks of dask give; nothing where they have to be computed one by one."""
        if len(reads) < 2:
            return deque()
        dataset = self._handle.get()
        places = [(dataset.variables[read.variable].data, read.chunk) for read in reads]
        try:
            blocks = current().ask(self._key, lambda: compute_blocks(places))
            return deque(take(block, r.cut) for block, r in zip(blocks, reads, strict=True))
        except ReadTimeoutError:
            raise
        except Exception:
            # One by one tells whose error it is.
            return deque()

    @contextmanager
    def _chunk_errors(self, read: Read) -> Iterator[None]:
        """Turn what is raised within into an error that names the block."""
        place = {"store": self._name, "variable": read.variable, "key": self._key}
        try:
            yield
        except (XloaderError, MemoryError):
            raise
        except (TimeoutError, ConnectionError, PermissionError, FileNotFoundError) as error:
            self._look()
            raise ChunkError(
                f"a block could not be read ({type(error).__name__})",
                chunk=read.chunk,
                remedy="see whether what the dataset was opened from is still there",
                **place,
            ) from cause_of(error, self._secrets)
        except Exception as error:
            self._look()
            raise CorruptChunkError(
                f"a block does not decode ({told_of(error, self._secrets)})",
                chunk=read.chunk,
                remedy="fetch or write the file again, or see what xarray's .compute() says of it",
                **place,
            ) from cause_of(error, self._secrets)

    def _values(
        self, array: xr.Variable, variable: Variable, chunk: tuple[int, ...], cut: Cut
    ) -> NDArray[Any]:
        if array.chunks is not None:
            (block,) = compute_blocks([(array.data, chunk)])
            return take(block, cut)
        spans = [
            span_of(sizes, index, size)
            for sizes, index, size in zip(variable.chunks, chunk, variable.shape, strict=True)
        ]
        shape = tuple(stop - start for start, stop in spans)
        part = array[shift(cut, tuple(start for start, _ in spans), shape)]
        if is_in_memory(array):
            return part.to_numpy()
        with Gate.of_process().reading():
            return part.to_numpy()


def describe(dataset: xr.Dataset, variables: tuple[str, ...], dtype: Any) -> dict[str, Variable]:
    """Say what a source of these variables offers, without reading data.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset.
    variables : tuple of str
        Names of its data variables.
    dtype : dtype-like or None
        What packed integers decode to, as `catalog.decoded_dtype` has it.

    Returns
    -------
    dict of str to Variable
        By name. Blocks are dask's where the variable has them, else the chunks that the file
        has, else `BLOCK_NBYTES` along the leading dims.
    """
    return {
        name: Variable(
            name=name,
            dims=tuple(str(dim) for dim in dataset[name].dims),
            shape=dataset[name].shape,
            dtype=catalog.decoded_dtype(dataset[name], dtype),
            chunks=_chunks_of(dataset[name].variable),
            attrs=dict(dataset[name].attrs),
        )
        for name in variables
    }


def backing(variable: xr.Variable) -> str:
    """What holds a variable's values, in a word."""
    if variable.chunks is not None:
        return "dask"
    return "numpy" if is_in_memory(variable) else "file"


def is_in_memory(variable: xr.Variable) -> bool:
    """Whether a variable's values are a NumPy array already."""
    return is_loaded(held_by(variable))


def _chunks_of(variable: xr.Variable) -> tuple[Sizes, ...]:
    if variable.chunks is not None:
        return tuple(compact(tuple(filter(None, sizes))) for sizes in variable.chunks)
    preferred = variable.encoding.get("preferred_chunks") or {}
    stored = variable.encoding.get("chunksizes") or ()
    if not preferred and len(stored) == variable.ndim:
        preferred = dict(zip(variable.dims, stored, strict=True))
    if not preferred or not set(variable.dims) <= set(preferred):
        return default_blocks(variable.shape, np.dtype(variable.dtype).itemsize)
    return tuple(
        _fitted(preferred[dim], size)
        for dim, size in zip(variable.dims, variable.shape, strict=True)
    )


def default_blocks(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Cut an array without chunks into blocks of about `BLOCK_NBYTES`, leading dims first.

    Examples
    --------
    >>> default_blocks((1000, 180, 360), 4)
    (16, 180, 360)
    """
    blocks: list[int] = []
    room = max(1, BLOCK_NBYTES // itemsize)
    for size in reversed(shape):
        block = max(1, min(size, room))
        blocks.append(block)
        room = room // block if block == size else 1
    return tuple(reversed(blocks))


def _fitted(sizes: Any, size: int) -> Sizes:
    if isinstance(sizes, tuple | list):
        whole = tuple(int(part) for part in sizes)
        # A selection made since the file was opened leaves its encoding behind.
        return compact(whole) if sum(whole) == size and min(whole) > 0 else max(1, *whole)
    return max(1, min(int(sizes), max(size, 1)))
