"""Boxes of window positions, in n dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Ints


@dataclass(frozen=True)
class Boxes:
    """Boxes of window positions: ``lo[d] <= position < hi[d]`` along windowed dimension ``d``."""

    lo: tuple[Ints, ...]
    hi: tuple[Ints, ...]

    @classmethod
    def at(cls, positions: Ints) -> Boxes:
        """Make a box of one position for each row of ``positions``, shape ``(n, num_dims)``."""
        return cls(tuple(positions.T), tuple(positions.T + 1))

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
