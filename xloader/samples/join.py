"""`join` and `concat`: several sources as one, at common labels or one after the other."""

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
from xloader.samples.whole_sources import longest_policy, whole_source
from xloader.sources.arrays.catalog import DEFAULT_DTYPE
from xloader.sources.combined.concat_source import concat_sources
from xloader.sources.combined.join_sources import join_sources
from xloader.sources.open.open_source import open_source
from xloader.sources.stores.bounded_reads import local_path


def join(
    sources: Mapping[str, Any],
    *,
    on: str = "time",
    method: Literal["nearest", "ffill"] | None = None,
    tolerance: Any = None,
) -> Samples:
    """Open several sources as one, by labels. No value is read.

    Each variable is named by its source: ``radar/rain``.

    Parameters
    ----------
    sources : mapping of str to source
        Two sources or more, by names of your own: anything that :func:`xloader.open` takes, or
        :class:`Samples` without windows, which bring options and selections of their own.
    on : str, default "time"
        The dimension along which labels are matched. Labels of the first source that another one
        lacks are left out, and counted by ``explain()``. Sources without the dimension, such as an
        orography, are offered as they are.
    method : {None, "nearest", "ffill"}, default None
        How other sources are looked up, as in :meth:`xarray.Dataset.reindex`: equal labels, the
        closest one, or the last one before.
    tolerance : optional
        The largest distance of a label that ``method`` finds; between times, a duration such as
        ``"30min"``.

    Returns
    -------
    Samples
        The variables of all sources, with no windows yet. A dimension of a later source whose
        labels differ from an earlier one's (by more than rounding to float32) is called by the
        source, such as ``radar/y``, and is taken whole unless ``window`` names it.

    Raises
    ------
    OptionError
        If there are fewer than two sources, or a name has a ``/``; if labels along ``on`` occur
        twice, do not increase, or are of different kinds or calendars; if samples have windows.
    EmptySamplesError
        If the sources have no label in common.
    UnknownNameError
        If no source has the dimension ``on``.
    SourceNotFoundError, SourceAccessError, UnsupportedDataError
        As for :func:`xloader.open`.

    Examples
    --------
    >>> import numpy as np
    >>> hours = np.arange(24)
    >>> t2m = xr.DataArray(np.arange(4.0), {"time": hours[::6]}, name="t2m")
    >>> rain = xr.DataArray(np.arange(24.0), {"time": hours}, name="rain")
    >>> samples = join({"era5": t2m, "radar": rain}).window(time=2)
    >>> samples.fields, [array.tolist() for array in samples[1]]
    (('era5/t2m', 'radar/rain'), [[2.0, 3.0], [12.0, 18.0]])
    """
    _check(sources, on)
    policy = longest_policy(sources.values())

    def open_one(source: Any) -> Any:
        return open_source(source, retry_policy=policy)

    opened = {name: whole_source(value, repr(name), open_one) for name, value in sources.items()}
    return Samples(Recipe(join_sources(opened, on, method, tolerance), retry_policy=policy))


def _check(sources: Any, on: Any) -> None:
    """Check the names of the sources and of the dimension."""
    if isinstance(sources, xr.Dataset | xr.DataTree) or not isinstance(sources, Mapping):
        raise UnsupportedDataError(
            "join takes its sources by name",
            given=f"{type(sources).__module__}.{type(sources).__qualname__}",
            remedy='pass a mapping, such as {"era5": "era5.zarr", "radar": "radar.zarr"}; or use '
            "xloader.open for a DataTree, and for a list of stores of one grid",
        )
    if not isinstance(on, str):
        raise OptionError("on is not the name of a dimension", given=repr(on), allowed="one name")
    if len(sources) < 2:
        raise OptionError(
            "there are too few sources to join",
            given=f"{len(sources)}: {', '.join(map(repr, sources))}" if sources else "none",
            remedy="use xloader.open for a single source",
        )
    for name in sources:
        if not isinstance(name, str) or not name or "/" in name:
            raise OptionError(
                "this is no name for a source, because variables are called name/variable",
                given=repr(name),
                remedy="give the source a name of text without a /, such as 'era5'",
            )


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
    """Open many files as one along a dimension. No value is read.

    Windows run across the borders between sources, but not across a gap, such as a year that was
    left out (see ``gaps`` of :meth:`Samples.window`).

    Parameters
    ----------
    sources : iterable of sources, or str
        Anything that :func:`xloader.open` takes, in the order of the labels along ``dim``. A local
        path with ``*``, ``?`` or ``[`` stands for all paths that match, sorted by name.
    dim : str, default "time"
        The dimension to join along; its labels must continue from each source to the next. Other
        labels must be the same in all sources, but for rounding to float32. Variables without this
        dimension are taken from the first source.
    variables : iterable of str, optional
        The data variables to offer; by default all, which every source must then have.
    group, storage_options, dtype, on_missing, read_timeout, max_retries, **open_kwargs
        As for :func:`xloader.open`, applied to each source.

    Returns
    -------
    Samples
        Everything that the sources offer, with no windows yet.

    Raises
    ------
    SourceNotFoundError
        If there is nothing to open, or a pattern matches no path.
    UnknownNameError
        If a source lacks the dimension or a variable.
    OptionError
        If no source is given; if a variable differs in its dimensions, dtype, or the size or chunks
        of another dimension; if labels along ``dim`` overlap, change direction or mix calendars; if
        other labels differ.
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
        raise OptionError("dim is not the name of a dimension", given=repr(dim), allowed="one name")
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
            remedy="pass a list or a pattern of paths, or use xloader.open for a single source",
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
        paths = sorted(glob.glob(str(Path(path).expanduser())))
        if not paths:
            raise SourceNotFoundError(
                "no file or folder matches this pattern",
                given=path,
                remedy=f"check the pattern; the search began in {Path.cwd()}",
            )
        yield from paths
