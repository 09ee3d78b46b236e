"""Results of commands, as text or as JSON."""

from __future__ import annotations

import json
from typing import Any

import xarray as xr

from xloader.cli.endings import say
from xloader.show.json_values import to_json_value


def print_result(result: Any, *, is_json: bool) -> None:
    """Print a result on standard output."""
    if is_json:
        print_json(result)
    else:
        say(str(result))


def print_json(value: Any) -> None:
    """Print a result as JSON on standard output, where commands print nothing else."""
    say(json.dumps(to_json(value), indent=2))


def to_json(value: Any) -> Any:
    """Convert a result to the types of JSON; a Dataset in the form of its ``to_dict``."""
    return to_json_value(value, {xr.Dataset: _dataset_to_json})


def _dataset_to_json(dataset: xr.Dataset) -> Any:
    return to_json_value(dataset.to_dict(data="array"))
