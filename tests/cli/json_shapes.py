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

FIGURES = {
    "num_samples": int,
    "num_padding": int,
    "num_steps": int,
    "num_reads": int,
    "read_nbytes": int,
    "read_amplification": NUMBER,
    "peak_nbytes": int,
    "mixing": NUMBER,
    "full_mixing": NUMBER,
    "num_dropped_windows": int,
    "dropped_windows": {str: int},
    "is_exact": bool,
    "tile": {str: int},
    "run": int,
    "streams": int,
    "spread": int,
    "lanes": int,
    "visits": int,
    "variables": {
        str: {
            "num_chunks": int,
            "num_reads": int,
            "read_nbytes": int,
            "read_amplification": NUMBER,
        }
    },
    "paths": {str: str},
    "gather": str,
    "threads": str,
    "transfer": str,
    "num_shared_reads": int,
    "shared_chunks": list,
    "irregular_steps": {str: str},
    "notes": [str],
}

_OF_A_PREDICTION = (
    *(
        "paths",
        "gather",
        "threads",
        "transfer",
        "num_shared_reads",
        "shared_chunks",
        "irregular_steps",
    ),
    "notes",
)

REPORT = {
    **{name: kind for name, kind in FIGURES.items() if name not in _OF_A_PREDICTION},
    "num_requests": int,
    "num_retries": int,
    "num_missing": int,
    "num_skipped_samples": int,
    "skipped_chunks": list,
    "num_nan": {str: int},
    "delivered_nbytes": int,
    "seconds": NUMBER,
    "wait_seconds": NUMBER,
    "num_threads": int,
    "busy_seconds": {str: NUMBER},
    "lock_wait_seconds": NUMBER,
    "core_wait_seconds": NUMBER,
    "cpu_seconds": NUMBER,
    "num_cores": int,
    "num_ahead": int,
    "ahead_seconds": NUMBER,
    "least_seconds": NUMBER,
    "bottleneck": str,
    "advice": str,
    "pinning_refusal": str,
    "headroom": NUMBER,
    "requests_per_second": NUMBER,
    "delivered_nbytes_per_second": NUMBER,
    "read_nbytes_per_second": NUMBER,
    "cores_busy": NUMBER,
}

SPEED = {
    "name": str,
    "num_batches": int,
    "num_samples": int,
    "nbytes": int,
    "seconds": NUMBER,
    "first_seconds": NUMBER,
    "batches_per_second": NUMBER,
    "samples_per_second": NUMBER,
    "gb_per_second": NUMBER,
    "xloader_is_times_as_fast": NUMBER,
}

STATS_ARRAY = {"dims": [str], "attrs": dict, "data": object}

STATS = {
    "coords": {str: STATS_ARRAY},
    "attrs": dict,
    "dims": {str: int},
    "data_vars": {str: STATS_ARRAY},
}

PLANNED = {
    "num_reads": (int, None),
    "read_nbytes": (int, None),
    "read_amplification": MAYBE,
    "mixing": MAYBE,
    "full_mixing": MAYBE,
    "mixing_share": MAYBE,
    "peak_nbytes": (int, None),
    "minimum_nbytes": (int, None),
}
"""The figures of a plan, where it may be impossible."""

CHUNKS = {
    "kind": str,
    "chunks": {str: int},
    "shards": ({str: int}, None),
    "chunk_nbytes": int,
    "batch_chunks": int,
    **PLANNED,
    "problem": str,
    "gb_per_s": MAYBE,
    "nbytes": (int, None),
    "num_objects": (int, None),
    "is_resident": bool,
}

WRITTEN = {
    "name": str,
    "dims": [str],
    "shape": [int],
    "chunks": [int],
    "shards": ([int], None),
    "dtype": str,
    "nbytes": int,
    "num_shards": int,
    "num_unneeded": int,
    "num_done": int,
    "num_others": int,
    "num_written": int,
    "num_chunks": int,
    "expected_reads": int,
    "num_reads": int,
    "intermediate_chunks": ([int], None),
    "section_nbytes": int,
    "stored_nbytes": int,
    "error_bound": NUMBER,
    "max_error": NUMBER,
    "digest": str,
}

DEMO_SPEED = {
    "num_batches": int,
    "delivered_nbytes": int,
    "seconds": NUMBER,
    "is_whole_epoch": bool,
    "gb_per_second": NUMBER,
}

SHAPES: dict[str, Any] = {
    "demo": {
        "scores": [
            {
                "name": str,
                "units": str,
                "forecast": NUMBER,
                "persistence": NUMBER,
                "climatology": NUMBER,
            }
        ],
        "training": {
            "num_steps": int,
            "num_asked": int,
            "epoch_size": int,
            "seconds": NUMBER,
            "explanation": FIGURES,
            "report": REPORT,
        },
        "speed": DEMO_SPEED,
        "plain": DEMO_SPEED,
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
