"""Sources that offer variables of others: under other names, some elements, or several as one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Axis, ElementList, Ints, as_elements
from xloader.sources.arrays import catalog
from xloader.sources.arrays.selected_source import Selected, SelectedSource
from xloader.sources.base import ChunkFiles, Fetched, Outcome, Read, Source, View, key_within
from xloader.sources.chunk_sizes import Sizes, StoredObjects, compact, stored_objects_of
from xloader.sources.combined.labels import order_notes
from xloader.sources.fetched import Deferred, fetch_from
from xloader.sources.stores.per_process import PerProcess


class _RepeatedBlocks:
    """The blocks along a dimension whose elements are repeated."""

    def __init__(self, size: int, chunks: Sizes, elements: Ints) -> None:
        self.begins = Axis(size, chunks, range(size)).edges
        self.elements = elements
        self.edges = np.searchsorted(elements, self.begins).astype(np.int64)

    @property
    def chunks(self) -> Sizes:
        """Sizes of the blocks."""
        return compact(tuple(np.diff(self.edges).tolist()))

    def stored(self, block: int, cut: slice | Ints) -> tuple[slice | Ints, Ints]:
        """The part of the stored chunk that a part of a block needs."""
        begin, end = self.edges[block : block + 2].tolist()
        wanted = self.elements[begin:end][cut].astype(np.int64) - self.begins[block]
        # The elements are sorted, so this is faster than np.unique, which would sort them again.
        firsts = np.flatnonzero(np.diff(wanted, prepend=-1))
        kept, counts = wanted[firsts], np.diff(firsts, append=len(wanted))
        if len(kept) and (np.diff(kept) == 1).all():
            return slice(int(kept[0]), int(kept[-1]) + 1), counts
        return kept, counts


_Repeats = tuple[int, Ints] | None
"""An axis, and how often each element occurs along it; None without repeats."""


def _decode_repeated(
    fetched: Fetched, repeats_of_reads: Sequence[_Repeats], outs: Sequence[NDArray[Any]]
) -> Outcome:
    """Decode into the first elements of each array, then repeat them in place."""
    pairs = list(zip(outs, repeats_of_reads, strict=True))
    outcome = fetched.decode(
        [
            out if how is None else out[(slice(None),) * how[0] + (slice(len(how[1])),)]
            for out, how in pairs
        ]
    )
    for out, repeats in pairs:
        if repeats is not None:
            _repeat(out.swapaxes(repeats[0], 0), repeats[1])
    return outcome


def _repeat(out: NDArray[Any], counts: Ints) -> None:
    """Repeat the first elements of an array along axis 0, in place.

    From the last one on: an element's copies never lie before it, so they overwrite no element
    that is still to be copied.
    """
    ends = np.cumsum(counts)
    for number in range(len(counts) - 1, -1, -1):
        end = int(ends[number])
        begin = end - int(counts[number])
        if begin != number or end != number + 1:
            out[begin:end] = out[number]


class RepeatedSource(View):
    """A source in which elements along one dimension are repeated."""

    def __init__(self, base: Source, dim: str, elements: ElementList) -> None:
        self._base = base
        self._dim = dim
        self._elements = elements
        self.name = base.name
        self._variables = dict(base.variables)
        self._axes: dict[str, int] = {}
        self._blocks: dict[str, _RepeatedBlocks] = {}
        known: dict[Sizes, _RepeatedBlocks] = {}
        for name, variable in base.variables.items():
            if dim not in variable.dims:
                continue
            axis = variable.dims.index(dim)
            shape, chunks = list(variable.shape), list(variable.chunks)
            sizes = chunks[axis]
            if sizes not in known:
                known[sizes] = _RepeatedBlocks(shape[axis], sizes, np.asarray(elements))
            shape[axis], chunks[axis] = len(elements), known[sizes].chunks
            self._axes[name], self._blocks[name] = axis, known[sizes]
            self._variables[name] = replace(variable, shape=tuple(shape), chunks=tuple(chunks))
        self.fingerprint = catalog.fingerprint(
            self._variables,
            {name: [base.fingerprint, dim, repr(elements)] for name in self._variables},
        )

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch the stored chunks of some blocks together; see `Source.fetch`."""
        stored, repeats = zip(*map(self._stored, reads), strict=True)
        fetched = self._base.fetch(stored)
        if repeats.count(None) == len(repeats):
            return fetched
        return Deferred(partial(_decode_repeated, fetched, repeats), fetched.nbytes)

    def _stored(self, read: Read) -> tuple[Read, _Repeats]:
        """The read without repeats, and how often each element is repeated."""
        if read.variable not in self._axes:
            return read, None
        axis = self._axes[read.variable]
        cut, counts = self._blocks[read.variable].stored(read.chunk[axis], read.cut[axis])
        once = Read(read.variable, read.chunk, (*read.cut[:axis], cut, *read.cut[axis + 1 :]))
        return once, (axis, counts) if (counts > 1).any() else None

    def _reader_of(self, variable: str) -> tuple[Source, str]:
        """The source without repeats."""
        return self._base, variable

    def path_of(self, variable: str) -> str:
        """How the stored variable is read, in words."""
        path = super().path_of(variable)
        return f"{path}; elements repeated along {self._dim}" if variable in self._axes else path

    def __reduce__(self) -> tuple[object, ...]:
        # The rest is derived from these, and its size grows with the number of chunks.
        return RepeatedSource, (self._base, self._dim, self._elements)


Elements = range | tuple[int, ...] | ElementList
"""Elements of a dimension that never decrease; those of a list may occur more than once."""


@dataclass(frozen=True)
class SourceView:
    """A source under other names, with the elements that are kept of its dimensions."""

    source: Source
    variables: Mapping[str, str]
    kept: Mapping[str, int | Elements] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def owners(self) -> dict[str, Source]:
        """The source that reads each variable, by the name under which it is offered."""
        repeated = {
            dim: kept
            for dim, kept in self.kept.items()
            if isinstance(kept, ElementList) and bool((np.diff(kept) == 0).any())
        }
        once: dict[str, int | Elements] = {
            dim: as_elements(np.unique(kept)) for dim, kept in repeated.items()
        }
        reader: Source = self._selected({**self.kept, **once})
        for dim, kept in repeated.items():
            places = np.unique(kept, return_inverse=True)[1]
            reader = RepeatedSource(reader, self.names.get(dim, dim), ElementList(places))
        return dict.fromkeys(self.variables.values(), reader)

    def _selected(self, kept: Mapping[str, int | Elements]) -> Source:
        """The source of the elements that are kept, each once, under their new names."""
        variables = self.source.variables
        selected, dims = {}, {}
        for name, offered in self.variables.items():
            variable = variables[name]
            pairs = zip(variable.dims, variable.shape, strict=True)
            chosen = tuple(kept.get(dim, range(size)) for dim, size in pairs)
            order = [axis for axis, elements in enumerate(chosen) if not isinstance(elements, int)]
            selected[offered] = Selected(name, chosen, tuple(order))
            dims[offered] = tuple(
                self.names.get(dim, dim) for dim in (variable.dims[axis] for axis in order)
            )
        is_as_it_is = all(
            name == offered
            and dims[offered] == variables[name].dims
            and selected[offered].kept == tuple(map(range, variables[name].shape))
            for name, offered in self.variables.items()
        )
        return self.source if is_as_it_is else SelectedSource(self.source, selected, dims)

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates that are offered, lazily and without data variables."""
        coords = self.source.coordinates(is_indexed=is_indexed)
        coords = coords.drop_vars([name for name in self.hidden if name in coords.variables])
        indexers: dict[str, Any] = {}
        for dim, kept in self.kept.items():
            if isinstance(kept, range):
                indexers[dim] = slice(kept.start, kept.stop, kept.step)
            else:
                indexers[dim] = kept if isinstance(kept, int) else np.asarray(kept, np.int64)
        coords = coords.isel(indexers, missing_dims="ignore")
        there = set(map(str, coords.variables)) | set(map(str, coords.dims))
        return coords.rename({old: new for old, new in self.names.items() if old in there})


class MixedSource(View):
    """A source whose variables are read by several other sources.

    `home`: gives the name, the coordinates and the notes.
    """

    def __init__(self, owners: Mapping[str, Source], home: Source | JoinedViews) -> None:
        self._owners = dict(owners)
        self._home = home
        # Sources may use equal keys for their bundles, which are told apart by these numbers.
        numbers: dict[int, int] = {}
        self._numbers = {
            name: numbers.setdefault(id(source), len(numbers)) for name, source in owners.items()
        }
        self.name = home.name
        self._variables = {name: source.variables[name] for name, source in owners.items()}
        self.fingerprint = catalog.fingerprint(
            self._variables, {name: source.fingerprint for name, source in owners.items()}
        )

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Bundle of the chunk in the variable's own source; see `Source.bundle_of`."""
        return key_within(self._numbers[variable], super().bundle_of(variable, chunk))

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch some chunks, those of each source together; see `Source.fetch`."""
        return fetch_from([(self._owners[read.variable], read) for read in reads])

    def _reader_of(self, variable: str) -> tuple[Source, str]:
        """The variable's own source."""
        return self._owners[variable], variable

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates, lazily and without data variables."""
        return self._home.coordinates(is_indexed=is_indexed)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the home, then those of the other sources; see `Source.notes`."""
        return tuple(dict.fromkeys((*self._home.notes, *super().notes)))

    def files_of(self, variable: str) -> ChunkFiles | None:
        """The files of a variable in its own source; see `Source.files_of`."""
        return self._owners[variable].files_of(variable)

    def stored_objects(self, variable: str) -> StoredObjects | None:
        """The stored objects of a variable in its own source."""
        return stored_objects_of(self._owners[variable], variable)

    def __reduce__(self) -> tuple[object, ...]:
        return MixedSource, (self._owners, self._home)


class JoinedViews:
    """The name, the coordinates and the notes of views that are offered as one source."""

    def __init__(self, views: tuple[SourceView, ...], name: str, notes: tuple[str, ...]) -> None:
        self._views = views
        self.name = name
        self._notes = notes
        # Made anew in a forked child, where each source says whether it may be used there.
        self._coordinates, self._labels = (
            PerProcess(partial(_merged, views, is_indexed), name, is_remade=True)
            for is_indexed in (True, False)
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The given notes, and those on dimensions that differ in the order of labels alone."""
        coords = self._coordinates.get()
        return (*self._notes, *order_notes(coords, coords.indexes))

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates of all views; see `Source.coordinates`."""
        return (self._coordinates if is_indexed else self._labels).get()

    def __reduce__(self) -> tuple[object, ...]:
        return JoinedViews, (self._views, self.name, self._notes)


def one_source(
    views: Sequence[SourceView],
    name: str = "",
    notes: Sequence[str] = (),
    variables: Iterable[str] = (),
) -> MixedSource:
    """Offer views as one source."""
    owners = {name: source for view in views for name, source in view.owners().items()}
    owners = {variable: owners[variable] for variable in (*variables, *owners)}
    name = name or views[0].source.name
    return MixedSource(owners, JoinedViews(tuple(views), name, tuple(notes)))


def _merged(views: Sequence[SourceView], is_indexed: bool) -> xr.Dataset:
    every = [view.coordinates(is_indexed=is_indexed) for view in views]
    # With these options nothing is compared, so nothing is read.
    return xr.merge(every, compat="override", join="override")
