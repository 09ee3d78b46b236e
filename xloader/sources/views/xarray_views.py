"""Every touch of xarray's private arrays: which Zarr array a lazy variable is a view of.

A variable that xarray has opened and not loaded holds a stack of wrappers::

    MemoryCachedArray                    keeps what is loaded
      CopyOnWriteArray                   becomes a copy once written to
        _ElementwiseFunctionArray        CF decoding, a function for each step
          LazilyIndexedArray             what has been selected so far
            ZarrArrayWrapper             the stored array

Classes are compared exactly and whatever is not known stops the search: then xarray itself
reads the variable. What leans on parts of xarray that may move is in this file alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from xloader.sources.views.indexing import IndexedArray, separate
from xloader.sources.views.selected_source import Selected

_PLACES: Final = {
    "zarr": "xarray.backends.zarr:ZarrArrayWrapper",
    "cached": "xarray.core.indexing:MemoryCachedArray",
    "copied": "xarray.core.indexing:CopyOnWriteArray",
    "outer": "xarray.core.indexing:LazilyIndexedArray",
    "pointwise": "xarray.core.indexing:LazilyVectorizedIndexedArray",
    "adapter": "xarray.core.indexing:ImplicitToExplicitIndexingAdapter",
    "numpy": "xarray.core.indexing:NumpyIndexingAdapter",
    "function": "xarray.coding.common:_ElementwiseFunctionArray",
    "native": "xarray.coding.variables:NativeEndiannessArray",
    "bool": "xarray.coding.variables:BoolTypeArray",
    "mask": "xarray.coding.variables:_apply_mask",
    "scale": "xarray.coding.variables:_scale_offset_decoding",
}
"""Where the classes and functions lie that are known here, in every version that is supported."""

_MOVED: Final = {"function": "xarray.coding.variables:_ElementwiseFunctionArray"}
"""Where older versions have some of them."""


class UnrecognisedError(Exception):
    """Says in a few words why a variable is not a plain view of a stored array."""


Step: TypeAlias = Callable[[Any], Any]
"""Wraps an array as one step of xarray's decoding does: it computes when it is indexed."""


@dataclass(frozen=True)
class LazyView(IndexedArray):
    """A Zarr array as a lazy variable shows it.

    Parameters
    ----------
    kept, order
        As of `IndexedArray`.
    array : zarr.Array
        The stored array.
    steps : tuple of callable
        The steps of CF decoding, the first one first.
    """

    array: zarr.Array[Any]
    steps: tuple[Step, ...] = ()

    @classmethod
    def whole(cls, array: zarr.Array[Any]) -> LazyView:
        """All of a stored array, as it is stored."""
        return cls(tuple(map(range, array.shape)), tuple(range(array.ndim)), array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape shown."""
        return tuple(len(self.kept[dim]) for dim in self.order)

    def decoded(self) -> Any:
        """The whole stored array as xarray decodes it, lazily."""
        data: Any = _known("outer")(_known("zarr")(self.array))
        for step in self.steps:
            data = step(data)
        return data

    def encoding(self) -> dict[str, Any]:
        """The CF attributes that these steps were made from.

        Raises
        ------
        UnrecognisedError
            If they are not the steps of one decoding, as where a dataset was decoded twice.
        """
        found: dict[str, Any] = {}
        functions = [step.args[0] for step in self.steps if isinstance(step, functools.partial)]
        order = [np.asarray, _known("mask"), _known("scale")]
        places = [order.index(function.func) for function in functions]
        if places != sorted(set(places)):
            raise UnrecognisedError("decoded more than once")
        for function in functions:
            given = function.keywords
            if function.func is np.asarray:
                found["_Unsigned"] = "true" if np.dtype(given["dtype"]).kind == "u" else "false"
            elif function.func is _known("mask"):
                # As objects they keep their types, which say how they are compared.
                fills = list(given["encoded_fill_values"])
                found["missing_value"] = np.array(fills, object)
            else:
                factors = {key: given[key] for key in ("scale_factor", "add_offset")}
                found.update({k: value for k, value in factors.items() if value is not None})
        return found

    def decode(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """What xarray makes of some stored numbers."""
        data: Any = numbers
        for step in self.steps:
            data = step(data)
        return np.asarray(data.get_duck_array() if self.steps else numbers)

    def selected(self, base: str) -> Selected:
        """What is kept, in the terms of `SelectedSource`.

        Raises
        ------
        UnrecognisedError
            If the selection does not increase along some dimension.
        """
        return Selected(base, tuple(_increasing(part) for part in self.kept), self.order)


def view_of(data: Any) -> LazyView:
    """Find the Zarr array under what a variable holds.

    Parameters
    ----------
    data : object
        What a variable holds, as `held_by` gives it, or what a dask graph reads from.

    Raises
    ------
    UnrecognisedError
        If there is anything on the way whose meaning is not known.
    """
    kind = type(data)
    if kind is zarr.Array:
        return LazyView.whole(data)
    if kind is _known("zarr"):
        array = data.get_array()
        if type(array) is not zarr.Array:
            raise UnrecognisedError("an array of another kind than Zarr's")
        return LazyView.whole(array)
    if kind in (_known("cached"), _known("copied"), _known("adapter")):
        return view_of(data.array)
    if kind is _known("outer"):
        return view_of(data.array).select(data.key.tuple)
    if kind is _known("pointwise"):
        return _rearranged(view_of(data.array), data.key.tuple)
    if kind in (_known("native"), _known("bool")):
        view = view_of(data.array)
        return replace(view, steps=(*view.steps, kind))
    if kind is _known("function"):
        view = view_of(data.array)
        _check_function(data.func)
        step = functools.partial(_wrapped, data.func, data.dtype)
        return replace(view, steps=(*view.steps, step))
    raise UnrecognisedError("")


def held_by(variable: xr.Variable) -> Any:
    """What a variable holds, without loading it."""
    # .data would load it.
    return variable._data


def is_loaded(data: Any) -> bool:
    """Whether what a variable holds is in memory already."""
    while type(data) in (_known("cached"), _known("copied")):
        data = data.array
    return isinstance(data, np.ndarray) or (
        type(data) is _known("numpy") and isinstance(data.array, np.ndarray)
    )


def look_up(*places: str) -> Any:
    """A class or function, from the first of some places (``"module:name"``) that has it."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    # A version that has it elsewhere: nothing is ever of this kind.
    return type("Unknown", (), {})


@functools.cache
def _known(name: str) -> Any:
    return look_up(*(places[name] for places in (_PLACES, _MOVED) if name in places))


def _rearranged(view: LazyView, keys: Sequence[Any]) -> LazyView:
    """Undo what transposing does: a key that pairs up index arrays, one for each dimension."""
    separated = separate(keys)
    if separated is None:
        raise UnrecognisedError("points and not a block")
    parts, order = separated
    return view.select(parts).transpose(order)


def _check_function(function: object) -> None:
    """Let nothing pass that is not a step of xarray's decoding of numbers."""
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
    return _known("function")(data, function, dtype)


def _increasing(part: Any) -> Any:
    if isinstance(part, int):
        return part
    if isinstance(part, range):
        if len(part) > 1 and part.step < 0:
            raise UnrecognisedError("in reverse order")
        return range(part[0], part[-1] + 1, max(1, part.step)) if part else range(0)
    if not np.all(part[1:] > part[:-1]):
        raise UnrecognisedError("an index that does not increase")
    return tuple(part.tolist())
