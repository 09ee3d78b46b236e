"""NaN in batches on their way to training: looked for, counted and told.

::

    on_nan      batches looked at               what comes of it
    "warn"      the first 8 of a pass           one warning; the report counts them
    "count"     all                             the report counts them
    "raise"     all                             an error, in the place of the first such batch
    "ignore"    none                            nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import warn_caller
from xloader.core.option_checks import check_choice
from xloader.errors import NanError, NanWarning, OptionError

OnNan = Literal["warn", "count", "raise", "ignore"]

NUM_FIRST: Final = 8
"""Batches that are looked at for a warning: where a field has NaN, the first ones mostly do."""

_MOST_NAMED = 5

_REMEDY = (
    "fill them with .fillna(...), deliver a mask as a field with .map(...), or leave these samples "
    'out with .select(...); where they are meant, pass on_nan="ignore"'
)


@dataclass(frozen=True, eq=False)
class FieldNans:
    """The NaN values that one field of a batch has.

    Parameters
    ----------
    field : str
        The field's name.
    num : int
        How many values.
    ids : numpy.ndarray of int64
        The samples that have them, in row order.
    """

    field: str
    num: int
    ids: Ints

    def __str__(self) -> str:
        named = [str(number) for number in self.ids[:_MOST_NAMED].tolist()]
        more = len(self.ids) - len(named)
        samples = "sample" + "s" * (len(self.ids) > 1)
        listed = ", ".join(named) + (f" and {more:,} more" if more else "")
        values = "value" + "s" * (self.num > 1)
        return f"{self.num:,} {values} of the field {self.field!r}, in {samples} {listed}"


def look_for_nans(
    on_nan: OnNan, number: int, arrays: Mapping[str, NDArray[Any]], ids: Ints
) -> tuple[FieldNans, ...]:
    """Look for NaN in a batch as it is delivered, if batches like it are looked at.

    Parameters
    ----------
    on_nan : {"warn", "count", "raise", "ignore"}
    number : int
        Which batch of its pass it is, from 0 on.
    arrays : mapping of str to numpy.ndarray
        By field, shape ``(m, ...)`` with ``m >= n``: rows beyond ``ids`` only fill the batch up.
    ids : numpy.ndarray of int64, shape (n,)
        Its samples.

    Returns
    -------
    tuple of FieldNans
        One for each field that has any.

    Raises
    ------
    NanError
        With ``on_nan="raise"``, if there is any.

    Examples
    --------
    >>> arrays = {"x": np.array([[1.0, np.nan], [3.0, 4.0]], np.float32)}
    >>> [str(found) for found in look_for_nans("count", 0, arrays, np.array([7, 9]))]
    ["1 value of the field 'x', in sample 7"]
    """
    if on_nan == "ignore" or (on_nan == "warn" and number >= NUM_FIRST):
        return ()
    looked_at = ((name, array[: len(ids)]) for name, array in arrays.items())
    found = tuple(_count(name, array, ids) for name, array in looked_at if _has_nan(array))
    if found and on_nan == "raise":
        raise NanError(
            "a batch holds NaN",
            given="; ".join(map(str, found)),
            allowed='numbers, with on_nan="raise"',
            remedy=_REMEDY,
            field=found[0].field,
            ids=tuple(found[0].ids.tolist()),
        )
    return found


def warn_of_nans(found: Sequence[FieldNans]) -> None:
    """Warn that a batch holds NaN, at the line of the user.

    Parameters
    ----------
    found : sequence of FieldNans
    """
    warn_caller(
        f"a batch holds NaN: {'; '.join(map(str, found))}. Of later batches there is no warning; "
        'on_nan="count" counts, and on_nan="raise" refuses, NaN in all of them. To mend it: '
        f"{_REMEDY}",
        NanWarning,
    )


def _has_nan(array: NDArray[Any]) -> bool:
    if array.dtype.kind != "f" or not array.size:
        return False
    with np.errstate(invalid="ignore"):
        # One pass without another array: the least of some numbers is NaN if one of them is.
        return bool(np.isnan(np.min(array)))


def _count(field: str, array: NDArray[Any], ids: Ints) -> FieldNans:
    per_row = np.isnan(array).reshape(len(ids), -1).sum(axis=1)
    return FieldNans(field, int(per_row.sum()), ids[per_row > 0])


def check_on_nan(on_nan: Any) -> OnNan:
    """What is to be done about NaN, where there is no report to count it in.

    Raises
    ------
    OptionError
        If it is none of the choices, or ``"count"``.

    Examples
    --------
    >>> check_on_nan("raise")
    'raise'
    """
    if on_nan == "count":
        raise OptionError(
            "there is no report here in which NaN could be counted",
            given='on_nan="count"',
            allowed='"warn", "raise" or "ignore"',
            remedy="use samples.loader(...), which has report().num_nan",
        )
    check_choice("on_nan", on_nan, ("warn", "raise", "ignore"))
    checked: OnNan = on_nan
    return checked
