"""Makes the batches of a generator, as xarray objects, from the arrays that xloader reads.

xloader reads only variables of numbers that are in a store. Everything else (coordinates,
variables in memory, dates and text) is selected from the user's object by xarray itself. So names,
labels and attributes are the same as with xarray alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.indexes import PandasIndex

from xloader.core.axis import Ints
from xloader.sources.arrays.xarray_source import is_in_memory
from xloader.xbatcher.patches import Line, Patches

SAMPLE: Final = "sample"
"""Name of the dimension into which others are stacked."""

BATCH: Final = "input_batch"
"""Name of the dimension along which patches are joined."""

SUFFIX: Final = "_input"
"""Suffix of the names of an input's dimensions in joined patches."""

Obj: TypeAlias = Any
"""A Dataset or a DataArray. A function that takes one returns one of the same type."""


Shown: TypeAlias = tuple[dict[str, tuple[Hashable, ...]], tuple[Hashable, ...]]
"""Dimensions of the variables of patches that xarray has joined, and of all of them in order."""


def stack(batch: Obj, dims: Sequence[Hashable], input_dims: Sequence[Hashable]) -> Obj:
    """Stack all dimensions but those of an input into ``sample``, if there are two or more."""
    sample_dims = [dim for dim in dims if dim not in input_dims]
    if len(sample_dims) < 2:
        return batch
    return batch.stack({SAMPLE: sample_dims}).transpose(SAMPLE, *input_dims)


def rename_inputs(patch: Obj, input_dims: Sequence[Hashable]) -> Obj:
    """Add the suffix ``_input`` to the names of an input's dimensions.

    In a Dataset, labels along such a dimension keep their name but lose their index.
    """
    for dim in input_dims:
        renamed = patch.rename({dim: f"{dim}{SUFFIX}"})
        # xbatcher looks for labels with `in`, which searches a DataArray's values and not its
        # coordinates. So a DataArray keeps its index, and does so here as well.
        if isinstance(patch, xr.Dataset) and dim in patch.variables:
            label = patch.variables[dim]
            renamed = renamed.drop_vars(f"{dim}{SUFFIX}")
            renamed.coords[dim] = (f"{dim}{SUFFIX}", label.to_numpy(), label.attrs)
        patch = renamed
    return patch


def join(patches: Sequence[Obj], input_dims: Sequence[Hashable]) -> Obj:
    """Join patches by `xarray.concat` as xbatcher does, and stack the other dimensions."""
    joined = _concat([rename_inputs(patch, input_dims) for patch in patches])
    return stack(joined, tuple(joined.sizes), [f"{dim}{SUFFIX}" for dim in input_dims])


def _concat(patches: Sequence[Obj]) -> Obj:
    """Join patches along ``input_batch`` as xbatcher 0.4 does.

    xbatcher relies on the defaults of `xarray.concat`. They are written out here, so that the
    result does not depend on the version of xarray.
    """
    return xr.concat(
        list(patches),
        dim=BATCH,
        data_vars="all",
        coords="different",
        compat="equals",
        join="outer",
        combine_attrs="override",
    )


def cut_variable(variable: xr.Variable, lines: Sequence[Line], starts: Ints) -> NDArray[Any]:
    """Cut the patches out of a variable, along the lines that it has.

    Copies of the ``n`` boxes, shape ``(n, ...)``, their axes in the variable's order.
    """
    array = variable.to_numpy()
    numbers = [number for number, line in enumerate(lines) if line.dim in variable.dims]
    if not numbers:
        return np.broadcast_to(array, (len(starts), *array.shape)).copy()
    axes = [variable.dims.index(lines[number].dim) for number in numbers]
    sizes = tuple(lines[number].size for number in numbers)
    windows = np.lib.stride_tricks.sliding_window_view(array, sizes, axis=tuple(axes))
    # The axes are now: starts along the cut axes, axes that are not cut, elements of a window.
    windows = np.moveaxis(windows, axes, range(len(axes)))
    boxes: NDArray[Any] = windows[tuple(starts[:, numbers].T)]
    whole = [axis for axis in range(array.ndim) if axis not in axes]
    order = np.argsort([*whole, *axes]) + 1
    return boxes.transpose(0, *order)


def _is_changing(cut: NDArray[Any]) -> bool:
    """Whether the patches of a variable differ. NaN equals NaN, as it does in `xarray.concat`."""
    dims = [str(axis) for axis in range(cut.ndim)]
    first = xr.DataArray(np.broadcast_to(cut[:1], cut.shape), dims=dims)
    return not xr.DataArray(cut, dims=dims).equals(first)


_INNER: Final = "data"
"""Variable name, in a Dataset, of an ``xr.DataArray`` whose own name is not a string."""

_MOST_KEPT_NBYTES: Final = 64 * 2**20
"""Largest size in bytes of a coordinate or constant that is read once and kept.

Larger ones are read again for each batch.
"""


class Frames:
    """Maker of the batches of an xarray object, from the arrays of their patches."""

    def __init__(self, obj: xr.Dataset | xr.DataArray, patches: Patches) -> None:
        self.obj = obj
        self.patches = patches
        self.inner = _free_name(obj) if isinstance(obj, xr.DataArray) else None
        self.dataset = obj if isinstance(obj, xr.Dataset) else obj.to_dataset(name=self.inner)
        cut = {line.dim for line in patches.lines}
        self.names = tuple(
            str(name) for name, v in self.dataset.data_vars.items() if _is_read(name, v, cut)
        )
        self._shown: dict[tuple[frozenset[str], bool], Shown] = {}

    def __reduce__(self) -> tuple[object, ...]:
        # What was read of the object is not pickled.
        return Frames, (self.obj, self.patches)

    def make(self, batch: int, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """Make a batch."""
        if not self.patches.is_joined:
            patch = self._patch(batch, {name: array[0] for name, array in arrays.items()})
            return self._stacked(patch)
        if self.is_plain:
            return self._as_given(self._joined(batch, arrays))
        pieces = [
            self._patch(int(patch), {name: array[row] for name, array in arrays.items()})
            for row, patch in enumerate(self.patches.ids_of(batch))
        ]
        return join(pieces, self.patches.input_dims)

    def make_lazily(self, batch: int) -> Any:
        """Make a batch as a lazy selection of the object by xarray, without the arrays."""
        if not self.patches.is_joined:
            return self._stacked(self.obj.isel(self.patches.selector(batch)))
        pieces = [self.obj.isel(self.patches.selector(int(n))) for n in self.patches.ids_of(batch)]
        return join(pieces, self.patches.input_dims)

    def _patch(self, patch: int, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """One patch in memory, the same as ``isel`` would give."""
        unread = self._unread.isel(self.patches.selector(patch), missing_dims="ignore").load()
        variables = {
            name: (v.dims, arrays[str(name)], v.attrs) if name in arrays else unread.variables[name]
            for name, v in self.dataset.data_vars.items()
        }
        return self._as_given(xr.Dataset(variables, unread.coords, self.dataset.attrs))

    def _as_given(self, dataset: xr.Dataset) -> Any:
        """Turn a Dataset into an object of the type and name that the user passed in."""
        return dataset if self.inner is None else dataset[self.inner].rename(self.obj.name)

    def _stacked(self, patch: Any) -> Any:
        return stack(patch, self.order, self.patches.input_dims)

    @cached_property
    def order(self) -> tuple[Hashable, ...]:
        """Dimensions of a patch, in the order of xarray's ``sizes``."""
        return tuple(self.obj.isel(self.patches.selector(0)).sizes)

    @cached_property
    def is_plain(self) -> bool:
        """Whether `_joined` may be used, since it gives the same result as :func:`join`.

        It does not where labels may decide how xarray aligns the patches, where names are not
        strings, or where names collide.
        """
        ds, inputs = self.dataset, self.patches.input_dims
        if self.inner is not None and any(dim in ds.variables for dim in inputs):
            return False
        if not all(
            isinstance(index, PandasIndex) and index.dim == name
            for name, index in ds.xindexes.items()
        ):
            return False
        names = {*ds.variables, *ds.dims}
        if not all(isinstance(name, str) for name in names):
            return False
        return names.isdisjoint({BATCH, SAMPLE, *(f"{dim}{SUFFIX}" for dim in inputs)})

    def _joined(self, batch: int, arrays: Mapping[str, NDArray[Any]]) -> xr.Dataset:
        """Join the patches of a batch, all at once."""
        ds, lines = self.dataset, self.patches.lines
        hull = self._unread.isel(self.patches.hull(batch), missing_dims="ignore").load()
        starts = self.patches.starts_of(batch)
        cut_dims = set(self.patches.input_dims)
        # The values of these may differ between patches.
        cut = {
            str(name): cut_variable(variable, lines, starts)
            for name, variable in hull.variables.items()
            if name in ds.data_vars or cut_dims & set(variable.dims)
        }
        values = {**arrays, **cut}
        differing = {n for n, v in values.items() if n in ds.coords and _is_changing(v)}
        dims_by_name, order = self._shown_dims(frozenset(differing), len(starts) > 1)
        variables = {
            name: (dims, values[name] if BATCH in dims else values[name][0], ds[name].attrs)
            for name, dims in dims_by_name.items()
            if name in values
        }
        kept = hull.drop_vars([name for name in map(str, hull.variables) if name in values])
        first = {line.dim: slice(0, line.size) for line in lines}
        whole = kept.isel(first, missing_dims="ignore")
        coords = {name: v for name, v in variables.items() if name in ds.coords}
        data = {name: v for name, v in variables.items() if name in ds.data_vars}
        joined = xr.Dataset(data, whole.coords, ds.attrs).assign_coords(coords)
        inputs = [f"{dim}{SUFFIX}" for dim in self.patches.input_dims]
        made: xr.Dataset = stack(joined, order, inputs)
        return made

    @cached_property
    def joined_order(self) -> tuple[Hashable, ...] | None:
        """Dimensions of a joined batch before stacking; None where labels decide on them."""
        if not self.is_plain:
            return None
        are_several = any(line.per_batch > 1 for line in self.patches.lines)
        inputs = set(self.patches.input_dims)
        labels = [str(k) for k, v in self.dataset.coords.items() if inputs & set(v.dims)]
        tried = [[], *([label] for label in labels), labels] if are_several else [[]]
        orders = {self._shown_dims(frozenset(some), are_several)[1] for some in tried}
        return orders.pop() if len(orders) == 1 else None

    def _shown_dims(self, differing: frozenset[str], are_several: bool) -> Shown:
        """Dimensions of the joined variables, found by letting xarray join dummy patches.

        The result is kept for later batches.
        """
        key = differing, are_several
        if key not in self._shown:
            patches = [self._small(frozenset())]
            if are_several:
                patches.append(self._small(differing))
            joined: Any = _concat(patches)
            order = tuple(joined.sizes) if self.inner is None else joined[self.inner].dims
            self._shown[key] = {str(name): v.dims for name, v in joined.variables.items()}, order
        return self._shown[key]

    def _small(self, differing: frozenset[str]) -> xr.Dataset:
        """A dummy patch that takes almost no memory.

        Its values are 0, or 1 for the coordinates named in ``differing``, so that xarray finds
        these to differ from those of another dummy patch.
        """
        inputs = self.patches.input_dims
        patch = self.dataset.isel(self.patches.selector(0))
        # Labels along an input have no effect on the dimensions, so they are not read for them.
        bare = {
            name: (v.dims, np.broadcast_to(np.int8(name in differing), v.shape))
            for name, v in patch.variables.items()
            if name in patch.data_vars or name not in patch.xindexes or set(v.dims) & set(inputs)
        }
        emptied = patch.copy(data={str(k): bare[k][1] for k in patch.data_vars})
        renamed: xr.Dataset = rename_inputs(emptied, inputs)
        for name, (dims, values) in bare.items():
            if name in patch.coords:
                new_dims = tuple(f"{dim}{SUFFIX}" if dim in inputs else dim for dim in dims)
                renamed.coords[name] = (new_dims, values)
        return renamed

    @cached_property
    def _unread(self) -> xr.Dataset:
        """All variables but `names`. Small ones are read here once, and are in memory."""
        # `load` changes the Dataset in place, and the user's object must stay lazy.
        unread = self.dataset.drop_vars(self.names).copy()
        large = [
            name
            for name, v in unread.variables.items()
            if not is_in_memory(v) and v.nbytes > _MOST_KEPT_NBYTES
        ]
        kept = unread.drop_vars(large).load()
        coords = {name: unread.variables[name] for name in large if name in unread.coords}
        data = {name: unread.variables[name] for name in large if name in unread.data_vars}
        return kept.assign_coords(coords).assign(data)


def _is_read(name: Hashable, array: xr.DataArray, cut: set[Hashable]) -> bool:
    """Whether xloader reads a variable: numbers, not in memory, with a dimension that is cut."""
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
    """A variable name for the values of a DataArray that none of its coordinates or dims has."""
    name = array.name if isinstance(array.name, str) else _INNER
    while name in array.coords or name in array.dims:
        name += "_"
    return name
