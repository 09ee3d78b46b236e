"""Sample id <-> position <-> elements, as arithmetic: nothing is stored per sample.

Along one dimension, a window of 3 elements with dilation 2 and stride 4::

    offset     0  1  2  3  4  5  6  7  8  9 10
    window 0   x     x     x                       position 0, first offset 0
    window 1               x     x     x           position 1, first offset 4
    span       `-----------'  = (3 - 1) * 2 + 1 = 5

A *position* counts windows along one dimension. A sample's id counts positions in C order,
the last named dimension running fastest.
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
"""The most samples: their ids are 64-bit integers, and there is arithmetic on them."""


@dataclass(frozen=True)
class Windows:
    """Every position of a window in an n-d array.

    Parameters
    ----------
    dims : tuple of str
        The windowed dimensions, in the order that ids count them.
    dim_sizes, window_sizes, strides, dilations : tuple of int
        Per dimension and in elements: its length, the number of elements that a window
        takes, the distance between windows, and the distance between a window's elements.
    default_dims : tuple of str
        Dimensions whose stride was not asked for, and is the window's size. Not compared.

    Raises
    ------
    WindowError
        If a size, stride or dilation is below 1, a window is longer than its dimension, or
        there are more than `MOST_WINDOWS` of them.

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
    # Not in the repr, from which fingerprints are made: which samples there are is the same.
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
                    allowed=f"at most {size}, the size of {dim!r} as selected",
                    remedy="take a smaller window or dilation, or select more of the dimension",
                )
        num_windows = math.prod(self.num_positions)
        if num_windows > MOST_WINDOWS:
            raise WindowError(
                "there are more windows than can be numbered",
                given=f"{num_windows} windows along {', '.join(map(repr, self.dims))}",
                allowed=f"up to {MOST_WINDOWS}",
                remedy="pass a larger stride, or select less of the dimensions",
            )

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """Elements from the first to the last one of a window, both counted."""
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
        """Windows left out although they would reach elements that no window reaches.

        One more along each dimension that has elements left over at its end, if it would still
        begin inside the array; it would leave the array, which is why it is left out.
        """
        begun = [
            count + ((count - 1) * stride + span < size and count * stride < size)
            for count, stride, span, size in zip(
                self.num_positions, self.strides, self.spans, self.dim_sizes, strict=True
            )
        ]
        return math.prod(begun) - len(self)

    def overlap_note(self, what: str = "samples") -> str:
        """What overlapping windows would give where nobody asked for a stride; else nothing.

        Parameters
        ----------
        what : str
            What is counted.

        Examples
        --------
        >>> Windows(("time",), (720,), (6,), (6,), (1,), ("time",)).overlap_note()
        'windows do not overlap: 120 samples; `stride={"time": 1}` gives 715'
        """
        rows = zip(self.dims, self.window_sizes, self.dilations, strict=True)
        # Windows with a dilation lie within each other's gaps.
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
        """Positions, shape ``(len(ids), num_dims)``, of samples.

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
        """Ids of the samples at ``positions``, shape ``(n, num_dims)``."""
        ids = np.zeros(len(positions), np.int64)
        for dim, count in enumerate(self.num_positions):
            ids = ids * count + positions[:, dim]
        return ids
