"""Matches the labels of several sources along one dimension, where the first source's rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.element_list import ElementList, as_elements
from xloader.errors import EmptySamplesError, OptionError
from xloader.sources.combined.continuity import Labels, different_kinds
from xloader.sources.label_spans import find_labels

Method = Literal["nearest", "ffill"] | None
"""How labels are found that a source does not have."""

_METHODS: Final = ("nearest", "ffill")


@dataclass(frozen=True)
class Match:
    """The elements of several sources that belong to the labels of the first one."""

    elements: Mapping[str, range | ElementList]
    notes: tuple[str, ...]


def match_labels(on: str, labels: Mapping[str, Labels], method: Method, tolerance: Any) -> Match:
    """Find the elements that belong to each label of the first source.

    `method`: None for equal labels, "nearest" for the closest one, "ffill" for the last one
    before.
    """
    first, *others = labels
    for owned in labels.values():
        if owned.kind != labels[first].kind:
            raise different_kinds(on, labels[first], owned)
        _check_order(on, owned, method)
    target = labels[first].index
    found = {name: _find(on, labels[name], target, method, tolerance) for name in others}
    is_common = np.ones(len(target), np.bool_)
    for elements in found.values():
        is_common &= elements >= 0
    if not is_common.any():
        raise _nothing_common(on, labels, method)
    kept = {first: np.flatnonzero(is_common)}
    kept.update((name, elements[is_common]) for name, elements in found.items())
    for name in others:
        _check_ascending(on, labels[first], labels[name], kept[name])
    notes = [
        f"along {on}, {(~has).sum():,} of {len(target):,} labels of {first} are left out, because "
        f"{name} has none for them (first: {_show(target[np.flatnonzero(~has)[0]])})"
        for name, has in ((name, elements >= 0) for name, elements in found.items())
        if not has.all()
    ]
    notes += [
        f"along {on}, {used:,} of {len(labels[name].index):,} labels of {name} are used"
        for name, used in ((name, len(np.unique(kept[name]))) for name in others)
        if used < len(labels[name].index)
    ]
    return Match({name: as_elements(elements) for name, elements in kept.items()}, tuple(notes))


def check_method(method: Any, tolerance: Any) -> None:
    """Check that a method exists, and that a tolerance has one."""
    if not (method is None or (isinstance(method, str) and method in _METHODS)):
        raise OptionError(
            "there is no such method for labels that a source does not have",
            given=f"method={method!r}",
            allowed='None, "nearest" or "ffill"',
            remedy='pass method="nearest" for the closest label, or "ffill" for the last one '
            "before",
        )
    if tolerance is not None and (method is None or np.ndim(tolerance)):
        raise OptionError(
            "the tolerance does not fit the method",
            given=f"method={method!r}, tolerance={tolerance!r}",
            allowed='one distance between labels, and only with method="nearest" or "ffill"',
            remedy='pass method="nearest" too, or leave the tolerance out',
        )


def _check_order(on: str, owned: Labels, method: Method) -> None:
    """Refuse labels that occur twice, are missing or, where that matters, do not increase."""
    index = owned.index
    # Labels of several levels cannot be asked for NaN.
    has_missing = index.nlevels == 1 and index.hasnans
    if not index.is_unique or has_missing:
        wrong = index[index.isna()] if has_missing else index[index.duplicated()]
        raise OptionError(
            f"labels along {on!r} occur twice or are missing",
            given=f"{len(wrong)} labels of {owned.owner}, such as {wrong[0]}",
            allowed="each label once",
            remedy=f"open it with xarray, use .drop_duplicates({on!r}) or .dropna, and pass the "
            "Dataset",
        )
    is_time = "dates" in owned.kind or "durations" in owned.kind
    if owned.kind == "text or objects":
        if method is not None:
            raise OptionError(
                f"the labels along {on!r} are text, of which none is the nearest or the last",
                given=f"method={method!r}, labels such as {index[0]!r}",
                allowed="method=None",
                remedy="leave method= out, to join equal labels",
            )
    elif (is_time or method is not None) and not index.is_monotonic_increasing:
        wrong_at = int(np.flatnonzero(index[1:] < index[:-1])[0])
        raise OptionError(
            f"the labels along {on!r} do not increase",
            given=f"{_show(index[wrong_at])}, then {_show(index[wrong_at + 1])} in {owned.owner}",
            allowed="labels that increase, in each source",
            remedy=f"open it with xarray, use .sortby({on!r}), and pass the Dataset",
        )


def _find(on: str, owned: Labels, target: Any, method: Method, tolerance: Any) -> Ints:
    """The element of each label of the first source; -1 for a label that has none."""
    try:
        return find_labels(owned.index, target, method, tolerance)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise OptionError(
            f"labels along {on!r} cannot be compared: {error}",
            given=f"labels such as {_show(target[0])}, method={method!r}, tolerance={tolerance!r}",
            allowed=f"labels like {_show(owned.index[0])}, and a tolerance that is a distance "
            "between them",
            remedy='for times, pass a duration such as tolerance="30min"',
        ) from error


def _check_ascending(on: str, first: Labels, other: Labels, elements: NDArray[Any]) -> None:
    """Refuse a source whose elements come in another order than those of the first one."""
    falls = np.flatnonzero(np.diff(elements) < 0)
    if len(falls):
        before, after = elements[falls[0]], elements[falls[0] + 1]
        raise OptionError(
            f"two sources have the labels along {on!r} in different orders",
            given=f"{_show(other.index[before])} comes before {_show(other.index[after])} in "
            f"{first.owner}, and after it in {other.owner}",
            allowed="one order in all sources",
            remedy=f"open one with xarray, use .sortby({on!r}) or .isel, and pass the Dataset",
        )


def _nothing_common(on: str, labels: Mapping[str, Labels], method: Method) -> EmptySamplesError:
    ends = "; ".join(
        f"{name}: {_show(own.index[0])} to {_show(own.index[-1])}"
        if len(own.index)
        else f"{name}: no label"
        for name, own in labels.items()
    )
    return EmptySamplesError(
        f"the sources have no label along {on!r} in common",
        given=ends,
        allowed="labels that all sources have",
        remedy='check the units and the years; or pass method="nearest" or "ffill"'
        if method is None
        else "check the units and the years, or pass a larger tolerance",
    )


def _show(label: Any) -> str:
    return str(label.isoformat()) if hasattr(label, "isoformat") else str(label)
