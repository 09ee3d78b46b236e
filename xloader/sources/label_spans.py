"""Distances between labels, as an index takes them for its ``tolerance``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import xarray as xr


def is_time_index(index: pd.Index) -> bool:
    """Whether the labels are dates, cftime dates or durations."""
    return isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex | xr.CFTimeIndex)


def label_span(index: pd.Index, tolerance: Any) -> Any:
    """A tolerance in the form that an index takes. Between times it may be text, as ``"1h"``.

    Parameters
    ----------
    index : pandas.Index
        The labels.
    tolerance : object
        The largest distance between two labels, or None.

    Raises
    ------
    TypeError
        If the tolerance is a number and the labels are times.
    """
    if tolerance is not None and is_time_index(index):
        # pandas would take a number for nanoseconds.
        if np.asarray(tolerance).dtype.kind in "biuf":
            raise TypeError("the tolerance is a number, but the labels are times")
        if isinstance(index, xr.CFTimeIndex):
            return pd.Timedelta(tolerance).to_pytimedelta()
    return pd.Timedelta(tolerance) if isinstance(tolerance, str) else tolerance
