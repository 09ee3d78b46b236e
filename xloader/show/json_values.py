"""Values as the types of JSON, and as flat numbers that trackers of experiments take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any

import numpy as np

_OTHER_THAN_NAMES = re.compile(r"[^0-9A-Za-z_]")


def to_json_value(value: Any, special: Mapping[type, Callable[[Any], Any]] | None = None) -> Any:
    """Convert a value to the types of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)
        # As numbers, dates would lose their meaning.
        value = value.astype(str) if value.dtype.kind in "mM" else value
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    for kind, convert in (special or {}).items():
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, Mapping):
        return {str(key): to_json_value(held, special) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(held, special) for held in value]
    for name in ("isoformat", "as_posix"):
        if callable(method := getattr(value, name, None)):
            return method()
    if callable(getattr(value, "to_dict", None)):
        return to_json_value(value.to_dict(), special)
    return to_json_value(values_by_name(value), special) if is_dataclass(value) else str(value)


def values_by_name(result: Any, *derived: str) -> dict[str, Any]:
    """The fields of a dataclass, without private ones, and some of its properties."""
    names = [field.name for field in fields(result) if not field.name.startswith("_")]
    return {name: getattr(result, name) for name in (*names, *derived)}


def flat_numbers(values: Mapping[str, Any], prefix: str, separator: str) -> dict[str, float]:
    """The finite numbers among values by name, with those of mappings within."""
    numbers: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, bool):
            return
        if isinstance(value, Real):
            number, free = 1, name
            while free in numbers:
                number += 1
                free = f"{name}_{number}"
            if math.isfinite(value):
                numbers[free] = float(value)
        elif isinstance(value, Mapping):
            for key, held in value.items():
                part = str(key) if separator == "/" else _OTHER_THAN_NAMES.sub("_", str(key))
                add(f"{name}{separator}{part}" if name else part, held)
        elif is_dataclass(value):
            add(name, values_by_name(value))

    add(prefix, values)
    return numbers


def attribute_value(value: object) -> Any:
    """Convert an attribute of an array to the types of JSON; NaN stays, as Zarr keeps it."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [attribute_value(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): attribute_value(entry) for key, entry in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
