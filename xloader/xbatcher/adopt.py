"""`from_xbatcher`, which turns a batch generator of xbatcher into samples."""

from __future__ import annotations

from typing import Any

import xarray as xr

from xloader.errors import OptionError
from xloader.samples.samples import Samples

_NEEDED = ("ds", "input_dims", "input_overlap", "batch_dims", "concat_input_dims")
"""Attributes by which a batch generator is recognised, so that xbatcher need not be installed."""


def from_xbatcher(generator: Any) -> Samples:
    """Samples that equal the batches of an ``xbatcher.BatchGenerator``.

    No chunk is read.

    Parameters
    ----------
    generator : xbatcher.BatchGenerator or xloader.xbatcher.BatchGenerator
        The generator. It must be one of xbatcher 0.4, or of xloader.

    Returns
    -------
    Samples
        ``samples[i]`` holds the values of ``generator[i]``: one array for each data variable, in
        the order of the variables. Dimensions that the generator stacks into ``sample`` are
        stacked into ``stacked`` here, because ``sample`` is a dimension of xloader's batches.

    Raises
    ------
    OptionError
        If the argument is not such a generator. Also if its batches cannot be samples: it cuts no
        dimension, the batches differ in shape, ``cache_preprocess`` changes them, or xarray joins
        them by labels.
    UnsupportedDataError
        If a data variable does not hold numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from xloader.xbatcher import BatchGenerator
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = from_xbatcher(BatchGenerator(ds, {"time": 4}, input_overlap={"time": 2}))
    >>> len(samples), samples.shapes, samples[1][0][0].tolist()
    (4, {'t2m': (4, 4)}, [8.0, 9.0, 10.0, 11.0])
    """
    from xloader.xbatcher.to_samples import map_batches

    missing = [name for name in _NEEDED if not hasattr(generator, name)]
    if missing or not isinstance(generator.ds, xr.Dataset | xr.DataArray):
        raise OptionError(
            "this is not a generator of xbatcher",
            given=f"{type(generator).__module__}.{type(generator).__qualname__}"
            + (f" without {', '.join(missing)}" if missing else f" of a {type(generator.ds)}"),
            allowed="a BatchGenerator of xbatcher 0.4, or of xloader.xbatcher",
            remedy="make one with xbatcher.BatchGenerator(ds, input_dims={...})",
        )
    if getattr(generator, "cache", None) is not None and generator.cache_preprocess is not None:
        raise OptionError(
            "the generator changes batches with cache_preprocess",
            given=f"cache_preprocess={generator.cache_preprocess!r}",
            allowed="generators without cache_preprocess",
            remedy="make the generator without cache, and call .map(fn) on the samples",
        )
    return map_batches(generator)
