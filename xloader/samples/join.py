"""`join`: opens several sources as one, at the labels of the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import xarray as xr

from xloader.errors import OptionError, UnsupportedDataError
from xloader.recipe.recipe import Recipe
from xloader.samples.samples import Samples
from xloader.samples.whole_sources import longest_policy, whole_source
from xloader.sources.combined.join_sources import join_sources
from xloader.sources.open.open_source import open_source


def join(
    sources: Mapping[str, Any],
    *,
    on: str = "time",
    method: Literal["nearest", "ffill"] | None = None,
    tolerance: Any = None,
) -> Samples:
    """Open several sources as one, at the labels of the first. No value is read.

    Each variable is named by its source: ``radar/rain``. One plan reads all of them, each chunk
    once.

    Parameters
    ----------
    sources : mapping of str to source
        Two sources or more, by names of your own. Each is anything that :func:`xloader.open`
        takes, or :class:`Samples` without windows: with these, each source has options of its own,
        and their ``sel`` and ``isel`` hold.
    on : str, default "time"
        The dimension along which labels are matched. The labels of the first source that has the
        dimension rule. Those for which another source has no label are left out, and are counted
        by ``explain()`` and the samples' repr. Sources without the dimension, such as an orography,
        are offered as they are.
    method : {None, "nearest", "ffill"}, default None
        How another source is looked up at the first one's labels, as in
        :meth:`xarray.Dataset.reindex`: equal labels, the closest one, or the last one before.
    tolerance : optional
        The largest distance of a label that ``method`` finds. Between times, a duration such as
        ``"30min"``.

    Returns
    -------
    Samples
        The variables of all sources, with no windows yet. Another dimension of a later source
        keeps its name if an earlier source has it with the same labels (but for rounding to
        float32) or not at all. Otherwise it is called by the source, such as ``radar/y``: it is
        taken whole, unless ``window`` names it. So is a coordinate whose name is taken. A note says
        where labels differ in their order alone.

    Raises
    ------
    OptionError
        If there are fewer than two sources, or a name has a ``/``. If labels along ``on`` occur
        twice, do not increase, or are of different kinds or calendars. If samples have windows.
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
            allowed='a mapping, such as {"era5": "era5.zarr", "radar": "radar.zarr"}',
            remedy="give each source a name; or use xloader.open for a DataTree, and for a list of "
            "stores of one grid",
        )
    if not isinstance(on, str):
        raise OptionError(
            "on is not the name of a dimension", given=f"on={on!r}", allowed="one name"
        )
    if len(sources) < 2:
        raise OptionError(
            "there are too few sources to join",
            given=f"{len(sources)}: {', '.join(map(repr, sources))}" if sources else "none",
            allowed="two or more",
            remedy="use xloader.open for a single source",
        )
    for name in sources:
        if not isinstance(name, str) or not name or "/" in name:
            raise OptionError(
                "this is no name for a source, because variables are called name/variable",
                given=repr(name),
                allowed="text without a /",
                remedy="give the source a short name, such as 'era5'",
            )
