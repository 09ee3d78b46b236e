"""MixedSource: each variable from a source of its own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.sources import catalog
from xloader.sources.base import Cut, Described, Outcome, Read, Source


class MixedSource(Described):
    """Variables of several sources as those of one.

    Parameters
    ----------
    owners : mapping of str to Source
        The source of each variable, in the order in which they are offered.
    home : Source
        The source that gives the name and the coordinates.
    """

    def __init__(self, owners: Mapping[str, Source], home: Source) -> None:
        self._owners = dict(owners)
        self._home = home
        self._name = home.name
        self._variables = {name: source.variables[name] for name, source in owners.items()}
        self._sources = list({id(source): source for source in owners.values()}.values())
        self._fingerprint = catalog.fingerprint(
            self._variables, {name: source.fingerprint for name, source in owners.items()}
        )

    def read(
        self, variable: str, chunk: tuple[int, ...], cut: Cut, out: NDArray[np.generic]
    ) -> bool:
        """Decode the part ``cut`` of one chunk into ``out``; see `Source.read`."""
        return self._owners[variable].read(variable, chunk, cut, out)

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """As the variable's own source has it; see `Source.bundle_of`."""
        return self._owners[variable].bundle_of(variable, chunk)

    def read_together(self, reads: Sequence[Read]) -> Outcome:
        """Decode several chunks, those of one source together."""
        outcomes = []
        for source in self._sources:
            own = [read for read in reads if self._owners[read.variable] is source]
            if own:
                outcomes.append(source.read_together(own))
        return Outcome(
            num_missing=sum(outcome.num_missing for outcome in outcomes),
            num_requests=sum(outcome.num_requests for outcome in outcomes),
        )

    def coordinates(self) -> xr.Dataset:
        """The coordinates, lazily, with no data variable."""
        return self._home.coordinates()

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words."""
        return self._owners[variable].path_of(variable)

    def __reduce__(self) -> tuple[object, ...]:
        return MixedSource, (self._owners, self._home)
