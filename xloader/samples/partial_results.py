"""Merge the partial results of several processes into one."""

from __future__ import annotations

import os

from xloader.errors import UnsupportedDataError
from xloader.mosaic.merged_boxes import MosaicSummary
from xloader.mosaic.merged_store import merge_store


def merge(
    target: str | os.PathLike[str], *, memory: int | str = "256MiB", overwrite: bool = False
) -> MosaicSummary:
    """Merge the predictions that all ranks have written for a mosaic into its store.

    Call it when no rank writes any more. It needs no samples.

    Parameters
    ----------
    target : path
        The target that was passed to :meth:`Samples.mosaic`.
    memory : int or str
        Bytes that merging may take, besides about 100 for each sample.
    overwrite : bool
        Whether the store may replace something else that lies at the target.

    Returns
    -------
    MosaicSummary
        Counts of samples and cells.

    Raises
    ------
    SourceNotFoundError
        If nothing was written for this target.
    MosaicError
        If something else lies at the target, or a sample was written twice, with different
        predictions.
    MemoryBudgetError
        If the memory is too small for a chunk.
    UnsupportedDataError
        If ``target`` is not a path.

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
    """
    if not isinstance(target, str | os.PathLike):
        raise UnsupportedDataError(
            "this cannot be merged",
            given=type(target).__name__,
            allowed="the path of a mosaic",
            remedy="pass the target that samples.mosaic was given",
        )
    return merge_store(target, memory=memory, overwrite=overwrite)
