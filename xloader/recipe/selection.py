"""Selections along a dimension, by position or by label, as stored elements.

Selections compose without reading data: a second selection counts positions in what the first
one has kept.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr
from pandas.errors import InvalidIndexError  # type: ignore[import-untyped]

from xloader.core.axis import Axis, Ints, Selection, as_range
from xloader.core.messages import warn_caller
from xloader.errors import EmptySamplesError, LongitudeWarning, OptionError, UnknownNameError
from xloader.recipe.label_lookup import is_closed, selected_index
from xloader.recipe.label_steps import FULL_TURN
from xloader.recipe.recipe import Kept, Recipe, find

Several = range | tuple[int, ...]
"""Stored elements that are kept of a dimension."""


def isel(recipe: Recipe, indexers: Mapping[str, Any]) -> tuple[tuple[str, Kept], ...]:
    """Compose a selection by position with the selection of a recipe; see `Samples.isel`."""
    chosen = dict(recipe.selection)
    for dim, indexer in indexers.items():
        find(dim, recipe.dim_sizes, "dimension")
        kept = recipe.kept_of(dim)
        assert not isinstance(kept, int)
        chosen[dim] = take(dim, kept, indexer)
        _require_one_visit(recipe, dim, chosen[dim], indexer)
    return tuple(chosen.items())


def select_coords(coords: xr.Dataset, selection: Iterable[tuple[str, Kept]]) -> xr.Dataset:
    """Coordinates of the elements that a selection keeps."""
    indexers: dict[str, Any] = {}
    for dim, kept in selection:
        if dim in coords.dims and isinstance(kept, range):
            # It ascends, and a slice of labels is not copied.
            indexers[dim] = slice(kept.start, kept.stop, kept.step)
        elif dim in coords.dims:
            indexers[dim] = kept if isinstance(kept, int) else np.asarray(kept, np.int64)
    return coords.isel(indexers)


def sel(
    recipe: Recipe, indexers: Mapping[str, Any], *, method: str | None, tolerance: Any
) -> tuple[tuple[str, Kept], ...]:
    """Compose a selection by label with the selection of a recipe; see `Samples.sel`."""
    coords = recipe.source.coordinates()
    chosen: dict[str, Any] = {}
    for dim, label in indexers.items():
        find(dim, recipe.dim_sizes, "dimension")
        if dim in coords.indexes:
            chosen[dim] = _positions(recipe, coords, dim, label, method, tolerance)
        elif method is not None:
            raise OptionError(
                f"the dimension {dim!r} has no labels, so method= cannot be used",
                given=f"method={method!r}",
                remedy=f"use .isel({dim}=...) with positions",
            )
        else:
            chosen[dim] = label
    return isel(recipe, chosen)


def stored(kept: Selection, offsets: Ints) -> Ints:
    """Convert offsets into a selection to stored elements."""
    if isinstance(kept, range):
        return np.asarray(kept.start + kept.step * offsets, np.int64)
    return np.asarray(kept, np.int64)[offsets]


def take(dim: str, kept: Several, indexer: Any) -> Kept:
    """Select from one dimension by position."""
    if isinstance(indexer, slice):
        return _take_slice(dim, kept, indexer)
    positions = np.asarray(indexer)
    if positions.dtype == bool and positions.shape == (len(kept),):
        positions = np.flatnonzero(positions)
    if (positions.size and positions.dtype.kind not in "iu") or positions.ndim > 1:
        raise OptionError(
            f"the selection along {dim!r} is not made of positions",
            given=repr(indexer),
            remedy=f"pass an int, a slice, ints or a mask; use .sel({dim}=...) for labels",
        )
    outside = positions[(positions < -len(kept)) | (positions >= len(kept))]
    if outside.size:
        raise OptionError(
            f"a position lies outside the dimension {dim!r}",
            given=int(outside.flat[0]),
            allowed=f"[{-len(kept)}, {len(kept)})",
            remedy="count positions within the current selection",
        )
    positions = positions.astype(np.int64)
    positions = np.where(positions < 0, positions + len(kept), positions)
    if positions.ndim == 0:
        return int(kept[int(positions)])
    _require_some(dim, len(positions), indexer)
    if len(np.unique(positions)) < len(positions):
        raise _not_in_order(dim, indexer)
    return as_selection(stored(kept, positions))


def as_selection(elements: Ints) -> Several:
    """A range if the elements are equally spaced and increase, else a tuple."""
    spaced = as_range(elements)
    return tuple(elements.tolist()) if spaced is None else spaced


def _take_slice(dim: str, kept: Several, indexer: slice) -> Several:
    try:
        taken = kept[indexer]
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"the slice along {dim!r} is not made of positions",
            given=repr(indexer),
            remedy=f"pass whole numbers, and a step other than 0; use .sel({dim}=...) for labels",
        ) from error
    _require_some(dim, len(taken), indexer)
    if isinstance(taken, range) and (taken.step > 0 or len(taken) == 1):
        return range(taken[0], taken[-1] + 1, abs(taken.step))
    return as_selection(np.asarray(taken, np.int64))


def positions_at(
    recipe: Recipe, labels: Mapping[str, Any], *, method: str | None, tolerance: Any
) -> list[Ints]:
    """Positions of the windows that begin at given labels, along each windowed dimension."""
    windows = recipe.require_windows()
    coords = recipe.source.coordinates()
    for dim in labels:
        find(dim, recipe.dim_sizes, "dimension")
        if dim not in windows.dims:
            raise OptionError(
                f"every sample holds all of the dimension {dim!r}, which has no windows",
                given=f"{dim}={labels[dim]!r}",
                remedy=f"select along {dim!r} with .sel before .window",
            )
    positions = []
    for axis, (dim, count) in enumerate(zip(windows.dims, windows.num_positions, strict=True)):
        if dim not in labels:
            positions.append(np.arange(count, dtype=np.int64))
            continue
        # Where borders are padded, windows have their place at their centre.
        firsts = np.arange(count, dtype=np.int64)
        firsts = windows.starts_of(axis, firsts) - windows.origins[axis]
        kept = recipe.kept_of(dim)
        assert not isinstance(kept, int)
        index = coords.indexes[dim][stored(kept, firsts)] if dim in coords.indexes else firsts
        at = _look_up(dim, index, labels[dim], method, tolerance, "no window begins at it")
        positions.append(np.atleast_1d(at))
    return positions


def _positions(
    recipe: Recipe, coords: xr.Dataset, dim: str, label: Any, method: str | None, tolerance: Any
) -> Any:
    index = selected_index(recipe, coords, dim)
    units = str(coords[dim].attrs.get("units", ""))
    is_longitude = not units and dim.lower().startswith("lon") and is_closed(index)
    if isinstance(label, slice) and (is_longitude or units.startswith("degree")):
        _warn_of_seam(dim, index, label)
    return _look_up(dim, index, label, method, tolerance)


def _warn_of_seam(dim: str, index: Any, label: slice) -> None:
    """Warn of a slice of longitudes that would go on at the other end of the labels."""
    if not (isinstance(label.start, numbers.Real) and isinstance(label.stop, numbers.Real)):
        return
    begin, end = sorted((float(label.start), float(label.stop)))
    labels = index.to_numpy(np.float64)
    is_taken, is_turned = (
        np.any(
            [(begin <= shifted) & (shifted <= end) for shifted in (labels + by for by in turns)],
            axis=0,
        )
        for turns in ((0,), (-FULL_TURN, FULL_TURN))
    )
    if num_lost := np.count_nonzero(is_turned & ~is_taken):
        warn_caller(
            f"the slice of {dim!r} from {begin:g} to {end:g} reaches beyond its labels, and as in "
            f"xarray it does not go on at their other end, so {num_lost:,} labels are left out. "
            "To have them, count the labels from the start of the slice, and open that Dataset: "
            f"ds.assign_coords({dim}=(ds[{dim!r}] {-begin:+g}) % 360 {begin:+g}).sortby({dim!r})",
            LongitudeWarning,
        )


def _look_up(
    dim: str, index: Any, label: Any, method: str | None, tolerance: Any, why: str = ""
) -> Ints:
    """Positions of labels, as xarray finds them; ``why`` is a second possible reason of errors."""
    probe = xr.DataArray(np.arange(len(index)), dims=dim, coords={dim: index})
    index = probe.indexes[dim]
    allowed = f"labels from {index[0]} to {index[-1]}"
    try:
        chosen = probe.sel({dim: label}, method=method, tolerance=tolerance)
    except KeyError as error:
        if _is_unsorted(label, index):
            raise _not_sorted(dim, label) from error
        raise UnknownNameError(
            f"the dimension {dim!r} has no such label{why and f', or {why}'}",
            given=repr(label),
            allowed=allowed,
            remedy='pass method="nearest" to take the closest one, or a slice',
        ) from error
    except InvalidIndexError as error:
        raise OptionError(
            f"labels of the dimension {dim!r} occur more than once",
            given=f"{label!r}, method={method!r}",
            remedy="ask for one label at a time, or use positions",
        ) from error
    except (TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise OptionError(
            f"xarray cannot choose these labels of {dim!r}: {error}",
            given=f"{label!r}, method={method!r}, tolerance={tolerance!r}",
            allowed=allowed,
            remedy=f"try the same .sel({dim}=...) on the xarray Dataset",
        ) from error
    if chosen.ndim and chosen.dims != (dim,):
        raise OptionError(
            f"the labels have dimensions that would replace {dim!r}",
            given=f"labels with the dimensions {chosen.dims}",
            remedy=f"pass the labels of {dim!r} as a list",
        )
    if not chosen.size and _is_unsorted(label, index):
        raise _not_sorted(dim, label)
    if not chosen.size:
        raise EmptySamplesError(
            f"no label of the dimension {dim!r} is selected{why and f', or {why}'}",
            given=repr(label),
            allowed=f"{allowed}, in this order",
            remedy="choose labels in this range, and give the ends of a slice in this order",
        )
    return np.asarray(chosen.to_numpy(), np.int64)


def _is_unsorted(label: object, index: Any) -> bool:
    is_sorted = index.is_monotonic_increasing or index.is_monotonic_decreasing
    return isinstance(label, slice) and not is_sorted


def _not_sorted(dim: str, label: object) -> OptionError:
    return OptionError(
        f"the labels of the dimension {dim!r} are not sorted, so a slice of labels is ambiguous",
        given=repr(label),
        remedy=f"pass a list of labels, or sort them: ds.sortby({dim!r}).xloader",
    )


def _require_one_visit(recipe: Recipe, dim: str, kept: Kept, indexer: object) -> None:
    """Refuse an order of elements in which some variable comes back to a chunk that it has left."""
    for name in recipe.variables:
        variable = recipe.source.variables[name]
        if dim in variable.dims and not isinstance(kept, int):
            axis = variable.dims.index(dim)
            try:
                Axis(variable.shape[axis], variable.chunks[axis], kept)
            except OptionError as error:
                raise _not_in_order(dim, indexer) from error


def _require_some(dim: str, count: int, indexer: object) -> None:
    if not count:
        raise EmptySamplesError(
            f"nothing is selected along {dim!r}", given=repr(indexer), remedy="select more of it"
        )


def _not_in_order(dim: str, indexer: object) -> OptionError:
    return OptionError(
        f"the positions along {dim!r} have one twice, or come back to a chunk that they left",
        given=repr(indexer),
        remedy="select in stored order, and reorder in .map(fn), or by ds.isel(...).xloader",
    )
