"""The transform ``(x - mean) / std`` for each variable, in place in the gathered batches.

The statistics may be numbers, arrays along channels, or xarray objects. They are checked, cut to
the selection, and stored as tables that can be compared and pickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import OptionError
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe, find

_FORMS = (
    "{variable: (mean, std)}, {variable: {'mean': ..., 'std': ...}}, a Dataset with a dimension "
    "or coordinate 'stat', or one with variables '<variable>_mean' and '<variable>_std'"
)


@dataclass(frozen=True)
class Table:
    """Numbers along some dimensions of a variable, immutable and comparable.

    Parameters
    ----------
    dims : tuple of str
        Dimensions, in the variable's order.
    shape : tuple of int
        Sizes of the dimensions, as selected.
    data : bytes
        The values as float64 in native byte order.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, dims: tuple[str, ...], values: NDArray[Any]) -> Table:
        """Make a table from an array with the dimensions ``dims``."""
        values = np.asarray(values, np.float64, order="C")
        return cls(dims, values.shape, values.tobytes())

    def cut(self, dim: str, part: range) -> Table:
        """The numbers at some positions along a dimension; all if they do not vary along it."""
        if dim not in self.dims:
            return self
        values = np.frombuffer(self.data, np.float64).reshape(self.shape)
        return Table.of(self.dims, values.take(part, axis=self.dims.index(dim)))

    def along(self, dims: tuple[str, ...], dtype: np.dtype) -> NDArray[Any]:
        """The values with one axis for each of ``dims``: of size 1 if they do not vary along it."""
        values = np.frombuffer(self.data, np.float64).reshape(self.shape)
        sizes = dict(zip(self.dims, self.shape, strict=True))
        return values.reshape([sizes.get(dim, 1) for dim in dims]).astype(dtype)


@dataclass(frozen=True)
class Normalize:
    """The transform that subtracts a mean and divides by a standard deviation.

    Parameters
    ----------
    tables : tuple of (str, tuple of str, Table, Table)
        For each variable: its name, its stored dimensions, its mean and its standard deviation.
    """

    tables: tuple[tuple[str, tuple[str, ...], Table, Table], ...]

    @property
    def is_in_place(self) -> bool:
        """Always True."""
        return True

    def describe(self) -> str:
        """The variables and a hash of the numbers, as text."""
        digest = hashlib.sha256(repr(self.tables).encode()).hexdigest()[:16]
        return f"normalize({', '.join(name for name, *_ in self.tables)}; {digest})"

    def promote(self, variables: tuple[str, ...], dtype: np.dtype) -> np.dtype:
        """The dtype for normalised integers: float64 from 32 bits on, else float32. Others stay."""
        if not self.changes_units(variables) or dtype.kind == "f":
            return dtype
        return np.dtype(np.float64 if dtype.itemsize >= 4 else np.float32)

    def changes_units(self, variables: tuple[str, ...]) -> bool:
        """Whether any of the variables is normalised."""
        return any(name in variables for name, *_ in self.tables)

    def cut(self, dim: str, part: range) -> Normalize:
        """The transform for samples that keep only some positions along a dimension."""
        return Normalize(
            tuple(
                (name, dims, mean.cut(dim, part), std.cut(dim, part))
                for name, dims, mean, std in self.tables
            )
        )

    def apply(self, layouts: tuple[FieldLayout, ...], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Normalise the arrays of a batch, given by field, in place and in their own dtype."""
        tables = {name: (dims, mean, std) for name, dims, mean, std in self.tables}
        for layout in layouts:
            for part in layout.parts:
                if part.variable not in tables:
                    continue
                dims, mean, std = tables[part.variable]
                view = part.view(arrays[layout.name])
                _change(view, mean.along(dims, view.dtype), std.along(dims, view.dtype))

    def change_of(self, variable: str, dtype: np.dtype) -> Callable[[NDArray[Any]], None] | None:
        """The change that `apply` makes to values of a variable, if it changes all of them alike.

        Parameters
        ----------
        variable : str
            Name of the variable.
        dtype : numpy.dtype
            Dtype of the values.

        Returns
        -------
        callable or None
            None if the variable is not normalised, or if its numbers vary along a dimension.
        """
        for name, _, mean, std in self.tables:
            if name == variable and not mean.dims and not std.dims:
                return partial(_change, mean=mean.along((), dtype), std=std.along((), dtype))
        return None

    def without(self, variables: Collection[str]) -> Normalize:
        """The transform that leaves some variables as they are."""
        return Normalize(tuple(table for table in self.tables if table[0] not in variables))


def _change(values: NDArray[Any], mean: NDArray[Any], std: NDArray[Any]) -> None:
    np.subtract(values, mean, out=values)
    np.divide(values, std, out=values)


def make_normalize(recipe: Recipe, stats: Any, mean: Any, std: Any) -> Normalize:
    """Make the transform from statistics as :meth:`xloader.Samples.normalize` takes them.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the samples, with windows.
    stats : mapping or xarray.Dataset or None
        Mean and standard deviation together, by variable.
    mean, std : mapping or xarray.Dataset or None
        Mean and standard deviation apart, by variable. ``stats`` is taken for the mean if only
        ``std`` is given besides.

    Returns
    -------
    Normalize
        The transform.

    Raises
    ------
    OptionError
        If a mean or standard deviation is missing, is not finite or does not fit the variable's
        dimensions, or if a standard deviation is not above 0.
    UnknownNameError
        If the recipe has no such variable.
    """
    if stats is not None and std is not None and mean is None:
        stats, mean = None, stats
    if (stats is None) == (mean is None and std is None):
        raise OptionError(
            "the statistics are missing or given twice",
            given=f"stats={stats is not None}, mean={mean is not None}, std={std is not None}",
            allowed=f"stats, or mean and std. stats is {_FORMS}",
            remedy='pass for example stats={"t2m": (280.0, 20.0)}',
        )
    pairs = _pairs(recipe, stats, mean, std)
    tables = []
    for name, (centre, scale) in pairs.items():
        find(name, recipe.variables, "variable")
        dims = recipe.variable(name).dims
        centres = _table(recipe, name, "mean", centre)
        scales = _table(recipe, name, "std", scale)
        _check(name, "mean", centres, lowest=-np.inf)
        _check(name, "std", scales, lowest=0.0)
        tables.append((name, dims, centres, scales))
    return Normalize(tuple(tables))


def _pairs(recipe: Recipe, stats: Any, mean: Any, std: Any) -> dict[str, tuple[Any, Any]]:
    if stats is None:
        means, stds = _by_name(mean), _by_name(std)
        if set(means) != set(stds):
            raise OptionError(
                "mean and std do not name the same variables",
                given=f"mean for {sorted(means)}, std for {sorted(stds)}",
                allowed="two mappings or Datasets with the same variables",
                remedy="pass both for each variable that you want to normalise",
            )
        return {name: (means[name], stds[name]) for name in means}
    if isinstance(stats, xr.Dataset):
        return _pairs_of_dataset(recipe, stats)
    pairs = {}
    for name, entry in _by_name(stats).items():
        try:
            if isinstance(entry, Mapping):
                pairs[name] = (entry["mean"], entry["std"])
            else:
                centre, scale = entry
                pairs[name] = (centre, scale)
        except (KeyError, TypeError, ValueError) as error:
            raise _not_a_pair(name, entry) from error
    return pairs


def _by_name(values: Any) -> dict[str, Any]:
    if isinstance(values, xr.Dataset):
        return {str(name): value for name, value in values.data_vars.items()}
    if isinstance(values, Mapping):
        return dict(values)
    raise OptionError(
        "the statistics do not say which variable they belong to",
        given=repr(values),
        allowed=f"a mapping or an xarray Dataset: {_FORMS}",
        remedy='pass for example {"t2m": (280.0, 20.0)}',
    )


def _pairs_of_dataset(recipe: Recipe, stats: xr.Dataset) -> dict[str, tuple[Any, Any]]:
    if "stat" in stats.indexes and {"mean", "std"} <= set(stats.indexes["stat"]):
        return {
            str(name): (value.sel(stat="mean"), value.sel(stat="std"))
            for name, value in stats.data_vars.items()
            if "stat" in value.dims
        }
    names = [str(name)[: -len("_mean")] for name in stats if str(name).endswith("_mean")]
    pairs = {
        name: (stats[f"{name}_mean"], stats[f"{name}_std"])
        for name in names
        if f"{name}_std" in stats
    }
    if not pairs:
        raise OptionError(
            "the Dataset does not hold a mean and a standard deviation of any variable",
            given=f"variables {[str(name) for name in stats]}",
            allowed=_FORMS,
            remedy="if the means and standard deviations are in two Datasets, call "
            "normalize(mean=means, std=stds)",
        )
    return pairs


def _not_a_pair(name: str, entry: object) -> OptionError:
    return OptionError(
        f"the statistics of {name!r} are not a pair of mean and std",
        given=repr(entry),
        allowed="(mean, std), or a mapping with 'mean' and 'std'",
        remedy=f'pass {{"{name}": (mean, std)}}',
    )


def _table(recipe: Recipe, name: str, word: str, value: Any) -> Table:
    if not isinstance(value, xr.DataArray):
        values = np.asarray(value)
        dims = recipe.channel_dims(name)[: values.ndim] if values.ndim else ()
        if values.dtype.kind not in "biuf" or len(dims) != values.ndim:
            raise _misfit(recipe, name, word, f"{values.dtype} of shape {values.shape}")
        value = xr.DataArray(values, dims=dims)
    own = recipe.variable(name).dims
    windowed = [dim for dim in value.dims if dim in recipe.require_windows().dims]
    if windowed:
        raise OptionError(
            f"the {word} of {name!r} varies along windowed dimensions",
            given=f"dimensions {value.dims}",
            allowed=_that_fit(recipe, name),
            remedy=f"average over {windowed} too, or subtract and divide in .map(fn)",
        )
    for dim in value.dims:
        if dim not in own:
            raise _misfit(recipe, name, word, f"dimensions {value.dims}")
        value = _as_selected(recipe, name, word, value, str(dim))
    dims = tuple(dim for dim in own if dim in value.dims)
    return Table.of(dims, value.transpose(*dims).to_numpy())


def _as_selected(
    recipe: Recipe, name: str, word: str, value: xr.DataArray, dim: str
) -> xr.DataArray:
    """Statistics cut to the selection: by label if both have labels, else by position."""
    kept = recipe.kept_of(dim)
    elements: Any = kept if isinstance(kept, int) else np.asarray(kept, np.int64)
    coords = recipe.source.coordinates()
    if dim in value.indexes and dim in coords.indexes:
        labels = coords[dim].to_numpy()[elements]
        try:
            return value.sel({dim: labels})
        except KeyError as error:
            raise _misfit(recipe, name, word, f"labels {value[dim].to_numpy()}") from error
    if value.sizes[dim] == recipe.dim_sizes.get(dim):
        return value
    stored_size = recipe.axes_of(name)[recipe.variable(name).dims.index(dim)].stored_size
    if value.sizes[dim] != stored_size:
        raise _misfit(recipe, name, word, f"{value.sizes[dim]} values along {dim!r}")
    return value.isel({dim: elements})


def _that_fit(recipe: Recipe, name: str) -> str:
    windowed = recipe.require_windows().dims
    whole = [dim for dim in recipe.dims_of(name) if dim not in windowed]
    flat = recipe.channel_dims(name)
    kinds = ["a number"]
    kinds += [f"an array along {', '.join(map(repr, flat))}"] if flat else []
    kinds += [f"a DataArray along some of {whole}, the dimensions without windows"] if whole else []
    return ", ".join(kinds)


def _misfit(recipe: Recipe, name: str, word: str, given: str) -> OptionError:
    return OptionError(
        f"the {word} of {name!r} does not fit the variable",
        given=given,
        allowed=_that_fit(recipe, name),
        remedy="average over the windowed dimensions, and pass a DataArray that names the others; "
        "for a slab too, it covers the whole dimension",
    )


def _check(name: str, word: str, table: Table, *, lowest: float) -> None:
    values = np.frombuffer(table.data, np.float64)
    bad = ~(np.isfinite(values) & (values > lowest))
    if bad.any():
        raise OptionError(
            f"the {word} of {name!r} cannot be used to normalise",
            given=float(values[bad][0]),
            allowed="finite numbers" if lowest < 0 else "finite numbers > 0",
            remedy=f"leave {name!r} out, or pass (0, 1) for it; if a map has gaps, such as land, "
            "pass mean.fillna(0) and std.fillna(1)",
        )
