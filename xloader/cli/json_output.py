"""Results of commands as JSON."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

import click
import numpy as np
import xarray as xr


def print_json(value: Any) -> None:
    """Print a result as JSON on standard output, where commands print nothing else.

    Parameters
    ----------
    value : object
        Anything that `to_json` takes.
    """
    click.echo(json.dumps(to_json(value), indent=2))


def to_json(value: Any) -> Any:
    """Convert a result to the types of JSON.

    Parameters
    ----------
    value : object
        Mappings, sequences, numbers, text, dates, paths, arrays, Datasets, objects with a method
        ``to_dict``, and dataclasses.

    Returns
    -------
    object
        The same in dicts, lists, text and numbers. NaN and infinity become None, because JSON has
        no word for them. Dates are in ISO 8601.

    Examples
    --------
    >>> to_json({"mean": np.array([278.5, np.nan]), "time": np.datetime64("2001-01-01")})
    {'mean': [278.5, None], 'time': '2001-01-01'}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)
        # As numbers, dates would lose their meaning.
        value = value.astype(str) if value.dtype.kind in "mM" else value
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, xr.Dataset):
        return _dataset_to_json(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(held) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(held) for held in value]
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if callable(getattr(value, "to_dict", None)):
        return to_json(value.to_dict())
    if is_dataclass(value):
        held = {own.name: getattr(value, own.name) for own in fields(value)}
        return to_json(held)
    return str(value) if not isinstance(value, PurePath) else value.as_posix()


def _dataset_to_json(dataset: xr.Dataset) -> dict[str, Any]:
    """The Dataset in the form of `xarray.Dataset.to_dict`."""

    def described(variable: xr.Variable) -> dict[str, Any]:
        return {
            "dims": list(variable.dims),
            "attrs": to_json(variable.attrs),
            "data": to_json(variable.values),
        }

    return {
        "coords": {str(k): described(v.variable) for k, v in dataset.coords.items()},
        "attrs": to_json(dataset.attrs),
        "dims": {str(dim): size for dim, size in dataset.sizes.items()},
        "data_vars": {str(k): described(v.variable) for k, v in dataset.data_vars.items()},
    }
