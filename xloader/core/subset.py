"""Subsets: the windows that are samples, and how often each sample occurs in an epoch.

Subsets, splits, balancing and bootstraps all come down to a multiplicity for each sample::

    window       0  1  2  3  4  5  6
    indices         1     3        6      .select([1, 3, 6]): ids 0, 1, 2
    weights         2     1        1      .weighted([2, 1, 1], num_samples=8)
    drawn        0  0  0  0  1  1  2  2   one epoch: ids 0, 1, 2 occur 4, 2 and 2 times

Where ids ascend with their windows, the windows are kept as bits, as runs or as a list, whichever
takes the least memory. The digest and the order of epochs do not depend on that.

Draws are systematic. A sample of weight ``w`` occurs ``x = num_samples * w / sum(weights)`` times
on average over epochs, and ``floor(x)`` or ``ceil(x)`` times in each epoch. An epoch has exactly
``num_samples`` samples.

Sources
-------
Kitagawa, "Monte Carlo filter and smoother for non-Gaussian nonlinear state space models",
Journal of Computational and Graphical Statistics 5(1), 1996, for systematic resampling.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, draw
from xloader.core.point_table import PointTable
from xloader.core.sorting import is_first
from xloader.core.window_sets import (
    BoxedWindows,
    Starts,
    WindowBits,
    WindowSet,
    cut_box,
    is_worth_boxing,
    smallest_of_bits,
    smallest_of_list,
)

_STRATUM_SIZE = 1 << 12
"""Number of successive samples that are shuffled among themselves before a draw by weight. Without
it, neighbouring samples would be drawn at regular intervals. Each part of the store still gives
about as many samples as its weight says."""

# Each use of random numbers has its own constant, so that no two uses draw the same ones.
_PLACES, _START = 0x5A3D, 0x5A3E


@dataclass(frozen=True, eq=False)
class Subset:
    """The windows that are samples, and the weights by which epochs draw them."""

    num_windows: int
    indices: Ints | WindowSet | None = None
    weights: NDArray[np.float64] | None = None
    num_draws: int | None = None
    notes: tuple[str, ...] = ()
    points: PointTable | None = None

    def __post_init__(self) -> None:
        indices = self.indices
        if isinstance(indices, np.ndarray) and (indices[1:] > indices[:-1]).all():
            object.__setattr__(self, "indices", smallest_of_list(self.num_windows, indices))

    def __len__(self) -> int:
        return self.num_windows if self.indices is None else len(self.indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subset) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles leave out cached properties.
        parts = (self.num_windows, self.indices, self.weights, self.num_draws)
        return Subset, (*parts, self.notes, self.points)

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash, in hexadecimal digits, of windows, weights, number of draws and points."""
        digest = hashlib.sha256(repr((self.num_windows, self.num_draws)).encode())
        if self.indices is None:
            digest.update(b"-")
        else:
            kept = self.indices
            for windows in kept.pieces() if isinstance(kept, WindowSet) else iter([kept]):
                digest.update(windows.astype("<i8").tobytes())
        digest.update(b"-" if self.weights is None else self.weights.astype("<f8").tobytes())
        if self.points is not None:
            digest.update(self.points.digest)
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {self.num_windows} windows, {self.digest[:16]})"

    def describe(self) -> str:
        """Describe the subset in words."""
        chosen = f"{len(self):,} of {self.num_windows:,} windows"
        if self.weights is None:
            return chosen
        return f"{chosen}, of which each epoch draws {self.num_samples:,} by weight"

    @property
    def num_samples(self) -> int:
        """Number of samples of an epoch."""
        return len(self) if self.weights is None or self.num_draws is None else self.num_draws

    @property
    def possible_ids(self) -> Ints:
        """Ids that can occur in an epoch, ascending: those with a weight above 0."""
        if self.weights is None:
            return np.arange(len(self), dtype=np.int64)
        return np.flatnonzero(self.weights)

    @property
    def is_ascending(self) -> bool:
        """Whether ids ascend with their windows, and each epoch has each id once."""
        return isinstance(self.indices, WindowSet) and self.weights is None

    def windows_of(self, ids: Ints) -> Ints:
        """Windows of sample ids; int64, of the shape of ``ids``."""
        if isinstance(self.indices, WindowSet):
            return self.indices.nth(ids)
        return ids if self.indices is None else self.indices[ids]

    def ids_of(self, windows: Ints) -> Ints:
        """Sample ids of windows, in the order of ``windows``.

        A window has as many ids as it occurs in ``indices``: none, one or several.
        """
        if self.indices is None:
            return windows
        if isinstance(self.indices, WindowSet):
            return self.indices.rank(windows[self.indices.contains(windows)])
        by_window = np.argsort(self.indices, kind="stable")
        ascending = self.indices[by_window]
        lo = np.searchsorted(ascending, windows, side="left")
        counts = np.searchsorted(ascending, windows, side="right") - lo
        before = np.cumsum(counts) - counts
        rows = np.arange(counts.sum()) + np.repeat(lo - before, counts)
        return np.asarray(by_window[rows], np.int64)

    def ids_before(self, windows: Ints) -> Ints:
        """Number of sample ids whose window is below each of ``windows``, if ids ascend."""
        assert isinstance(self.indices, WindowSet)
        return self.indices.rank(windows)

    def select(self, ids: Ints) -> Subset:
        """The subset of the given samples; their new ids are their places in ``ids``."""
        weights = None if self.weights is None else self.weights[ids]
        points = None if self.points is None else self.points.take(ids)
        windows = self.windows_of(ids)
        return Subset(self.num_windows, windows, weights, self.num_draws, self.notes, points)

    def keep(self, kept: WindowBits, check: str = "") -> Subset:
        """The subset of the samples whose bit is set; their new ids ascend as the old ones do."""
        weights = points = None
        if self.weights is not None or self.points is not None:
            ids = np.concatenate([np.zeros(0, np.int64), *kept.pieces()])
            weights = None if self.weights is None else self.weights[ids]
            points = None if self.points is None else self.points.take(ids)
        indices: Ints | WindowSet
        if self.indices is None:
            indices = smallest_of_bits(kept)
        else:
            pieces = map(self.windows_of, kept.pieces())
            if isinstance(self.indices, WindowSet):
                indices = smallest_of_bits(WindowBits.of_pieces(self.num_windows, pieces))
            else:
                indices = np.concatenate([np.zeros(0, np.int64), *pieces])
        noun = "windows" if self.indices is None else "samples"
        note = f"{len(kept):,} of {len(self):,} {noun} kept by {check}"
        notes = (*self.notes, note) if check else self.notes
        return Subset(self.num_windows, indices, weights, self.num_draws, notes, points)

    def boxed(self, shape: tuple[int, ...], starts: Starts) -> BoxedWindows | None:
        """The samples by box of positions, if ids ascend with windows and occur once each.

        None also if the samples are so few that a list of them takes less memory.
        """
        if not self.is_ascending:
            return None
        assert isinstance(self.indices, WindowSet)
        if not is_worth_boxing(self.indices, shape, starts):
            return None
        # Tilings mostly cut alike, so the latest cut is asked for again.
        for known, boxed in self._latest_boxed[:]:
            if all(map(np.array_equal, known, starts)):
                return boxed
        boxed = BoxedWindows(self.indices, shape, starts)
        self._latest_boxed[:] = [(starts, boxed)]
        return boxed

    def cut_box(
        self, shape: tuple[int, ...], begins: tuple[int, ...], sizes: tuple[int, ...]
    ) -> Subset:
        """The subset of the samples in a box of positions, with windows numbered in the box."""
        assert isinstance(self.indices, WindowSet)
        ends = tuple(begin + size for begin, size in zip(begins, sizes, strict=True))
        return Subset(math.prod(sizes), cut_box(self.indices, shape, begins, ends))

    @cached_property
    def _latest_boxed(self) -> list[tuple[Starts, BoxedWindows]]:
        return []

    def drawn(self, seed: int, epoch: int) -> Ints:
        """Draw the sample ids of an epoch, ascending, each as often as it occurs."""
        if self.weights is None:
            return np.arange(len(self), dtype=np.int64)
        order = self._mixed_order(derive_key(seed, epoch, _PLACES))
        # Scaling by a power of two is exact, and keeps the sum of huge weights finite.
        weights = np.ldexp(self.weights[order], -int(np.frexp(self.weights.max())[1]))
        total = np.cumsum(weights)
        bits = int(draw(derive_key(seed, epoch, _START), np.zeros(1, np.int64))[0])
        marks = np.floor(total * (self.num_samples / total[-1]) + (bits >> 11) / 2.0**53)
        # Rounding must neither lose the last draw nor add a draw.
        np.minimum(marks, self.num_samples, out=marks)
        marks[np.flatnonzero(weights)[-1] :] = self.num_samples
        counts = np.empty(len(self), np.int64)
        counts[order] = np.diff(marks, prepend=0.0).astype(np.int64)
        return np.repeat(np.arange(len(self), dtype=np.int64), counts)

    def _mixed_order(self, key: int) -> Ints:
        """All ids in ascending strata of `_STRATUM_SIZE`, in random order within each stratum."""
        num_strata = -(-len(self) // _STRATUM_SIZE)
        bits = draw(key, np.arange(num_strata * _STRATUM_SIZE))
        within = np.argsort(bits.reshape(num_strata, -1), axis=1, kind="stable")
        order = (within + np.arange(num_strata)[:, None] * _STRATUM_SIZE).reshape(-1)
        return order[order < len(self)]


def count_occurrences(ids: Ints) -> NDArray[np.unsignedinteger[Any]] | None:
    """Number the occurrences of each id from 0 on, in a list where equal ids are adjacent.

    None if no id occurs twice.
    """
    firsts = np.flatnonzero(is_first(ids))
    if len(firsts) == len(ids):
        return None
    counts = np.diff(firsts, append=len(ids))
    places = np.arange(len(ids)) - np.repeat(firsts, counts)
    # In the smallest dtype, they take little memory beside the 8 bytes of each id.
    return places.astype(np.min_scalar_type(int(counts.max()) - 1))
