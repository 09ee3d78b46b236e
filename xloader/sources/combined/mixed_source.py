"""MixedSource: the variables of several sources in one, each read by its own source."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import xarray as xr

from xloader.sources import catalog
from xloader.sources.base import Described, Fetched, Read, Source
from xloader.sources.fetched import fetch_from
from xloader.sources.store_watch import Watch


class MixedSource(Described):
    """A source whose variables are read by several other sources.

    Parameters
    ----------
    owners : mapping of str to Source
        The source of each variable, in the order in which variables are offered.
    home : Source
        The source of the name and the coordinates.
    """

    def __init__(self, owners: Mapping[str, Source], home: Source) -> None:
        self._owners = dict(owners)
        self._home = home
        self._name = home.name
        self._variables = {name: source.variables[name] for name, source in owners.items()}
        self._fingerprint = catalog.fingerprint(
            self._variables, {name: source.fingerprint for name, source in owners.items()}
        )

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Bundle of the chunk in the variable's own source; see `Source.bundle_of`."""
        return self._owners[variable].bundle_of(variable, chunk)

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

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the variable."""
        return self._owners[variable].is_through_xarray(variable)

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words."""
        return self._owners[variable].path_of(variable)

    def __reduce__(self) -> tuple[object, ...]:
        return MixedSource, (self._owners, self._home)
