"""How often an epoch has the windows at each position, along each dimension and for two of them.

Windows are counted, never listed: a set that is kept as bits is summed in slabs::

    bits of the windows       by leading position      by position along the last two dims
    (time, lat, lon)     ->   sum over (lat, lon)  +   sum over time

"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.subset import Subset
from xloader.core.window_sets import WindowSet
from xloader.core.windows import Windows
from xloader.errors import OptionError

Counts = NDArray[Any]
"""Numbers of samples: int64, or float64 where they are drawn by weight."""

_PIECE_SIZE: Final = 1 << 24
"""Windows that are summed in one call."""
_MOST_PLACES: Final = 1 << 26
"""Most combinations of positions along the last two dimensions, each of 8 bytes."""


@dataclass(frozen=True, eq=False)
class PositionCounts:
    """How often an epoch has the windows at each position.

    `plane`: None if windows lie at all combinations equally often, or if there is only one
    dimension.
    """

    total: float
    lines: tuple[Counts, ...]
    plane: Counts | None = None

    @classmethod
    def of(cls, windows: Windows, subset: Subset | None) -> PositionCounts:
        """Count the windows of an epoch."""
        shape = windows.num_positions
        is_whole = subset is None or (subset.indices is None and subset.weights is None)
        if is_whole:
            num = math.prod(shape)
            return cls(num, tuple(np.full(size, num // size, np.int64) for size in shape))
        assert subset is not None
        lead, row = math.prod(shape[:-2]), math.prod(shape[-2:])
        if max(lead, row) > _MOST_PLACES:
            raise OptionError(
                "the places of the samples are too many to count",
                given=f"{max(lead, row):,} combinations of positions",
                allowed=f"up to {_MOST_PLACES:,}",
                remedy="count a part of the data, chosen with .sel before .window",
            )
        dtype = np.dtype(np.int64 if subset.weights is None else np.float64)
        leading, plane = np.zeros(lead, dtype), np.zeros(row, dtype)
        for first, own, counts in _slabs(subset, lead, row):
            leading[first : first + len(own)] += own
            plane[counts[0] : counts[0] + len(counts[1])] += counts[1]
        return cls._summed(shape, leading, plane)

    @classmethod
    def _summed(cls, shape: tuple[int, ...], leading: Counts, plane: Counts) -> PositionCounts:
        """The counts along each dimension, from those of the leading dims and of the last two."""
        before, last = shape[:-2], shape[-2:]
        lines = [*_marginals(leading.reshape(before)), *_marginals(plane.reshape(last))]
        return cls(plane.sum().item(), tuple(lines), plane.reshape(last) if last[1:] else None)


def _marginals(counts: Counts) -> Iterator[Counts]:
    """The sums along each axis over all others."""
    for axis in range(counts.ndim):
        yield counts.sum(axis=tuple(d for d in range(counts.ndim) if d != axis))


def _slabs(subset: Subset, lead: int, row: int) -> Iterator[tuple[int, Any, tuple[int, Any]]]:
    """Yield sums over pieces of the windows.

    Each is the first leading place and the sums from there on, and the first place in a row and
    the sums from there on.
    """
    own, weights = subset.indices, _expected(subset)
    if weights is not None and own is None:
        yield from _dense(lambda begin, end: weights[begin:end], lead, row)
        return
    if weights is None and isinstance(own, WindowSet):
        bits = own.as_bits()
        yield from _dense(lambda begin, end: bits.flags(begin, end), lead, row)
        return
    for begin in range(0, len(subset), _PIECE_SIZE >> 2):
        ids = np.arange(begin, min(begin + (_PIECE_SIZE >> 2), len(subset)))
        places, within = np.divmod(subset.windows_of(ids), row)
        some = None if weights is None else weights[ids]
        # Counts by `bincount` are integers without weights.
        yield (
            0,
            np.bincount(places, some, minlength=lead),
            (0, np.bincount(within, some, minlength=row)),
        )


def _dense(values: Any, lead: int, row: int) -> Iterator[tuple[int, Any, tuple[int, Any]]]:
    """As `_slabs`, where each window has a value: whether it is a sample, or how often."""
    num_rows = max(_PIECE_SIZE // row, 1)
    for first in range(0, lead, num_rows):
        last = min(first + num_rows, lead)
        step = row if num_rows > 1 else _PIECE_SIZE
        for begin in range(0, row, step):
            end = min(begin + step, row)
            # A slab of whole rows, or a piece of one row.
            part = values(first * row + begin, (last - 1) * row + end).reshape(last - first, -1)
            dtype = np.int64 if part.dtype == np.bool_ else None
            yield first, part.sum(axis=1, dtype=dtype), (begin, part.sum(axis=0, dtype=dtype))


def _expected(subset: Subset) -> NDArray[np.float64] | None:
    """How often an epoch has each sample on average; None if each occurs once."""
    if subset.weights is None:
        return None
    # Scaled before the sum, which keeps it finite for huge weights.
    shares = subset.weights / subset.weights.max()
    return np.asarray(shares * (subset.num_samples / shares.sum()), np.float64)
