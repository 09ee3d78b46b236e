"""Joins sources whose variables lie beside each other: analysis and radar, with static fields."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xloader.core.messages import closest
from xloader.errors import OptionError, UnknownNameError
from xloader.sources.base import Source
from xloader.sources.combined.continuity import Labels
from xloader.sources.combined.joined_source import one_source
from xloader.sources.combined.joined_variables import label_of
from xloader.sources.combined.label_match import Method, check_method, match_labels
from xloader.sources.combined.shared_names import SharedNames, dims_of

_MOST_NAMES = 4
"""The most sources that the name of a joined source lists."""


def join_sources(
    sources: Mapping[str, Source], on: str, method: Method = None, tolerance: Any = None
) -> Source:
    """Offer the variables of several sources together, at the labels of the first one.

    Only metadata and labels are read.
    """
    check_method(method, tolerance)
    owned = {name: _labels_of(name, source, on) for name, source in sources.items()}
    labels = {name: own for name, own in owned.items() if own is not None}
    if not labels:
        raise _no_dimension(sources.values(), on)
    match = match_labels(on, labels, method, tolerance)
    views = SharedNames(_offered(sources.values(), sources), on).views(
        list(sources.values()),
        [f"{name}/" for name in sources],
        [{on: match.elements[name]} if name in match.elements else {} for name in sources],
    )
    return one_source(views, _name(sources), match.notes)


def merge_sources(sources: Sequence[Source], variables: Iterable[str] = ()) -> Source:
    """Offer the different variables of several sources of one grid together."""
    owners: dict[str, int] = {}
    for number, source in enumerate(sources):
        for name in source.variables:
            if name in owners:
                raise OptionError(
                    f"two sources have a variable of the name {name!r}",
                    given=f"{label_of(sources, owners[name])}, {label_of(sources, number)}",
                    allowed="each name once, to open different variables of one grid together",
                    remedy=f"join parts of one series with xloader.concat({_pasted(sources)}), "
                    "parts along another dimension with its dim=, and sources whose names mean "
                    "different things with xloader.join({...})",
                )
            owners[name] = number
    names = SharedNames(frozenset(owners), is_strict=True)
    views = names.views(sources, [""] * len(sources), [{}] * len(sources))
    name = _listed([source.name for source in sources])
    return one_source(views, name, variables=variables)


def tree_source(groups: Mapping[str, Source], name: str, variables: Iterable[str] = ()) -> Source:
    """Offer the variables of the groups of a tree together."""
    prefixes = [f"{path}/" if path else "" for path in groups]
    sources = list(groups.values())
    names = SharedNames(_offered(sources, list(groups)))
    views = names.views(sources, prefixes, [{}] * len(sources))
    return one_source(views, name, variables=variables)


def _offered(sources: Iterable[Source], paths: Iterable[str]) -> frozenset[str]:
    """The names under which variables are offered."""
    pairs = zip(sources, paths, strict=True)
    return frozenset(
        f"{path}/{v}" if path else v for source, path in pairs for v in source.variables
    )


def _labels_of(name: str, source: Source, on: str) -> Labels | None:
    """The labels of a source along a dimension; None if its variables do not have it."""
    if not any(on in variable.dims for variable in source.variables.values()):
        return None
    index = source.coordinates().indexes.get(on)
    if index is None:
        raise OptionError(
            f"a source has no labels along {on!r}, so they cannot be matched",
            given=f"{name}: {source.name}",
            allowed="labels in all sources that have the dimension",
            remedy=f"open it with xarray, add labels with .assign_coords({on}=...), and pass the "
            "Dataset",
        )
    return Labels(name, index)


def _no_dimension(sources: Iterable[Source], on: str) -> UnknownNameError:
    dims = list(dict.fromkeys(dim for source in sources for dim in dims_of(source)))
    close = closest(on, dims)
    return UnknownNameError(
        f"no source has a dimension {on!r} to join on",
        given=f"on={on!r}",
        allowed=", ".join(map(repr, dims)) or "none: there is no dimension",
        remedy=f"did you mean {close!r}?" if close else "pass one of these names",
    )


def _name(sources: Mapping[str, Source]) -> str:
    """Name of sources that are joined, for messages."""
    return _listed([f"{name}: {source.name}" for name, source in sources.items()])


def _pasted(sources: Sequence[Source]) -> str:
    """The list of a few paths as Python writes it; dots for more, and for open data."""
    names = [source.name for source in sources]
    is_short = len(names) <= 6 and all(map(os.path.exists, names))
    return repr(names) if is_short else "[...]"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
