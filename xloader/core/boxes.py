"""Boxes of window positions, in n dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.core.axis import Ints

_ARGUMENTS: Final = (*(ADDRESS,) * 3, NUMBER, NUMBER, ADDRESS, ADDRESS, NUMBER, ADDRESS)


@dataclass(frozen=True)
class Boxes:
    """Boxes of window positions: ``lo[d] <= position < hi[d]`` along windowed dimension ``d``."""

    lo: tuple[Ints, ...]
    hi: tuple[Ints, ...]

    @classmethod
    def at(cls, positions: Ints) -> Boxes:
        """Make a box of one position for each row of ``positions``, shape ``(n, num_dims)``."""
        return cls(tuple(positions.T), tuple(positions.T + 1))

    @classmethod
    def between(cls, starts: Sequence[Ints], indices: Sequence[Ints]) -> Boxes:
        """Make boxes of pieces, from where pieces start and the index of each along a dimension."""
        pairs = list(zip(starts, indices, strict=True))
        return cls(
            tuple(edges[index].astype(np.int64) for edges, index in pairs),
            tuple(edges[index + 1].astype(np.int64) for edges, index in pairs),
        )

    def __len__(self) -> int:
        return len(self.lo[0])

    @property
    def num_samples(self) -> Ints:
        """Number of positions in each box."""
        sizes = [hi - lo for lo, hi in zip(self.lo, self.hi, strict=True)]
        return np.asarray(np.prod(sizes, axis=0, dtype=np.int64))

    def take(self, rows: Ints | slice) -> Boxes:
        """The boxes at ``rows``."""
        return Boxes(tuple(lo[rows] for lo in self.lo), tuple(hi[rows] for hi in self.hi))

    def ids_of(self, which: Ints, ranks: Ints, num_positions: Sequence[int]) -> Ints:
        """Ids of samples by their ranks: the positions of a box are counted in C order."""
        lowest, weights = np.zeros(len(self), np.int64), [1]
        for dim in reversed(range(len(self.lo))):
            lowest += self.lo[dim] * weights[-1]
            weights.append(weights[-1] * num_positions[dim])
        pairs = zip(self.lo[:0:-1], self.hi[:0:-1], strict=True)
        sizes = np.array([hi - lo for lo, hi in pairs], np.int64)
        find = find_function("xloader_find_ids", _ARGUMENTS)
        if find is None:
            return _ids_with_numpy(lowest, sizes, weights, which, ranks)
        which = np.ascontiguousarray(which, np.int64)
        ranks = np.ascontiguousarray(ranks, np.int64)
        ids = np.empty(len(ranks), np.int64)
        given = (lowest, sizes, np.array(weights[:-1], np.int64))
        find(
            *map(address_of, given),
            len(sizes),
            len(self),
            address_of(which),
            address_of(ranks),
            len(ids),
            address_of(ids),
        )
        return ids


def _ids_with_numpy(
    lowest: Ints, sizes: Ints, weights: list[int], which: Ints, ranks: Ints
) -> Ints:
    """The ids; each row of ``sizes`` belongs to a dimension, the last one first."""
    ids = lowest[which]
    for sizes_along, weight in zip(sizes, weights, strict=False):
        size = sizes_along[which]
        above = ranks // size
        ids += (ranks - above * size) * weight
        ranks = above
    return ids + ranks * weights[len(sizes)]
