"""XarraySource: variables of any xarray dataset, read block by block through xarray."""

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

from xloader.errors import (
    ChunkError,
    ClusterError,
    CorruptChunkError,
    ReadTimeoutError,
    XloaderError,
)
from xloader.sources.arrays import catalog
from xloader.sources.arrays.cluster_blocks import BlockComputer, wait_for_persisted
from xloader.sources.arrays.dask_cluster import active_client
from xloader.sources.arrays.xarray_views import held_by, is_from_zarr, is_loaded
from xloader.sources.base import Described, Fetched, Outcome, Read, Variable
from xloader.sources.chunk_sizes import Sizes, compact, shift, spans_of, take
from xloader.sources.fetched import Deferred, held_values
from xloader.sources.retries import current
from xloader.sources.store_watch import FileWatch, StampedFiles, Watch
from xloader.sources.stores.file_openers import Gate
from xloader.sources.stores.per_process import PerProcess
from xloader.sources.stores.redaction import Secrets, cause_of, told_of

BLOCK_NBYTES: Final = 4 * 2**20
"""4 MiB. Size of the blocks of variables that have no chunks of their own."""


class XarraySource(Described):
    """A source of variables of an ``xr.Dataset``, which reads them block by block.

    Any data that xarray can hold is read, such as NumPy arrays, dask arrays and lazy files.
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
        self._watches = [] if files is None else [FileWatch(name, files)]
        self._variables = dict(variables)
        self.name = name
        self._words = dict(words or {})
        self._together = dict(together or {})
        self._key = key or name
        self._secrets = Secrets(secrets)
        self._computer = BlockComputer()
        self.fingerprint = catalog.fingerprint(
            self._variables, dict.fromkeys(self._variables, os.path.basename(key))
        )
        self._handle = PerProcess(open_dataset, name, is_forkable=is_forkable)
        # A handle of its own: reading labels in this process does not keep a forked child from
        # opening the values.
        self._coordinates = PerProcess(open_dataset, name, is_forkable=is_forkable)
        self._is_shared = is_shared
        if is_shared:
            self._handle.get()
            self._coordinates.get()

    def __getstate__(self) -> dict[str, Any]:
        # Where this is sent, all threads of a cluster may wait for the blocks.
        if self._is_shared:
            wait_for_persisted(self._handle.get())
        return self.__dict__

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the variable, which is always so."""
        return True

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words."""
        if variable in self._words:
            return self._words[variable]
        array = self._coordinates.get()[variable].variable
        return f"block by block through xarray: {backing(array)}"

    def encoding(self, variable: str) -> Mapping[str, Any]:
        """The encoding that xarray has found: stored dtype, filters and more."""
        return {**self._coordinates.get()[variable].variable.encoding}

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates, lazily and without data variables."""
        return self._coordinates.get().coords.to_dataset()

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """One watch for all files that are read, or none if the files are not known."""
        return self._watches

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """The same for blocks of variables that share dask tasks; see `Source.bundle_of`."""
        return self._together.get(variable, variable), chunk

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Compute blocks if a cluster does that. Otherwise nothing is read yet.

        See `Source.fetch`.
        """
        if not any(self.is_waiting(read.variable) for read in reads):
            return Deferred(partial(self._read, reads))
        begin = time.perf_counter()
        values = list(self._values_of(reads))
        self._note_read()
        return held_values(values, Outcome(0, len(reads), time.perf_counter() - begin))

    def is_waiting(self, variable: str) -> bool:
        """Whether a cluster computes the variable's blocks."""
        if active_client() is None:
            return False
        return self._coordinates.get().variables[variable].chunks is not None

    def values(self, read: Read) -> NDArray[Any]:
        """Read a block, in the shape of the read's cut. Errors of xarray are passed on."""
        array = self._handle.get().variables[read.variable]
        return current().ask(self._key, partial(self._values, array, read))

    def _read(self, reads: Sequence[Read], outs: Sequence[NDArray[Any]]) -> Outcome:
        """Read blocks into their places."""
        for read, out, values in zip(reads, outs, self._values_of(reads), strict=True):
            with self._chunk_errors(read):
                np.copyto(out, values, casting="same_kind")
        self._note_read()
        return Outcome(num_missing=0, num_requests=len(reads))

    def _note_read(self) -> None:
        for watch in self._watches:
            watch.note_read()

    def _look(self) -> None:
        """Look whether the files have changed."""
        for watch in self._watches:
            watch.look()

    def _values_of(self, reads: Sequence[Read]) -> Iterator[NDArray[Any]]:
        """Yield the values of each read, in order. dask tasks that reads share run once."""
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
        """Values of several blocks of dask, computed together.

        Empty if there are fewer than two, or if that fails and they must be computed one by one.
        """
        if len(reads) < 2:
            return deque()
        dataset = self._handle.get()
        places = [(dataset.variables[read.variable].data, read.chunk) for read in reads]
        try:
            blocks = current().ask(self._key, lambda: self._computer.compute(places))
            return deque(take(block, r.cut) for block, r in zip(blocks, reads, strict=True))
        except (ReadTimeoutError, ClusterError):
            raise
        except Exception:
            # Computed one by one, the error can name its block.
            return deque()

    @contextmanager
    def _chunk_errors(self, read: Read) -> Iterator[None]:
        """Turn errors in the ``with`` block into an error that names the chunk."""
        place = read.place(self.name, self._key)
        try:
            yield
        except (XloaderError, MemoryError):
            raise
        except (TimeoutError, ConnectionError, PermissionError, FileNotFoundError) as error:
            self._look()
            raise ChunkError(
                f"a block could not be read ({type(error).__name__})",
                remedy="check that the files or the store of the dataset are still there",
                **place,
            ) from cause_of(error, self._secrets)
        except Exception as error:
            self._look()
            # A damaged file beneath a computed block cannot be told from a fault of a function.
            is_computed = self._coordinates.get().variables[read.variable].chunks is not None
            raise CorruptChunkError(
                f"a block {'could not be computed' if is_computed else 'does not decode'} "
                f"({told_of(error, self._secrets)})",
                remedy="see the error of dask's .compute(), or check the files that it reads"
                if is_computed
                else "fetch or write the file again, or see the error of xarray's .compute()",
                **place,
            ) from cause_of(error, self._secrets)

    def _values(self, array: xr.Variable, read: Read) -> NDArray[Any]:
        """Read a part of a block from a variable."""
        if array.chunks is not None:
            (block,) = self._computer.compute([(array.data, read.chunk)])
            return take(block, read.cut)
        spans = spans_of(self._variables[read.variable].chunks, read.chunk, array.shape)
        shape = tuple(stop - start for start, stop in spans)
        selected = array[shift(read.cut, tuple(start for start, _ in spans), shape)]
        if is_in_memory(array):
            return selected.to_numpy()
        with Gate.of_process().reading():
            return selected.to_numpy()


def describe(dataset: xr.Dataset, variables: tuple[str, ...], dtype: Any) -> dict[str, Variable]:
    """Describe the variables that a source offers, without reading data.

    The blocks are those of dask if the variable has any, else the chunks of the file. Without
    either, blocks have about `BLOCK_NBYTES`, cut along the leading dimensions.
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
    """Kind of data that holds the values: ``"dask"``, ``"numpy"``, ``"zarr"`` or ``"file"``."""
    if variable.chunks is not None:
        return "dask"
    if is_in_memory(variable):
        return "numpy"
    return "zarr" if is_from_zarr(held_by(variable)) else "file"


def is_in_memory(variable: xr.Variable) -> bool:
    """Whether a variable's values are already a NumPy array."""
    return is_loaded(held_by(variable))


def _chunks_of(variable: xr.Variable) -> tuple[Sizes, ...]:
    """Sizes of a variable's blocks along each dimension."""
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
    """Shape of blocks of about `BLOCK_NBYTES` for an array without chunks.

    The leading dimensions are cut first, so a block is contiguous in C order.
    """
    blocks: list[int] = []
    room = max(1, BLOCK_NBYTES // itemsize)
    for size in reversed(shape):
        block = max(1, min(size, room))
        blocks.append(block)
        room = room // block if block == size else 1
    return tuple(reversed(blocks))


def _fitted(sizes: Any, size: int) -> Sizes:
    """Chunk sizes from an encoding, fitted to the size of a dimension."""
    if isinstance(sizes, tuple | list):
        whole = tuple(int(chunk_size) for chunk_size in sizes)
        # A selection made after the file was opened keeps the encoding of the whole variable.
        return compact(whole) if sum(whole) == size and min(whole) > 0 else max(1, *whole)
    return max(1, min(int(sizes), max(size, 1)))
