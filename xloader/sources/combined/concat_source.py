"""ConcatSource: several sources joined along a dimension, such as files of one year each.

Nothing is copied. Each chunk of the joined source is a chunk of one of the sources, which reads
it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
import zlib
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.packing import Packing
from xloader.errors import OptionError
from xloader.sources.base import Described, Fetched, Outcome, Read, Source, key_within
from xloader.sources.chunk_sizes import num_chunks
from xloader.sources.combined.continuity import check_coordinates, join_coordinates
from xloader.sources.combined.joined_variables import join_variable, require_names
from xloader.sources.fetched import Deferred, fetch_from
from xloader.sources.store_watch import Watch
from xloader.sources.stores.per_process import PerProcess
from xloader.sources.stores.stored_objects import StoredObjects, stored_objects_of

_MOST_COMPRESSED_NBYTES: Final = 16 * 2**20
"""16 MiB. Larger pickles hold data rather than descriptions, and are not compressed."""


def concat_sources(sources: Sequence[Source], dim: str) -> Source:
    """Join several sources along a dimension, lazily.

    Only the metadata of the sources and the coordinates of their dimensions are read.
    """
    if not sources:
        raise OptionError(
            "there is nothing to join",
            given="no source",
            allowed="at least one",
            remedy="pass a list of paths or Datasets",
        )
    require_names(sources, dim)
    if len(sources) > 1:
        # Checked first: sources that do not belong together often differ in their chunks too, and
        # an error about labels says more.
        check_coordinates(sources, dim)
    return ConcatSource(tuple(sources), dim)


class ConcatSource(Described):
    """Several sources joined along a dimension.

    Labels are not checked here. `concat_sources` checks them first.
    """

    def __init__(self, sources: tuple[Source, ...], dim: str) -> None:
        self._sources = sources
        self._dim = dim
        names = [source.name for source in sources]
        self._name = " and ".join(names)
        if len(names) > 2:
            self._name = f"{len(names)} sources along {dim!r}, {names[0]} to {names[-1]}"
        self._variables = {name: join_variable(sources, name, dim) for name in sources[0].variables}
        digests = [dim, *(source.fingerprint for source in sources)]
        self._fingerprint = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
        self._axes = {
            name: variable.dims.index(dim) if dim in variable.dims else None
            for name, variable in self._variables.items()
        }
        starts: dict[str, list[int]] = {}
        for name, axis in self._axes.items():
            if axis is not None:
                joined = [source.variables[name] for source in sources]
                counts = [num_chunks(v.chunks[axis], v.shape[axis]) for v in joined]
                starts[name] = [0, *itertools.accumulate(counts[:-1])]
        self._starts = starts
        self._coordinates = PerProcess(partial(join_coordinates, sources, dim), self.name)

    def stored_objects(self, variable: str) -> StoredObjects | None:
        """The stored objects as in the first source; None if they are shards."""
        stored = stored_objects_of(self._sources[0], variable)
        return None if stored is None or stored.shards is not None else stored

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all sources, each once; see `Source.notes`."""
        return tuple(dict.fromkeys(note for source in self._sources for note in source.notes))

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the variable, in any of its sources."""
        return any(source.is_through_xarray(variable) for source in self._sources_of(variable))

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words. Each different way is named once."""
        sources = self._sources_of(variable)
        if len(sources) == 1:
            return sources[0].path_of(variable)
        ways = dict.fromkeys(source.path_of(variable) for source in sources)
        packings = [source.variables[variable].packing for source in sources]
        words = f"{'; '.join(ways)}; from {len(sources)} sources"
        if self._variables[variable].packing is None and any(packings):
            words += ", unpacked while reading because their packings differ"
        return words

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates, without data variables.

        Those of several dimensions, one of which is ``dim``, are lazy.
        """
        return self._coordinates.get()

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Number of the source that has the chunk, and the chunk's bundle there."""
        number, local = self._locate(variable, chunk)
        key = self._sources[number].bundle_of(variable, local)
        return key_within(number, key)

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch some chunks, those of each source together; see `Source.fetch`."""
        local_reads = [self._local(read) for read in reads]
        packings = [self._packing_undone(number, read.variable) for number, read in local_reads]
        fetched = fetch_from([(self._sources[number], read) for number, read in local_reads])
        if not any(packings):
            return fetched
        return Deferred(partial(_decode_unpacked, fetched, packings), fetched.nbytes)

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """Watches of each source that has chunks of the variables; see `Source.watches`."""
        names = list(variables)
        joined = [name for name in names if self._axes[name] is not None]
        first, *others = self._sources
        return [*first.watches(names), *(w for source in others for w in source.watches(joined))]

    def is_waiting(self, variable: str) -> bool:
        """Whether reading the variable mostly waits, in any of its sources."""
        return any(source.is_waiting(variable) for source in self._sources_of(variable))

    def _sources_of(self, variable: str) -> Sequence[Source]:
        """The sources that hold pieces of a variable: the first one if it is not joined."""
        return self._sources[:1] if self._axes[variable] is None else self._sources

    def _locate(self, variable: str, chunk: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Number of the source that has a chunk, and the chunk's index there."""
        axis = self._axes[variable]
        if axis is None:
            return 0, chunk
        starts = self._starts[variable]
        number = bisect_right(starts, chunk[axis]) - 1
        return number, (*chunk[:axis], chunk[axis] - starts[number], *chunk[axis + 1 :])

    def _local(self, read: Read) -> tuple[int, Read]:
        """Number of the source that has a chunk, and the read there."""
        number, chunk = self._locate(read.variable, read.chunk)
        return number, Read(read.variable, chunk, read.cut)

    def _packing_undone(self, number: int, variable: str) -> Packing | None:
        """The packing to undo in one source's values, if the sources pack differently."""
        if self._variables[variable].packing is not None:
            return None
        return self._sources[number].variables[variable].packing

    def __reduce__(self) -> tuple[object, ...]:
        # The descriptions of similar files are nearly the same bytes, which compress well.
        described = pickle.dumps(self._sources, pickle.HIGHEST_PROTOCOL)
        if len(described) > _MOST_COMPRESSED_NBYTES:
            return ConcatSource, (self._sources, self._dim)
        return _unpickle, (zlib.compress(described), self._dim)


def _decode_unpacked(
    fetched: Fetched, packings: Sequence[Packing | None], outs: Sequence[NDArray[Any]]
) -> Outcome:
    """Decode chunks from sources that pack differently, and unpack those that are packed."""
    places = [
        out if packing is None else np.empty(out.shape, packing.stored_dtype)
        for out, packing in zip(outs, packings, strict=True)
    ]
    outcome = fetched.decode(places)
    for out, place, packing in zip(outs, places, packings, strict=True):
        if packing is not None:
            out[...] = packing.unpack(place)
    return outcome


def _unpickle(described: bytes, dim: str) -> ConcatSource:
    """The ConcatSource from its compressed pickle."""
    return ConcatSource(pickle.loads(zlib.decompress(described)), dim)
