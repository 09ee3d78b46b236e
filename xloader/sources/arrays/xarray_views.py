"""Finds the Zarr array that a lazy xarray variable is a view of.

A variable that xarray has opened and not loaded holds a stack of wrappers::

    MemoryCachedArray                    keeps what is loaded
      CopyOnWriteArray                   becomes a copy once written to
        _ElementwiseFunctionArray        CF decoding, a function for each step
          LazilyIndexedArray             what has been selected so far
            ZarrArrayWrapper             the stored array

These classes are private to xarray and may move. All code that depends on them is in this file.
Classes are compared exactly. An unknown class ends the search, and xarray itself then reads the
variable.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeAlias

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from xloader.sources.arrays.selected_source import Selected
from xloader.sources.stores.redaction import told_of

Kept = int | range | NDArray[np.int64]
"""The part of a dimension that is kept: one element, a range, or elements in any order."""


@dataclass(frozen=True)
class IndexedArray:
    """A selection of an array's elements, and the order of its dimensions."""

    kept: tuple[Any, ...]
    order: tuple[int, ...]

    def select(self, keys: Sequence[Any]) -> Self:
        """Select along each dimension shown."""
        kept = list(self.kept)
        for dim, key in zip(self.order, keys, strict=True):
            kept[dim] = cut(kept[dim], key)
        order = tuple(dim for dim in self.order if not isinstance(kept[dim], int))
        return replace(self, kept=tuple(kept), order=order)

    def transpose(self, axes: Sequence[int]) -> Self:
        """Reorder the dimensions shown."""
        return replace(self, order=tuple(self.order[axis] for axis in axes))


def cut(kept: range | NDArray[np.int64], key: Any) -> Kept:
    """Select from elements that are kept already, as NumPy indexes one dimension."""
    if isinstance(key, slice):
        return kept[key]
    if np.ndim(key) == 0:
        return int(kept[operator.index(key)])
    offsets = np.asarray(key)
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1:
        raise IndexError(f"an index of dtype {offsets.dtype} in {offsets.ndim} dimensions")
    offsets = offsets.astype(np.int64)
    size = len(kept)
    if np.any((offsets < -size) | (offsets >= size)):
        raise IndexError(f"an index beyond {size} elements")
    offsets = np.where(offsets < 0, offsets + size, offsets)
    if isinstance(kept, range):
        return np.asarray(kept.start + kept.step * offsets, np.int64)
    return np.asarray(kept[offsets], np.int64)


def join(selections: Sequence[range | NDArray[np.int64]]) -> range | NDArray[np.int64]:
    """Concatenate selections of one dimension."""
    selections = [kept for kept in selections if len(kept)]
    if not selections:
        return range(0)
    if whole_range := _joined_range(selections):
        return whole_range
    whole = np.concatenate([np.asarray(kept, np.int64) for kept in selections])
    steps = np.diff(whole)
    step = int(steps[0]) if len(steps) else 1
    if step and np.all(steps == step):
        return range(int(whole[0]), int(whole[-1]) + step, step)
    return whole


def _joined_range(selections: Sequence[range | NDArray[np.int64]]) -> range | None:
    """The range that consecutive ranges make, found without listing their elements, or None."""
    steps = {kept.step for kept in selections if isinstance(kept, range) and len(kept) > 1}
    if len(steps) != 1 or not all(isinstance(kept, range) for kept in selections):
        return None
    (step,) = steps
    if any(after[0] != before[-1] + step for before, after in itertools.pairwise(selections)):
        return None
    return range(int(selections[0][0]), int(selections[-1][-1]) + step, step)


def separate(keys: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
    """Separate paired index arrays into one selection for each dimension.

    None if the result is not the product of one selection for each dimension.
    """
    arrays = [np.asarray(key) for key in keys]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    axes = [_varying(array) for array in arrays]
    # For each dimension of the result, the stored one.
    owners: dict[int, int] = {}
    for dim, varying in enumerate(axes):
        if len(varying) > 1 or (varying and varying[0] + len(shape) - arrays[dim].ndim in owners):
            return None
        if varying:
            owners[varying[0] + len(shape) - arrays[dim].ndim] = dim
    free = [dim for dim, varying in enumerate(axes) if not varying]
    for axis, size in enumerate(shape):
        if axis not in owners:
            # A result's dimension of size 1 may come from any stored one that does not vary.
            if size != 1 or not free:
                return None
            owners[axis] = free.pop(0)
    selections: list[Any] = [int(array.flat[0]) if array.size else 0 for array in arrays]
    for axis, dim in owners.items():
        array = arrays[dim].reshape((1,) * (len(shape) - arrays[dim].ndim) + arrays[dim].shape)
        along = tuple(slice(None) if number == axis else 0 for number in range(len(shape)))
        selections[dim] = array[along].reshape(-1)
    shown = [dim for dim in range(len(arrays)) if dim in owners.values()]
    return selections, [shown.index(owners[axis]) for axis in range(len(shape))]


def _varying(array: NDArray[Any]) -> list[int]:
    """The axes along which an array is not constant."""
    return [
        axis
        for axis, size in enumerate(array.shape)
        if size > 1 and np.any(array != array[(slice(None),) * axis + (slice(0, 1),)])
    ]


_PLACES: Final = {
    "zarr": "xarray.backends.zarr:ZarrArrayWrapper",
    "cached": "xarray.core.indexing:MemoryCachedArray",
    "copied": "xarray.core.indexing:CopyOnWriteArray",
    "outer": "xarray.core.indexing:LazilyIndexedArray",
    "pointwise": "xarray.core.indexing:LazilyVectorizedIndexedArray",
    "adapter": "xarray.core.indexing:ImplicitToExplicitIndexingAdapter",
    "explicit": "xarray.core.indexing:ExplicitlyIndexed",
    "numpy": "xarray.core.indexing:NumpyIndexingAdapter",
    "function": "xarray.coding.common:_ElementwiseFunctionArray",
    "native": "xarray.coding.variables:NativeEndiannessArray",
    "bool": "xarray.coding.variables:BoolTypeArray",
    "mask": "xarray.coding.variables:_apply_mask",
    "scale": "xarray.coding.variables:_scale_offset_decoding",
}
"""Import paths of the known classes and functions, in the newest supported versions."""


class UnrecognisedError(Exception):
    """Raised for a variable that is not a plain view of a stored array. Its text is the reason."""


def unknown_form(library: str, what: str) -> UnrecognisedError:
    """Make the error for a structure that another release of a library may have changed."""
    release = importlib.metadata.version(library)
    return UnrecognisedError(
        f"in a form of {library} {release} that xloader does not know ({what})"
    )


@contextmanager
def reading(library: str) -> Iterator[None]:
    """Refuse a structure of a library that cannot be read in the expected way.

    Only errors that an unexpected structure raises are turned into a refusal. It names the error,
    so that a fault in this code shows as well.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise unknown_form(library, told_of(error)) from error


Step: TypeAlias = Callable[[Any], Any]
"""One step of xarray's decoding. It wraps an array, and computes when that is indexed."""


@dataclass(frozen=True)
class LazyView(IndexedArray):
    """A Zarr array as a lazy variable shows it: a selection from it, decoded."""

    array: zarr.Array[Any]
    steps: tuple[Step, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view."""
        return tuple(len(self.kept[dim]) for dim in self.order)

    def decoded(self) -> Any:
        """The whole stored array as xarray decodes it, lazily."""
        return self._stepped(_known("outer")(_known("zarr")(self.array)))

    def encoding(self) -> dict[str, Any]:
        """The CF attributes from which the decoding steps were made."""
        encoding: dict[str, Any] = {}
        functions = [s.keywords["func"] for s in self.steps if isinstance(s, functools.partial)]
        order = [np.asarray, _known("mask"), _known("scale")]
        places = [order.index(function.func) for function in functions]
        if places != sorted(set(places)):
            raise UnrecognisedError("decoded more than once")
        for function in functions:
            given = function.keywords
            if function.func is np.asarray:
                encoding["_Unsigned"] = "true" if np.dtype(given["dtype"]).kind == "u" else "false"
            elif function.func is _known("mask"):
                # An array of objects keeps their types, which decide how they are compared.
                fills = list(given["encoded_fill_values"])
                encoding["missing_value"] = np.array(fills, object)
            else:
                factors = {key: given[key] for key in ("scale_factor", "add_offset")}
                encoding.update({k: value for k, value in factors.items() if value is not None})
        return encoding

    def decode(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Decode stored numbers as xarray does."""
        return np.asarray(self._stepped(numbers).get_duck_array() if self.steps else numbers)

    def _stepped(self, data: Any) -> Any:
        return functools.reduce(lambda data, step: step(data), self.steps, data)

    def selected(self, base: str) -> Selected:
        """The selection in the form that `SelectedSource` takes."""
        return Selected(base, tuple(_once(selection) for selection in self.kept), self.order)


@reading("xarray")
def view_of(data: Any) -> LazyView:
    """Find the Zarr array that a variable's data is a view of."""
    wrapper = type(data)
    if wrapper in (zarr.Array, _known("zarr")):
        array = data if wrapper is zarr.Array else data.get_array()
        if type(array) is not zarr.Array:
            raise UnrecognisedError("not a Zarr array")
        return LazyView(tuple(map(range, array.shape)), tuple(range(array.ndim)), array)
    if wrapper in (_known("cached"), _known("copied"), _known("adapter")):
        return view_of(data.array)
    if wrapper is _known("outer"):
        return view_of(data.array).select(data.key.tuple)
    if wrapper is _known("pointwise"):
        view = view_of(data.array)
        # xarray stores a transposition as paired index arrays, one per dimension.
        separated = separate(data.key.tuple)
        if separated is None:
            raise UnrecognisedError("an index of points, not of a block")
        selections, order = separated
        return view.select(selections).transpose(order)
    if wrapper in (_known("native"), _known("bool"), _known("function")):
        view = view_of(data.array)
        step: Step = wrapper
        if wrapper is _known("function"):
            _check_function(data.func)
            step = functools.partial(wrapper, func=data.func, dtype=data.dtype)
        return replace(view, steps=(*view.steps, step))
    if is_loaded(data):
        raise UnrecognisedError("in memory")
    is_form = isinstance(data, _known("explicit"))
    if is_form and wrapper.__module__.startswith(("xarray.core.", "xarray.coding.")):
        raise unknown_form("xarray", wrapper.__name__)
    library = wrapper.__module__.partition(".")[0]
    raise UnrecognisedError(f"held by {wrapper.__name__} of {library}, which xloader does not read")


def held_by(variable: xr.Variable) -> Any:
    """The data of a variable, without loading it."""
    # The public .data would load it.
    return variable._data


def is_loaded(data: Any) -> bool:
    """Whether the data of a variable is already in memory."""
    while type(data) in (_known("cached"), _known("copied")):
        data = data.array
    return isinstance(data, np.ndarray) or (
        type(data) is _known("numpy") and isinstance(data.array, np.ndarray)
    )


def is_from_zarr(data: Any) -> bool:
    """Whether the data of a variable is read from Zarr, however it was selected and decoded."""
    while type(data) is not _known("zarr") and hasattr(data, "array"):
        data = data.array
    return type(data) is _known("zarr")


def known(place: str) -> Any:
    """The class or function at an import path, such as ``"dask.array.core:getter"``."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        # The installed version has it elsewhere. No object has this type.
        return type("Unknown", (), {})


@functools.cache
def _known(name: str) -> Any:
    return known(_PLACES[name])


def _check_function(function: Any) -> None:
    """Raise an error for a function that is not a step of xarray's decoding of numbers."""
    # By identity, because a function of the user may not be hashable.
    parameters = {
        id(_known("mask")): {"encoded_fill_values", "decoded_fill_value", "dtype"},
        id(_known("scale")): {"scale_factor", "add_offset", "dtype"},
        id(np.asarray): {"dtype"},
    }
    is_plain = type(function) is functools.partial and not function.args
    if not is_plain or parameters.get(id(function.func)) != function.keywords.keys():
        raise UnrecognisedError("decoded by an unknown function")


def _once(kept: Any) -> Any:
    """A selection in the form that `Selected` takes, with no element twice."""
    if isinstance(kept, int):
        return kept
    if isinstance(kept, range):
        if len(kept) > 1 and kept.step < 0:
            return tuple(kept)
        return range(kept[0], kept[-1] + 1, max(1, kept.step)) if kept else range(0)
    if len(np.unique(kept)) < len(kept):
        raise UnrecognisedError("an index with an element twice")
    return tuple(kept.tolist())
