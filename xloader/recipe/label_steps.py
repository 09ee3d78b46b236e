"""The steps between the labels of a dimension: the common step, and where it is broken.

Labels are numbers, times or time spans, of NumPy or of cftime; pandas is not involved. The common
step is the median, which is a step that occurs. A step is a *gap* if it differs from it by more
than 1 %, as no step of rounded numbers or of Gaussian latitudes does, or by more than a tenth along
times, which jitter where they were kept as float32. Times that jitter more have gaps where a step
is longer than one and a half common ones, or does not go on. Calendar months and years have
different lengths, so steps of a month or more are also counted in months::

    label   2001-01-01  2001-02-01  2001-03-01  2001-06-01  2001-07-01
    days              31          28          92          30            no common step
    months             1           1           3           1            common step 1, one gap
"""

from __future__ import annotations

import datetime as dt
import operator
import re
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import show_count
from xloader.errors import OptionError, SourceAccessError, UnsupportedDataError
from xloader.recipe.recipe import Kept, Recipe

_TOLERANCE: Final = 0.01
"""The relative difference from the median step up to which a step is equal to it."""

_JITTER: Final = 0.1
"""The relative difference up to which a step between times is regular."""

_LONGEST: Final = 1.5
"""The longest step between jittering times that is no gap, in common steps."""

_LEAST_MONTH: Final = 27.5 * 86_400e6
"""The shortest step that may be a calendar month, in microseconds."""

_LEAST_SHARE: Final = 0.9
"""The share of steps that must equal the common one, so that all others count as gaps."""

_UNITS: Final = (
    ("day", 86_400e6),
    ("hour", 3_600e6),
    ("minute", 60e6),
    ("second", 1e6),
    ("millisecond", 1e3),
    ("microsecond", 1.0),
)

_MOST_KNOWN: Final = 64
"""Most selections of a source whose steps are remembered."""

_known: weakref.WeakKeyDictionary[Any, dict[tuple[str, Hashable], LabelSteps | None]] = (
    weakref.WeakKeyDictionary()
)
"""Steps that were found, per source, for a dimension and the elements kept of it."""


@dataclass(frozen=True, eq=False)
class LabelSteps:
    """The steps between neighbouring labels of a dimension.

    `gaps`: offsets of the labels that come right after a gap, ascending. `text`: the common step
    in words, such as ``"6 hours"``.
    """

    is_time: bool
    span: float
    months: int
    gaps: Ints
    num_steps: int
    text: str
    first_gap: str
    num_uneven: int = 0
    num_back: int = 0

    @property
    def is_falling(self) -> bool:
        """Whether later labels are smaller, or earlier times."""
        return self.months < 0 or self.span < 0

    @property
    def is_regular(self) -> bool:
        """Whether the labels follow each other at the common step, but for a few gaps."""
        is_step = self.months != 0 if np.isnan(self.span) else self.span != 0
        num_regular = self.num_steps - len(self.gaps)
        return is_step and num_regular >= _LEAST_SHARE * self.num_steps

    def describe(self) -> str:
        """Describe the gaps in words; an empty text without any."""
        if self.is_time and not self.span and not self.months:
            num_same = self.num_steps - len(self.gaps)
            return f"{num_same:,} of {self.num_steps:,} are 0: labels occur more than once"
        if not len(self.gaps):
            return ""
        what = f"are not {self.text}" if self.text else "lie beside missing labels"
        back = f", {self.num_back:,} go back: the labels are not in order of time"
        return (
            f"{len(self.gaps):,} of {self.num_steps:,} {what} (first after {self.first_gap})"
            f"{back if self.num_back else ''}"
        )

    def describe_uneven(self) -> str:
        """Describe the uneven steps in words; an empty text without any."""
        if not self.num_uneven:
            return ""
        return f"{self.num_uneven:,} of {self.num_steps:,} differ from {self.text} by over a tenth"


def find_steps(recipe: Recipe, dim: str, *, only_times: bool = False) -> LabelSteps | None:
    """Find the steps between the selected labels of a dimension.

    The labels are read once for each source and selection. None without labels, and for labels
    that are neither numbers nor times.
    """
    kept = recipe.kept_of(dim)
    known = _known.setdefault(recipe.source, {})
    if (dim, kept) in known:
        steps = known[dim, kept]
        return None if only_times and steps is not None and not steps.is_time else steps
    labels = _label_variable(recipe, dim, kept)
    if labels is None or (only_times and labels.dtype.kind not in "mMO"):
        return None
    if len(known) >= _MOST_KNOWN:
        # A new dictionary, because other threads may be looking into this one.
        _known[recipe.source] = known = {}
    known[dim, kept] = _steps_of(_read(recipe, dim, labels, kept), dim)
    return known[dim, kept]


def _label_variable(recipe: Recipe, dim: str, kept: Kept) -> Any:
    """The labels of a dimension, not read yet; ``None`` without any."""
    assert not isinstance(kept, int)
    coordinates = recipe.source.coordinates(is_indexed=False)
    if dim not in coordinates.coords or not len(kept):
        return None
    labels = coordinates[dim].variable.to_base_variable()
    return labels if labels.dims == (dim,) else None


def _read(recipe: Recipe, dim: str, labels: Any, kept: Kept) -> NDArray[Any] | None:
    assert not isinstance(kept, int)
    # A long range is not searched.
    ends = kept[:: len(kept) - 1 or 1] if isinstance(kept, range) else kept
    try:
        stored = labels[min(ends) : max(ends) + 1].values
    except Exception as error:
        if labels.dtype.kind not in "mM":
            # Training needs no number labels, so those that cannot be read are no error here.
            return None
        raise SourceAccessError(
            f"the labels of {dim!r} cannot be read, so gaps in time cannot be found",
            given=f"{recipe.source.name}: {error}",
            remedy='repair the coordinate, or pass gaps="allow" to .window(...)',
        ) from error
    places = slice(None, None, kept.step) if isinstance(kept, range) else np.array(kept) - min(ends)
    return np.asarray(stored[places])


def _steps_of(labels: NDArray[Any] | None, dim: str) -> LabelSteps | None:
    if labels is None or len(labels) < 2 or labels.dtype.kind not in "mMOiuf":
        return None
    is_time = labels.dtype.kind in "mMO"
    steps = _time_steps(labels, dim) if is_time else np.diff(labels.astype(np.float64))
    if steps is None:
        return None
    span, is_gap = _odd_ones(steps)
    text = _show_span(span) if is_time else f"{span:g}"
    months = 0
    if is_time and labels.dtype.kind != "m" and abs(span) >= _LEAST_MONTH:
        common, is_odd_month = _odd_ones(np.diff(months_of(labels)).astype(np.float64))
        if common and is_odd_month.sum() <= is_gap.sum():
            # Months of equal length, as in a calendar of 360 days, are a common span as well.
            span = span if is_odd_month.sum() == is_gap.sum() else np.nan
            is_gap = is_odd_month
            months = int(common)
            is_years = months % 12 == 0
            text = show_count(months // 12, "year") if is_years else show_count(months, "month")
    num_uneven = num_back = 0
    if is_time:
        num_back = int(np.count_nonzero(steps * np.sign(months or span) < 0))
        if not months and np.isfinite(span):
            is_equal = ~is_gap
            is_gap, num_uneven = _time_gaps(steps, span)
            if (is_equal & ~is_gap).sum() < _LEAST_SHARE * (~is_gap).sum():
                span, text = _mean_span(steps[~is_gap])
        elif not months:
            text = ""
    # Number labels of which most are missing have no common step, and so no gap either.
    gaps = np.flatnonzero(is_gap if is_time or not np.isnan(span) else is_gap[:0])
    first = show_label(labels[gaps[0]]) if len(gaps) else ""
    return LabelSteps(
        is_time, span, months, gaps + 1, len(steps), text, first, num_uneven, num_back
    )


def _time_gaps(steps: NDArray[np.float64], span: float) -> tuple[NDArray[np.bool_], int]:
    """Which steps between times are gaps, and how many of the others are uneven."""
    is_uneven = ~(np.abs(steps - span) <= _JITTER * abs(span))
    # Negated, so that NaN counts as a gap.
    is_gap = ~((steps / span > 0) & (steps / span <= _LONGEST)) if span else is_uneven
    most_odd = (1 - _LEAST_SHARE) * len(steps)
    if is_uneven.sum() <= most_odd or is_gap.sum() > most_odd:
        return is_uneven, 0
    return is_gap, int((is_uneven & ~is_gap).sum())


def _mean_span(steps: NDArray[np.float64]) -> tuple[float, str]:
    """The mean of jittering steps, or the round span near it; in microseconds, and in words."""
    mean = float(steps.mean())
    for _, size in _UNITS:
        count = round(mean / size)
        if count and abs(count * size - mean) <= _TOLERANCE * abs(mean):
            return count * size, f"about {_show_span(count * size)}"
    return mean, f"about {_show_span(mean)}"


def _time_steps(labels: NDArray[Any], dim: str) -> NDArray[np.float64] | None:
    """The steps in microseconds, NaN beside a missing time; ``None`` if labels are not times."""
    if labels.dtype.kind in "mM":
        # NumPy cannot convert a difference in months to microseconds, so times are converted first.
        is_coarse = np.datetime_data(labels.dtype)[0] in ("Y", "M")
        fine = labels.astype(f"{labels.dtype.kind}8[us]") if is_coarse else labels
        return np.asarray(np.diff(fine) / np.timedelta64(1, "us"), np.float64)
    calendars = {getattr(label, "calendar", None) for label in labels}
    if None in calendars:
        # Some of the objects are not cftime times.
        return None
    if len(calendars) > 1:
        raise UnsupportedDataError(
            f"the labels of {dim!r} are times of several calendars",
            given=", ".join(sorted(map(str, calendars))),
            remedy=f"convert them, for example with ds.convert_calendar(..., dim={dim!r}), or pass "
            'gaps="allow" to .window(...)',
        )
    spans = (labels[1:] - labels[:-1]).astype("m8[us]")
    return np.asarray(spans / np.timedelta64(1, "us"), np.float64)


def months_of(labels: NDArray[Any]) -> NDArray[np.int64]:
    """The month of each time, counted through all years."""
    if labels.dtype.kind == "M":
        return labels.astype("M8[M]").astype(np.int64)
    return np.array([12 * label.year + label.month for label in labels], np.int64)


def _odd_ones(steps: NDArray[np.float64]) -> tuple[float, NDArray[np.bool_]]:
    """The lower median of the steps, and which steps differ from it."""
    # The lower median is a step that occurs; the mean of the two middle ones may not be.
    step = float(np.partition(steps, (len(steps) - 1) // 2)[(len(steps) - 1) // 2])
    # Negated, so that NaN counts as different.
    return step, ~(np.abs(steps - step) <= _TOLERANCE * abs(step))


def _show_span(span: float) -> str:
    for unit, size in _UNITS:
        count = round(span / size, 3)
        if abs(count) >= 1 and count == int(count):
            return show_count(count, unit)
    return f"{span / 1e6:g} seconds"


def show_label(label: Any) -> str:
    """A label of any kind as text: times without seconds where these are 0, spans in words."""
    if isinstance(label, np.timedelta64) and not np.isnat(label):
        return _show_span(float(label / np.timedelta64(1, "us")))
    if isinstance(label, np.datetime64):
        return str(label.astype("M8[s]")).removesuffix(":00").removesuffix("T00:00")
    if hasattr(label, "isoformat"):
        return str(label.isoformat(timespec="seconds")).removesuffix(":00").removesuffix("T00:00")
    return f"{label:g}" if isinstance(label, np.floating) else str(label)


FULL_TURN: Final = 360
"""Degrees of a circle."""

OPEN_SHARE: Final = 0.01
"""The part of a full turn by which labels may miss it."""


def irregular_steps(recipe: Recipe, *, only_times: bool = False) -> dict[str, str]:
    """Describe the irregular steps of each windowed dimension whose windows run across them.

    A dimension is left out if its samples reach over one element only, if windows that cross gaps
    are left out, or if it has no labels that are numbers or times.
    """
    windows = recipe.require_windows()
    texts = {}
    for dim, reach, segments in zip(windows.dims, windows.extents, windows.segments, strict=True):
        steps = find_steps(recipe, dim, only_times=only_times) if reach > 1 else None
        if steps is not None:
            both = steps.describe() if segments is None else "", steps.describe_uneven()
            texts[dim] = ", ".join(filter(None, both))
    return {dim: text for dim, text in texts.items() if text}


def irregular_note(dim: str, steps: str) -> str:
    """Say in a sentence what `irregular_steps` says of a dimension."""
    return f"{dim}: steps are irregular: {steps}; windows run across them"


def falling_times(recipe: Recipe) -> list[str]:
    """The dimensions whose times fall, and along which samples reach over several elements."""
    windows = recipe.require_windows()
    return [
        dim
        for dim, reach in zip(windows.dims, windows.extents, strict=True)
        if reach > 1 and (steps := find_steps(recipe, dim, only_times=True)) and steps.is_falling
    ]


def open_circles(recipe: Recipe) -> dict[str, str]:
    """Describe the dimensions along which windows wrap, and whose labels do not close a circle.

    Only labels in degrees are looked at: their steps must add up to 360 degrees within 1 %.
    """
    windows, coords = recipe.require_windows(), recipe.source.coordinates()
    texts = {}
    for dim, size, wraps in zip(windows.dims, windows.dim_sizes, windows.wraps, strict=True):
        if not wraps or dim not in coords.indexes:
            continue
        steps = find_steps(recipe, dim)
        if not str(coords[dim].attrs.get("units", "")).startswith("degree") or steps is None:
            continue
        turn = size * steps.span
        if not abs(abs(turn) - FULL_TURN) <= OPEN_SHARE * FULL_TURN:
            texts[dim] = f"{size:,} steps of {steps.text} degrees: {abs(turn):g} of {FULL_TURN}"
    return texts


def dropped_windows(recipe: Recipe) -> str:
    """Say how many windows are left out, and why; an empty text if none are."""
    windows = recipe.require_windows()
    reasons = []
    if count := windows.dropped.get("gap", 0):
        gaps = []
        for dim, segments in zip(windows.dims, windows.segments, strict=True):
            if segments is not None and (steps := find_steps(recipe, dim)) is not None:
                gaps.append(f"{dim} ({steps.describe()})")
        which = "window that crosses" if count == 1 else "windows that cross"
        reasons.append(f"{count:,} {which} a gap along {' or '.join(gaps)}")
    if count := windows.dropped.get("end", 0):
        which = "window that leaves" if count == 1 else "windows that leave"
        reasons.append(f"{count:,} {which} the array")
    return "; ".join(reasons)


Duration = str | np.timedelta64 | dt.timedelta
"""A duration as users give it."""

_PATTERN: Final = re.compile(r"\s*(\+?)\s*(\d+)\s*(Y|M|W|D|h|m|s|)\s*")
_MONTHS: Final = {"Y": 12, "M": 1}
_MICROSECONDS: Final = {"W": 7 * 86_400e6, "D": 86_400e6, "h": 3_600e6, "m": 60e6, "s": 1e6}
_ROUNDING: Final = 1e-6
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
        raise OptionError(
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
            remedy="pass a number of elements, or select a part where 90 % of the steps are equal",
        )
    if unit in _MONTHS:
        num = count * _MONTHS[unit] / steps.months if steps.months else np.nan
    else:
        num = count * _MICROSECONDS[unit] / steps.span
    whole = round(num) if np.isfinite(num) else 0
    if not abs(num - whole) <= _ROUNDING * max(whole, 1):
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
