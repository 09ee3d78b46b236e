"""Subsets: the windows that are samples, and how often each sample occurs in an epoch.

Subsets, splits, balancing and bootstraps all come down to a multiplicity for each sample::

    window       0  1  2  3  4  5  6
    indices         1     3        6      .select([1, 3, 6]): ids 0, 1, 2
    weights         2     1        1      .weighted([2, 1, 1], num_samples=8)
    drawn        0  0  0  0  1  1  2  2   one epoch: ids 0, 1, 2 occur 4, 2 and 2 times

Where ids ascend with their windows, the windows are kept as bits, as runs or as a list, whichever
takes the least memory. The digest and the order of epochs do not depend on that.

Draws by weight are systematic. A sample of weight ``w`` occurs ``x = num_samples * w /
sum(weights)`` times on average over epochs, and ``floor(x)`` or ``ceil(x)`` times in each epoch. An
epoch has exactly ``num_samples`` samples.

Draws of windows at random take so many of each *group*, such as of each scene, none twice. The
windows of a group are numbered, and a permutation that has no table gives the numbers, so they
cost as much as what is drawn, however many windows there are.

Sources
-------
Kitagawa, "Monte Carlo filter and smoother for non-Gaussian nonlinear state space models",
Journal of Computational and Graphical Statistics 5(1), 1996, for systematic resampling.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import bijection, derive_key, draw
from xloader.core.point_table import PointTable
from xloader.core.sorting import digit_order, is_first
from xloader.core.window_sets import (
    BoxedWindows,
    Starts,
    WindowBits,
    WindowRuns,
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
_PLACES, _START, _GROUPS = 0x5A3D, 0x5A3E, 0x5A41


@dataclass(frozen=True)
class GroupDraws:
    """How many samples an epoch draws at random of each group.

    `shape`: number of windows along each dimension. `sizes`: number of groups along it, which is
    as many or 1. `per`: names of the dimensions with as many.
    """

    num_each: int
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    per: tuple[str, ...]

    @property
    def starts(self) -> Starts:
        """The groups as boxes of positions."""
        pairs = zip(self.sizes, self.shape, strict=True)
        return tuple(np.arange(size + 1) * (count // size) for size, count in pairs)

    def groups_of(self, windows: Ints) -> Ints:
        """The group of each window."""
        positions = np.unravel_index(windows, self.shape)
        # Where there is one group along a dimension, all positions are clipped to it.
        return np.asarray(np.ravel_multi_index(positions, self.sizes, mode="clip"), np.int64)


@dataclass(frozen=True, eq=False)
class Members:
    """The samples of each group or cohort, as a list of ids.

    `ids`: sample ids sorted by group and then id, each as often as it occurs.
    """

    ids: Ints
    offsets: Ints

    @classmethod
    def of(cls, ids: Ints, groups: Ints, num_groups: int) -> Members:
        """Sort ascending ids by the group of each."""
        counts = np.bincount(groups, minlength=num_groups)
        return cls(ids[digit_order(groups, num_groups)], np.concatenate([[0], np.cumsum(counts)]))

    @cached_property
    def occurrences(self) -> NDArray[np.unsignedinteger[Any]] | None:
        """Occurrence of each of ``ids``, as `count_occurrences` numbers them."""
        # Equal ids are adjacent: they are in one group, and ids ascend within a group.
        return count_occurrences(self.ids)

    def find(self, groups: Ints, which: Ints, ranks: Ints) -> tuple[Ints, Ints | None]:
        """Ids and occurrences of samples; the parameters are those of `BoxedWindows.find`."""
        places = self.offsets[groups][which] + ranks
        times = self.occurrences
        return self.ids[places], None if times is None else times[places].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Subset:
    """The windows that are samples, and how epochs draw them: by weight, or so many per group."""

    num_windows: int
    indices: Ints | WindowSet | None = None
    weights: NDArray[np.float64] | None = None
    num_draws: int | None = None
    notes: tuple[str, ...] = ()
    points: PointTable | None = None
    draws: GroupDraws | None = None

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
        return Subset, (*parts, self.notes, self.points, self.draws)

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash, in hexadecimal digits, of windows, weights, draws and points."""
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
        if self.draws is not None:
            digest.update(repr(self.draws).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {self.num_windows} windows, {self.digest[:16]})"

    def describe(self) -> str:
        """Describe the subset in words."""
        chosen = f"{len(self):,} of {self.num_windows:,} windows"
        if not self.is_drawn:
            return chosen
        text = f"{chosen}, of which each epoch draws {self.num_samples:,}"
        if self.draws is None:
            return f"{text} by weight"
        per = f", {self.draws.num_each:,} per {' and '.join(self.draws.per)}"
        return f"{text} at random{per * bool(self.draws.per)}"

    @property
    def shortage(self) -> str:
        """A note on groups with fewer samples than are to be drawn; empty if there are none."""
        if self.draws is None or (self._num_drawn == self.draws.num_each).all():
            return ""
        num_short = np.count_nonzero(self._num_drawn < self.draws.num_each)
        return (
            f"{num_short:,} of {len(self._num_drawn):,} groups have fewer than "
            f"{self.draws.num_each:,} samples, and give all they have"
        )

    @property
    def is_drawn(self) -> bool:
        """Whether each epoch draws its samples anew."""
        return self.weights is not None or self.draws is not None

    @property
    def has_all(self) -> bool:
        """Whether each window is a sample that an epoch can have."""
        return self.indices is None and self.weights is None

    @property
    def undrawn(self) -> Subset:
        """The same samples, each once in every epoch."""
        return replace(self, weights=None, num_draws=None, draws=None)

    @property
    def num_samples(self) -> int:
        """Number of samples of an epoch."""
        if self.draws is not None:
            return int(self._num_drawn.sum())
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
        return isinstance(self.indices, WindowSet) and not self.is_drawn

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
        return replace(self, indices=self.windows_of(ids), weights=weights, points=points)

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
        return replace(self, indices=indices, weights=weights, notes=notes, points=points)

    def boxed(self, shape: tuple[int, ...], starts: Starts) -> BoxedWindows | None:
        """The possible samples by box of positions, if ids ascend with windows, without weights.

        None also if the samples are so few that a list of them takes less memory.
        """
        if self.weights is not None or not isinstance(self.indices, WindowSet):
            return None
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
        if self.draws is not None:
            return self._drawn_by_group(derive_key(seed, epoch, _GROUPS))
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

    @cached_property
    def groups(self) -> BoxedWindows | Members:
        """The samples by the groups of which they are drawn."""
        assert self.draws is not None
        shape, starts, kept = self.draws.shape, self.draws.starts, self.indices
        if kept is None:
            kept = WindowRuns(self.num_windows, np.array([0]), np.array([self.num_windows]))
        if isinstance(kept, WindowSet) and is_worth_boxing(kept, shape, starts):
            return BoxedWindows(kept, shape, starts)
        ids = np.arange(len(self), dtype=np.int64)
        groups = self.draws.groups_of(self.windows_of(ids))
        return Members.of(ids, groups, math.prod(self.draws.sizes))

    @cached_property
    def _num_drawn(self) -> Ints:
        """Number of samples that an epoch draws of each group."""
        assert self.draws is not None
        return np.minimum(np.diff(self.groups.offsets), self.draws.num_each)

    def _drawn_by_group(self, key: int) -> Ints:
        """The samples drawn of all groups, ascending: of each the first ones of a permutation."""
        sizes, counts = np.diff(self.groups.offsets), self._num_drawn
        every = np.arange(len(sizes))
        which = np.repeat(every, counts)
        ranks = np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
        drawn = bijection(draw(key, every), sizes, ranks, which)
        return np.sort(self.groups.find(every, which, drawn)[0])

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
