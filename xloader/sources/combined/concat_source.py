"""Several sources joined along a dimension, such as files of one year each.

Nothing is copied. Each chunk of the joined source is a chunk of one of the sources, which reads
it. Labels must continue from each source to the next.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
import zlib
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.packing import Packing
from xloader.errors import OptionError, UnknownNameError
from xloader.sources.base import Described, Fetched, Outcome, Read, Source, Variable, key_within
from xloader.sources.chunk_sizes import (
    StoredObjects,
    each,
    join_sizes,
    num_chunks,
    stored_objects_of,
)
from xloader.sources.combined.labels import (
    MERGED,
    Labels,
    are_same_labels,
    different_kinds,
    differing_labels,
    label_of,
    listed,
    order_remedy,
)
from xloader.sources.fetched import Deferred, fetch_from
from xloader.sources.store_watch import Watch
from xloader.sources.stores.per_process import PerProcess

_MOST_COMPRESSED_NBYTES: Final = 16 * 2**20
"""16 MiB. Larger pickles hold data rather than descriptions, and are not compressed."""


_MOST_NAMES = 12
"""The most sources that a message lists."""


def concat_sources(sources: Sequence[Source], dim: str) -> Source:
    """Join several sources along a dimension, lazily.

    Only the metadata of the sources and the coordinates of their dimensions are read.
    """
    if not sources:
        raise OptionError(
            "there is nothing to join", given="no source", remedy="pass a list of paths or Datasets"
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
        self.name = " and ".join(names)
        if len(names) > 2:
            self.name = f"{len(names)} sources along {dim!r}, {names[0]} to {names[-1]}"
        self._variables = {name: join_variable(sources, name, dim) for name in sources[0].variables}
        digests = [dim, *(source.fingerprint for source in sources)]
        self.fingerprint = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
        self._axes = {
            name: variable.dims.index(dim) if dim in variable.dims else None
            for name, variable in self._variables.items()
        }
        self._starts: dict[str, list[int]] = {}
        for name, axis in self._axes.items():
            if axis is not None:
                joined = [source.variables[name] for source in sources]
                counts = [num_chunks(v.chunks[axis], v.shape[axis]) for v in joined]
                self._starts[name] = [0, *itertools.accumulate(counts[:-1])]
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
        owned, packings = [], []
        for read in reads:
            number, chunk = self._locate(read.variable, read.chunk)
            source = self._sources[number]
            owned.append((source, Read(read.variable, chunk, read.cut)))
            # Undone here only if the sources pack differently.
            is_packed = self._variables[read.variable].packing is not None
            packings.append(None if is_packed else source.variables[read.variable].packing)
        fetched = fetch_from(owned)
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


def require_names(sources: Sequence[Source], dim: str) -> None:
    """Check that every source has the dimension, and the same variables as the first."""
    for number, source in enumerate(sources):
        dims = dict.fromkeys(d for v in source.variables.values() for d in v.dims)
        if dim not in dims:
            raise UnknownNameError(
                f"{label_of(sources, number)} has no dimension {dim!r} to join along",
                allowed=", ".join(map(repr, dims)) or "none: its variables are single numbers",
                remedy=f"pass another dim=, or open it with xarray, use .expand_dims({dim!r}), and "
                f"pass the Dataset; or, if its variables are different ones, use {MERGED}",
            )
    names = set(sources[0].variables)
    for number, source in enumerate(sources[1:], 1):
        if lone := sorted(names ^ set(source.variables)):
            has, lacks = (0, number) if lone[0] in names else (number, 0)
            shared = sorted(names & set(source.variables))
            raise UnknownNameError(
                f"{label_of(sources, lacks)} has no variable {lone[0]!r}, "
                f"but {label_of(sources, has)} has it",
                given=f"{', '.join(lone)} in only one of them",
                remedy=f"pass variables={shared}, or, to open all variables together, use {MERGED}"
                if shared
                else f"to open different variables together, use {MERGED}",
            )


def join_variable(sources: Sequence[Source], name: str, dim: str) -> Variable:
    """Describe one variable of several sources that are joined along a dimension."""
    first = sources[0].variables[name]
    axis = first.dims.index(dim) if dim in first.dims else None
    variables = [source.variables[name] for source in sources]
    for number, variable in enumerate(variables[1:], 1):
        _require_alike(sources, number, first, variable, axis)
    if axis is None:
        return first
    shape, chunks = list(first.shape), list(first.chunks)
    shape[axis] = sum(variable.shape[axis] for variable in variables)
    chunks[axis] = join_sizes([(v.chunks[axis], v.shape[axis]) for v in variables])
    is_packed_alike = all(_is_alike(variable.packing, first.packing) for variable in variables)
    return replace(
        first,
        shape=tuple(shape),
        chunks=tuple(chunks),
        packing=first.packing if is_packed_alike else None,
        index_nbytes=sum(variable.index_nbytes for variable in variables),
        thinning=max(variable.thinning for variable in variables),
    )


def _require_alike(
    sources: Sequence[Source], number: int, first: Variable, second: Variable, axis: int | None
) -> None:
    """Raise an error if a source's variable does not agree with the first source's."""
    # A variable without the dimension is read from the first source, so other chunks may differ.
    apart: list[tuple[str, object, object]] = [
        ("dimensions", first.dims, second.dims),
        ("dtype", first.dtype, second.dtype),
    ]
    if first.dims == second.dims:
        rest = [a for a in range(len(first.dims)) if a != axis]
        for a in rest:
            size, second_size = first.shape[a], second.shape[a]
            apart.append((f"size along {first.dims[a]!r}", size, second_size))
            if axis is not None and size == second_size:
                first_chunks, second_chunks = (each(v.chunks[a], size) for v in (first, second))
                apart.append((f"chunks along {first.dims[a]!r}", first_chunks, second_chunks))
    remedies = {
        "dtype": "convert one with xarray's astype, or open packed integers with equal dtype=",
        "chunks": "open them with xarray, use .chunk, and pass the Datasets, or leave it out",
    }
    for what, expected, actual in apart:
        if expected != actual:
            raise OptionError(
                f"two sources differ in the {what} of {first.name!r}",
                given=f"{expected} in {label_of(sources, 0)}, "
                f"{actual} in {label_of(sources, number)}",
                remedy=remedies.get(what.split()[0], "regrid it with xarray, or leave it out"),
            )


def _is_alike(first: Packing | None, second: Packing | None) -> bool:
    """Whether two packings give the same values for the same stored numbers."""
    if first is None or second is None:
        return first is second
    # 0.1 equals numpy.float64(0.1), but NumPy computes with them in different dtypes.
    return first == second and first.describe() == second.describe()


def check_labels(dim: str, labels: Sequence[Labels]) -> None:
    """Check that labels continue from each source to the next.

    Numbers and dates must all increase or all decrease, and no two sources may overlap. Text has
    no order, so it only must not repeat.
    """
    pairs = list(itertools.pairwise(labels))
    for before, after in pairs:
        if before.kind != after.kind:
            raise different_kinds(dim, before, after)
    if labels and labels[0].kind == "text or objects":
        _check_distinct(dim, labels)
        return
    by_direction: dict[int, Labels] = {}
    for owned in labels:
        by_direction.setdefault(owned.direction, owned)
    if {-1, 1} <= by_direction.keys():
        first, second = (owned for direction, owned in by_direction.items() if direction)
        raise OptionError(
            f"labels along {dim!r} increase in one source and decrease in another",
            given=f"{first}, {second}",
            remedy=f"open those with xarray, use .sortby({dim!r}), and pass the Datasets",
        )
    # With one label in each source, only the labels of all sources show the direction.
    is_falling = -1 in by_direction or (
        1 not in by_direction and all(_goes_on(True, *pair) for pair in pairs)
    )
    if all(_goes_on(is_falling, *pair) for pair in pairs):
        return
    ordered = sorted(labels, key=lambda owned: owned.index[0], reverse=is_falling)
    for before, after in itertools.pairwise(ordered):
        if not _goes_on(is_falling, before, after):
            raise OptionError(
                f"two sources overlap along {dim!r}",
                given=f"{before}, {after}",
                remedy="leave one of them out, or cut it with xarray and pass the Dataset",
            )
    raise OptionError(
        f"the sources are not in the order of their labels along {dim!r}",
        given=listed([*map(str, labels)], _MOST_NAMES),
        allowed=listed([owned.owner for owned in ordered], _MOST_NAMES),
        remedy="pass them in this order",
    )


def _goes_on(is_falling: bool, before: Labels, after: Labels) -> bool:
    """Whether all labels of one source come before those of the other, in a direction."""
    last, first = before.index[-1], after.index[0]
    return bool(last > first if is_falling else last < first)


def _check_distinct(dim: str, labels: Sequence[Labels]) -> None:
    """Check that no label occurs twice."""
    owners: dict[object, str] = {}
    for owned in labels:
        for label in owned.index:
            if label in owners:
                raise OptionError(
                    f"a label along {dim!r} occurs twice",
                    given=f"{label!r} in {owners[label]} and in {owned.owner}",
                    remedy="leave one of them out, or rename it with xarray",
                )
            owners[label] = owned.owner


def check_coordinates(sources: Sequence[Source], dim: str) -> None:
    """Check that labels continue along a dimension and agree along all others."""
    indexes = [source.coordinates().indexes for source in sources]
    bare = [number for number, by_dim in enumerate(indexes) if dim not in by_dim]
    if 0 < len(bare) < len(sources):
        labelled = next(number for number, by_dim in enumerate(indexes) if dim in by_dim)
        raise OptionError(
            f"only some sources have labels along {dim!r}",
            given=f"labels in {label_of(sources, labelled)}, none in {label_of(sources, bare[0])}",
            remedy=f"add labels with xarray's .assign_coords({dim}=...), and pass the Dataset",
        )
    if not bare:
        labels = [
            Labels(label_of(sources, number), by_dim[dim])
            for number, by_dim in enumerate(indexes)
            if len(by_dim[dim])
        ]
        check_labels(dim, labels)
    first = indexes[0]
    used = {str(d) for variable in sources[0].variables.values() for d in variable.dims}
    for other_dim in sorted((used - {dim}) & set(first)):
        for number, by_dim in enumerate(indexes):
            if other_dim in by_dim and not are_same_labels(first[other_dim], by_dim[other_dim]):
                raise OptionError(
                    f"the labels along {other_dim!r} differ between two sources",
                    given=f"{differing_labels(first[other_dim], by_dim[other_dim])} "
                    f"in {label_of(sources, 0)} and {label_of(sources, number)}",
                    remedy=order_remedy(other_dim, first[other_dim], by_dim[other_dim])
                    or "regrid them with xarray, or give them the same labels",
                )


def join_coordinates(sources: Sequence[Source], dim: str) -> xr.Dataset:
    """Join the coordinates of sources along a dimension.

    Coordinates without the dimension are taken from the first source. A coordinate along it is
    left out if some source lacks it or has it with other dimensions.
    """
    every = [source.coordinates() for source in sources]
    first = every[0]
    of_dim = [name for name, coord in first.coords.items() if dim in coord.dims]
    shared = [
        name
        for name in of_dim
        if all(name in coords.coords and coords[name].dims == first[name].dims for coords in every)
    ]
    without_dim = first.drop_vars(of_dim)
    if not shared:
        return without_dim
    along = [_lazily(coords.drop_vars(set(coords.coords).difference(shared))) for coords in every]
    joined = xr.concat(
        along,
        dim=dim,
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
    return without_dim.assign_coords(joined.coords)


def _lazily(coords: xr.Dataset) -> xr.Dataset:
    """Turn coordinates of several dimensions into dask arrays, to join them without reading."""
    wide = {
        name: coord.variable.chunk()
        for name, coord in coords.coords.items()
        if coord.ndim > 1 and not isinstance(coord.variable._data, np.ndarray)
    }
    return coords.assign_coords(wide)
