"""`stats` of a whole dataset, without samples, and `merge` of the parts of a job."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, overload

import xarray as xr

from xloader.core.options import lists_options_of
from xloader.errors import OptionError, UnsupportedDataError
from xloader.jobs.merge_trees import merge_files
from xloader.jobs.statistics.stats_parts import PartialStats, StatsTemplate, merge_parts
from xloader.mosaic.merged_boxes import MosaicSummary
from xloader.mosaic.merged_store import merge_store
from xloader.samples.samples import Samples, open


@lists_options_of(Samples.stats)
def stats(
    dataset: Any, *, variables: Iterable[str] | str | None = None, **options: Any
) -> xr.Dataset | PartialStats:
    """Compute statistics of a dataset, each chunk read once.

    For training, call :meth:`Samples.stats` instead: it leaves out what the samples do not need,
    such as the test years.

    Parameters
    ----------
    dataset : path, URL, store, Dataset, or Samples
        Whatever :func:`open` takes.
    variables : iterable of str, optional
        The variables; by default all that hold numbers.
    **options
        As for :meth:`Samples.stats`. By default all dimensions are reduced.

    Returns
    -------
    xarray.Dataset or PartialStats
        As for :meth:`Samples.stats`, as are the errors.

    Examples
    --------
    >>> import xarray as xr
    >>> ds = xr.Dataset({"t2m": (("time", "x"), [[1.0, 2.0], [3.0, 6.0]])})
    >>> stats(ds, dim="x").t2m.sel(stat=["mean", "std"]).values.tolist()
    [[1.5, 4.5], [0.5, 1.5]]
    """
    if isinstance(dataset, Samples):
        samples = dataset
        if variables is not None:
            raise OptionError(
                "variables= chooses among those of a dataset, and samples have their own",
                given=f"variables={variables!r} with samples",
                remedy="open only these variables: xloader.open(..., variables=[...])",
            )
    else:
        samples = open(dataset, variables=variables)
    result: xr.Dataset | PartialStats = samples.stats(**options)
    return result


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
    """Merge the parts of a mosaic or of statistics.

    Call it when no process writes any more. It needs no samples.

    Parameters
    ----------
    target : path, or sequence of PartialStats
        The target of :meth:`Samples.mosaic`; the path of :meth:`Samples.stats` with ``part``; or
        all parts that it has returned.
    memory : int or str
        Bytes that merging a mosaic may take, besides about 100 per sample.
    overwrite : bool
        Whether the result may replace something else that lies at the target.

    Returns
    -------
    MosaicSummary or xarray.Dataset
        Counts of samples and cells of a mosaic; or the statistics, also written to the path.

    Raises
    ------
    SourceNotFoundError
        If nothing was written for this target.
    TargetError
        If something else lies at the target, or a sample was written twice, with different
        predictions.
    StateError
        If parts of statistics are missing, come twice, or are of different jobs.
    MemoryBudgetError
        If the memory is too small for a chunk.
    UnsupportedDataError
        If ``target`` is none of these.

    Examples
    --------
    >>> import numpy as np, tempfile, xarray as xr, xloader
    >>> ds = xr.Dataset({"sst": ("time", np.arange(6.0))})
    >>> samples = ds.xloader.window(time=3)
    >>> path = tempfile.mkdtemp() + "/forecast.zarr"
    >>> for rank in range(2):
    ...     out = samples.mosaic(path, world=xloader.World(rank, 2))
    ...     out.write([rank], samples[[rank]].sst)
    ...     out.flush()
    >>> print(merge(path))
    2 of 2 windows; 6 of 6 cells covered, by up to 1 window

    >>> stats = merge([samples.stats(part=(i, 3)) for i in range(3)])
    >>> stats.sst.sel(stat=["mean", "max"]).values.tolist()
    [2.5, 5.0]
    """
    if isinstance(target, str | os.PathLike):
        merged = merge_files(target, StatsTemplate, overwrite=overwrite)
        return merge_store(target, memory=memory, overwrite=overwrite) if merged is None else merged
    given: Any = target
    is_list = isinstance(given, Sequence) and len(given) > 0
    if not is_list or not all(isinstance(piece, PartialStats) for piece in given):
        raise UnsupportedDataError(
            "this cannot be merged",
            given=type(target).__name__,
            remedy="pass the path of a mosaic or of statistics, or a list of PartialStats",
        )
    return merge_parts(target)
