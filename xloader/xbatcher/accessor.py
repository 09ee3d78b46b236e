"""The accessor ``ds.batch.generator(...)``, unless another library has registered that name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from xloader.xbatcher.generator import BatchGenerator

_NAME = "batch"


class BatchAccessor:
    """The accessor ``ds.batch``, which makes batch generators of ``ds``.

    Parameters
    ----------
    obj : xarray.Dataset or xarray.DataArray
        The object to iterate over.
    """

    def __init__(self, obj: xr.Dataset | xr.DataArray) -> None:
        self._obj = obj

    def generator(self, *args: Any, **kwargs: Any) -> BatchGenerator:
        """Make a :class:`BatchGenerator` of the object.

        Parameters
        ----------
        *args, **kwargs
            Arguments of :class:`BatchGenerator` after ``ds``.

        Returns
        -------
        BatchGenerator
        """
        from xloader.xbatcher.generator import BatchGenerator

        return BatchGenerator(self._obj, *args, **kwargs)


class _AccessorDescriptor:
    """Descriptor that makes the accessor of an object, and gives way to others of the same name.

    It exists on objects, and raises `AttributeError` on the class. xarray warns if an accessor is
    registered under a name that the class has, so xbatcher, imported later, replaces this one
    without a warning. A variable or coordinate called ``batch`` is not hidden either.
    """

    def __get__(self, obj: Any, kind: type[Any]) -> BatchAccessor:
        if obj is None or _NAME in obj.coords or _NAME in getattr(obj, "data_vars", ()):
            raise AttributeError(_NAME)
        return BatchAccessor(obj)


def register() -> None:
    """Add ``batch`` to `xarray.Dataset` and `xarray.DataArray`, unless they have it already."""
    for kind in (xr.Dataset, xr.DataArray):
        if not hasattr(kind, _NAME):
            setattr(kind, _NAME, _AccessorDescriptor())
