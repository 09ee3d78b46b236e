"""SourceView: a source as a part of a larger one, with other names and some of its elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from xloader.core.element_list import ElementList, as_elements
from xloader.sources.base import Source
from xloader.sources.views.repeated_source import RepeatedSource
from xloader.sources.views.selected_source import Selected, SelectedSource

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

    @property
    def name(self) -> str:
        """Name of the source, for messages."""
        return self.source.name

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
        own = self.source.variables
        selected, dims = {}, {}
        for name, offered in self.variables.items():
            variable = own[name]
            every = zip(variable.dims, variable.shape, strict=True)
            chosen = tuple(kept.get(dim, range(size)) for dim, size in every)
            order = [axis for axis, some in enumerate(chosen) if not isinstance(some, int)]
            selected[offered] = Selected(name, chosen, tuple(order))
            dims[offered] = tuple(
                self.names.get(dim, dim) for dim in (variable.dims[axis] for axis in order)
            )
        is_as_it_is = all(
            name == offered
            and dims[offered] == own[name].dims
            and selected[offered].kept == tuple(map(range, own[name].shape))
            for name, offered in self.variables.items()
        )
        return self.source if is_as_it_is else SelectedSource(self.source, selected, dims)

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates that are offered, lazily and without data variables."""
        coords = self.source.coordinates(is_indexed=is_indexed)
        coords = coords.drop_vars([name for name in self.hidden if name in coords.variables])
        indexers: dict[str, Any] = {}
        for dim, kept in self.kept.items():
            if dim not in coords.dims:
                continue
            if isinstance(kept, range):
                indexers[dim] = slice(kept.start, kept.stop, kept.step)
            else:
                indexers[dim] = kept if isinstance(kept, int) else np.asarray(kept, np.int64)
        coords = coords.isel(indexers)
        there = set(map(str, coords.variables)) | set(map(str, coords.dims))
        return coords.rename({old: new for old, new in self.names.items() if old in there})
