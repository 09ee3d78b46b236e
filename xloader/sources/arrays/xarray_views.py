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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from xloader.sources.arrays.indexing import IndexedArray, separate
from xloader.sources.arrays.selected_source import Selected
from xloader.sources.stores.access_errors import told_of

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

_MOVED: Final = {"function": "xarray.coding.variables:_ElementwiseFunctionArray"}
"""Import paths in older versions, where they differ."""


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

    @classmethod
    def whole(cls, array: zarr.Array[Any]) -> LazyView:
        """The view of a whole array, without decoding."""
        return cls(tuple(map(range, array.shape)), tuple(range(array.ndim)), array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view."""
        return tuple(len(self.kept[dim]) for dim in self.order)

    def decoded(self) -> Any:
        """The whole stored array as xarray decodes it, lazily."""
        data: Any = _known("outer")(_known("zarr")(self.array))
        for step in self.steps:
            data = step(data)
        return data

    def encoding(self) -> dict[str, Any]:
        """The CF attributes from which the decoding steps were made."""
        encoding: dict[str, Any] = {}
        functions = [step.args[0] for step in self.steps if isinstance(step, functools.partial)]
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
        data: Any = numbers
        for step in self.steps:
            data = step(data)
        return np.asarray(data.get_duck_array() if self.steps else numbers)

    def selected(self, base: str) -> Selected:
        """The selection in the form that `SelectedSource` takes."""
        return Selected(base, tuple(_once(selection) for selection in self.kept), self.order)


@reading("xarray")
def view_of(data: Any) -> LazyView:
    """Find the Zarr array that a variable's data is a view of."""
    wrapper = type(data)
    if wrapper is zarr.Array:
        return LazyView.whole(data)
    if wrapper is _known("zarr"):
        array = data.get_array()
        if type(array) is not zarr.Array:
            raise UnrecognisedError("not a Zarr array")
        return LazyView.whole(array)
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
    if wrapper in (_known("native"), _known("bool")):
        view = view_of(data.array)
        return replace(view, steps=(*view.steps, wrapper))
    if wrapper is _known("function"):
        view = view_of(data.array)
        _check_function(data.func)
        step = functools.partial(_wrapped, data.func, data.dtype)
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


def look_up(*places: str) -> Any:
    """Import a class or function from the first place that has it."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    # The installed version has it elsewhere. No object has this type.
    return type("Unknown", (), {})


@functools.cache
def _known(name: str) -> Any:
    """The class or function with a name in `_PLACES`."""
    return look_up(*(places[name] for places in (_PLACES, _MOVED) if name in places))


def _check_function(function: object) -> None:
    """Raise an error for a function that is not a step of xarray's decoding of numbers."""
    if type(function) is functools.partial and not function.args:
        names = set(function.keywords)
        masks = {"encoded_fill_values", "decoded_fill_value", "dtype"}
        if function.func is _known("mask") and names == masks:
            return
        scales = {"scale_factor", "add_offset", "dtype"}
        if function.func is _known("scale") and names == scales:
            return
        if function.func is np.asarray and names == {"dtype"}:
            return
    raise UnrecognisedError("decoded by an unknown function")


def _wrapped(function: Callable[..., Any], dtype: Any, data: Any) -> Any:
    """Data with a decoding function applied to it, lazily."""
    return _known("function")(data, function, dtype)


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
