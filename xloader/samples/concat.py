"""`concat`: opens many stores, files or Datasets as one, joined along a dimension."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import xarray as xr
from numpy.typing import DTypeLike

from xloader.core.retry_policy import RetryPolicy
from xloader.errors import OptionError, SourceNotFoundError, UnsupportedDataError
from xloader.recipe.recipe import Recipe
from xloader.samples.samples import Samples
from xloader.sources.catalog import DEFAULT_DTYPE
from xloader.sources.combined.concat_source import concat_sources
from xloader.sources.open.open_source import open_source
from xloader.sources.ordinary_files import local_path

_WILDCARDS = "*?["


def concat(
    sources: Iterable[object] | str,
    dim: str = "time",
    *,
    variables: Iterable[str] | str | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dtype: DTypeLike | None = DEFAULT_DTYPE,
    on_missing: Literal["warn", "raise", "fill"] = "warn",
    read_timeout: float = 300.0,
    max_retries: int = 4,
    **open_kwargs: Any,
) -> Samples:
    """Open many stores, files or Datasets as one along a dimension. No value is read.

    Only the metadata of each source and the labels of its dimensions are read here. Chunks are
    read later, from the source that holds them. Windows run across the borders between sources,
    but not across a gap: a year that was left out is no error, and the windows that would cross it
    are left out (see ``gaps`` of :meth:`Samples.window`).

    Parameters
    ----------
    sources : iterable of (str, os.PathLike, zarr store, zarr.Group, Dataset or DataArray), or str
        Anything that :func:`xloader.open` takes, in the order of the labels along ``dim``. A local
        path with ``*``, ``?`` or ``[`` stands for all paths that match it, sorted by name.
    dim : str, default "time"
        The dimension to join along. Its labels must continue from each source to the next; without
        labels nothing is checked. Labels along other dimensions must be the same in all sources,
        but for rounding to float32.
        Variables and coordinates without this dimension are taken from the first source.
    variables : iterable of str, optional
        The data variables to offer; by default all, which every source must then have.
    group, storage_options, dtype, on_missing, read_timeout, max_retries, **open_kwargs
        As for :func:`xloader.open`, applied to each source. Open Datasets take no options for
        opening.

    Returns
    -------
    Samples
        Everything that the sources offer, with no windows yet. Where files pack their values
        differently, each value is unpacked by its own file's attributes as it is read.

    Raises
    ------
    SourceNotFoundError
        If there is nothing to open, or a pattern matches no path.
    UnknownNameError
        If a source lacks the dimension or a variable.
    StackError
        If a variable differs between sources in its dimensions, its dtype, or the size or chunks
        of another dimension.
    OptionError
        If no source is given; if labels along ``dim`` overlap, change direction, mix calendars or
        are not in order; if labels of another dimension differ.
    UnsupportedDataError
        If a variable asked for holds no numbers, or nothing can open a source.

    Examples
    --------
    >>> import numpy as np
    >>> t2m = xr.DataArray(np.arange(12.0), {"time": np.arange(12)}, name="t2m")
    >>> samples = concat([t2m[:5], t2m[5:]]).window(time=3, stride=1)
    >>> len(samples), samples[4][0].tolist()
    (10, [4.0, 5.0, 6.0])
    """
    if not isinstance(dim, str):
        raise OptionError(
            "dim is not the name of a dimension", given=f"dim={dim!r}", allowed="one name"
        )
    # Each source reads the names: an iterator would be exhausted after the first.
    names = variables if variables is None or isinstance(variables, str) else tuple(variables)
    retry_policy = RetryPolicy(read_timeout, max_retries)
    opened = [
        open_source(
            source,
            variables=names,
            group=group,
            storage_options=storage_options,
            dtype=dtype,
            on_missing=on_missing,
            retry_policy=retry_policy,
            **open_kwargs,
        )
        for source in _expanded(_listed(sources))
    ]
    return Samples(Recipe(concat_sources(opened, dim), retry_policy=retry_policy))


def _listed(sources: Iterable[object] | str) -> list[object]:
    if isinstance(sources, str | os.PathLike | xr.Dataset | xr.DataArray | xr.DataTree):
        return [sources]
    if not isinstance(sources, Iterable):
        raise UnsupportedDataError(
            "this is not a list of sources",
            given=f"{type(sources).__module__}.{type(sources).__qualname__}",
            allowed="an iterable of sources that xloader.open takes, or a pattern of paths",
            remedy="pass a list, or use xloader.open for a single source",
        )
    return list(sources)


def _expanded(sources: list[object]) -> Iterator[object]:
    for source in sources:
        path = local_path(source) if isinstance(source, str | os.PathLike) else ""
        is_pattern = (
            # A question mark begins the query of a URL.
            "://" not in path
            and any(mark in path for mark in _WILDCARDS)
            and not Path(path).expanduser().exists()
        )
        if not is_pattern:
            yield source
            continue
        found = sorted(glob.glob(str(Path(path).expanduser())))
        if not found:
            raise SourceNotFoundError(
                "no file or folder matches this pattern",
                given=path,
                allowed="a pattern of local paths, such as era5_*.zarr",
                remedy=f"check the pattern; the search began in {Path.cwd()}",
            )
        yield from found
