"""Statistics of a whole dataset, without samples."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal

import xarray as xr

from xloader.errors import OptionError
from xloader.jobs.statistics.label_pairs import Lead
from xloader.jobs.statistics.stats_options import Clock, Dims
from xloader.samples.samples import Samples, open


def stats(
    dataset: Any,
    *,
    variables: Iterable[str] | str | None = None,
    dim: Dims = None,
    by: Clock | None = None,
    quantiles: Iterable[float] = (),
    leads: Lead | Iterable[Lead] = (),
    weights: Literal["area"] | xr.DataArray | None = None,
    memory: int | str = "2GiB",
    threads: int | None = None,
    progress: bool | None = None,
    path: str | os.PathLike[str] | None = None,
    part: tuple[int, int] | None = None,
    overwrite: bool = False,
    client: Any = None,
) -> Any:
    """Compute statistics of a dataset, each chunk read once.

    To prepare training, call :meth:`Samples.stats` instead: it leaves out what the samples do not
    need, such as the test years.

    Parameters
    ----------
    dataset : path, URL, store, Dataset, or Samples
        Whatever :func:`open` takes.
    variables : iterable of str, optional
        The variables; by default all that hold bool, integers or floats.
    dim : str, iterable of str, or ..., optional
        The dimensions that are reduced, as in xarray; by default all.
    by, quantiles, leads, weights, memory, threads, progress, path, part, overwrite, client
        As for :meth:`Samples.stats`.

    Returns
    -------
    xarray.Dataset or PartialStats
        As for :meth:`Samples.stats`.

    Raises
    ------
    OptionError, UnknownNameError, MemoryBudgetError, ChunkError, TargetError, PartsError,
    StoreFullError, ClusterError
        As for :meth:`Samples.stats`.

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
                allowed="a dataset, or samples without variables=",
                remedy="open only these variables: xloader.open(..., variables=[...])",
            )
    else:
        samples = open(dataset, variables=variables)
    return samples.stats(
        dim=dim,
        by=by,
        quantiles=quantiles,
        leads=leads,
        weights=weights,
        memory=memory,
        threads=threads,
        progress=progress,
        path=path,
        part=part,
        overwrite=overwrite,
        client=client,
    )
