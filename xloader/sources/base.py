"""The interface of all sources: named variables in chunks, and how chunks are read.

A source describes its variables by `Variable`, and reads chunks in two stages: `Source.fetch`
returns a `Fetched`, and `Fetched.decode` writes the values into the caller's arrays.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.packing import Packing
from xloader.sources.chunk_sizes import Cut
from xloader.sources.store_watch import Watch

MOST_INDEX_NBYTES: Final = 16 * 2**20
"""The most bytes of shard indexes that all sources of a process keep together."""

SMALL_NBYTES: Final = 1 << 20
"""Largest decoded chunk that is read together with chunks of other stored objects."""

INDEX_ROW_NBYTES: Final = 16
"""Size of the row of one chunk in the index of a shard: two numbers of 8 bytes."""


@dataclass(frozen=True)
class Variable:
    """Description of a stored n-d array: everything that a plan needs, but no data."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int | tuple[int, ...], ...]
    attrs: Mapping[str, object] = field(default_factory=dict, compare=False)
    packing: Packing | None = None
    index_nbytes: int = field(default=0, compare=False)
    thinning: int = field(default=1, compare=False)
    is_computed: bool = field(default=False, compare=False)

    @property
    def stored_dtype(self) -> np.dtype:
        """The dtype that reading gives: the packed dtype where the values are packed."""
        return self.dtype if self.packing is None else self.packing.stored_dtype


class Read(NamedTuple):
    """A request for one chunk, or a part of it."""

    variable: str
    chunk: tuple[int, ...]
    cut: Cut

    def place(self, store: str, key: str) -> dict[str, Any]:
        """Where the chunk lies, as the errors of chunks tell it."""
        return {"store": store, "variable": self.variable, "chunk": self.chunk, "key": key}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts and times of some reads, both stages together.

    `fetch_seconds`: seconds spent on fetching the chunks, in `Source.fetch` or in
    `Fetched.decode`.
    """

    num_missing: int
    num_requests: int
    fetch_seconds: float = field(default=0.0, compare=False)
    scratch_nbytes: int | None = field(default=None, compare=False)


class Fetched(Protocol):
    """Chunks between `Source.fetch` and decoding: held as stored bytes, or still in the store."""

    @property
    def nbytes(self) -> int:
        """Memory that is held until the chunks are decoded, in bytes."""

    @property
    def stored(self) -> StoredChunks | None:
        """The chunks as they are stored; None if they are not held as such."""

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode the chunks into the caller's arrays. Call it once."""


class StoredChunks(Protocol):
    """Chunks that are held as they are stored, so that native threads may decode them."""

    def data(self) -> Sequence[NDArray[np.uint8] | None]:
        """The stored bytes of each chunk; None for one that is absent."""

    def some(self, numbers: Sequence[int]) -> Fetched:
        """Some of the chunks, by their places among all."""


@dataclass(frozen=True)
class ShardFiles:
    """How the chunks of an array lie in shards of one shape, which are files.

    `fewest_nbytes`: the least bytes of a stored chunk.
    """

    counts: tuple[int, ...]
    object_counts: tuple[int, ...]
    index_nbytes: int
    is_at_start: bool
    is_checked: bool
    fewest_nbytes: int


@dataclass(frozen=True)
class ChunkFiles:
    """How native threads find the chunks of a variable in files, and decode them.

    `prefix`: the name of a file up to the index of the chunk along the first dimension; None if
    chunks are no files, so that threads of Python fetch them. `sizes`: along each dimension, the
    size of the chunks as they are encoded.
    """

    prefix: str | None
    separator: str
    codec: int
    functions: tuple[int, ...]
    sizes: tuple[int | tuple[int, ...], ...]
    shards: ShardFiles | None = None


class SmallKey(NamedTuple):
    """The key of a bundle of small chunks; see `Source.bundle_of`."""

    name: Hashable


def key_within(owner: Hashable, key: Hashable) -> Hashable:
    """The key of a bundle within a source that is made of several parts."""
    if key is None:
        return None
    return SmallKey((owner, key.name)) if isinstance(key, SmallKey) else (owner, key)


@runtime_checkable
class Source(Protocol):
    """Variables in chunks, which many threads read in two stages: fetching, then decoding.

    Metadata is fixed when a source is made. The pickle of a source is small: it holds no open
    handles. Handles are opened lazily, once per process.
    """

    @property
    def name(self) -> str:
        """Where the data comes from, for messages. It never contains a credential."""

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The data variables that can be read, by name."""

    @property
    def fingerprint(self) -> str:
        """A digest of the variables and of how they are stored, wherever the store lies."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that users should know about the data, such as labels that were left out."""

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Do the part of reading chunks that waits for the store.

        If reading waits, the stored bytes of all the chunks are in memory afterwards, and decoding
        needs no store. Otherwise nothing is read yet, and decoding reads the chunks one by one.
        """

    def is_waiting(self, variable: str) -> bool:
        """Whether reading a variable mostly waits, so that many fetches at once are faster."""

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """The watches that notice a change of some variables, in this process."""

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """A key that is equal for chunks that are cheaper to read together.

        The chunks of one shard share a bundle. A chunk that costs as much to read alone has a
        bundle of its own. The key is None for a small chunk that may be read with any others, and
        a `SmallKey` for small chunks that share a bundle which may be read with any others.
        """

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates as a lazy dataset of xarray, without data variables."""

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the variable. Otherwise, xloader or zarr decodes its chunks."""

    def files_of(self, variable: str) -> ChunkFiles | None:
        """How native threads decode the variable, and read it if they can; None if they cannot."""

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words: ``"direct: zarr v3, bytes, zstd"``."""


class Described:
    """Base class of sources with fixed descriptions; subclasses set the three attributes.

    `name`, `fingerprint`: see `Source`.
    """

    name: str
    fingerprint: str
    _variables: dict[str, Variable]

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The data variables that can be read, by name. The mapping is read-only."""
        return MappingProxyType(self._variables)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that users should know about the data; see `Source.notes`."""
        return ()

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """None, unless a subclass reads what may change; see `Source.watches`."""
        return ()

    def is_waiting(self, variable: str) -> bool:
        """False, unless a subclass knows better; see `Source.is_waiting`."""
        return False

    def is_through_xarray(self, variable: str) -> bool:
        """False, unless a subclass knows better; see `Source.is_through_xarray`."""
        return False

    def files_of(self, variable: str) -> ChunkFiles | None:
        """None, unless a subclass knows better; see `Source.files_of`."""
        return None


class View(Described):
    """Base class of sources whose variables are read by others: `_reader_of` says which."""

    def _reader_of(self, variable: str) -> tuple[Source, str]:
        """The source that reads a variable, and its name there."""
        raise NotImplementedError

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the sources that read the variables; see `Source.notes`."""
        readers = {id(source): source for source, _ in map(self._reader_of, self._variables)}
        return tuple(dict.fromkeys(note for r in readers.values() for note in r.notes))

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Bundle of the chunk in the source that reads it; see `Source.bundle_of`."""
        source, name = self._reader_of(variable)
        return source.bundle_of(name, chunk)

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """Watches of the sources that read the variables; see `Source.watches`."""
        readers = map(self._reader_of, variables)
        every = (watch for source, name in readers for watch in source.watches([name]))
        return list({id(watch): watch for watch in every}.values())

    def is_waiting(self, variable: str) -> bool:
        """Whether reading the variable mostly waits; see `Source.is_waiting`."""
        source, name = self._reader_of(variable)
        return source.is_waiting(name)

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the variable; see `Source.is_through_xarray`."""
        source, name = self._reader_of(variable)
        return source.is_through_xarray(name)

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """An empty dataset, as the coordinates of the readers may not fit the variables."""
        return xr.Dataset()

    def path_of(self, variable: str) -> str:
        """How the variable is read, in words; see `Source.path_of`."""
        source, name = self._reader_of(variable)
        return source.path_of(name)
