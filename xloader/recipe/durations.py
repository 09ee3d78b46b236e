"""Durations, such as ``"3D"``, as numbers of steps along a dimension of times."""

from __future__ import annotations

import datetime as dt
import operator
import re
from typing import Any, Final, TypeGuard

import numpy as np

from xloader.errors import OptionError, WindowError
from xloader.recipe.label_steps import LabelSteps, find_steps
from xloader.recipe.recipe import Recipe

Duration = str | np.timedelta64 | dt.timedelta
"""A duration as users give it."""

_PATTERN: Final = re.compile(r"\s*(\+?)\s*(\d+)\s*(Y|M|W|D|h|m|s|)\s*")
_MONTHS: Final = {"Y": 12, "M": 1}
_MICROSECONDS: Final = {"W": 7 * 86_400e6, "D": 86_400e6, "h": 3_600e6, "m": 60e6, "s": 1e6}
_TOLERANCE: Final = 1e-6
"""The relative error of a common step that rounded labels may cause."""


def is_duration(value: object) -> TypeGuard[Duration]:
    """Whether a value is given as a duration, not as a number of steps."""
    return isinstance(value, Duration)


def num_elements(recipe: Recipe, word: str, dim: str, value: Any, least: int = 1) -> int:
    """Convert a number of elements, or a duration, to a number of elements."""
    if is_duration(value):
        value = num_steps(recipe, word, dim, value)
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise OptionError(
            f"the {word} along {dim!r} is not a whole number",
            given=repr(value),
            remedy=f'pass a number of elements >= {least}, or a duration such as "3D", not a label',
        ) from None
    if count < least:
        raise WindowError(
            f"the {word} along {dim!r} is too small",
            given=count,
            remedy=(
                f"pass 1 or more, or leave {dim!r} out to take all of it"
                if word == "window"
                else f"pass {word}={{{dim!r}: {least}}} or more"
            ),
        )
    return count


def num_steps(recipe: Recipe, word: str, dim: str, duration: Duration) -> int:
    """Convert a duration to a number of steps between the selected labels of a dimension."""
    count, unit = _parse(word, dim, duration)
    if not unit:
        return int(count)
    steps = find_steps(recipe, dim, only_times=True)
    if steps is None or not steps.is_time or not steps.is_regular or steps.is_falling:
        raise OptionError(
            f"the {word} along {dim!r} is a duration, but its labels have no common step",
            given=f"{_show(duration)}, {_show_steps(steps)}",
            remedy="pass a number of elements, or select a part of the dimension where 90 % of "
            "the steps are equal",
        )
    if unit in _MONTHS:
        num = count * _MONTHS[unit] / steps.months if steps.months else np.nan
    else:
        num = count * _MICROSECONDS[unit] / steps.span
    whole = round(num) if np.isfinite(num) else 0
    if not abs(num - whole) <= _TOLERANCE * max(whole, 1):
        raise OptionError(
            f"the {word} along {dim!r} is no whole number of steps",
            given=f"{_show(duration)}, with steps of {steps.text}",
            remedy=f"pass a multiple of {steps.text}{_unit_rule(steps)}, or a number of elements",
        )
    return int(whole)


def _parse(word: str, dim: str, duration: Duration) -> tuple[float, str]:
    """The number and the unit of a duration; the unit is empty for a number of steps."""
    if isinstance(duration, str):
        match = _PATTERN.fullmatch(duration)
        # Text without a unit must at least have the sign of a lead: "6" is more likely a mistake.
        if match is not None and (match[3] or match[1]):
            return float(match[2]), match[3]
    else:
        value = np.timedelta64(duration)
        unit = np.datetime_data(value.dtype)[0]
        if unit in _MONTHS:
            months = int(value.astype("m8[M]").astype(np.int64))
            if months >= 0:
                return float(months), "M"
        elif unit != "generic" and value >= np.timedelta64(0, "s"):
            return float(value / np.timedelta64(1, "s")), "s"
    raise OptionError(
        f"the {word} along {dim!r} is not a duration",
        given=repr(duration),
        remedy='pass a whole number >= 0 with a unit, such as "3D" (Y, M for months, W, D, h, '
        "m for minutes, s), a numpy.timedelta64, or a number of elements",
    )


def _unit_rule(steps: LabelSteps) -> str:
    if not steps.months:
        return " in W, D, h, m and s; Y and M only where steps are months"
    return " in Y and M" + (" only, as months differ in length" if np.isnan(steps.span) else "")


def _show(duration: Duration) -> str:
    return repr(duration) if isinstance(duration, str) else str(duration)


def _show_steps(steps: LabelSteps | None) -> str:
    if steps is None or not steps.is_time:
        return "without labels that are times"
    if steps.is_regular:
        return "with labels that descend"
    return f"with irregular steps: {steps.describe() or 'all differ'}"
