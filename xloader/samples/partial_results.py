"""Merge the partial results of several processes into one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, overload

import xarray as xr

from xloader.errors import UnsupportedDataError
from xloader.jobs.statistics.partial_stats import PartialStats
from xloader.jobs.statistics.stats_merge import has_stats, merge_parts, merge_stats
from xloader.mosaic.merged_boxes import MosaicSummary
from xloader.mosaic.merged_store import merge_store


@overload
def merge(
    target: str | os.PathLike[str], *, memory: int | str = ..., overwrite: bool = ...
) -> MosaicSummary | xr.Dataset: ...
@overload
def merge(
    target: Sequence[PartialStats], *, memory: int | str = ..., overwrite: bool = ...
) -> xr.Dataset: ...
def merge(
    target: str | os.PathLike[str] | Sequence[PartialStats],
    *,
    memory: int | str = "256MiB",
    overwrite: bool = False,
) -> MosaicSummary | xr.Dataset:
    """Merge the partial results of all processes: of a mosaic, or of statistics.

    Call it when no process writes any more. It needs no samples.

    Parameters
    ----------
    target : path, or sequence of PartialStats
        The target that was passed to :meth:`Samples.mosaic`; the path that was passed to
        :meth:`Samples.stats` with ``part``; or all that :meth:`Samples.stats` has returned for
        each part, without a path.
    memory : int or str
        Bytes that merging a mosaic may take, besides about 100 for each sample.
    overwrite : bool
        Whether the result may replace something else that lies at the target.

    Returns
    -------
    MosaicSummary or xarray.Dataset
        Counts of samples and cells of a mosaic; or the statistics, which are written to the path,
        too.

    Raises
    ------
    SourceNotFoundError
        If nothing was written for this target.
    MosaicError
        If something else lies at the target of a mosaic, or a sample was written twice, with
        different predictions.
    PartsError
        If parts of statistics are missing, come twice, or are of different jobs.
    TargetError
        If something else lies at the path of statistics. Their finished result is returned.
    MemoryBudgetError
        If the memory is too small for a chunk.
    UnsupportedDataError
        If ``target`` is none of these.

    Examples
    --------
    >>> import numpy as np, tempfile, xarray as xr
    >>> ds = xr.Dataset({"sst": ("time", np.arange(6.0))})
    >>> samples = ds.xloader.window(time=3)
    >>> path = tempfile.mkdtemp() + "/forecast.zarr"
    >>> for rank in range(2):
    ...     out = samples.mosaic(path, rank=rank, world_size=2)
    ...     out.write([rank], samples[[rank]].sst)
    ...     out.flush()
    >>> print(merge(path))
    2 of 2 windows; 6 of 6 cells covered, by up to 1 window

    >>> stats = merge([samples.stats(part=(i, 3)) for i in range(3)])
    >>> stats.sst.sel(stat=["mean", "max"]).values.tolist()
    [2.5, 5.0]
    """
    if isinstance(target, str | os.PathLike):
        if has_stats(target):
            return merge_stats(target, overwrite=overwrite)
        return merge_store(target, memory=memory, overwrite=overwrite)
    own: Any = target
    is_list = isinstance(own, Sequence) and len(own) > 0
    if not is_list or not all(isinstance(part, PartialStats) for part in own):
        raise UnsupportedDataError(
            "this cannot be merged",
            given=type(target).__name__,
            allowed="the path of a mosaic or of statistics, or a list of PartialStats",
            remedy="pass the target that samples.mosaic or samples.stats was given",
        )
    return merge_parts(target)
