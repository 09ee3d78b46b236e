"""Joins sources whose variables lie beside each other: analysis and radar, with static fields."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import ElementList, Ints, as_elements
from xloader.core.messages import unknown
from xloader.errors import EmptySamplesError, OptionError
from xloader.sources.base import Source
from xloader.sources.combined.labels import (
    Labels,
    are_same_labels,
    by_xarray,
    different_kinds,
    differing_labels,
    find_labels,
    label_of,
    listed,
    order_remedy,
)
from xloader.sources.combined.mixed_source import SourceView, one_source

Method = Literal["nearest", "ffill"] | None
"""How labels are found that a source does not have."""

_MOST_NAMES = 4
"""The most sources that the name of a joined source lists."""


ALIKE = "xloader.join({'a': one, 'b': other})"
"""Code, for messages, that opens sources together whose names mean different things."""


def match_labels(
    on: str, labels: Mapping[str, Labels], method: Method, tolerance: Any
) -> tuple[dict[str, range | ElementList], list[str]]:
    """Find each source's elements for the labels of the first one, and notes on labels left out.

    `method`: None for equal labels, "nearest" for the closest one, "ffill" for the last one
    before.
    """
    first, *other_names = labels
    for source_labels in labels.values():
        if source_labels.kind != labels[first].kind:
            raise different_kinds(on, labels[first], source_labels)
        _check_order(on, source_labels, method)
    target = labels[first].index
    matches = {name: _find(on, labels[name], target, method, tolerance) for name in other_names}
    is_common = np.ones(len(target), np.bool_)
    for elements in matches.values():
        is_common &= elements >= 0
    if not is_common.any():
        raise _nothing_common(on, labels, method)
    kept = {first: np.flatnonzero(is_common)}
    kept.update((name, elements[is_common]) for name, elements in matches.items())
    for name in other_names:
        _check_ascending(on, labels[first], labels[name], kept[name])
    notes = [
        f"along {on}, {absent.sum():,} of {len(target):,} labels of {first} are left out, because "
        f"{name} has none for them (first: {_show(target[np.flatnonzero(absent)[0]])})"
        for name, absent in ((name, elements < 0) for name, elements in matches.items())
        if absent.any()
    ]
    notes += [
        f"along {on}, {used:,} of {len(labels[name].index):,} labels of {name} are used"
        for name, used in ((name, len(np.unique(kept[name]))) for name in other_names)
        if used < len(labels[name].index)
    ]
    return {name: as_elements(elements) for name, elements in kept.items()}, notes


def check_method(method: Any, tolerance: Any) -> None:
    """Check that a method exists, and that a tolerance has one."""
    if not (method is None or (isinstance(method, str) and method in ("nearest", "ffill"))):
        raise OptionError(
            "there is no such method for labels that a source does not have",
            given=f"method={method!r}",
            allowed='None, "nearest" or "ffill"',
        )
    if tolerance is not None and (method is None or np.ndim(tolerance)):
        raise OptionError(
            "the tolerance does not fit the method",
            given=f"method={method!r}, tolerance={tolerance!r}",
            remedy='pass method="nearest" too, or leave the tolerance out',
        )


def _check_order(on: str, labels: Labels, method: Method) -> None:
    """Refuse labels that occur twice, are missing or, where that matters, do not increase."""
    index = labels.index
    # Labels of several levels cannot be asked for NaN.
    has_missing = index.nlevels == 1 and index.hasnans
    if not index.is_unique or has_missing:
        wrong = index[index.isna()] if has_missing else index[index.duplicated()]
        raise OptionError(
            f"labels along {on!r} occur twice or are missing",
            given=f"{len(wrong)} labels of {labels.owner}, such as {wrong[0]}",
            remedy=by_xarray(f".drop_duplicates({on!r}) or .dropna"),
        )
    is_time = "dates" in labels.kind or "durations" in labels.kind
    if labels.kind == "text or objects":
        if method is not None:
            raise OptionError(
                f"the labels along {on!r} are text, of which none is the nearest or the last",
                given=f"method={method!r}, labels such as {index[0]!r}",
                remedy="leave method= out, to join equal labels",
            )
    elif (is_time or method is not None) and not index.is_monotonic_increasing:
        wrong_at = int(np.flatnonzero(index[1:] < index[:-1])[0])
        raise OptionError(
            f"the labels along {on!r} do not increase",
            given=f"{_show(index[wrong_at])}, then {_show(index[wrong_at + 1])} in {labels.owner}",
            remedy=by_xarray(f".sortby({on!r})"),
        )


def _find(on: str, labels: Labels, target: Any, method: Method, tolerance: Any) -> Ints:
    """The element of each label of the first source; -1 for a label that has none."""
    try:
        return find_labels(labels.index, target, method, tolerance)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise OptionError(
            f"labels along {on!r} cannot be compared: {error}",
            given=f"labels such as {_show(target[0])}, method={method!r}, tolerance={tolerance!r}",
            allowed=f"labels like {_show(labels.index[0])}, and a distance between them",
            remedy='for times, pass a duration such as tolerance="30min"',
        ) from error


def _check_ascending(on: str, first: Labels, second: Labels, elements: NDArray[Any]) -> None:
    """Refuse a source whose elements come in another order than those of the first one."""
    falls = np.flatnonzero(np.diff(elements) < 0)
    if len(falls):
        before, after = elements[falls[0]], elements[falls[0] + 1]
        raise OptionError(
            f"two sources have the labels along {on!r} in different orders",
            given=f"{_show(second.index[before])} comes before {_show(second.index[after])} in "
            f"{first.owner}, and after it in {second.owner}",
            remedy=f"open one with xarray, use .sortby({on!r}) or .isel, and pass the Dataset",
        )


def _nothing_common(on: str, labels: Mapping[str, Labels], method: Method) -> EmptySamplesError:
    ends = "; ".join(
        f"{name}: {_show(source_labels.index[0])} to {_show(source_labels.index[-1])}"
        if len(source_labels.index)
        else f"{name}: no label"
        for name, source_labels in labels.items()
    )
    return EmptySamplesError(
        f"the sources have no label along {on!r} in common",
        given=ends,
        remedy='check the units and the years; or pass method="nearest" or "ffill"'
        if method is None
        else "check the units and the years, or pass a larger tolerance",
    )


def _show(label: Any) -> str:
    return str(label.isoformat()) if hasattr(label, "isoformat") else str(label)


def join_sources(
    sources: Mapping[str, Source], on: str, method: Method = None, tolerance: Any = None
) -> Source:
    """Offer the variables of several sources together, at the labels of the first one.

    Only metadata and labels are read.
    """
    check_method(method, tolerance)
    labels = {
        name: source_labels
        for name, source in sources.items()
        if (source_labels := _labels_of(name, source, on)) is not None
    }
    if not labels:
        dims = dict.fromkeys(dim for source in sources.values() for dim in dims_of(source))
        raise unknown(on, dims, "dimension", f"no source has a dimension {on!r} to join on")
    elements, notes = match_labels(on, labels, method, tolerance)
    parts = [
        _Part(source, f"{name}/", {on: elements[name]} if name in elements else {})
        for name, source in sources.items()
    ]
    views = _SharedNames(parts, on).views()
    names = [f"{name}: {source.name}" for name, source in sources.items()]
    return one_source(views, listed(names, _MOST_NAMES), notes)


def merge_sources(sources: Sequence[Source], variables: Iterable[str] = ()) -> Source:
    """Offer the different variables of several sources of one grid together."""
    owners: dict[str, int] = {}
    for number, source in enumerate(sources):
        for name in source.variables:
            if name in owners:
                raise OptionError(
                    f"two sources have a variable of the name {name!r}",
                    given=f"{label_of(sources, owners[name])}, {label_of(sources, number)}",
                    remedy=f"join parts of one series with xloader.concat({_pasted(sources)}), and "
                    "sources whose names mean different things with xloader.join({...})",
                )
            owners[name] = number
    views = _SharedNames([_Part(source, "") for source in sources], is_strict=True).views()
    name = listed([source.name for source in sources], _MOST_NAMES)
    return one_source(views, name, variables=variables)


def tree_source(groups: Mapping[str, Source], name: str, variables: Iterable[str] = ()) -> Source:
    """Offer the variables of the groups of a tree together."""
    parts = [_Part(source, f"{path}/" if path else "") for path, source in groups.items()]
    return one_source(_SharedNames(parts).views(), name, variables=variables)


def _labels_of(name: str, source: Source, on: str) -> Labels | None:
    """The labels of a source along a dimension; None if its variables do not have it."""
    if not any(on in variable.dims for variable in source.variables.values()):
        return None
    index = source.coordinates().indexes.get(on)
    if index is None:
        raise OptionError(
            f"a source has no labels along {on!r}, so they cannot be matched",
            given=f"{name}: {source.name}",
            remedy=by_xarray(f".assign_coords({on}=...)"),
        )
    return Labels(name, index)


def _pasted(sources: Sequence[Source]) -> str:
    """The list of a few paths as Python writes it; dots for more, and for open data."""
    names = [source.name for source in sources]
    is_short = len(names) <= 6 and all(map(os.path.exists, names))
    return repr(names) if is_short else "[...]"


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


class _Part:
    """One of the sources, what is kept of it, and the names that its labels get."""

    def __init__(
        self, source: Source, prefix: str, kept: Mapping[str, ElementList | range] | None = None
    ) -> None:
        self.source = source
        self.prefix = prefix
        self.kept = kept or {}
        self.coords = source.coordinates()
        self.renamed: dict[str, str] = {}
        self.hidden: set[str] = set()


@dataclass
class _SharedNames:
    """Finds the names of each source's dimensions and coordinates, one source after the other.

    A dimension is shared with the first earlier source that has it with equal labels, or with
    equal size if one of them has no labels. Any other one gets the source's prefix, and so does a
    coordinate whose name is taken.
    """

    parts: Sequence[_Part]
    on: str | None = None
    is_strict: bool = False
    _dims: dict[str, list[_Dim]] = field(default_factory=dict)
    _by_name: dict[str, _Dim] = field(default_factory=dict)
    _kept: set[str] = field(default_factory=set)

    def views(self) -> list[SourceView]:
        """The views of the sources, with the names of their variables and coordinates."""
        if not self.is_strict:
            # Without a prefix, as in the root of a tree, a coordinate has no other name.
            self._kept = {
                str(name)
                for part in self.parts
                for name in part.coords.coords
                if not part.prefix and name not in part.coords.dims
            }
        for part in self.parts:
            self._name_dims(part)
        self._name_coords()
        return [
            SourceView(
                part.source,
                {name: part.prefix + name for name in part.source.variables},
                {dim: kept for dim, kept in part.kept.items() if dim in dims_of(part.source)},
                part.renamed,
                frozenset(part.hidden),
            )
            for part in self.parts
        ]

    def _name_dims(self, part: _Part) -> None:
        """Find new names of a source's dimensions and labels, and hide labels of shared ones."""
        source, prefix, coords = part.source, part.prefix, part.coords
        for dim, size in dims_of(source).items():
            if dim == self.on and not any(dim in v.dims for v in source.variables.values()):
                # Labels without a variable that has them say nothing about the joined dimension.
                part.hidden.update(str(n) for n, c in coords.coords.items() if dim in c.dims)
                continue
            index = coords.indexes.get(dim)
            labels: set[str] = set()
            if index is not None:
                labels.update(map(str, coords.xindexes.get_all_coords(dim)))
            known = self._dims.setdefault(dim, [])
            names = dict.fromkeys((dim, prefix + dim))
            named = [self._by_name[name] for name in names if name in self._by_name]
            is_joined = dim == self.on and bool(known)
            alike = (d for d in (*known, *named) if is_joined or not d.difference(size, index))
            # The first dimension of earlier sources that is the same.
            shared = next(alike, None)
            if shared is None and known and self.is_strict:
                raise OptionError(
                    f"two sources differ along {dim!r}",
                    given=f"{known[0].difference(size, index)} in {known[0].owner} and "
                    f"{source.name}",
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
                part.hidden.update(labels)
            if shared.name != dim:
                part.renamed[dim] = shared.name
                part.renamed.update((label, prefix + label) for label in sorted(labels - {dim}))

    def _name_coords(self) -> None:
        """Add new names for those other coordinates whose names are taken."""
        taken: dict[str, tuple[str, Any]] = {}
        variables = (part.prefix + name for part in self.parts for name in part.source.variables)
        not_free = {*self._by_name, *variables}
        for part in self.parts:
            for name in map(str, part.coords.coords):
                if name in part.coords.dims or name in part.renamed or name in part.hidden:
                    continue
                coord: Any = part.coords.variables[name]
                other = part.prefix + name
                if name not in taken and name not in not_free:
                    taken[name] = part.source.name, coord
                elif not self.is_strict:
                    part.renamed[name] = other
                    if other in taken or other in not_free:
                        raise _taken(other, part.prefix)
                    taken[other] = part.source.name, coord
                elif name in taken and coord.equals(taken[name][1]):
                    part.hidden.add(name)
                else:
                    raise OptionError(
                        f"two sources have different things of the name {name!r}",
                        given=f"a coordinate of {part.source.name}, and something else of "
                        + (taken[name][0] if name in taken else "another source"),
                        remedy=f"open one with xarray, use .rename or .drop_vars({name!r}), and "
                        f"pass the Dataset; or join them: {ALIKE}",
                    )


def _taken(name: str, prefix: str) -> OptionError:
    """The error for a name of a dimension or coordinate that something else has."""
    return OptionError(
        f"the name {name!r} would stand for two dimensions or coordinates",
        given=f"a source named {prefix.rstrip('/')!r}, and another one that has {name!r}",
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
