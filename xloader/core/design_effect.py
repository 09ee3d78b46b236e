"""The design effect of batches: how much their means vary, against those of a full shuffle.

A batch is a *cluster* of samples. If the samples of a batch are alike, the means of batches vary
more than if the same samples were dealt to batches at random::

    samples        1 1 2 2 | 5 5 6 6 | 9 9 8 8      alike in a batch: means 1.5, 5.5, 8.5
    full shuffle   1 6 9 2 | 8 5 1 6 | 9 5 2 8      means 4.5, 5.0, 6.0

The ratio of the two variances is the design effect of cluster sampling. It is 1 for a full
shuffle, and as large as the batch if all samples of a batch are equal.

Sources
-------
Kish, *Survey Sampling*, Wiley, 1965, chapters 5 and 8, for the design effect. Cochran, *Sampling
Techniques*, third edition, Wiley, 1977, sections 9.4 and 9.5, for the variances of equal clusters.
Efron, *The Jackknife, the Bootstrap and Other Resampling Plans*, SIAM, 1982, for standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, draw_below

_PIECE_SIZE: Final = 1 << 16
"""Elements that are added in one call."""
_SHARE_BITS: Final = 30
"""Bits of a place within a part. The product with its width must fit into 64."""


def spread_evenly(total: int, count: int) -> Ints:
    """Choose numbers below a total, one in each of ``count`` equal parts of it.

    The place within each part is drawn with a fixed key. Numbers at equal distances could all have
    the same season of the year, or lie in one column of a grid.
    """
    if count >= total:
        return np.arange(total, dtype=np.int64)
    edges = np.arange(count + 1) * total // count
    drawn = draw_below(derive_key(0), np.arange(count), 1 << _SHARE_BITS)
    return edges[:-1] + (np.diff(edges) * drawn >> _SHARE_BITS)


@dataclass(frozen=True, eq=False)
class BatchMembers:
    """The distinct samples of some batches, and the batches that have each of them.

    `ids`: the distinct sample ids, ascending.
    """

    ids: Ints
    begins: Ints
    batches: Ints
    num_batches: int

    @classmethod
    def of(cls, batches: Sequence[Ints]) -> BatchMembers:
        """The members of batches."""
        ids, which = np.unique(np.concatenate(batches), return_inverse=True)
        number = np.repeat(np.arange(len(batches)), [len(own) for own in batches])
        by_sample = np.argsort(which, kind="stable")
        begins = np.searchsorted(which[by_sample], np.arange(len(ids) + 1))
        return cls(ids, begins, number[by_sample], len(batches))

    def counts(self, rows: Ints) -> NDArray[np.float64]:
        """How often each batch has some samples, given their numbers in ``ids``.

        The result has shape (num_batches, n).
        """
        found = np.zeros((self.num_batches, len(rows)))
        for column, (begin, end) in enumerate(
            zip(self.begins[rows].tolist(), self.begins[rows + 1].tolist(), strict=True)
        ):
            np.add.at(found[:, column], self.batches[begin:end], 1.0)
        return found


@dataclass(frozen=True, eq=False)
class DesignEffect:
    """The design effect of batches for one variable."""

    ratio: float
    standard_error: float
    without_each: NDArray[np.float64]
    num_elements: int
    num_left_out: int


class BatchSums:
    """Sums over batches of elements of their samples, from which the design effect follows.

    Samples may come in any order, each once. All sums are of differences from the first sample, so
    that nothing is lost where the mean is large beside the deviations.
    """

    def __init__(self, num_batches: int, num_elements: int) -> None:
        self._sums = np.zeros((num_batches, num_elements))
        self._squares = np.zeros((num_batches, num_elements))
        self._is_finite = np.ones(num_elements, np.bool_)
        self._first: NDArray[np.float64] | None = None

    @staticmethod
    def element_nbytes(num_batches: int) -> int:
        """Bytes of the sums of one element."""
        return 2 * 8 * num_batches

    def add(self, values: NDArray[Any], rows: Ints, members: BatchMembers) -> None:
        """Add samples to the sums of the batches that have them.

        `values` has shape (n, num_elements).
        """
        step = max(_PIECE_SIZE // max(values.shape[1], 1), 1)
        for begin in range(0, len(values), step):
            piece = values[begin : begin + step].astype(np.float64)
            if not (is_finite := np.isfinite(piece)).all():
                self._is_finite &= is_finite.all(axis=0)
                # Their elements are left out in the end.
                piece[~is_finite] = 0.0
            if self._first is None:
                self._first = piece[0].copy()
            piece -= self._first
            counts = members.counts(rows[begin : begin + step])
            self._sums += counts @ piece
            piece *= piece
            self._squares += counts @ piece

    def design_effect(self, batch_size: int, num_epoch_batches: int) -> DesignEffect:
        """The design effect, once all samples were added.

        With ``K`` of the ``n`` batches of an epoch, each of ``B`` samples, and all sums over
        elements::

            M  = B * sum((mean of batch - mean of means)**2) / (K - 1)      among batches
            W  = sum((sample - mean of its batch)**2)                       within batches
            S2 = ((n - 1) * M + n / K * W) / (n * B - 1)                    of the epoch's samples
            ratio = M / S2

        In a full shuffle, the expected ``M`` is the variance of the samples, ``S2``. The correction
        for the finite number of samples, ``1 - B / (n * B)``, cancels against ``K - 1`` in place of
        ``K``: means of batches without common samples vary among each other by ``S2 / B``. If all
        batches are taken, the ratio is exact for the epoch. The standard error is that of the
        jackknife over batches: how far the ratio of other batches of the epoch lies from this one.
        """
        kept = self._is_finite
        sums = self._sums[:, kept]
        means = sums / batch_size
        within = np.maximum((self._squares[:, kept] - sums * means).sum(axis=1), 0.0)
        between = ((means - means.mean(axis=0)) ** 2).sum(axis=1)
        num = len(means)

        def ratio_of(deviations: Any, rest: Any, count: int) -> Any:
            among = batch_size * deviations / max(count - 1, 1)
            total = (num_epoch_batches - 1) * among + num_epoch_batches / count * rest
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray(among * (num_epoch_batches * batch_size - 1)) / total

        without_each = np.full(num, np.nan)
        if num > 2:
            without_each = ratio_of(
                # The mean of the others is another one.
                np.maximum(between.sum() - num / (num - 1) * between, 0.0),
                within.sum() - within,
                num - 1,
            )
        return DesignEffect(
            float(ratio_of(between.sum(), within.sum(), num)),
            jackknife_error(without_each),
            without_each,
            int(kept.sum()),
            int((~kept).sum()),
        )


def jackknife_error(without_each: NDArray[np.float64]) -> float:
    """The standard error of an estimate, from the estimates without each observation."""
    num = len(without_each)
    deviations = without_each - without_each.mean()
    return math.sqrt((num - 1) / num * float((deviations**2).sum()))


def mean_effect(effects: Sequence[DesignEffect]) -> tuple[float, float]:
    """The mean ratio of several variables, as if each had the same variance; and its error."""
    varying = [own for own in effects if math.isfinite(own.ratio)]
    if not varying:
        return math.nan, math.nan
    ratio = float(np.mean([own.ratio for own in varying]))
    return ratio, jackknife_error(np.mean([own.without_each for own in varying], axis=0))
