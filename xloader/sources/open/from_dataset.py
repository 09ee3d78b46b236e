"""Makes a source of an open ``xr.Dataset`` or ``xr.DataTree``.

Variables that are plain views of Zarr arrays are read directly. All others are read through
xarray.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import unknown, warn_caller
from xloader.core.packing import Packing
from xloader.errors import ClusterWarning, OptionError, UnsupportedDataError
from xloader.sources.arrays import catalog
from xloader.sources.arrays.cluster_blocks import effort_of, share_tasks
from xloader.sources.arrays.dask_views import view_of_variable
from xloader.sources.arrays.selected_source import Selected, SelectedBlocks, SelectedSource
from xloader.sources.arrays.xarray_source import XarraySource, backing, describe, is_in_memory
from xloader.sources.arrays.xarray_views import LazyView, UnrecognisedError
from xloader.sources.base import Source
from xloader.sources.combined.mixed_source import MixedSource
from xloader.sources.store_watch import StampedFiles
from xloader.sources.stores.locations import pack, place_of
from xloader.sources.stores.redaction import safe_name
from xloader.sources.zarr.fetched_chunks import OnMissing
from xloader.sources.zarr.zarr_source import ZarrSource, plan_variable

_MOST_REPEATS: Final = 8.0
"""A warning is raised if an epoch runs each task more often than this on average."""


@dataclass(frozen=True)
class _ZarrView:
    """A variable that is a plain view of a Zarr array."""

    lazy: LazyView
    selected: Selected
    stored: xr.DataArray


@dataclass(frozen=True)
class Given:
    """Returns an open dataset that the user passed. It pickles with the dataset."""

    dataset: xr.Dataset

    def __call__(self) -> xr.Dataset:
        """Return the dataset."""
        return self.dataset

    def __getstate__(self) -> bytes:
        return pack(
            self.dataset,
            "an open Dataset",
            "pass the path that it was opened from, or write it to a Zarr store first",
        )

    def __setstate__(self, state: bytes) -> None:
        object.__setattr__(self, "dataset", pickle.loads(state))


def from_dataset(
    dataset: xr.Dataset, variables: Iterable[str] | str | None, on_missing: OnMissing = "warn"
) -> Source:
    """Make a source of an open dataset of any backing.

    A variable is read chunk by chunk from its store if it was opened lazily from Zarr, with or
    without dask, and since then only selected from, transposed or renamed. All other variables are
    read block by block through xarray.
    """
    path = safe_name(str(dataset.encoding.get("source") or ""))
    name = f"an open Dataset of {path}" if path else "an open Dataset"
    chosen = catalog.choose(dataset, variables, name)
    views: dict[str, _ZarrView] = {}
    reasons: dict[str, str] = {}
    for variable in chosen:
        try:
            views[variable] = _find(dataset[variable])
        except UnrecognisedError as reason:
            reasons[variable] = str(reason)
    rest = _rest(dataset, reasons, name, os.path.basename(path))
    if not views:
        return rest
    owners: dict[str, Source] = dict.fromkeys(reasons, rest)
    stores = {id(store): store for store in (view.lazy.array.store for view in views.values())}
    for store in stores.values():
        members = {v: view for v, view in views.items() if view.lazy.array.store is store}
        owners.update(dict.fromkeys(members, _stored(dataset, members, name, on_missing)))
    return MixedSource({variable: owners[variable] for variable in chosen}, rest)


def _rest(dataset: xr.Dataset, reasons: dict[str, str], name: str, key: str) -> XarraySource:
    """The source of the coordinates and of the variables that are read through xarray."""
    names = tuple(reasons)
    # Choosing variables drops the coordinates of all others, which the source still offers.
    kept = dataset[list(names)].assign_coords(dataset.coords)
    return XarraySource(
        describe(kept, names, None),
        open_dataset=Given(kept),
        name=name,
        key=key,
        words={variable: _words(kept[variable], reasons[variable]) for variable in names},
        together=share_tasks(kept, names),
        is_forkable=all(is_in_memory(kept.variables[variable]) for variable in names),
        is_shared=True,
        files=_files_of(kept, names),
    )


def _files_of(dataset: xr.Dataset, names: Iterable[str]) -> StampedFiles | None:
    """The local files that variables are still read from, as far as xarray recorded them.

    None if there are none.
    """
    files: set[str] = set()
    for variable in (dataset.variables[name] for name in names):
        recorded = {str(owner.encoding.get("source") or "") for owner in (dataset, variable)}
        paths = set(filter(os.path.isfile, recorded))
        if paths and _is_lazy(variable):
            files |= set(map(os.path.abspath, paths))
    return StampedFiles.now(*sorted(files)) if files else None


def _is_lazy(variable: xr.Variable) -> bool:
    """Whether a variable's values are not all in memory.

    A dask block of one task counts as in memory, since a persisted block is one. So does a block
    whose number of tasks is not known.
    """
    if variable.chunks is None:
        return not is_in_memory(variable)
    return effort_of(variable.data).num_tasks > 1


def _stored(
    dataset: xr.Dataset, views: dict[str, _ZarrView], name: str, on_missing: OnMissing
) -> SelectedSource:
    """The source of the variables whose arrays are in one store."""
    stored = xr.Dataset({variable: view.stored for variable, view in views.items()})
    dims = {variable: tuple(map(str, dataset[variable].dims)) for variable in views}
    place = place_of(next(iter(views.values())).lazy.array.store, {})
    assert place is not None, "a store of Zarr has a place"
    base = ZarrSource(
        place=place,
        open_dataset=partial(_decoded, stored),
        arrays={variable: view.lazy.array for variable, view in views.items()},
        dataset=stored,
        name=name,
        dtype=None,
        on_missing=on_missing,
        is_forkable=place.is_forkable,
    )
    return SelectedSource(base, {v: view.selected for v, view in views.items()}, dims)


def _decoded(dataset: xr.Dataset, create_default_indexes: bool) -> xr.Dataset:
    """Open a dataset of stored arrays as xarray decodes them, which pickles with their store."""
    return dataset


def _find(array: xr.DataArray) -> _ZarrView:
    """Find the Zarr array that a variable is a plain view of."""
    view = view_of_variable(array.variable)
    name = str(array.name)
    selected = view.selected(name)
    # Unique names: in a store, dimensions with the same name may have different sizes.
    dims = tuple(f"{name}[{axis}]" for axis in range(view.array.ndim))
    stored = xr.Variable(dims, view.decoded(), dict(array.attrs), dict(array.encoding))
    # The user may have changed the encoding for writing. Only the view's steps decoded anything.
    for key in catalog.DECODING_KEYS:
        stored.encoding.pop(key, None)
    stored.encoding.update(view.encoding())
    # A DataArray that is made from a Variable loses the encoding.
    decoded = xr.Dataset({name: stored})[name]
    dtypes = {np.dtype(dtype).newbyteorder("=") for dtype in (array.dtype, decoded.dtype)}
    if len(dtypes) > 1 or view.shape != array.shape:
        raise UnrecognisedError("its dtype or shape differs from the stored array")
    try:
        offered, route = plan_variable(decoded, view.array, None)
        SelectedBlocks(selected, offered)
    except UnsupportedDataError as error:
        raise UnrecognisedError(error.what) from error
    except OptionError as error:
        raise UnrecognisedError("an index that comes back to a chunk") from error
    if route.kind != "decoded":
        _check_values(view, offered.packing)
    return _ZarrView(view, selected, decoded)


def _check_values(view: LazyView, packing: Packing | None) -> None:
    """Check, on numbers of the stored dtype, that the encoding decodes as xarray does."""
    dtype = np.dtype(view.array.dtype)
    numbers = _numbers(dtype, () if packing is None else packing.fills)
    native = numbers.astype(dtype.newbyteorder("="))
    with np.errstate(all="ignore"):
        expected = view.decode(numbers)
        actual = native if packing is None else packing.unpack(native)
    is_float = expected.dtype.kind == "f"
    if not np.array_equal(expected, actual, equal_nan=is_float):
        raise UnrecognisedError("decoded differently from its encoding")


def _numbers(dtype: np.dtype, fills: tuple[Any, ...]) -> NDArray[Any]:
    """All numbers of a small dtype. Of a large one, enough to tell two decodings apart."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.itemsize <= 2:
        every = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
        return every.view(dtype)
    few = np.arange(-1000, 1000).astype(dtype)
    bits = np.random.Generator(np.random.Philox(0)).bytes(2000 * dtype.itemsize)
    with np.errstate(all="ignore"):
        special = np.array([np.asarray(fill).astype(dtype) for fill in fills], dtype)
    return np.concatenate([few, special, np.frombuffer(bits, dtype)])


def _words(array: xr.DataArray, reason: str) -> str:
    """How a variable is read through xarray, and why. Warns if tasks are repeated often."""
    held = backing(array.variable)
    words = f"block by block through xarray: {held}"
    if held == "numpy":
        return words
    if held != "dask":
        return f"{words}, {reason}"
    effort = effort_of(array.data)
    num_blocks = math.prod(array.data.numblocks)
    if effort.num_repeats > _MOST_REPEATS:
        warn_caller(
            f"each of the {num_blocks} blocks of variable {array.name!r} needs "
            f"{effort.num_tasks} dask tasks, so an epoch runs every task "
            f"{effort.num_repeats:.0f} times on average. Call .persist() or .compute() on "
            "results that all blocks need, such as a mean, before you use them.",
            ClusterWarning,
        )
    noun = "task" if effort.num_tasks == 1 else "tasks"
    tasks = f", {effort.num_tasks} {noun} a block" if effort.num_tasks else ""
    return f"{words}{tasks}, {reason}"


def from_tree(
    tree: xr.DataTree, variables: Iterable[str] | str | None, on_missing: OnMissing = "warn"
) -> Source:
    """Make a source of an open tree of groups of any backing."""
    from xloader.sources.combined.join_sources import tree_source

    groups = {_path(tree, node): node.to_dataset() for node in tree.subtree}
    offered = {
        (f"{path}/{name}" if path else str(name)): (path, str(name))
        for path, dataset in groups.items()
        for name, array in dataset.data_vars.items()
        if catalog.is_readable(array.dtype)
    }
    file = safe_name(str(tree.encoding.get("source") or ""))
    name = f"an open DataTree of {file}" if file else "an open DataTree"
    if not offered:
        raise UnsupportedDataError(
            f"{name} has no numeric data variable",
            given=f"the groups {', '.join(groups) or '/'}",
            remedy="convert variables with xarray's astype",
        )
    chosen: dict[str, list[str]] = {}
    paths = catalog.chosen_names(variables, offered)
    for full_path in paths:
        if full_path not in offered:
            what = f"{name} has no data variable of numbers with this path"
            raise unknown(full_path, offered, "path", what)
        path, variable = offered[full_path]
        chosen.setdefault(path, []).append(variable)
    # The names of the root come first: only those of groups below can be told apart by a path.
    sources = {
        path: from_dataset(dataset, chosen[path], on_missing)
        for path, dataset in groups.items()
        if path in chosen
    }
    return tree_source(sources, name, paths)


def _path(tree: xr.DataTree, node: xr.DataTree) -> str:
    """Path of a group within the tree that was passed, which may be a branch of a larger one."""
    path = node.relative_to(tree)
    return "" if path == "." else path
