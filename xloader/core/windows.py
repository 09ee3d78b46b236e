"""Conversion between sample ids, window positions and elements.

All of it is arithmetic: nothing is stored for each sample.

Along one dimension, a window of 3 elements with dilation 2 and stride 4::

    offset     0  1  2  3  4  5  6  7  8  9 10
    window 0   x     x     x                       position 0, first offset 0
    window 1               x     x     x           position 1, first offset 4
    span       `-----------'  = (3 - 1) * 2 + 1 = 5

A *position* counts windows along one dimension. A window's id counts positions in C order: the
last named dimension varies fastest. Without a subset, window ids are sample ids. Windows that cross
a gap between segments of a dimension have no position, so they have no id either.

Along a dimension that wraps, such as the longitudes of the globe, a window starts at every stride,
and element ``e`` beyond the last one stands for element ``e - size``. Along a dimension with padded
borders, windows are centred on every stride-th element, and so reach beyond both ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from xloader.core.axis import Ends, Ints
from xloader.core.option_checks import check_ids, check_whole
from xloader.errors import EmptySamplesError, OptionError


@dataclass(frozen=True)
class Segments:
    """Ranges of a dimension. Each window must lie whole within one of them.

    `bounds`: half-open ranges of offsets, ascending and without overlap.
    """

    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def between(cls, size: int, gaps: Ints) -> Segments:
        """The segments of a dimension of ``size`` elements.

        `gaps`: ascending offsets of the elements that come right after a gap.
        """
        return cls(tuple(itertools.pairwise([0, *gaps.tolist(), size])))

    def cut(self, begin: int, end: int) -> Segments:
        """The parts of the segments within ``[begin, end)``, with offsets counted from there."""
        cut = ((max(lo, begin) - begin, min(hi, end) - begin) for lo, hi in self.bounds)
        return Segments(tuple((lo, hi) for lo, hi in cut if lo < hi))

    def stretches(self, extent: int, stride: int) -> Stretches:
        """The stretches of windows that lie within segments."""
        lo, hi = np.array(self.bounds, np.int64).reshape(-1, 2).T
        firsts, ends = -(-lo // stride), (hi - extent) // stride + 1
        is_kept = firsts < ends
        firsts, counts = firsts[is_kept] * stride, (ends - firsts)[is_kept]
        return Stretches(firsts, np.concatenate([[0], np.cumsum(counts)]), stride)


@dataclass(frozen=True, eq=False)
class Stretches:
    """Starts of windows along one dimension, as stretches at a fixed stride.

    `firsts`: offset of the first window of each stretch, ascending.
    """

    firsts: Ints
    edges: Ints
    stride: int

    def __len__(self) -> int:
        return int(self.edges[-1])

    def starts_of(self, positions: Ints) -> Ints:
        """Offsets at which windows start, by their positions; int64, of the same shape."""
        stretch = np.searchsorted(self.edges, positions, side="right") - 1
        # One position past the end bounds a range. It follows the last window.
        stretch = np.minimum(stretch, len(self.firsts) - 1)
        shifts = (positions - self.edges[stretch]) * self.stride
        return np.asarray(self.firsts[stretch] + shifts, np.int64)

    def num_before(self, offsets: Ints) -> Ints:
        """Number of windows that start before each offset; int64, of the same shape."""
        stretch = np.maximum(np.searchsorted(self.firsts, offsets, side="left") - 1, 0)
        within = -((self.firsts[stretch] - offsets) // self.stride)
        counts = np.diff(self.edges)[stretch]
        return np.asarray(self.edges[stretch] + np.clip(within, 0, counts), np.int64)


MOST_WINDOWS: Final = 2**61
"""Largest number of windows, so that arithmetic on their ids fits into 64-bit integers."""


Pad = Literal["edge", "reflect"] | float
"""The value of elements outside: that of the nearest or of the mirrored element, or a number."""

_ALWAYS_SHOWN: Final = ("dims", "dim_sizes", "window_sizes", "strides", "dilations")


@dataclass(frozen=True, repr=False)
class Windows:
    """All positions of a window in an n-d array.

    `pads`: per dimension, the value of elements outside where its borders are padded; None where
    windows stay within.
    """

    dims: tuple[str, ...]
    dim_sizes: tuple[int, ...]
    window_sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    default_dims: tuple[str, ...] = field(default=(), compare=False)
    extents: tuple[int, ...] = ()
    segments: tuple[Segments | None, ...] = ()
    wraps: tuple[bool, ...] = ()
    pads: tuple[Pad | None, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", self.extents or self.spans)
        object.__setattr__(self, "segments", self.segments or (None,) * len(self.dims))
        object.__setattr__(self, "wraps", self.wraps or (False,) * len(self.dims))
        # All NaN become one object, so that equal windows compare equal.
        pads = (math.nan if isinstance(p, float) and math.isnan(p) else p for p in self.pads)
        object.__setattr__(self, "pads", tuple(pads) or (None,) * len(self.dims))
        for word, values in (
            ("window", self.window_sizes),
            ("stride", self.strides),
            ("dilation", self.dilations),
        ):
            for dim, value in zip(self.dims, values, strict=True):
                check_whole(f"the {word} along {dim!r}", value, 1, 2**63 - 1)
        self._check_extents()
        for dim, count in zip(self.dims, self.num_positions, strict=True):
            if not count:
                raise EmptySamplesError(
                    f"every window crosses a gap along {dim!r}",
                    given=f"samples that reach over {self.extents[self.dims.index(dim)]} elements",
                    remedy='take smaller windows or leads, or pass gaps="allow"',
                )
        num_windows = math.prod(self.num_positions)
        if num_windows > MOST_WINDOWS:
            raise OptionError(
                "there are too many windows to number",
                given=f"{num_windows} windows along {', '.join(map(repr, self.dims))}",
                allowed=f"up to {MOST_WINDOWS}",
                remedy="pass a larger stride, or select less of the dimensions",
            )

    def _check_extents(self) -> None:
        for dim, size, span, extent in zip(
            self.dims, self.dim_sizes, self.spans, self.extents, strict=True
        ):
            if extent > size:
                is_lead = extent > span
                raise OptionError(
                    f"a lead beyond the window leaves the dimension {dim!r}"
                    if is_lead
                    else f"the window is longer than the dimension {dim!r}",
                    given=f"a {'sample' if is_lead else 'window'} that spans {extent} elements",
                    allowed=f"at most {size}, the selected size of {dim!r}",
                    remedy="take a smaller window, lead or dilation, or select more of the "
                    "dimension",
                )

    def __reduce__(self) -> tuple[object, ...]:
        # The values cached by cached_property are left out, which keeps pickles small.
        return Windows, tuple(getattr(self, part.name) for part in fields(self))

    def __repr__(self) -> str:
        # Fingerprints are made from it, so what has its default value is left out: then samples
        # keep the fingerprint that earlier releases gave them.
        parts = [f"{name}={getattr(self, name)!r}" for name in _ALWAYS_SHOWN]
        if self.extents != self.spans:
            parts.append(f"extents={self.extents!r}")
        if any(self.segments):
            parts.append(f"segments={self.segments!r}")
        if any(self.wraps):
            parts.append(f"wraps={self.wraps!r}")
        if "pad" in self.ends:
            parts.append(f"pads={self.pads!r}")
        return f"Windows({', '.join(parts)})"

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """Per dimension, number of elements from the first to the last one of a window."""
        pairs = zip(self.window_sizes, self.dilations, strict=True)
        return tuple((size - 1) * dilation + 1 for size, dilation in pairs)

    @cached_property
    def num_positions(self) -> tuple[int, ...]:
        """Number of windows along each dimension, without those that cross a gap."""
        return tuple(
            count if stretches is None else len(stretches)
            for count, stretches in zip(self._num_complete, self._stretches, strict=True)
        )

    @cached_property
    def _num_complete(self) -> tuple[int, ...]:
        """Number of windows along each dimension that are complete, gaps or not."""
        return tuple(
            within if end == "stop" else -(-size // stride)
            for size, stride, end, within in zip(
                self.dim_sizes, self.strides, self.ends, self._num_within, strict=True
            )
        )

    @cached_property
    def _num_within(self) -> tuple[int, ...]:
        """Number of windows along each dimension that lie inside it, gaps or not."""
        columns = zip(self.dim_sizes, self.extents, self.strides, self.origins, strict=True)
        return tuple(
            max((size - extent - origin) // stride - -(origin // stride) + 1, 0)
            for size, extent, stride, origin in columns
        )

    @cached_property
    def ends(self) -> tuple[Ends, ...]:
        """Per dimension, what windows do at its ends."""
        return tuple(
            "wrap" if wraps else "stop" if pad is None else "pad"
            for wraps, pad in zip(self.wraps, self.pads, strict=True)
        )

    @cached_property
    def origins(self) -> tuple[int, ...]:
        """Per dimension, the offset at which the first window starts: below 0 if it is padded."""
        pairs = zip(self.spans, self.ends, strict=True)
        return tuple(-(span // 2) if end == "pad" else 0 for span, end in pairs)

    def num_beyond(self, end: Ends) -> int:
        """Number of windows that reach beyond an end of some dimension."""
        triples = zip(self.ends, self._num_within, self.num_positions, strict=True)
        return len(self) - math.prod(
            num if dim_end == end else every for dim_end, num, every in triples
        )

    @cached_property
    def _stretches(self) -> tuple[Stretches | None, ...]:
        """The stretches of windows between the gaps of each dimension."""
        triples = zip(self.segments, self.extents, self.strides, strict=True)
        return tuple(
            None if segments is None else segments.stretches(extent, stride)
            for segments, extent, stride in triples
        )

    def starts_of(self, dim: int, positions: Ints) -> Ints:
        """Offsets at which windows start along a dimension."""
        stretches = self._stretches[dim]
        if stretches is not None:
            return stretches.starts_of(positions)
        starts: Ints = positions * self.strides[dim]
        return starts + self.origins[dim] if self.origins[dim] else starts

    def firsts_of(self, positions: Ints) -> Ints:
        """Offsets of the first elements of windows; both of shape ``(n, num_dims)``."""
        # Each column is without gaps in memory.
        return np.array([self.starts_of(dim, column) for dim, column in enumerate(positions.T)]).T

    def num_before(self, dim: int, offsets: Ints) -> Ints:
        """Number of windows along a dimension that start before each offset."""
        stretches = self._stretches[dim]
        if stretches is not None:
            return stretches.num_before(offsets)
        before: Ints = -((self.origins[dim] - offsets) // self.strides[dim])
        return np.clip(before, 0, self.num_positions[dim])

    def stretch_edges(self, dim: int) -> Ints:
        """First position of each stretch of windows between gaps, then their number; int64."""
        stretches = self._stretches[dim]
        return np.array([0, self.num_positions[dim]]) if stretches is None else stretches.edges

    def __len__(self) -> int:
        return math.prod(self.num_positions)

    @cached_property
    def dropped(self) -> Mapping[str, int]:
        """Number of windows that are left out, by reason; without reasons that drop none.

        ``"gap"`` counts the windows that end inside the array but cross a gap. ``"end"`` counts
        incomplete windows: along each dimension, one more window if it would begin inside the
        array and reach elements that no other window reaches.
        """
        begun = [
            count + ((count - 1) * stride + extent < size and count * stride < size)
            for count, stride, extent, size in zip(
                self._num_complete, self.strides, self.extents, self.dim_sizes, strict=True
            )
        ]
        num_complete = math.prod(self._num_complete)
        num_by_reason = {"gap": num_complete - len(self), "end": math.prod(begun) - num_complete}
        return {reason: count for reason, count in num_by_reason.items() if count}

    @property
    def num_dropped(self) -> int:
        """Number of windows that are left out, for any reason; see `dropped`."""
        return sum(self.dropped.values())

    def overlap_note(self, what: str = "samples") -> str:
        """Note on how many windows a stride of 1 would give along `default_dims`."""
        rows = zip(self.dims, self.window_sizes, self.dilations, strict=True)
        # Windows with a dilation are left out, because they interleave.
        dims = [d for d, size, gap in rows if d in self.default_dims and size > 1 and gap == 1]
        strides = zip(self.dims, self.strides, strict=True)
        denser = replace(self, strides=tuple(1 if d in dims else stride for d, stride in strides))
        if len(denser) == len(self):
            return ""
        advised = ", ".join(f'"{dim}": 1' for dim in dims)
        return (
            f"windows do not overlap: {len(self):,} {what}; "
            f"`stride={{{advised}}}` gives {len(denser):,}"
        )

    def positions_of(self, ids: Ints) -> Ints:
        """Positions of windows by their ids; int64, shape ``(len(ids), num_dims)``."""
        ids = np.asarray(ids, np.int64)
        # As unsigned numbers, those below 0 are huge.
        if len(ids) and ids.view(np.uint64).max() >= len(self):
            check_ids(ids, 0, len(self), "")
        # `numpy.unravel_index` takes twice as long.
        columns = np.empty((len(self.num_positions), len(ids)), np.int64)
        for dim in range(len(columns) - 1, 0, -1):
            above = ids // self.num_positions[dim]
            np.multiply(above, self.num_positions[dim], columns[dim])
            np.subtract(ids, columns[dim], columns[dim])
            ids = above
        columns[0] = ids
        return columns.T

    def ids_of(self, positions: Ints) -> Ints:
        """Ids of the windows at ``positions``, shape ``(n, num_dims)``; int64, shape ``(n,)``."""
        ids = np.zeros(len(positions), np.int64)
        for dim, count in enumerate(self.num_positions):
            ids = ids * count + positions[:, dim]
        return ids
