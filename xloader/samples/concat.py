"""The door to samples of many stores or files as one."""

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
from xloader.sources.combined.concat_source import concat_sources
from xloader.sources.open.open_source import DEFAULT_DTYPE, open_source

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

    Of each, the metadata and the labels of the dimensions are looked at; chunks are read by
    what opened them. Windows run across the borders, and across what lies between: a year
    that was left out is not missed, but ``explain()`` names the step across it.

    Parameters
    ----------
    sources : iterable of (str, os.PathLike, zarr store, zarr.Group, Dataset or DataArray), or str
        Whatever :func:`xloader.open` takes, in the order of their labels along ``dim``. A local
        path with ``*``, ``?`` or ``[`` stands for those that match it, sorted by name.
    dim : str, default "time"
        The dimension to join along. Its labels must go on from each source to the next; without
        labels nothing is checked. Labels along other dimensions must be the same in all.
        Variables and coordinates without it are the first source's.
    variables : iterable of str, optional
        The data variables to offer; by default all, which every source must then have.
    group, storage_options, dtype, on_missing, read_timeout, max_retries, **open_kwargs
        As of :func:`xloader.open`, for each source. Open Datasets take no options for opening.

    Returns
    -------
    Samples
        Everything that the sources offer, with no windows yet. Values that are packed in
        another way from file to file are unpacked as they are read.

    Raises
    ------
    SourceNotFoundError
        If there is nothing to open, or nothing matches.
    UnknownNameError
        If a source lacks the dimension or a variable.
    StackError
        If a variable differs in its dimensions, another dimension's size or chunks, or dtype.
    OptionError
        If no source is given, or labels along ``dim`` overlap, turn round, mix calendars or
        come in another order; if labels of another dimension differ.
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
            "sources are joined along one dimension", given=f"dim={dim!r}", allowed="its name"
        )
    # An iterator would be empty at the second source.
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
    if isinstance(sources, str | os.PathLike | xr.Dataset | xr.DataArray):
        return [sources]
    if not isinstance(sources, Iterable):
        raise UnsupportedDataError(
            "this is no list of sources",
            given=f"{type(sources).__module__}.{type(sources).__qualname__}",
            allowed="an iterable of what xloader.open takes, or a pattern of paths",
            remedy="pass a list, or use xloader.open for a single source",
        )
    return list(sources)


def _expanded(sources: list[object]) -> Iterator[object]:
    for source in sources:
        is_pattern = (
            isinstance(source, str | os.PathLike)
            # A question mark begins the query of a URL.
            and "://" not in os.fspath(source)
            and any(mark in os.fspath(source) for mark in _WILDCARDS)
            and not Path(source).expanduser().exists()
        )
        if not is_pattern:
            yield source
            continue
        assert isinstance(source, str | os.PathLike)
        found = sorted(glob.glob(str(Path(source).expanduser())))
        if not found:
            raise SourceNotFoundError(
                "nothing matches this pattern",
                given=os.fspath(source),
                allowed="a pattern of local paths, such as era5_*.zarr",
                remedy=f"check it; it was looked for from {Path.cwd()}",
            )
        yield from found
