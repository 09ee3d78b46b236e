"""From the arrays of a batch's patches to what a loop over a generator gets.

Everything that is no array of a patch (coordinates, variables in memory, dates and text) is
xarray's own selection of the object that was passed in, so names, labels and attributes are as
xarray has them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, Final

import xarray as xr
from numpy.typing import NDArray

from xloader.sources.datasets.xarray_source import is_in_memory
from xloader.xbatcher.concat_inputs import Joining, join, stack
from xloader.xbatcher.patches import Patches

_INNER: Final = "data"
"""What the values of an ``xr.DataArray`` are called where a Dataset is needed."""

_MOST_KEPT_NBYTES: Final = 64 * 2**20
"""Of coordinates and constants that are read once and kept; beyond it they are read each time."""


class Frames:
    """Makes batches of an xarray object out of the arrays of their patches.

    Parameters
    ----------
    obj : xarray.Dataset or xarray.DataArray
        What is cut into patches.
    patches : Patches
        How.

    Attributes
    ----------
    dataset : xarray.Dataset
        The object as a Dataset.
    names : tuple of str
        The variables of it that are to be read; the others are xarray's business.
    """

    def __init__(self, obj: xr.Dataset | xr.DataArray, patches: Patches) -> None:
        self.obj = obj
        self.patches = patches
        self.inner = _free_name(obj) if isinstance(obj, xr.DataArray) else None
        self.dataset = obj if isinstance(obj, xr.Dataset) else obj.to_dataset(name=self.inner)
        cut = {line.dim for line in patches.lines}
        self.names = tuple(
            str(name) for name, v in self.dataset.data_vars.items() if _is_read(name, v, cut)
        )

    def make(self, batch: int, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """A batch.

        Parameters
        ----------
        batch : int
            Its number.
        arrays : mapping of str to numpy.ndarray
            For each of `names` the patches of the batch, shape ``(num_patches, ...)``.

        Returns
        -------
        xarray.Dataset or xarray.DataArray
            As the object is one; its values are in memory.
        """
        if not self.patches.is_joined:
            patch = self._patch(batch, {name: array[0] for name, array in arrays.items()})
            return self._stacked(patch)
        if self.joining.is_plain:
            hull = self._others.isel(self.patches.hull(batch), missing_dims="ignore").load()
            starts = self.patches.starts_of(batch)
            return self._as_given(self.joining.make(hull, starts, arrays))
        parts = [
            self._patch(int(patch), {name: array[row] for name, array in arrays.items()})
            for row, patch in enumerate(self.patches.ids_of(batch))
        ]
        return join(parts, self.patches.input_dims)

    def make_lazily(self, batch: int) -> Any:
        """A batch of which nothing is read: xarray's selection as it is."""
        if not self.patches.is_joined:
            return self._stacked(self.obj.isel(self.patches.selector(batch)))
        parts = [self.obj.isel(self.patches.selector(int(n))) for n in self.patches.ids_of(batch)]
        return join(parts, self.patches.input_dims)

    def _patch(self, patch: int, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """One patch, in memory, as ``isel`` gives it."""
        others = self._others.isel(self.patches.selector(patch), missing_dims="ignore").load()
        variables = {
            name: (v.dims, arrays[str(name)], v.attrs) if name in arrays else others.variables[name]
            for name, v in self.dataset.data_vars.items()
        }
        return self._as_given(xr.Dataset(variables, others.coords, self.dataset.attrs))

    def _as_given(self, dataset: xr.Dataset) -> Any:
        return dataset if self.inner is None else dataset[self.inner].rename(self.obj.name)

    def _stacked(self, patch: Any) -> Any:
        return stack(patch, self.order, self.patches.input_dims)

    @cached_property
    def order(self) -> tuple[Hashable, ...]:
        """Dimensions of a patch, in the order that xarray counts them."""
        return tuple(self.obj.isel(self.patches.selector(0)).sizes)

    @cached_property
    def joining(self) -> Joining:
        """How patches are joined."""
        return Joining(self.dataset, self.inner, self.patches)

    @cached_property
    def _others(self) -> xr.Dataset:
        """All that is not read by us. What is small is read here, once."""
        # Loading changes what it loads: the object itself must stay as it is.
        others = self.dataset.drop_vars(self.names).copy()
        large = [
            name
            for name, v in others.variables.items()
            if not is_in_memory(v) and v.nbytes > _MOST_KEPT_NBYTES
        ]
        kept = others.drop_vars(large).load()
        coords = {name: others.variables[name] for name in large if name in others.coords}
        data = {name: others.variables[name] for name in large if name in others.data_vars}
        return kept.assign_coords(coords).assign(data)


def _is_read(name: Hashable, array: xr.DataArray, cut: set[Hashable]) -> bool:
    """Whether a variable is read in chunks: numbers, not in memory, with a dimension to cut."""
    dims = array.dims
    return (
        isinstance(name, str)
        and all(isinstance(dim, str) for dim in dims)
        and len(set(dims)) == len(dims)
        and bool(cut & set(dims))
        and array.dtype.kind in "biuf"
        and array.size > 0
        and not is_in_memory(array.variable)
    )


def _free_name(array: xr.DataArray) -> str:
    name = array.name if isinstance(array.name, str) else _INNER
    while name in array.coords or name in array.dims:
        name += "_"
    return name
