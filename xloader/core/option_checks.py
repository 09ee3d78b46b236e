"""Checks of single option values. Each raises an error that names the allowed values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from xloader.errors import OptionError, SampleIndexError

MOST: Final = 2**31 - 1
"""Upper bound of most counts in options: samples in a batch, batches, ranks, lanes or tiles."""

MOST_THREADS: Final = 4096
"""Largest number of threads of one process; some systems refuse to start more."""

MOST_PROCESSES: Final = 1024
"""Largest number of worker processes of a loader."""

MOST_NBYTES: Final = 2**60
"""Largest memory that can be asked for, 1024 PiB: data sizes are kept in 64-bit integers."""


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number. A bool is not, nor is a time span of NumPy."""
    return isinstance(value, Integral) and is_number(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a real number. A bool is not, nor is a time span of NumPy."""
    # To NumPy, a time span is a signed integer.
    return isinstance(value, Real) and not isinstance(value, bool | np.timedelta64)


def check_whole(name: str, value: Any, least: int, most: int) -> int:
    """Check that a value is a whole number within bounds, and convert it to ``int``."""
    if not is_whole(value):
        raise OptionError(f"{name} is not a whole number", given=repr(value))
    if value < least:
        raise OptionError(f"{name} is too small", given=value, allowed=f">= {least}")
    if value > most:
        raise OptionError(f"{name} is too large", given=value, allowed=f"<= {most}")
    return int(value)


def check_number(name: str, value: Any, least: float) -> float:
    """Check that a value is a finite number of at least ``least``, and convert it to ``float``."""
    if not is_number(value):
        raise OptionError(f"{name} is not a number", given=repr(value))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    # Not ``number < least``, which is False for NaN.
    if not number >= least:
        raise OptionError(f"{name} is too small", given=value, allowed=f">= {least}")
    if number == math.inf:
        raise OptionError(f"{name} is infinite", given=value)
    return number


def check_kind(name: str, value: Any, kind: type, example: str) -> None:
    """Check that a value is of a class of ours, of which the error gives an example."""
    if not isinstance(value, kind):
        raise OptionError(
            f"{name} is not an xloader.{kind.__name__}",
            given=repr(value),
            remedy=f"pass {name}={example}",
        )


def check_choice(name: str, value: Any, choices: Sequence[Any], remedy: str = "") -> None:
    """Check that a value is one of the allowed choices."""
    try:
        is_known = bool(value in choices)
    except ValueError:
        # The comparison with an array gives an array, which is neither true nor false.
        is_known = False
    if not is_known:
        raise OptionError(
            f"{name} is not one of the choices",
            given=repr(value),
            allowed=" or ".join(map(repr, choices)),
            remedy=remedy,
        )


def check_ids(ids: NDArray[Any], first: int, end: int, remedy: str) -> NDArray[np.int64]:
    """Check that an array holds whole numbers in ``[first, end)``; int64, shape ``(n,)``."""
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        given = f"{ids.dtype} of shape {ids.shape}"
        raise SampleIndexError("these are not sample ids", given=given, remedy=remedy)
    outside = ids[(ids < first) | (ids >= end)]
    if outside.size:
        raise SampleIndexError(
            "the sample id is out of range",
            given=int(outside[0]),
            allowed=f"[{first}, {end})",
            remedy=remedy,
        )
    # Only after the range check: a large uint64 would overflow int64.
    return ids.astype(np.int64)


def check_callable(
    name: str, value: Any, remedy: str = "pass the function itself, or leave it out"
) -> None:
    """Check that a value can be called or is None, which stands for no function."""
    if value is not None and not callable(value):
        raise OptionError(f"{name} cannot be called", given=repr(value), remedy=remedy)


def check_threads(threads: Any) -> int | None:
    """Check a number of threads; None stands for one on each usable core."""
    return None if threads is None else check_whole("threads", threads, 1, MOST_THREADS)


def check_part(part: Any) -> tuple[int, int]:
    """Check that a value is the number of a part and the count of all parts, such as ``(0, 4)``."""
    is_pair = isinstance(part, Sequence) and len(part) == 2 and all(map(is_whole, part))
    if not is_pair or not 0 <= part[0] < part[1]:
        raise OptionError(
            "part is not a number and a count",
            given=repr(part),
            remedy="pass part=(0, 4) to part=(3, 4) in four processes",
        )
    return int(part[0]), int(part[1])
