"""Conversion between sample ids, window positions and elements.

All of it is arithmetic: nothing is stored for each sample.

Along one dimension, a window of 3 elements with dilation 2 and stride 4::

    offset     0  1  2  3  4  5  6  7  8  9 10
    window 0   x     x     x                       position 0, first offset 0
    window 1               x     x     x           position 1, first offset 4
    span       `-----------'  = (3 - 1) * 2 + 1 = 5

A *position* counts windows along one dimension. A window's id counts positions in C order: the
last named dimension varies fastest. Without a subset, window ids are sample ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from xloader.core.axis import Ints
from xloader.errors import SampleIndexError, WindowError

MOST_WINDOWS: Final = 2**61
"""Largest number of windows, so that arithmetic on their ids fits into 64-bit integers."""


@dataclass(frozen=True)
class Windows:
    """All positions of a window in an n-d array.

    Parameters
    ----------
    dims : tuple of str
        Names of the windowed dimensions, in the order in which ids count them.
    dim_sizes : tuple of int
        Size of each dimension, in elements.
    window_sizes : tuple of int
        Number of elements that a window takes along each dimension.
    strides : tuple of int
        Distance between neighbouring windows along each dimension, in elements.
    dilations : tuple of int
        Distance between neighbouring elements of a window along each dimension, in elements.
    default_dims : tuple of str
        Dimensions for which the user gave no stride, so that it is the window's size. They do not
        matter in comparisons.

    Raises
    ------
    WindowError
        If a window size, stride or dilation is below 1, a window is longer than its dimension,
        or there are more than `MOST_WINDOWS` windows.

    Examples
    --------
    >>> windows = Windows(("time", "lat"), (11, 4), (3, 2), (4, 2), (2, 1))
    >>> len(windows), windows.num_positions, windows.spans
    (4, (2, 2), (5, 2))
    >>> windows.positions_of(np.array([0, 1, 3])).tolist()
    [[0, 0], [0, 1], [1, 1]]
    >>> windows.num_dropped
    2
    """

    dims: tuple[str, ...]
    dim_sizes: tuple[int, ...]
    window_sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    # Not in the repr, because fingerprints are made from it and the samples are the same.
    default_dims: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        for word, values in (
            ("window", self.window_sizes),
            ("stride", self.strides),
            ("dilation", self.dilations),
        ):
            for dim, value in zip(self.dims, values, strict=True):
                if value < 1:
                    raise WindowError(
                        f"the {word} along {dim!r} is too small",
                        given=value,
                        allowed="a whole number >= 1",
                        remedy=f"pass {word}={{{dim!r}: 1}} or more",
                    )
        for dim, size, span in zip(self.dims, self.dim_sizes, self.spans, strict=True):
            if span > size:
                raise WindowError(
                    f"the window is longer than the dimension {dim!r}",
                    given=f"a window that spans {span} elements",
                    allowed=f"at most {size}, the selected size of {dim!r}",
                    remedy="take a smaller window or dilation, or select more of the dimension",
                )
        num_windows = math.prod(self.num_positions)
        if num_windows > MOST_WINDOWS:
            raise WindowError(
                "there are too many windows to number",
                given=f"{num_windows} windows along {', '.join(map(repr, self.dims))}",
                allowed=f"up to {MOST_WINDOWS}",
                remedy="pass a larger stride, or select less of the dimensions",
            )

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """Per dimension, number of elements from the first to the last one of a window."""
        pairs = zip(self.window_sizes, self.dilations, strict=True)
        return tuple((size - 1) * dilation + 1 for size, dilation in pairs)

    @cached_property
    def num_positions(self) -> tuple[int, ...]:
        """Number of windows along each dimension."""
        triples = zip(self.dim_sizes, self.spans, self.strides, strict=True)
        return tuple((size - span) // stride + 1 for size, span, stride in triples)

    def __len__(self) -> int:
        return math.prod(self.num_positions)

    @property
    def num_dropped(self) -> int:
        """Number of incomplete windows at the array's end that are left out.

        Along each dimension, one more window is counted if it would begin inside the array and
        reach elements that no window reaches. It is left out because it would not end inside.
        """
        begun = [
            count + ((count - 1) * stride + span < size and count * stride < size)
            for count, stride, span, size in zip(
                self.num_positions, self.strides, self.spans, self.dim_sizes, strict=True
            )
        ]
        return math.prod(begun) - len(self)

    def overlap_note(self, what: str = "samples") -> str:
        """Note on how many windows a stride of 1 would give along `default_dims`.

        Parameters
        ----------
        what : str
            Plural noun for the windows.

        Returns
        -------
        str
            The note; empty if a stride of 1 would give no more windows.

        Examples
        --------
        >>> Windows(("time",), (720,), (6,), (6,), (1,), ("time",)).overlap_note()
        'windows do not overlap: 120 samples; `stride={"time": 1}` gives 715'
        """
        rows = zip(self.dims, self.window_sizes, self.dilations, strict=True)
        # Windows with a dilation are left out, because they interleave.
        dims = [d for d, size, gap in rows if d in self.default_dims and size > 1 and gap == 1]
        strides = zip(self.dims, self.strides, strict=True)
        denser = replace(self, strides=tuple(1 if d in dims else own for d, own in strides))
        if len(denser) == len(self):
            return ""
        asked = ", ".join(f'"{dim}": 1' for dim in dims)
        return (
            f"windows do not overlap: {len(self):,} {what}; "
            f"`stride={{{asked}}}` gives {len(denser):,}"
        )

    def positions_of(self, ids: Ints) -> Ints:
        """Positions of windows by their ids; int64, shape ``(len(ids), num_dims)``.

        Raises
        ------
        SampleIndexError
            If an id lies outside ``[0, len(self))``.
        """
        ids = np.asarray(ids, np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self)):
            worst = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise SampleIndexError(
                "the sample id is out of range", given=worst, allowed=f"[0, {len(self)})"
            )
        return np.stack(np.unravel_index(ids, self.num_positions), axis=-1).astype(np.int64)

    def ids_of(self, positions: Ints) -> Ints:
        """Ids of the windows at ``positions``, shape ``(n, num_dims)``; int64, shape ``(n,)``."""
        ids = np.zeros(len(positions), np.int64)
        for dim, count in enumerate(self.num_positions):
            ids = ids * count + positions[:, dim]
        return ids
