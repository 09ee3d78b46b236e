"""Look for NaN in finished batches: count them, warn of them, or raise an error.

The option ``on_nan`` says what is done::

    on_nan      batches checked                 result
    "warn"      the first 8 of an iteration     one warning; the report counts the NaN values
    "count"     all                             the report counts the NaN values
    "raise"     all                             an error in place of the first batch with NaN
    "ignore"    none                            nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import show_count, warn_caller
from xloader.core.option_checks import check_choice
from xloader.errors import NanError, NanWarning, OptionError

OnNan = Literal["warn", "count", "raise", "ignore"]

NUM_FIRST: Final = 8
"""Number of batches checked with ``on_nan="warn"``: a field with NaN mostly has some in them."""

_MOST_NAMED = 5

_REMEDY = (
    "fill NaN with .fillna(...), add a mask as a field with .map(...), or leave these samples "
    'out with .dropna(...); if the data may hold NaN, pass on_nan="ignore"'
)


@dataclass(frozen=True, eq=False)
class FieldNans:
    """The NaN values of one field of a batch."""

    field: str
    num: int
    ids: Ints

    def __str__(self) -> str:
        named = [str(number) for number in self.ids[:_MOST_NAMED].tolist()]
        more = len(self.ids) - len(named)
        listed = ", ".join(named) + (f" and {more:,} more" if more else "")
        samples = f"sample{'s' * (len(self.ids) > 1)} {listed}"
        return f"{show_count(self.num, 'value')} of the field {self.field!r}, in {samples}"


CountNans = Callable[[NDArray[Any]], Ints]
"""Counts the NaN values of each row of an array whose values are still packed."""


def is_looked_at(on_nan: OnNan, number: int) -> bool:
    """Whether ``on_nan`` asks to look for NaN in a batch, given its number from 0 on."""
    return on_nan in ("count", "raise") or (on_nan == "warn" and number < NUM_FIRST)


def look_for_nans(
    on_nan: OnNan,
    number: int,
    arrays: Mapping[str, NDArray[Any]],
    ids: Ints,
    counts: Mapping[str, CountNans] = MappingProxyType({}),
) -> tuple[FieldNans, ...]:
    """Look for NaN in a finished batch, if ``on_nan`` asks to check this batch."""
    if not is_looked_at(on_nan, number):
        return ()
    per_row = {
        name: counts.get(name, _count_floats)(array[: len(ids)])
        for name, array in arrays.items()
        if name in counts or _has_nan(array[: len(ids)])
    }
    nans = tuple(
        FieldNans(name, int(nums.sum()), ids[nums > 0])
        for name, nums in per_row.items()
        if nums.any()
    )
    if nans and on_nan == "raise":
        raise NanError(
            "a batch holds NaN",
            given="; ".join(map(str, nans)),
            remedy=_REMEDY,
            field=nans[0].field,
            ids=tuple(nans[0].ids.tolist()),
        )
    return nans


class NanWarner:
    """Warns of NaN in batches, once. The warning points at the user's line."""

    def __init__(self, on_nan: OnNan) -> None:
        self._is_due = on_nan == "warn"

    def warn(self, nans: Sequence[FieldNans]) -> None:
        """Warn that a batch holds NaN, if it does and there was no warning before."""
        if not nans or not self._is_due:
            return
        self._is_due = False
        warn_caller(
            f"a batch holds NaN: {'; '.join(map(str, nans))}. There is no warning for later "
            'batches: pass on_nan="raise" to stop at NaN in any batch, or on_nan="count" to '
            f"samples.loader(...) to count NaN in all batches. To mend it: {_REMEDY}",
            NanWarning,
        )


def _has_nan(array: NDArray[Any]) -> bool:
    if array.dtype.kind != "f" or not array.size:
        return False
    with np.errstate(invalid="ignore"):
        # The minimum is NaN if any value is, and needs no temporary array.
        return bool(np.isnan(np.min(array)))


def _count_floats(array: NDArray[Any]) -> Ints:
    nums: Ints = np.isnan(array).reshape(len(array), -1).sum(axis=1)
    return nums


def check_on_nan(on_nan: Any) -> OnNan:
    """Check ``on_nan`` where there is no report, so that "count" is not allowed."""
    if on_nan == "count":
        raise OptionError(
            "NaN cannot be counted here, because there is no report",
            given='on_nan="count"',
            remedy='use samples.loader(...), or pass "warn", "raise" or "ignore"',
        )
    check_choice("on_nan", on_nan, ("warn", "raise", "ignore"))
    checked: OnNan = on_nan
    return checked
