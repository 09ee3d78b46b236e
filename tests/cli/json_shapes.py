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


def each(kind: Any, names: str) -> dict[str, Any]:
    """Keys whose values are of one type, as a part of an object."""
    return dict.fromkeys(names.split(), kind)


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
    **each(str, "name dtype stored_dtype units path"),
    **each([str], "dims absent beyond empty"),
    "shape": [int],
    "chunks": SIZES,
    "shards": (SIZES, None),
    **each(int, "num_chunks chunk_nbytes nbytes"),
    **each((int, None), "stored_nbytes num_objects num_absent num_beyond num_empty"),
    **each(bool, "is_estimated is_direct"),
    "ratio": MAYBE,
    "nans": (NANS, None),
}

LABELS = {
    **each(str, "name dtype units first last step gaps problem"),
    "dims": [str],
    "shape": [int],
    **each(int, "num_duplicates num_backward num_missing"),
    "is_time": bool,
}

FIGURES = {
    **each(
        int,
        "num_samples num_padding num_steps num_reads read_nbytes peak_nbytes "
        "num_dropped_windows run streams spread lanes visits num_shared_reads",
    ),
    **each(NUMBER, "read_amplification mixing full_mixing"),
    "dropped_windows": {str: int},
    "is_exact": bool,
    "tile": {str: int},
    "variables": {
        str: {
            "num_chunks": int,
            "num_reads": int,
            "read_nbytes": int,
            "read_amplification": NUMBER,
        }
    },
    "paths": {str: str},
    **each(str, "gather threads transfer"),
    "shared_chunks": list,
    "irregular_steps": {str: str},
    "notes": [str],
}

_OF_A_PREDICTION = each(
    Any, "paths gather threads transfer num_shared_reads shared_chunks irregular_steps notes"
)

REPORT = {
    **{name: kind for name, kind in FIGURES.items() if name not in _OF_A_PREDICTION},
    **each(
        int,
        "num_requests num_retries num_missing num_skipped_samples delivered_nbytes num_threads "
        "num_cores num_ahead",
    ),
    "skipped_chunks": list,
    "num_nan": {str: int},
    **each(
        NUMBER,
        "seconds wait_seconds lock_wait_seconds core_wait_seconds cpu_seconds ahead_seconds "
        "least_seconds headroom requests_per_second delivered_nbytes_per_second "
        "read_nbytes_per_second cores_busy",
    ),
    "busy_seconds": {str: NUMBER},
    **each(str, "bottleneck advice pinning_refusal"),
}

SPEED = {
    "name": str,
    **each(int, "num_batches num_samples nbytes"),
    **each(
        NUMBER,
        "seconds first_seconds batches_per_second samples_per_second gb_per_second "
        "xloader_is_times_as_fast",
    ),
}

STATS_ARRAY = {"dims": [str], "attrs": dict, "data": object}

STATS = {
    "coords": {str: STATS_ARRAY},
    "attrs": dict,
    "dims": {str: int},
    "data_vars": {str: STATS_ARRAY},
}

PLANNED = {
    **each((int, None), "num_reads read_nbytes peak_nbytes minimum_nbytes"),
    **each(MAYBE, "read_amplification mixing full_mixing mixing_share"),
}
"""The figures of a plan, where it may be impossible."""

CHUNKS = {
    **each(str, "kind problem"),
    "chunks": {str: int},
    "shards": ({str: int}, None),
    **each(int, "chunk_nbytes batch_chunks"),
    **PLANNED,
    "gb_per_s": MAYBE,
    **each((int, None), "nbytes num_objects"),
    "is_resident": bool,
}

WRITTEN = {
    **each(str, "name dtype digest"),
    "dims": [str],
    **each([int], "shape chunks"),
    **each(([int], None), "shards intermediate_chunks"),
    **each(
        int,
        "nbytes num_shards num_unneeded num_done num_others num_written num_chunks "
        "expected_reads num_reads section_nbytes stored_nbytes",
    ),
    **each(NUMBER, "error_bound max_error"),
}

SHAPES: dict[str, Any] = {
    "demo": {
        "courses": {str: {"num_batches": int, "seconds": [NUMBER], "losses": [NUMBER]}},
        "reads_per_chunk": {str: NUMBER},
        "same_loss": NUMBER,
        "seconds_to_same_loss": {str: NUMBER},
        "picture": str,
    },
    "advise": {
        "current": CHUNKS,
        "proposals": [CHUNKS],
        "speed": str,
        "num_measured_reads": int,
        "num_plans": int,
    },
    "materialize": {
        "target": str,
        "summary": {
            "target": str,
            "variables": [WRITTEN],
            "is_plan": bool,
            "is_complete": bool,
            "is_verified": bool,
            "expected_peak_nbytes": int,
            "num_bounds_reads": int,
            "seconds": NUMBER,
            "num_cluster_threads": int,
        },
    },
    "merge": {"path": str, "stats": (STATS, None)},
    "merge of a mosaic": {
        "path": str,
        "summary": {
            "num_ids": int,
            "num_windows": int,
            "num_cells": int,
            "num_uncovered": int,
            "max_coverage": int,
        },
    },
    "explain": FIGURES,
    "explain --compare": {
        "plans": [
            {
                "memory_nbytes": int,
                "max_amplification": NUMBER,
                **PLANNED,
                "is_on_front": bool,
            }
        ]
    },
    "bench": {
        "batch_size": int,
        "num_samples": int,
        "num_workers": int,
        "loaders": [SPEED],
        "left_out": {str: str},
        "extra": {str: {str: int}},
    },
    "stats": {"path": TEXT_MAYBE, "stats": (STATS, None)},
    "stats --part": {"path": str, "part": [int]},
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
