"""Checks of single option values. Each raises an error that names the allowed values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Final, TypeGuard

import numpy as np

from xloader.errors import OptionError

MOST: Final = 2**31 - 1
"""Upper bound of most counts in options: samples in a batch, batches, ranks, lanes or tiles."""

MOST_THREADS: Final = 4096
"""Largest number of threads of one process; some systems refuse to start more."""

MOST_PROCESSES: Final = 1024
"""Largest number of worker processes of a loader."""

MOST_NBYTES: Final = 2**60
"""Largest memory that can be asked for, 1024 PiB: data sizes are kept in 64-bit integers."""


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number. A bool is not, nor is a time span of NumPy.

    Examples
    --------
    >>> is_whole(3), is_whole(3.0), is_whole(True), is_whole(np.timedelta64(3, "h"))
    (True, False, False, False)
    """
    return isinstance(value, Integral) and is_number(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a real number. A bool is not, nor is a time span of NumPy.

    Examples
    --------
    >>> is_number(3), is_number(3.0), is_number("3"), is_number(True)
    (True, True, False, False)
    """
    # To NumPy, a time span is a signed integer.
    return isinstance(value, Real) and not isinstance(value, bool | np.timedelta64)


def check_whole(name: str, value: Any, least: int, most: int) -> int:
    """Check that a value is a whole number within bounds, and convert it to ``int``.

    Parameters
    ----------
    name : str
        Name of the option, for the error.
    value : object
        Value to check.
    least, most : int
        The bounds, both included.

    Returns
    -------
    int
        The value.

    Raises
    ------
    OptionError
        If it is not a whole number (a bool is none), or outside the bounds.

    Examples
    --------
    >>> check_whole("threads", 3, 1, MOST_THREADS)
    3
    >>> check_whole("threads", 2**40, 1, MOST_THREADS)
    Traceback (most recent call last):
    xloader.errors.OptionError: threads is too large. Given: 1099511627776. Allowed: <= 4096.
    """
    if not is_whole(value):
        raise OptionError(
            f"{name} is not a whole number",
            given=repr(value),
            allowed="whole numbers",
        )
    if value < least:
        raise OptionError(f"{name} is too small", given=value, allowed=f">= {least}")
    if value > most:
        raise OptionError(f"{name} is too large", given=value, allowed=f"<= {most}")
    return int(value)


def check_number(name: str, value: Any, least: float) -> float:
    """Check that a value is a finite number of at least ``least``, and convert it to ``float``.

    Parameters
    ----------
    name : str
        Name of the option, for the error.
    value : object
        Value to check.
    least : float
        Lower bound, included.

    Returns
    -------
    float
        The value.

    Raises
    ------
    OptionError
        If it is not a number (a bool is none), too small, NaN or infinite.

    Examples
    --------
    >>> check_number("max_amplification", 2, 1.0)
    2.0
    """
    if not is_number(value):
        raise OptionError(f"{name} is not a number", given=repr(value), allowed="numbers")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    # Not ``number < least``, which is False for NaN.
    if not number >= least:
        raise OptionError(f"{name} is too small", given=value, allowed=f">= {least}")
    if number == math.inf:
        raise OptionError(f"{name} is infinite", given=value, allowed="finite numbers")
    return number


def check_choice(name: str, value: Any, choices: Sequence[Any], remedy: str = "") -> None:
    """Check that a value is one of the allowed choices.

    Parameters
    ----------
    name : str
        Name of the option, for the error.
    value : object
        Value to check.
    choices : sequence
        The allowed values.
    remedy : str, optional
        Advice to the user, for the error.

    Raises
    ------
    OptionError
        If it equals none of the choices.

    Examples
    --------
    >>> check_choice("output", "numpy", ("torch", "numpy"))
    """
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


def check_callable(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value can be called or is None, which stands for no function.

    Parameters
    ----------
    name : str
        Name of the option, for the error.
    value : object
        Value to check.
    remedy : str, optional
        Advice to the user, for the error.

    Raises
    ------
    OptionError
        If it is not None and cannot be called.

    Examples
    --------
    >>> check_callable("collate_fn", 5)
    Traceback (most recent call last):
    xloader.errors.OptionError: collate_fn cannot be called. Given: 5. Allowed: functions, ...
    """
    if value is not None and not callable(value):
        raise OptionError(
            f"{name} cannot be called",
            given=repr(value),
            allowed="functions, and other objects with __call__",
            remedy=remedy or "pass the function itself, or leave it out",
        )
