"""MixedSource: the variables of several sources in one, each read by its own source."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial

import xarray as xr

from xloader.sources.arrays import catalog
from xloader.sources.base import ChunkFiles, Described, Fetched, Read, Source, key_within
from xloader.sources.combined.label_spans import order_notes
from xloader.sources.combined.source_view import SourceView
from xloader.sources.fetched import fetch_from
from xloader.sources.store_watch import Watch
from xloader.sources.stores.per_process import PerProcess
from xloader.sources.stores.stored_objects import StoredObjects, stored_objects_of


class MixedSource(Described):
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
        self._name = home.name
        self._variables = {name: source.variables[name] for name, source in owners.items()}
        self._fingerprint = catalog.fingerprint(
            self._variables, {name: source.fingerprint for name, source in owners.items()}
        )

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Bundle of the chunk in the variable's own source; see `Source.bundle_of`."""
        key = self._owners[variable].bundle_of(variable, chunk)
        return key_within(self._numbers[variable], key)

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch some chunks, those of each source together; see `Source.fetch`."""
        return fetch_from([(self._owners[read.variable], read) for read in reads])

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """Watches of the variables' own sources; see `Source.watches`."""
        return [watch for v in variables for watch in self._owners[v].watches([v])]

    def is_waiting(self, variable: str) -> bool:
        """Whether reading from the variable's own source mostly waits."""
        return self._owners[variable].is_waiting(variable)

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates, lazily and without data variables."""
        return self._home.coordinates(is_indexed=is_indexed)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the home, then those of the other sources; see `Source.notes`."""
        every = [
            *self._home.notes,
            *(note for source in self._owners.values() for note in source.notes),
        ]
        return tuple(dict.fromkeys(every))

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the variable."""
        return self._owners[variable].is_through_xarray(variable)

    def files_of(self, variable: str) -> ChunkFiles | None:
        """The files of a variable in its own source; see `Source.files_of`."""
        return self._owners[variable].files_of(variable)

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words."""
        return self._owners[variable].path_of(variable)

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
    owners: dict[str, Source] = {}
    for view in views:
        owners.update(view.owners())
    owners = {variable: owners[variable] for variable in (*variables, *owners)}
    name = name or views[0].source.name
    return MixedSource(owners, JoinedViews(tuple(views), name, tuple(notes)))


def _merged(views: Sequence[SourceView], is_indexed: bool) -> xr.Dataset:
    every = [view.coordinates(is_indexed=is_indexed) for view in views]
    # With these options nothing is compared, so nothing is read.
    return xr.merge(every, compat="override", join="override")
