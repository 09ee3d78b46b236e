"""The JSON that each command prints: one table of its keys and types.

A type stands for values of it, ``(float, None)`` for one of several, a list with one entry for a
list of such values, a dict for an object with exactly these keys, and ``{str: type}`` for an object
with keys of any name. `check` names the place that differs.
"""

from __future__ import annotations

from typing import Any

NUMBER = (int, float)
MAYBE = (int, float, None)
TEXT_MAYBE = (str, None)

FINDING = {
    "subject": str,
    "level": str,
    "found": str,
    "remedy": str,
    "value": (int, float, str, None),
}

SIZES = [(int, [int])]

NANS = {
    "num_chunks": int,
    "num_values": int,
    "num_nans": int,
    "num_unreadable": int,
    "errors": [str],
    "is_whole": bool,
    "share": MAYBE,
}

VARIABLE = {
    "name": str,
    "dims": [str],
    "shape": [int],
    "dtype": str,
    "stored_dtype": str,
    "units": str,
    "chunks": SIZES,
    "shards": (SIZES, None),
    "num_chunks": int,
    "chunk_nbytes": int,
    "nbytes": int,
    "stored_nbytes": (int, None),
    "is_estimated": bool,
    "ratio": MAYBE,
    "path": str,
    "is_direct": bool,
    "num_objects": (int, None),
    "num_absent": (int, None),
    "num_beyond": (int, None),
    "num_empty": (int, None),
    "absent": [str],
    "beyond": [str],
    "empty": [str],
    "nans": (NANS, None),
}

LABELS = {
    "name": str,
    "dims": [str],
    "shape": [int],
    "dtype": str,
    "units": str,
    "first": str,
    "last": str,
    "step": str,
    "gaps": str,
    "num_duplicates": int,
    "num_backward": int,
    "num_missing": int,
    "is_time": bool,
    "problem": str,
}

SHAPES: dict[str, Any] = {
    "doctor": {"findings": [FINDING], "num_problems": int, "num_notes": int},
    "inspect": {
        "name": str,
        "variables": [VARIABLE],
        "labels": [LABELS],
        "grids": [{"chunks": {str: (int, [int])}, "variables": [str]}],
        "differing_dims": [str],
        "file_nbytes": (int, None),
        "findings": [FINDING],
        "num_problems": int,
    },
}


def check(value: Any, shape: Any, place: str = "the top") -> None:
    """Assert that a value has a shape; the error names the place."""
    if isinstance(shape, tuple):
        assert any(_is_of(value, kind) for kind in shape), f"{place}: {value!r} is not of {shape}"
    elif isinstance(shape, list):
        assert isinstance(value, list), f"{place}: {value!r} is no list"
        for number, held in enumerate(value):
            check(held, shape[0], f"{place}, entry {number}")
    elif isinstance(shape, dict):
        assert isinstance(value, dict), f"{place}: {value!r} is no object"
        if str in shape:
            shape = dict.fromkeys(value, shape[str])
        assert value.keys() == shape.keys(), place
        for name, held in value.items():
            check(held, shape[name], f"{place}, {name}")
    else:
        check(value, (shape,), place)


def _is_of(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if isinstance(kind, dict | list):
        try:
            check(value, kind)
        except AssertionError:
            return False
        return True
    # In Python, True is a number as well.
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
