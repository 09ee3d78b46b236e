"""Which set gives which row of an epoch, so that each has its exact proportion at every row.

After ``k`` rows, a set of weight ``w`` has given ``floor(w * k)`` or ``ceil(w * k)`` of them. The
pattern is a function of the weights alone. With weights 0.5, 0.3 and 0.2 it repeats after ten
rows::

    row    0 1 2 3 4 5 6 7 8 9 | 0 1 2 ...
    set    0 1 0 2 0 1 0 2 1 0 | 0 1 0 ...

All arithmetic is that of integers, so that nothing drifts.

Sources
-------
Tijdeman, "The chairman assignment problem", Discrete Mathematics 32(3), 1980, pages 323-330. A
union of ``n`` states chooses a chairman each year, in proportion to weights. Among the states that
are far enough behind their due, that one is chosen which would be the first to be too far behind.
No state is then ever further from its due than ``1 - 1 / (2 * n - 2)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xloader.errors import OptionError

_MOST_ROWS = 1 << 22
"""Most rows of a pattern that are dealt one by one, which takes some seconds."""


@dataclass(frozen=True)
class QuotaPattern:
    """The set of each row, by the weights of the sets."""

    weights: tuple[int, ...]

    @classmethod
    def of(cls, weights: Sequence[Fraction]) -> QuotaPattern:
        """Make the pattern of weights that are fractions."""
        scale = math.lcm(*(weight.denominator for weight in weights))
        whole = [int(weight * scale) for weight in weights]
        common = math.gcd(*whole)
        return cls(tuple(weight // common for weight in whole))

    @property
    def period(self) -> int:
        """Number of rows after which the pattern repeats."""
        return sum(self.weights)

    @cached_property
    def _dealer(self) -> _PeriodDealer:
        return _PeriodDealer(self.weights)

    def __reduce__(self) -> tuple[object, ...]:
        # The rows that were dealt are left out.
        return QuotaPattern, (self.weights,)

    def sets(self, begin: int, end: int) -> NDArray[np.intp]:
        """The set of each row from ``begin`` up to ``end``."""
        if end <= self.period:
            return self._dealer.rows(end)[begin:]
        return self._dealer.rows(self.period)[np.arange(begin, end) % self.period]

    def counts(self, num_rows: int) -> tuple[int, ...]:
        """How many of the first rows each set gives."""
        rounds, rest = divmod(num_rows, self.period)
        in_rest = self._dealer.counts(rest)
        return tuple(
            rounds * weight + count for weight, count in zip(self.weights, in_rest, strict=True)
        )

    def num_rows(self, most: Sequence[int]) -> int:
        """The most rows for which no set gives more than it has."""
        # No set is more than one row ahead of its due.
        bound = min(
            (size + 1) * self.period // weight + 1
            for weight, size in zip(self.weights, most, strict=True)
        )
        dealt = self._dealer.rows(min(bound, self.period))
        first_missing = []
        for index, (weight, size) in enumerate(zip(self.weights, most, strict=True)):
            rounds, rest = divmod(size, weight)
            places = np.flatnonzero(dealt == index)
            if rest < len(places):
                first_missing.append(rounds * self.period + int(places[rest]))
        return min(first_missing)


class _PeriodDealer:
    """Deals the rows of one period, as many as were asked for so far."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._given = [0] * len(weights)
        self._dealt = np.zeros(0, np.intp)
        # Counts before every so many rows, so that no call counts from the first row on.
        self._known: list[tuple[int, ...]] = []

    def rows(self, num_rows: int) -> NDArray[np.intp]:
        """The set of each of the first rows, at most of one period."""
        if num_rows > len(self._dealt):
            # In growing pieces, so that batch after batch costs little.
            most = min(max(num_rows, 2 * len(self._dealt), _STRETCH), sum(self._weights))
            if num_rows > _MOST_ROWS:
                raise _too_fine(self._weights)
            added = np.array(self._deal(len(self._dealt), min(most, _MOST_ROWS)), np.intp)
            self._dealt = np.concatenate([self._dealt, added])
        return self._dealt[:num_rows]

    def counts(self, num_rows: int) -> list[int]:
        """How many of the first rows each set gives."""
        dealt, num_sets = self.rows(num_rows), len(self._weights)
        at, rest = divmod(num_rows, _STRETCH)
        while len(self._known) <= at:
            stretch = dealt[(len(self._known) - 1) * _STRETCH : len(self._known) * _STRETCH]
            before = np.array(self._known[-1]) if self._known else 0
            counted = np.bincount(stretch if self._known else [], minlength=num_sets)
            self._known.append(tuple((before + counted).tolist()))
        tail = np.bincount(dealt[num_rows - rest :], minlength=num_sets)
        return [int(num) for num in np.array(self._known[at]) + tail]

    def _deal(self, begin: int, end: int) -> list[int]:
        weights, total, given = self._weights, sum(self._weights), self._given
        if len(weights) == 1:
            return [0] * (end - begin)
        # The bound 1 - 1 / (2 * n - 2) on how far a set may be from its due, in these units.
        unit = 2 * len(weights) - 2
        # A set may have its next row once weight * row / total is 1 / unit above what it has had,
        # and is too far behind after row `ahead / weight`.
        behind = [(1 + unit * num) * total for num in given]
        ahead = [(unit * (num + 1) - 1) * total for num in given]
        dealt = []
        numbers = range(len(weights))
        for row in range(begin + 1, end + 1):
            best, due = -1, 0
            for index in numbers:
                weight = weights[index]
                if unit * weight * row >= behind[index] and (
                    best < 0 or ahead[index] * weights[best] < due * weight
                ):
                    best, due = index, ahead[index]
            dealt.append(best)
            given[best] += 1
            behind[best] += unit * total
            ahead[best] += unit * total
        return dealt


_STRETCH = 1 << 10


def _too_fine(weights: Sequence[int]) -> OptionError:
    total = sum(weights)
    rounded = [round(weight / total, 3) or 0.001 for weight in weights]
    return OptionError(
        "the weights have so many digits that their pattern is too long",
        given=f"proportions that repeat after {total:,} rows, where {_MOST_ROWS:,} are allowed",
        remedy=f"round the weights, for example to {rounded}",
    )
