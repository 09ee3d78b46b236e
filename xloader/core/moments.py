"""Count, mean, variance, least and greatest value of arrays that come in parts.

The parts are merged by the rule of Chan, Golub and LeVeque (1979), *Updating formulae and a
pairwise algorithm for computing sample variances*. Each part is centred on its own mean before its
squares are summed, so nothing is lost where the mean is large beside the deviations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

_PIECE_SIZE: Final = 1 << 17
"""Elements that are centred at a time. As float64 they stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of the valid elements of an array, along some of its axes.

    All arrays have one shape: that of the axes that are kept.

    Parameters
    ----------
    count : numpy.ndarray of int64
        Number of valid elements.
    weight : numpy.ndarray of float64
        Sum of their weights. Without weights it is the count.
    mean : numpy.ndarray of float64
        Their weighted mean; 0 where there are none.
    m2 : numpy.ndarray of float64
        Weighted sum of the squares of their deviations from the mean.
    min, max : numpy.ndarray of float64
        The least and the greatest of them; inf and -inf where there are none.

    Examples
    --------
    >>> import numpy as np
    >>> first = Moments.of(np.array([1.0, 2.0, np.nan]), (0,))
    >>> both = first.merge(Moments.of(np.array([3.0, 6.0]), (0,)))
    >>> int(both.count), float(both.mean), float(both.std), float(both.max)
    (4, 3.0, 1.8708286933869707, 6.0)
    """

    count: NDArray[np.int64]
    weight: NDArray[np.float64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> Self:
        """The moments of no elements."""
        zero = np.zeros(shape)
        return cls(
            np.zeros(shape, np.int64),
            zero,
            zero.copy(),
            zero.copy(),
            np.full(shape, np.inf),
            np.full(shape, -np.inf),
        )

    @classmethod
    def of(
        cls,
        values: NDArray[Any],
        axes: tuple[int, ...],
        valid: NDArray[np.bool_] | None = None,
        weights: NDArray[Any] | None = None,
    ) -> Self:
        """The moments of an array.

        Parameters
        ----------
        values : numpy.ndarray
            Real numbers or booleans. NaN is not valid.
        axes : tuple of int
            The axes that are reduced.
        valid : numpy.ndarray of bool, optional
            The elements that count; by default all. Broadcast against the values.
        weights : numpy.ndarray, optional
            Weights of the elements, at least 0. Broadcast against the values.

        Returns
        -------
        Moments
            Of the shape of the axes that are kept.
        """
        kept = tuple(axis for axis in range(values.ndim) if axis not in axes)
        shape = tuple(values.shape[axis] for axis in kept)
        if not values.size:
            return cls.empty(shape)
        by_cell = _split(values, kept)
        valids = None if valid is None else _split(np.broadcast_to(valid, values.shape), kept)
        if weights is not None:
            spread = _split(np.broadcast_to(weights, values.shape), kept)
            return cls._of_cells(by_cell, valids, spread, shape)
        if by_cell.shape[0] > max(by_cell.shape[1] // 64, 1):
            return cls._of_cells(by_cell, valids, None, shape)
        rows = [
            _of_line(own.ravel(), None if valids is None else valids[cell].ravel())
            for cell, own in enumerate(by_cell)
        ]
        own = zip(*rows, strict=True)
        count, mean, m2, least, greatest = (np.array(found).reshape(shape) for found in own)
        return cls(count.astype(np.int64), count.astype(np.float64), mean, m2, least, greatest)

    @classmethod
    def _of_cells(
        cls,
        values: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        weights: NDArray[Any] | None,
        shape: tuple[int, ...],
    ) -> Self:
        """The moments of each row of an array with two axes, many rows in one call."""
        found = cls.empty((values.shape[0],))
        step = max(_PIECE_SIZE // values.shape[1], 1)
        for begin in range(0, values.shape[0], step):
            rows = slice(begin, begin + step)
            own = _of_rows(
                values[rows],
                None if valid is None else valid[rows],
                None if weights is None else weights[rows],
            )
            for field, part in zip(fields(found), own, strict=True):
                getattr(found, field.name)[rows] = part
        return cls(*(getattr(found, field.name).reshape(shape) for field in fields(found)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each array."""
        return self.count.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return 8 * len(fields(self)) * math.prod(self.shape)

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation, with ``ddof=0``; NaN where there are no elements."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(self.m2 / self.weight)

    def merge(self, other: Moments) -> Moments:
        """The moments of the elements of both, by the rule of Chan, Golub and LeVeque."""
        weight = self.weight + other.weight
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(weight > 0, other.weight / weight, 0.0)
            delta = other.mean - self.mean
            mean = self.mean + delta * share
            m2 = self.m2 + other.m2 + delta * delta * (self.weight * share)
        # Then the moments of nothing change no bit, and infinities do not become NaN by them.
        lacks, alone = self.weight == 0, other.weight == 0
        mean = np.where(lacks, other.mean, np.where(alone, self.mean, mean))
        m2 = np.where(lacks, other.m2, np.where(alone, self.m2, m2))
        return Moments(
            self.count + other.count,
            weight,
            mean,
            m2,
            np.minimum(self.min, other.min),
            np.maximum(self.max, other.max),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The moments whose arrays were kept in a file."""
        return cls(*(arrays[field.name] for field in fields(cls)))


def _split(values: NDArray[Any], kept: tuple[int, ...]) -> NDArray[Any]:
    """The array with one row for each kept element. A copy only where the order asks for it."""
    moved = np.moveaxis(values, kept, range(len(kept)))
    return moved.reshape(math.prod(moved.shape[: len(kept)]), -1)


def _of_line(
    values: NDArray[Any], valid: NDArray[np.bool_] | None
) -> tuple[int, float, float, float, float]:
    """Count, mean, sum of squared deviations, least and greatest of a line of values."""
    if valid is not None:
        values = values[valid]
    num_pieces = -(-values.size // _PIECE_SIZE)
    counts, means, squares = np.zeros(num_pieces), np.zeros(num_pieces), np.zeros(num_pieces)
    least, greatest = np.full(num_pieces, np.inf), np.full(num_pieces, -np.inf)
    buffer = np.empty(min(values.size, _PIECE_SIZE))
    with np.errstate(invalid="ignore", over="ignore"):
        for number in range(num_pieces):
            piece = values[number * _PIECE_SIZE : (number + 1) * _PIECE_SIZE]
            low = piece.min()
            if low != low:
                piece = piece[~np.isnan(piece)]
                if not piece.size:
                    continue
                low = piece.min()
            own = buffer[: piece.size]
            own[...] = piece
            mean = np.add.reduce(own) / piece.size
            np.subtract(own, mean, out=own)
            np.multiply(own, own, out=own)
            counts[number], means[number] = piece.size, mean
            squares[number] = np.add.reduce(own)
            least[number], greatest[number] = low, piece.max()
        count = counts.sum()
        if not count:
            return 0, 0.0, 0.0, np.inf, -np.inf
        # One piece alone keeps its mean to the last bit.
        mean = means[0] + (counts * (means - means[0])).sum() / count
        m2 = squares.sum() + (counts * (means - mean) ** 2).sum()
    return int(count), float(mean), float(m2), float(least.min()), float(greatest.max())


def _of_rows(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, weights: NDArray[Any] | None
) -> tuple[NDArray[Any], ...]:
    """The six arrays of `Moments`, one number for each row."""
    own = values.astype(np.float64)
    is_valid = ~np.isnan(own)
    if valid is not None:
        is_valid &= valid
    count = np.add.reduce(is_valid, axis=1, dtype=np.int64)
    least = np.minimum.reduce(own, axis=1, initial=np.inf, where=is_valid)
    greatest = np.maximum.reduce(own, axis=1, initial=-np.inf, where=is_valid)
    own[~is_valid] = 0.0
    given = is_valid.astype(np.float64)
    if weights is not None:
        given *= weights
    weight = np.add.reduce(given, axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        # Centred on some valid value first, a constant keeps its mean to the last bit.
        first = np.where(count > 0, least, 0.0)[:, None]
        shift = np.add.reduce((own - first) * given, axis=1) / np.where(weight > 0, weight, 1.0)
        mean = np.where(weight > 0, first[:, 0] + shift, 0.0)
        own -= mean[:, None]
        m2 = np.add.reduce(own * own * given, axis=1)
    return count, weight, mean, m2, least, greatest
