"""Count, mean, variance and extremes of values, per channel and per label; merged exactly."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial, reduce
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.jobs.statistics.quantile_sketch import QuantileSketch

STATISTICS: Final = ("count", "mean", "std", "min", "max")
"""The statistics that are always made, in order."""

_PIECE_SIZE: Final = 1 << 16
"""Elements that are centred at a time. As float64 they stay in a core's cache."""

_CELL_RATIO: Final = 64
"""With more cells than this share of the elements of each, many cells are reduced in one call."""


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
        count, high = np.zeros(shape, np.int64), np.full(shape, np.inf)
        return cls(count, np.zeros(shape), np.zeros(shape), np.zeros(shape), high, -high)

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
        if not kept and valid is None and weights is None:
            # Most chunks are whole, and small ones come in great number.
            return cls(*map(np.asarray, _of_row(values.reshape(-1), None, None)))
        if valid is not None:
            valid = np.broadcast_to(valid, values.shape)
        if weights is not None:
            weights = np.broadcast_to(weights, values.shape)
        num_cells = math.prod(shape)
        if num_cells > max(values.size // num_cells // _CELL_RATIO, 1):
            return cls._of_columns(values, valid, weights, kept, shape)
        rows = [None if a is None else _split(a, kept) for a in (values, valid, weights)]
        cells = (
            _of_row(*(None if array is None else array[cell].reshape(-1) for array in rows))  # type: ignore[arg-type]
            for cell in range(num_cells)
        )
        return cls(*(np.array(numbers).reshape(shape) for numbers in zip(*cells, strict=True)))

    @classmethod
    def _of_columns(
        cls,
        values: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        weights: NDArray[Any] | None,
        kept: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> Self:
        """The moments of many cells, with the reduced axes first, some cells in one call."""
        moments = cls.empty((math.prod(shape),))
        columns, valids, heavy = (
            None if a is None else _as_columns(a, kept) for a in (values, valid, weights)
        )
        assert columns is not None
        step = max(_PIECE_SIZE // len(columns), 1)
        for begin in range(0, columns.shape[1], step):
            at = slice(begin, begin + step)
            block = _of_block(
                columns[:, at],
                None if valids is None else valids[:, at],
                None if heavy is None else heavy[:, at],
            )
            for field, part in zip(fields(moments), block, strict=True):
                getattr(moments, field.name)[at] = part
        return cls(*(getattr(moments, field.name).reshape(shape) for field in fields(moments)))

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
        weight = np.asarray(self.weight + other.weight)
        mean, m2 = self._merged(other, weight)
        return Moments(
            np.asarray(self.count + other.count),
            weight,
            mean,
            m2,
            np.asarray(np.minimum(self.min, other.min)),
            np.asarray(np.maximum(self.max, other.max)),
        )

    def _merged(
        self, other: Moments, weight: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and squares of both."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            share = np.asarray(other.weight / weight)
            delta = np.asarray(other.mean - self.mean)
            mean = np.asarray(self.mean + delta * share)
            if not math.isfinite(np.add.reduce(mean, axis=None)):
                # The difference from an infinite mean says nothing; the sum keeps its sign.
                is_finite = np.isfinite(self.mean) & np.isfinite(other.mean)
                mean = np.where(is_finite, mean, self.mean + other.mean)
            delta *= delta
            share *= self.weight
            delta *= share
            if all(np.minimum.reduce(m.weight, axis=None, initial=1.0) > 0 for m in (self, other)):
                delta += self.m2
                delta += other.m2
                return mean, delta
            delta += self.m2 + other.m2
        # The moments of nothing change no bit, and infinities do not become NaN by them.
        lacks, alone = self.weight == 0, other.weight == 0
        mean = np.where(lacks, other.mean, np.where(alone, self.mean, mean))
        return mean, np.where(lacks, other.m2, np.where(alone, self.m2, delta))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def joined(
        cls, parts: Iterable[Moments], join: Callable[[Sequence[NDArray[Any]]], NDArray[Any]]
    ) -> Self:
        """The moments of several places, whose arrays a function joins to one."""
        tables = (part.arrays().values() for part in parts)
        return cls(*map(join, zip(*tables, strict=True)))


def moments_table(moments: Moments) -> NDArray[np.float64]:
    """The `STATISTICS` of moments, along a new first axis; NaN where there is no value."""
    is_there = moments.count > 0
    return np.stack(
        [
            moments.count.astype(np.float64),
            # Elements whose weights are all 0 have no mean, but a least and a greatest.
            np.where(moments.weight > 0, moments.mean, np.nan),
            moments.std,
            np.where(is_there, moments.min, np.nan),
            np.where(is_there, moments.max, np.nan),
        ]
    )


def _split(values: NDArray[Any], kept: tuple[int, ...]) -> NDArray[Any]:
    """The array with one row for each kept element. A copy only where the order asks for it."""
    moved = np.moveaxis(values, kept, range(len(kept)))
    return moved.reshape(math.prod(moved.shape[: len(kept)]), -1)


def _as_columns(values: NDArray[Any], kept: tuple[int, ...]) -> NDArray[Any]:
    """The array with one column for each kept element. A copy only where the order asks for it."""
    moved = np.moveaxis(values, kept, range(-len(kept), 0))
    num_cells = math.prod(moved.shape[values.ndim - len(kept) :])
    return moved.reshape(-1, num_cells)


_Row = tuple[Any, Any, Any, Any, Any, Any]
_NOTHING: Final[_Row] = (0, 0.0, 0.0, 0.0, math.inf, -math.inf)


def _of_row(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, weights: NDArray[Any] | None
) -> _Row:
    """The six numbers of `Moments` for a row of values."""
    if valid is not None:
        values = values[valid]
        weights = None if weights is None else weights[valid]
    pieces = []
    for begin in range(0, values.size, _PIECE_SIZE):
        at = slice(begin, begin + _PIECE_SIZE)
        piece, heavy = values[at], None if weights is None else weights[at]
        if np.isnan(np.minimum.reduce(piece)):
            is_valid = ~np.isnan(piece)
            piece, heavy = piece[is_valid], None if heavy is None else heavy[is_valid]
        if piece.size:
            pieces.append(_of_block(piece, None, heavy))
    if len(pieces) < 2:
        return pieces[0] if pieces else _NOTHING
    count, weight, mean, m2, least, greatest = map(np.array, zip(*pieces, strict=True))
    total = weight.sum()
    with np.errstate(invalid="ignore", over="ignore"):
        # Equal means stay as they are to the last bit.
        middle = mean[0] + (weight * (mean - mean[0])).sum() / (total or 1.0)
        if not math.isfinite(middle):
            middle = (weight * mean).sum() / total
        square = m2.sum() + (weight * (mean - middle) ** 2).sum()
    return count.sum(), total, middle, square, least.min(), greatest.max()


def _of_block(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, weights: NDArray[Any] | None
) -> _Row:
    """The six arrays of `Moments`, along the first axis of a block that stays in a cache."""
    count: Any = len(values)
    low, high = np.minimum.reduce(values, axis=0), np.maximum.reduce(values, axis=0)
    if len(values) == 1 and valid is None and weights is None and not np.isnan(low).any():
        # Maps often come one step at a time.
        only = np.asarray(low, np.float64)
        with np.errstate(invalid="ignore"):
            return 1, 1.0, only, only * 0.0, only, only
    first, is_valid = low, None
    if valid is not None or np.isnan(low).any():
        is_valid = ~np.isnan(values) if valid is None else valid & ~np.isnan(values)
        values = values.astype(np.float64)
        count = np.add.reduce(is_valid, axis=0, dtype=np.int64)
        low = np.minimum.reduce(values, axis=0, initial=np.inf, where=is_valid)
        high = np.maximum.reduce(values, axis=0, initial=-np.inf, where=is_valid)
        first = np.where(count > 0, low, 0.0)
        # NaN times 0 is NaN too.
        values = np.where(is_valid, values, 0.0)
        weights = is_valid.astype(np.float64) if weights is None else is_valid * weights

    def total(array: NDArray[Any]) -> NDArray[np.float64]:
        heavy = array if weights is None else array * weights
        return np.asarray(np.add.reduce(heavy, axis=0, dtype=np.float64))

    weight: Any = float(count) if weights is None else np.add.reduce(weights, 0, np.float64)
    share = np.where(weight > 0, weight, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        # Centred on a value first, a constant keeps its mean to the last bit.
        centred = values.astype(np.float64)
        centred -= first
        if is_valid is not None:
            centred[~is_valid] = 0.0
        shift = total(centred) / share
        mean = np.where(weight > 0, first + shift, 0.0)
        if (is_lost := np.isnan(mean)).any():
            # Infinite values: their sum keeps the sign.
            mean = np.where(is_lost, total(values), mean)
        centred -= shift
        centred *= centred
        extremes = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return count, weight, mean, total(centred), *extremes


_merge_sketches: Final = np.frompyfunc(QuantileSketch.merge, 2, 1)


@dataclass(frozen=True, eq=False)
class LabelledMoments:
    """Moments, and perhaps sketches, for each label that occurs.

    `rows`: numbers of the labels that occur, ascending. `sketches`: an array of the shape of the
    moments; None if quantiles are not asked for.
    """

    rows: Ints
    moments: Moments
    sketches: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.rows.nbytes + self.moments.nbytes + sum(s.nbytes for s in self._flat)

    @property
    def _flat(self) -> list[QuantileSketch]:
        return [] if self.sketches is None else self.sketches.reshape(-1).tolist()

    def merge(self, other: LabelledMoments) -> LabelledMoments:
        """The moments of the elements of both, by label."""
        rows, first, second = self.rows, self, other
        if self.rows is not other.rows and not np.array_equal(self.rows, other.rows):
            rows = np.union1d(self.rows, other.rows)
            first, second = self.spread(rows), other.spread(rows)
        sketches: Any = None
        if first.sketches is not None and second.sketches is not None:
            sketches = _merge_sketches(first.sketches, second.sketches)
        return LabelledMoments(rows, first.moments.merge(second.moments), sketches)

    def spread(self, rows: Ints) -> LabelledMoments:
        """The same moments among more labels, which have no elements.

        `rows`: numbers of the labels, ascending, among them those of this object.
        """
        if len(rows) == len(self.rows):
            return self
        shape = (len(rows), *self.moments.shape[1:])
        at = np.searchsorted(rows, self.rows)
        moments, sketches = Moments.empty(shape), None
        for name, array in moments.arrays().items():
            array[at] = getattr(self.moments, name)
        if self.sketches is not None:
            sketches = np.full(shape, QuantileSketch.empty(), object)
            sketches[at] = self.sketches
        return LabelledMoments(rows, moments, sketches)

    def to_bytes(self) -> bytes:
        """The numbers as bytes, the same on every machine."""
        shape, texts = self.moments.shape, [sketch.to_bytes() for sketch in self._flat]
        head = struct.pack(f"<{2 + len(shape)}q", len(shape), self.sketches is not None, *shape)
        lengths = np.array(list(map(len, texts)), np.int64)
        arrays = self.rows, lengths, *self.moments.arrays().values()
        numbers = [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays]
        return b"".join([head, *numbers, *texts])

    @classmethod
    def from_bytes(cls, data: bytes) -> LabelledMoments:
        """The object that `to_bytes` wrote."""
        num_axes, has_sketches = struct.unpack_from("<2q", data)
        shape = struct.unpack_from(f"<{num_axes}q", data, 16)
        num, at = math.prod(shape), 16 + 8 * num_axes

        def numbers(dtype: str, size: int) -> NDArray[Any]:
            nonlocal at
            array = np.frombuffer(data, f"<{dtype}", size, at)
            at += array.nbytes
            return array.astype(dtype)

        rows, lengths = numbers("i8", shape[0]), numbers("i8", num * has_sketches)
        count, others = numbers("i8", num).reshape(shape), fields(Moments)[1:]
        moments = Moments(count, *(numbers("f8", num).reshape(shape) for _ in others))
        if not has_sketches:
            return cls(rows, moments)
        sketches = np.empty(num, object)
        for place, length in enumerate(lengths.tolist()):
            sketches[place] = QuantileSketch.from_bytes(data[at : at + length])
            at += length
        return cls(rows, moments, sketches.reshape(shape))


def side_by_side(parts: list[LabelledMoments]) -> LabelledMoments:
    """Moments of several quantities, along a new axis of cells that comes first."""
    rows = reduce(np.union1d, [part.rows for part in parts])
    spread = [part.spread(rows) for part in parts]
    sketches = [part.sketches for part in spread if part.sketches is not None]
    moments = Moments.joined([part.moments for part in spread], partial(np.stack, axis=1))
    return LabelledMoments(rows, moments, np.stack(sketches, axis=1) if sketches else None)
