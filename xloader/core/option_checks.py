"""Checks of single options: each refuses a value where it is given, and says what would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Final

from xloader.errors import OptionError

MOST: Final = 2**31 - 1
"""The largest number of samples in a batch, of batches, ranks, lanes or tiles."""

MOST_THREADS: Final = 4096
"""The most threads of one process; beyond that, systems begin to refuse them."""

MOST_NBYTES: Final = 2**60
"""1024 PiB, the most memory that can be asked for: sizes of the data are 64-bit integers."""


def check_whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number within bounds, as Python's own ``int``.

    Parameters
    ----------
    name : str
        Name of the option.
    value : object
        What was given.
    least, most : int
        The bounds, both included.

    Raises
    ------
    OptionError
        If it is no whole number, or outside the bounds.

    Examples
    --------
    >>> check_whole("threads", 3, 1, MOST_THREADS)
    3
    >>> check_whole("threads", 2**40, 1, MOST_THREADS)
    Traceback (most recent call last):
    xloader.errors.OptionError: threads is too large. Given: 1099511627776. Allowed: <= 4096.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole:
        raise OptionError(
            f"{name} is no number of the kind it takes",
            given=repr(value),
            allowed="whole numbers",
        )
    if value < least:
        raise OptionError(f"{name} is too small", given=value, allowed=f">= {least}")
    if value > most:
        raise OptionError(f"{name} is too large", given=value, allowed=f"<= {most}")
    return int(value)


def check_number(name: str, value: Any, least: float) -> float:
    """A finite number from ``least`` on, as Python's own ``float``.

    Raises
    ------
    OptionError
        If it is no number, too small or infinite.

    Examples
    --------
    >>> check_number("max_amplification", 2, 1.0)
    2.0
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise OptionError(
            f"{name} is no number of the kind it takes", given=repr(value), allowed="numbers"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    # Not the other way round: NaN is too small as well.
    if not number >= least:
        raise OptionError(f"{name} is too small", given=value, allowed=f">= {least}")
    if number == math.inf:
        raise OptionError(f"{name} has no end", given=value, allowed="numbers that have one")
    return number


def check_choice(name: str, value: Any, choices: Sequence[Any], remedy: str = "") -> None:
    """Refuse a value that is none of several.

    Raises
    ------
    OptionError
        If it is none of them.

    Examples
    --------
    >>> check_choice("output", "numpy", ("torch", "numpy"))
    """
    try:
        is_known = bool(value in choices)
    except ValueError:
        # An array is compared element by element, and has no one truth.
        is_known = False
    if not is_known:
        raise OptionError(
            f"{name} is none of the choices",
            given=repr(value),
            allowed=" or ".join(map(repr, choices)),
            remedy=remedy,
        )


def check_callable(name: str, value: Any, remedy: str = "") -> None:
    """Refuse what cannot be called; None stands for no function and passes.

    Raises
    ------
    OptionError
        If it cannot be called.

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
