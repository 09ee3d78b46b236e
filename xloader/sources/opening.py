"""`open_source`: from whatever a user has to a source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import xarray as xr
import zarr
from numpy.typing import DTypeLike
from zarr.abc.store import Store
from zarr.errors import ContainsArrayError, NodeNotFoundError

from xloader.errors import (
    MissingDependencyError,
    OptionError,
    SourceNotFoundError,
    UnsupportedDataError,
)
from xloader.sources import catalog
from xloader.sources.base import Source
from xloader.sources.datasets import from_dataset
from xloader.sources.openers import FileOpener, ZarrOpener, safe_name
from xloader.sources.xarray_source import XarraySource, describe
from xloader.sources.zarr_source import OnMissing, ZarrSource

DEFAULT_DTYPE: Final = catalog.DefaultDtype("float32")
"""What packed integers decode to unless asked: those of four bytes or more to float64."""

UNNAMED: Final = "data"
"""The name that an unnamed ``xr.DataArray`` gets as a variable."""


def open_source(
    source: object,
    *,
    variables: Iterable[str] | str | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dtype: DTypeLike | None = DEFAULT_DTYPE,
    on_missing: OnMissing = "warn",
    **open_kwargs: Any,
) -> Source:
    """Open a source of variables in chunks.

    Parameters
    ----------
    source : str, os.PathLike, zarr store, zarr.Group, xarray.Dataset or xarray.DataArray
        A directory with a Zarr group (v2 or v3), a file that xarray opens (netCDF), an open
        store or group, or an open dataset of any backing. An unnamed DataArray is offered as
        ``"data"``.
    variables : iterable of str, optional
        The data variables to offer; by default all that hold bool, integers or floats, those
        of a Zarr group sorted by name.
    group : str, optional
        Path of the group within a store or file.
    storage_options : mapping, optional
        Options for the file system of a URL.
    dtype : dtype-like or None, default "float32"
        What integers packed with ``scale_factor`` or ``add_offset`` decode to. By default
        those of four bytes or more decode to float64, as float32 would lose digits; a dtype
        passed in is kept for all. None leaves the choice to xarray. An open dataset keeps its
        own dtypes.
    on_missing : {"warn", "raise", "fill"}, default "warn"
        What to do about Zarr chunks that are absent: read the fill value with one warning,
        raise `MissingChunkError`, or read the fill value silently.
    **open_kwargs
        Passed to ``xr.open_dataset``.

    Returns
    -------
    Source
        A source that pickles small and opens its handles lazily in each process.

    Raises
    ------
    SourceNotFoundError
        If there is nothing at the path, or no Zarr group.
    UnknownNameError
        If a variable asked for is not there.
    UnsupportedDataError
        If a variable asked for holds no numbers, or nothing can open the source.
    OptionError
        If an option is out of range, or makes no sense for this source.
    MissingDependencyError
        If the library for a URL is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> source = open_source(xr.DataArray(np.zeros((4, 3)), dims=("time", "x"), name="t2m"))
    >>> source.variables["t2m"].shape
    (4, 3)
    """
    if on_missing not in ("warn", "raise", "fill"):
        raise OptionError(
            "on_missing is unknown", given=repr(on_missing), allowed='"warn", "raise", "fill"'
        )
    if isinstance(source, xr.DataArray):
        source = source.to_dataset(name=UNNAMED if source.name is None else source.name)
    if isinstance(source, xr.Dataset):
        _refuse_options(group, storage_options, open_kwargs)
        return from_dataset(source, variables)
    if isinstance(source, zarr.Group):
        within = "/".join(part for part in (source.path, group) if part)
        opener = ZarrOpener(source.store, within, None, open_kwargs)
        return _from_zarr(opener, variables, dtype, on_missing)
    if isinstance(source, Store):
        opener = ZarrOpener(source, group or "", None, open_kwargs)
        return _from_zarr(opener, variables, dtype, on_missing)
    if isinstance(source, str | os.PathLike):
        place = _place(os.fspath(source))
        if _is_zarr(place, open_kwargs):
            opener = ZarrOpener(place, group or "", storage_options, open_kwargs)
            return _from_zarr(opener, variables, dtype, on_missing)
        if group is not None:
            open_kwargs["group"] = group
        return _from_file(FileOpener(place, open_kwargs), variables, dtype)
    if isinstance(source, Source):
        return source
    raise UnsupportedDataError(
        "this is no source of data",
        given=f"{type(source).__module__}.{type(source).__qualname__}",
        allowed="a path, a zarr store or group, an xarray Dataset or DataArray",
        remedy="open many files as one with xr.open_mfdataset([...]).xloader"
        if isinstance(source, list | tuple)
        else "open it with xarray first and pass the Dataset",
    )


def _from_zarr(
    opener: ZarrOpener,
    variables: Iterable[str] | str | None,
    dtype: DTypeLike | None,
    on_missing: OnMissing,
) -> Source:
    group = _open_group(opener)
    try:
        dataset = opener.open_dataset(create_default_indexes=False)
    except KeyError as error:
        raise UnsupportedDataError(
            "xarray cannot make a dataset of this Zarr group",
            given=f"{opener.name} ({error.args[0] if error.args else error})",
            allowed="arrays with dimension names",
            remedy="write dimension_names (v3) or _ARRAY_DIMENSIONS (v2), as xarray does",
        ) from error
    except ValueError as error:
        raise UnsupportedDataError(
            "xarray cannot make a dataset of this Zarr group",
            given=f"{opener.name} ({error})",
            allowed="arrays of bool, integers or floats, and metadata that xarray decodes",
            remedy="open it with xarray, with drop_variables= or decode_cf=, and pass the Dataset",
        ) from error
    if not dataset.data_vars:
        _refuse_empty(opener.name, _groups_of(group))
    # A store lists its arrays in any order, and another machine's copy in another.
    dataset = dataset[sorted(dataset.data_vars, key=str)].assign_coords(dataset.coords)
    return ZarrSource(
        open_store=opener.open_store,
        open_dataset=opener.open_dataset,
        group=group,
        dataset=dataset,
        variables=catalog.choose(dataset, variables, opener.name),
        name=opener.name,
        dtype=dtype,
        on_missing=on_missing,
        is_shared=isinstance(opener.place, Store),
    )


def _open_group(opener: ZarrOpener) -> zarr.Group:
    try:
        return opener.open_group()
    except (NodeNotFoundError, FileNotFoundError) as error:
        raise SourceNotFoundError(
            "there is no Zarr group here",
            given=opener.name,
            allowed="a directory or store with zarr.json, or .zgroup for Zarr v2",
            remedy="check the path, or pass group= for one further down",
        ) from error
    except ContainsArrayError as error:
        raise UnsupportedDataError(
            "this is a single Zarr array, which has no dimensions to name",
            given=opener.name,
            allowed="a Zarr group of arrays",
            remedy="open the group that holds it",
        ) from error
    except ImportError as error:
        raise MissingDependencyError(
            f"a library for this kind of URL is not installed ({error})",
            given=opener.name,
            remedy='pip install "xloader[cloud]"',
        ) from error
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise UnsupportedDataError(
            "there is no file system for this kind of URL",
            given=opener.name,
            allowed="a path, or a URL that fsspec knows, such as s3://, gs:// and https://",
        ) from error


def _groups_of(group: zarr.Group) -> list[str]:
    """Paths of the groups further down that hold arrays, from the store's root."""
    if not group.store.supports_listing:
        return []
    # Only arrays count: a group of groups would lead no further than this one did.
    found = {
        path.rpartition("/")[0]
        for path, member in group.members(max_depth=None)
        if isinstance(member, zarr.Array)
    }
    return sorted("/".join(part for part in (group.path, path) if part) for path in found if path)


def _groups_within(opener: FileOpener) -> list[str]:
    """Paths of the groups of a file that hold variables, where its engine can tell."""
    try:
        groups = xr.open_groups(opener.path, engine=opener.kwargs.get("engine"))
    except (NotImplementedError, OSError, ValueError):
        return []
    found = [path.strip("/") for path, group in groups.items() if group.data_vars]
    for group in groups.values():
        group.close()
    return sorted(path for path in found if path)


def _refuse_empty(name: str, groups: list[str]) -> None:
    if groups:
        raise UnsupportedDataError(
            f"{name} holds no data variable, but groups that may",
            given="no data variable",
            allowed=f"one of the groups {groups}",
            remedy=f'pass group="{groups[0]}"',
        )


def _from_file(
    opener: FileOpener, variables: Iterable[str] | str | None, dtype: DTypeLike | None
) -> Source:
    name = safe_name(opener.path)
    try:
        dataset = opener()
    except (OSError, ValueError, ImportError) as error:
        raise UnsupportedDataError(
            f"xarray cannot open this file ({type(error).__name__}: {error})",
            given=name,
            allowed="a whole file of a kind that an installed xarray engine reads",
            remedy='check the file, pass engine=, or pip install "xloader[netcdf]"',
        ) from error
    with dataset:
        if not dataset.data_vars:
            _refuse_empty(name, _groups_within(opener))
        chosen = catalog.choose(dataset, variables, name)
        described = describe(dataset, chosen, dtype)
    return XarraySource(
        described, open_dataset=opener, name=name, key=os.path.basename(opener.path)
    )


def _place(path: str) -> str:
    path = re.sub(r"^file://", "", path)
    if "://" in path:
        return path
    # Absolute: a worker may be started in another directory.
    full = Path(path).expanduser().absolute()
    if not full.exists():
        raise SourceNotFoundError(
            "there is nothing at this path",
            given=path,
            allowed="a Zarr directory or a file that xarray opens",
            remedy=f"open many files as one with xr.open_mfdataset({path!r}).xloader"
            if any(mark in path for mark in "*?[")
            else f"check the path; it was looked for at {full}",
        )
    return str(full)


def _is_zarr(place: str, open_kwargs: Mapping[str, Any]) -> bool:
    engine = open_kwargs.get("engine")
    if engine is not None:
        return bool(engine == "zarr")
    if "://" in place:
        return not place.endswith((".nc", ".nc4", ".h5", ".grib", ".grib2"))
    return os.path.isdir(place)


def _refuse_options(
    group: str | None, storage_options: Mapping[str, Any] | None, open_kwargs: Mapping[str, Any]
) -> None:
    given = [
        *(["group"] if group is not None else []),
        *(["storage_options"] if storage_options is not None else []),
        *open_kwargs,
    ]
    if given:
        raise OptionError(
            "an open Dataset takes no options for opening",
            given=", ".join(given),
            remedy="pass them to xr.open_dataset, or pass the path instead",
        )
