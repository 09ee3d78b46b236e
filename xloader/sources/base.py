"""What every source offers: variables in chunks, and a way to read one of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.packing import Packing
from xloader.sources.store_watch import Watch

Cut = tuple[slice | NDArray[np.int64], ...]
"""Per dimension, the elements of a chunk that are wanted, counted from the chunk's start."""


MOST_INDEX_NBYTES: Final = 16 * 2**20
"""Bytes of shard indexes that a source keeps at most, in each process."""


@dataclass(frozen=True)
class Variable:
    """A stored n-d array: what a plan must know of it, and no data.

    Parameters
    ----------
    name : str
        Name of the variable in its source.
    dims : tuple of str
        Names of its dimensions.
    shape : tuple of int
        Number of elements along each of them.
    dtype : numpy.dtype
        The dtype of its values, in native byte order.
    chunks : tuple of (int or tuple of int)
        Per dimension, the size of every chunk in elements (the last may be cut short by the
        array's end), or the size of each chunk where they differ.
    attrs : mapping
        Attributes as xarray gives them, without the encoding. Not compared.
    packing : Packing, optional
        How the values are packed where reading gives them packed.
    index_nbytes : int
        Bytes of the indexes of its shards, which are kept once they are read. Not compared.
    thinning : int
        How many stored numbers are decoded for each one offered, at most: more than 1 for a
        view that keeps a part of each chunk, and where a chunk is far larger than its array.
        Not compared.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int | tuple[int, ...], ...]
    attrs: Mapping[str, object] = field(default_factory=dict, compare=False)
    packing: Packing | None = None
    index_nbytes: int = field(default=0, compare=False)
    thinning: int = field(default=1, compare=False)

    @property
    def stored_dtype(self) -> np.dtype:
        """The dtype that reading gives: packed where the values are."""
        return self.dtype if self.packing is None else self.packing.stored_dtype


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What to read of one chunk.

    Parameters
    ----------
    variable : str
        Name of the variable.
    chunk : tuple of int
        Index of the chunk along each dimension of the variable.
    cut : tuple of slice or integer array
        The part of the chunk that is wanted.
    """

    variable: str
    chunk: tuple[int, ...]
    cut: Cut


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of some reads, of both stages together.

    Parameters
    ----------
    num_missing : int
        Chunks that were absent and were read as the fill value.
    num_requests : int
        Requests made of the store, those for shard indexes included.
    fetch_seconds : float
        Time spent on getting the chunks, in `Source.fetch` or in `Fetched.decode`; the rest of
        the time was spent on decoding. Not compared.
    """

    num_missing: int
    num_requests: int
    fetch_seconds: float = field(default=0.0, compare=False)


class Fetched(Protocol):
    """Chunks on their way: held as stored bytes, or not held at all yet."""

    @property
    def nbytes(self) -> int:
        """Memory that it holds until it is decoded, in bytes."""
        ...

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks into their places, once.

        Parameters
        ----------
        outs : sequence of numpy.ndarray
            A place for each read, in their order: any strides, the shape of the read's cut,
            the variable's stored dtype. They share no memory.

        Returns
        -------
        Outcome
            Of fetching and decoding together.

        Raises
        ------
        CorruptChunkError
            If the bytes of a chunk do not decode to its values.
        MissingChunkError
            If a chunk is absent and the source was opened with ``on_missing="raise"``.
        StoreChangedError
            If a chunk is absent or does not decode, and the store is not what was opened.
        ChunkError
            If a chunk cannot be read.
        """
        ...


@runtime_checkable
class Source(Protocol):
    """Variables in chunks, read from many threads in two stages: fetched, then decoded.

    Metadata is fixed when a source is made. A source pickles small: handles are opened
    lazily, once per process, and dropped when pickled.
    """

    @property
    def name(self) -> str:
        """Where the data comes from, for messages; never a credential."""
        ...

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The data variables that can be read, by name."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of what was opened: equal for equal variables of the same store."""
        ...

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Get some chunks of one bundle, as far as that means waiting.

        Where reading waits, all that is stored of the chunks is held afterwards, and decoding
        needs no store. Elsewhere nothing is done yet, and decoding gets the chunks one by one.

        Parameters
        ----------
        reads : sequence of Read
            One or more.

        Returns
        -------
        Fetched
            To be decoded once, on any thread, or to be dropped.

        Raises
        ------
        CorruptChunkError
            If the index of a shard cannot be.
        ChunkError
            If a chunk cannot be read.
        """
        ...

    def is_waiting(self, variable: str) -> bool:
        """Whether reading a variable mostly waits, so that many fetches at once pay."""
        ...

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """The watches that notice a change of some variables, in this process.

        Parameters
        ----------
        variables : iterable of str

        Returns
        -------
        sequence of Watch
            The same objects for the life of the process. Reading notes itself at them.
        """
        ...

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """What is the same for chunks that are read with less effort together.

        Chunks of one shard have one bundle. A chunk that gains nothing by company has one of
        its own.
        """
        ...

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates, lazily, with no data variable: xarray's own view of them.

        Parameters
        ----------
        is_indexed : bool
            Whether dimensions must have their indexes, for which all labels may have to be read.
        """
        ...

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words: ``"direct: zarr v3, bytes, zstd"``."""
        ...


class Described:
    """The part of a source that is fixed when it is made; it sets what is returned here."""

    _name: str
    _variables: dict[str, Variable]
    _fingerprint: str

    @property
    def name(self) -> str:
        """Where the data comes from, for messages; never a credential."""
        return self._name

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The data variables that can be read, by name."""
        return MappingProxyType(self._variables)

    @property
    def fingerprint(self) -> str:
        """A digest of what was opened: equal for equal variables of the same store."""
        return self._fingerprint
