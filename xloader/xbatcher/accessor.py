"""``ds.batch.generator(...)``, where no other library has that name."""

from __future__ import annotations

from typing import Any

import xarray as xr

from xloader.xbatcher.generator import BatchGenerator

_NAME = "batch"


class BatchAccessor:
    """What ``ds.batch`` is: the door to generators of ``ds``.

    Parameters
    ----------
    obj : xarray.Dataset or xarray.DataArray
        The object.
    """

    def __init__(self, obj: xr.Dataset | xr.DataArray) -> None:
        self._obj = obj

    def generator(self, *args: Any, **kwargs: Any) -> BatchGenerator:
        """A :class:`BatchGenerator` of the object; arguments are those after ``ds``."""
        return BatchGenerator(self._obj, *args, **kwargs)


class _AccessorDescriptor:
    """Gives the accessor of an object, and makes way for any other of the name.

    xarray warns where a name is taken on the class, so on the class it is not: xbatcher, imported
    later, registers its own in this place. Nor does it hide a variable called ``batch``.
    """

    def __get__(self, obj: Any, kind: type[Any]) -> BatchAccessor:
        if obj is None or _NAME in obj.coords or _NAME in getattr(obj, "data_vars", ()):
            raise AttributeError(_NAME)
        return BatchAccessor(obj)


def register() -> None:
    """Offer ``ds.batch`` on Datasets and DataArrays that have no such attribute yet."""
    for kind in (xr.Dataset, xr.DataArray):
        if not hasattr(kind, _NAME):
            setattr(kind, _NAME, _AccessorDescriptor())
