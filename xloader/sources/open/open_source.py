"""`open_source`: opens a path, URL, store, Dataset or DataArray as a source."""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import xarray as xr
import zarr
from numpy.typing import DTypeLike

from xloader.core.messages import extra_remedy
from xloader.core.option_checks import check_choice
from xloader.core.retry_policy import RetryPolicy
from xloader.errors import OptionError, SourceNotFoundError, UnsupportedDataError, XloaderError
from xloader.sources.arrays import catalog
from xloader.sources.arrays.xarray_source import XarraySource, describe
from xloader.sources.base import Source
from xloader.sources.combined.labels import MERGED
from xloader.sources.open.from_dataset import from_dataset, from_tree
from xloader.sources.open.from_zarr import ZarrOpener, from_zarr, refuse_empty
from xloader.sources.store_watch import StampedFiles
from xloader.sources.stores.bounded_reads import check_path, local_path
from xloader.sources.stores.file_openers import FileOpener, Gate
from xloader.sources.stores.locations import (
    StoreLocation,
    is_zip,
    place_at,
    place_of,
    refuse_versions,
)
from xloader.sources.stores.redaction import access_error, cause_of, safe_name, secrets_of, told_of
from xloader.sources.zarr.fetched_chunks import OnMissing

VERSIONS: Final[tuple[str, ...]] = ("branch", "tag", "snapshot_id")
"""Options that say at which version to open an icechunk repository."""

UNNAMED: Final = "data"
"""Name of the variable that is made of an ``xr.DataArray`` without a name."""


def open_source(
    source: object,
    *,
    variables: Iterable[str] | str | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dtype: DTypeLike | None = catalog.DEFAULT_DTYPE,
    on_missing: OnMissing = "warn",
    retry_policy: RetryPolicy | None = None,
    **open_kwargs: Any,
) -> Source:
    """Open data as a source of variables in chunks.

    `variables`: those of a Zarr group are then sorted by name.
    """
    check_choice("on_missing", on_missing, ("warn", "raise", "fill"))
    if isinstance(source, xr.DataArray):
        source = source.to_dataset(name=UNNAMED if source.name is None else source.name)
    if isinstance(source, xr.Dataset | xr.DataTree):
        _refuse_options({"group": group, "storage_options": storage_options}, open_kwargs)
        if isinstance(source, xr.Dataset):
            return from_dataset(source, variables, on_missing)
        return from_tree(source, variables, on_missing)
    _refuse_misspelt(open_kwargs)
    if group is not None and not isinstance(group, str):
        raise OptionError("group is not a path", given=repr(group), allowed="text like 'deep/er'")
    versions: dict[str, Any] = {v: open_kwargs.pop(v) for v in VERSIONS if v in open_kwargs}
    within = (group or "").strip("/")
    if isinstance(source, zarr.Group):
        within = "/".join(piece for piece in (source.path, within) if piece)
        source = source.store
    place: StoreLocation | str | None
    if isinstance(source, str | os.PathLike):
        refuse_versions(versions)
        place = location_of(source, storage_options, open_kwargs)
    else:
        place = place_of(source, versions)
    if isinstance(place, str):
        kwargs = open_kwargs if group is None else {**open_kwargs, "group": group}
        if storage_options:
            # The netCDF library cannot read from fsspec's file systems.
            engine = open_kwargs.get("engine") or "h5netcdf"
            kwargs |= {"storage_options": dict(storage_options), "engine": engine}
        return from_file(FileOpener(place, kwargs), variables, dtype)
    if place is not None:
        place = place.patient(retry_policy or RetryPolicy())
        return from_zarr(ZarrOpener(place, within, open_kwargs), variables, dtype, on_missing)
    if isinstance(source, Source):
        return source
    raise UnsupportedDataError(
        "xloader cannot open an object of this kind",
        given=f"{type(source).__module__}.{type(source).__qualname__}",
        allowed="a path or URL, a store, session or zarr group, or an object of xarray",
        remedy=f"join them with xloader.concat([...]), or, with different variables, {MERGED}"
        if isinstance(source, list | tuple)
        else "open it with xarray first and pass the Dataset",
    )


def from_file(
    opener: FileOpener, variables: Iterable[str] | str | None, dtype: DTypeLike | None
) -> Source:
    """Open a file as xarray opens it, and make a source of it."""
    name, secrets = safe_name(opener.path), secrets_of(opener.kwargs)
    # Taken before the file is opened, so that any later write counts as a change.
    files = None if "://" in opener.path else StampedFiles.now(opener.path)
    try:
        dataset = opener()
    except FileNotFoundError as error:
        raise SourceNotFoundError(
            "there is no such file", given=name, remedy="check the path or URL"
        ) from cause_of(error, secrets)
    except (OSError, ValueError, ImportError, TypeError) as error:
        raise UnsupportedDataError(
            f"xarray cannot open this file ({told_of(error, secrets)})",
            given=name,
            remedy=_remedy_of(opener),
        ) from cause_of(error, secrets)
    except XloaderError:
        raise
    # File system libraries have errors of their own, which may show a signed URL.
    except Exception as error:
        raise access_error(error, name, secrets) from cause_of(error, secrets)
    try:
        if not dataset.data_vars:
            refuse_empty(name, opener.groups())
        chosen = catalog.choose(dataset, variables, name)
        described = describe(dataset, chosen, dtype)
    finally:
        with Gate.of_process().opening():
            dataset.close()
    return XarraySource(
        described,
        open_dataset=opener,
        name=name,
        key=os.path.basename(name),
        secrets=secrets,
        files=files,
    )


def _remedy_of(opener: FileOpener) -> str:
    """Advice on a file that xarray cannot open, from how it begins."""
    begin = b""
    if opener.kwargs.get("engine") != "h5netcdf":
        with suppress(OSError), open(opener.path, "rb") as file:
            begin = file.read(1 << 16)
    if begin.lstrip()[:1] == b"{" and re.search(rb'"(refs|\.z(group|array|metadata))"|/\.z', begin):
        return 'these are references: pass engine="kerchunk"'
    # Files of MATLAB have a block of their own before it.
    if b"\x89HDF\r\n\x1a\n" in begin:
        return (
            f'pass engine="h5netcdf", and phony_dims="access" where its dimensions have no names; '
            f"or {extra_remedy('netcdf')}"
        )
    return f"check the file, pass engine=, or {extra_remedy('netcdf')}"


def location_of(
    source: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    open_kwargs: dict[str, Any],
) -> StoreLocation | str:
    """The location of the Zarr store at a path or URL; the path of a file of another kind."""
    path = _existing(os.fspath(source), storage_options)
    engine = open_kwargs.get("engine")
    if engine == "kerchunk":
        # The engine means the same as fsspec's file system of references.
        del open_kwargs["engine"]
        return place_at("reference://", {"fo": path, **(storage_options or {})})
    if engine is not None:
        is_zarr = engine == "zarr"
    elif "://" in path:
        is_zarr = not safe_name(path).endswith((".nc", ".nc4", ".h5", ".grib", ".grib2"))
    else:
        is_zarr = os.path.isdir(path) or is_zip(path)
    return place_at(path, storage_options) if is_zarr else path


def _existing(path: str, storage_options: Mapping[str, Any] | None) -> str:
    """The absolute path of something that exists, or a URL unchanged."""
    path = local_path(path)
    if "://" in path:
        return path
    if storage_options:
        raise OptionError(
            "storage_options= are only for URLs",
            given=f"{', '.join(map(str, storage_options))} for the path {path}",
            remedy="leave them out, or pass the URL",
        )
    # Absolute: a worker may be started in another directory.
    full = Path(path).expanduser().absolute()
    # Unlike Path.exists, os.path.exists gives False for a name that is too long.
    if not os.path.exists(full):
        raise SourceNotFoundError(
            "there is nothing at this path",
            given=path,
            remedy=f"open many files as one with xloader.concat({path!r})"
            if any(mark in path for mark in "*?[")
            else f"check the path, which stands for {full}",
        )
    # Opening a fifo would wait forever.
    check_path(full)
    return str(full)


def _refuse_misspelt(open_kwargs: Mapping[str, Any]) -> None:
    """Raise an error for a misspelt option of xloader, before any request is made."""
    theirs = inspect.signature(xr.open_dataset).parameters
    ours = ("variables", "group", "storage_options", "dtype", "on_missing")
    for name in open_kwargs:
        close = difflib.get_close_matches(name, ours, n=1, cutoff=0.8)
        if name not in theirs and close:
            raise OptionError(
                f"open has no option {name!r}", given=name, remedy=f"did you mean {close[0]!r}?"
            )


def _refuse_options(options: Mapping[str, Any], open_kwargs: Mapping[str, Any]) -> None:
    """Raise an error if options for opening are given for an open dataset."""
    given = [*(name for name, value in options.items() if value is not None), *open_kwargs]
    if given:
        raise OptionError(
            "these options cannot be used with a Dataset that is already open",
            given=", ".join(given),
            remedy="pass them to xr.open_dataset, or pass the path instead",
        )
