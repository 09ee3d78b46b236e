"""Names of dimensions and coordinates of several sources: shared where they are the same thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from xloader.errors import OptionError
from xloader.sources.base import Source
from xloader.sources.combined.continuity import differing_labels
from xloader.sources.combined.label_spans import are_same_labels, order_remedy
from xloader.sources.combined.source_view import SourceView

ALIKE = "xloader.join({'a': one, 'b': other})"
"""Code, for messages, that opens sources together whose names mean different things."""


@dataclass
class _Dim:
    """A dimension that sources share."""

    name: str
    owner: str
    size: int
    index: Any

    def difference(self, size: int, index: Any) -> str:
        """How another source's dimension differs, in words; empty if it is the same."""
        if size != self.size:
            return f"{self.size} and {size} elements"
        if index is None or self.index is None or are_same_labels(self.index, index):
            return ""
        return differing_labels(self.index, index)


@dataclass
class SharedNames:
    """Finds the names of each source's dimensions and coordinates, one source after the other.

    A dimension is shared with the first earlier source that has it with equal labels, or with
    equal size if one of them has no labels. Any other one gets the source's prefix, and so does a
    coordinate whose name is taken.
    """

    variables: frozenset[str]
    on: str | None = None
    is_strict: bool = False
    _dims: dict[str, list[_Dim]] = field(default_factory=dict)
    _by_name: dict[str, _Dim] = field(default_factory=dict)
    _kept: set[str] = field(default_factory=set)

    def views(
        self, sources: Sequence[Source], prefixes: Sequence[str], kept: Sequence[Mapping[str, Any]]
    ) -> list[SourceView]:
        """The views of the sources, with the names of their variables and coordinates."""
        coords = [source.coordinates() for source in sources]
        if not self.is_strict:
            # Without a prefix, as in the root of a tree, a coordinate has no other name.
            self._kept = {
                str(name)
                for prefix, source_coords in zip(prefixes, coords, strict=True)
                for name in source_coords.coords
                if not prefix and name not in source_coords.dims
            }
        names: list[dict[str, str]] = []
        hidden: list[set[str]] = []
        for source, prefix, source_coords in zip(sources, prefixes, coords, strict=True):
            renamed, left_out = self._name_dims(source, prefix, source_coords)
            names.append(renamed)
            hidden.append(left_out)
        self._name_coords(sources, prefixes, coords, names, hidden)
        return [
            SourceView(
                source,
                {name: prefix + name for name in source.variables},
                {dim: elements[dim] for dim in elements if dim in dims_of(source)},
                renamed,
                frozenset(left_out),
            )
            for source, prefix, elements, renamed, left_out in zip(
                sources, prefixes, kept, names, hidden, strict=True
            )
        ]

    def _name_dims(
        self, source: Source, prefix: str, coords: xr.Dataset
    ) -> tuple[dict[str, str], set[str]]:
        """New names of a source's dimensions and their labels, and the labels of shared ones."""
        renamed: dict[str, str] = {}
        left_out: set[str] = set()
        for dim, size in dims_of(source).items():
            if dim == self.on and not any(dim in v.dims for v in source.variables.values()):
                # Labels without a variable that has them say nothing about the joined dimension.
                left_out.update(str(n) for n, c in coords.coords.items() if dim in c.dims)
                continue
            index = coords.indexes.get(dim)
            labels: set[str] = set()
            if index is not None:
                labels.update(map(str, coords.xindexes.get_all_coords(dim)))
            known = self._dims.setdefault(dim, [])
            names = dict.fromkeys((dim, prefix + dim))
            named = [self._by_name[name] for name in names if name in self._by_name]
            shared = self._shared(dim, [*known, *named], size, index)
            if shared is None and known and self.is_strict:
                raise OptionError(
                    f"two sources differ along {dim!r}",
                    given=f"{known[0].difference(size, index)} in {known[0].owner} and "
                    f"{source.name}",
                    allowed="the same labels, or the same size without labels",
                    remedy=order_remedy(dim, known[0].index, index)
                    or f"join them: {ALIKE}, with on={dim!r} to find labels that both have",
                )
            if shared is None:
                is_used = known or named or dim in self._kept
                offered = prefix + dim if is_used else dim
                if offered in self._by_name:
                    raise _taken(offered, prefix)
                shared = self._by_name[offered] = _Dim(offered, source.name, size, index)
                known.append(shared)
            elif shared.index is None:
                # No earlier source has labels, so these become the dimension's labels.
                shared.index = index
            else:
                left_out.update(labels)
            if shared.name != dim:
                renamed[dim] = shared.name
                renamed.update((label, prefix + label) for label in sorted(labels - {dim}))
        return renamed, left_out

    def _shared(self, dim: str, known: Sequence[_Dim], size: int, index: Any) -> _Dim | None:
        """The first dimension of earlier sources that is the same; None if there is none."""
        if dim == self.on and known:
            return known[0]
        return next((earlier for earlier in known if not earlier.difference(size, index)), None)

    def _name_coords(
        self,
        sources: Sequence[Source],
        prefixes: Sequence[str],
        coords: Sequence[xr.Dataset],
        names: Sequence[dict[str, str]],
        hidden: Sequence[set[str]],
    ) -> None:
        """Add new names for those other coordinates whose names are taken."""
        taken: dict[str, tuple[str, Any]] = {}
        not_free = {*self._by_name, *self.variables}
        for source, prefix, source_coords, renamed, left_out in zip(
            sources, prefixes, coords, names, hidden, strict=True
        ):
            for name in map(str, source_coords.coords):
                if name in source_coords.dims or name in renamed or name in left_out:
                    continue
                coord: Any = source_coords.variables[name]
                if name not in taken and name not in not_free:
                    taken[name] = source.name, coord
                elif not self.is_strict:
                    renamed[name] = prefix + name
                    if prefix + name in taken or prefix + name in not_free:
                        raise _taken(prefix + name, prefix)
                    taken[prefix + name] = source.name, coord
                elif name in taken and coord.equals(taken[name][1]):
                    left_out.add(name)
                else:
                    raise OptionError(
                        f"two sources have different things of the name {name!r}",
                        given=f"a coordinate of {source.name}, and something else of "
                        + (taken[name][0] if name in taken else "another source"),
                        allowed="equal coordinates",
                        remedy=f"open one with xarray, use .rename or .drop_vars({name!r}), and "
                        f"pass the Dataset; or join them: {ALIKE}",
                    )


def _taken(name: str, prefix: str) -> OptionError:
    """The error for a name of a dimension or coordinate that something else has."""
    return OptionError(
        f"the name {name!r} would stand for two dimensions or coordinates",
        given=f"a source named {prefix.rstrip('/')!r}, and another one that has {name!r}",
        allowed="a name for each",
        remedy="give the source another name",
    )


def dims_of(source: Source) -> dict[str, int]:
    """Sizes of all dimensions of a source: those of its variables, and of its coordinates."""
    sizes = {
        dim: size
        for variable in source.variables.values()
        for dim, size in zip(variable.dims, variable.shape, strict=True)
    }
    for dim, size in source.coordinates().sizes.items():
        sizes.setdefault(str(dim), size)
    return sizes
