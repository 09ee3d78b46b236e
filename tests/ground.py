"""Small footprints, and slow plain computations that the fast code must match."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from xloader.core.axis import Axis
from xloader.core.footprint import Access, Demand, Footprint, Group
from xloader.core.windows import Segments, Windows
from xloader.errors import EmptySamplesError
from xloader.order.cohorts import cut_cohorts
from xloader.order.lane_order import LaneOrder
from xloader.order.shuffle import Pace, Shuffle
from xloader.planning.plan import Budget, Plan

Span = tuple[int, int, int]


def line_footprint(
    num_steps: int, chunk: int, window: int, *, stride: int = 1, spans: tuple[Span, ...] = ()
) -> Footprint:
    """Return one variable of bytes along one dimension; by default each window is taken whole."""
    windows = Windows(("time",), (num_steps,), (window,), (stride,), (1,))
    accesses = frozenset((span,) for span in spans or ((0, 1, window),))
    demand = Demand("x", (Axis(num_steps, chunk, range(num_steps)),), (), 1, accesses)
    return Footprint.of(windows, (demand,))


def circle_footprint(
    num_elements: int, chunk: int, window: int, *, span: Span | None = None
) -> Footprint:
    """Return one variable of bytes along a circle, with windows at stride 1."""
    windows = Windows(("lon",), (num_elements,), (window,), (1,), (1,), wraps=(True,))
    axis = Axis(num_elements, chunk, range(num_elements))
    accesses = frozenset({(span or (0, 1, window),)})
    return Footprint.of(windows, (Demand("x", (axis,), (), 1, accesses),))


def box_footprint(
    sizes: tuple[int, ...], chunks: tuple[int, ...], window: tuple[int, ...], *, itemsize: int = 1
) -> Footprint:
    """Return one variable in n dimensions, with whole windows at stride 1."""
    dims = ("time", "lat", "lon")[: len(sizes)]
    windows = Windows(dims, sizes, window, (1,) * len(sizes), (1,) * len(sizes))
    axes = tuple(Axis(n, chunk, range(n)) for n, chunk in zip(sizes, chunks, strict=True))
    access = tuple((0, 1, size) for size in window)
    return Footprint.of(windows, (Demand("x", axes, (), itemsize, frozenset({access})),))


def shuffle_of(footprint: Footprint, pace: Pace, seed: int, epoch: int) -> Shuffle:
    return Shuffle(footprint.windows, cut_cohorts(footprint, pace.tiling), pace, seed, epoch)


def plan_of(pace: Pace, *, batch: int = 16, pool: int = 1 << 40, depth: int = 0) -> Plan:
    """Return a plan whose pool has ``pool`` bytes a lane, independent of the memory."""
    budget = Budget(1 << 44, batch, 4, 1, pace.lanes)
    return Plan(pace, depth, budget, batch, 1.05, pool, 0, False)


def all_ids(order: LaneOrder, begin: int = 0) -> list[int]:
    return [i for ids, _ in order.segments(begin) for i in ids.tolist()]


def slow_stored_chunk(axis: Axis) -> list[int]:
    """Return the stored chunk of each selected element."""
    if isinstance(axis.chunks, int):
        return [element // axis.chunks for element in axis.selection]
    chunk_of = [i for i, size in enumerate(axis.chunks) for _ in range(size)]
    return [chunk_of[element] for element in axis.selection]


def slow_block(axis: Axis) -> list[int]:
    """Return the block of each selected element: its chunk's rank among the chunks touched."""
    chunks = slow_stored_chunk(axis)
    rank = {chunk: i for i, chunk in enumerate(sorted(set(chunks)))}
    return [rank[chunk] for chunk in chunks]


def span_offsets(span: Span) -> list[int]:
    first, step, count = span
    return [first + step * i for i in range(count)]


def slow_starts(windows: Windows, dim: int) -> list[int]:
    """Return the first offset of every window that fits into a dimension and crosses no gap.

    Along a circle, and where borders are padded, every window fits. At padded borders, it is
    centred on an element.
    """
    own, reach = windows.segments[dim], windows.extents[dim]
    if windows.ends[dim] != "stop":
        before = reach // 2 if windows.ends[dim] == "pad" else 0
        places = range(0, windows.dim_sizes[dim], windows.strides[dim])
        return [place - before for place in places]
    bounds = ((0, windows.dim_sizes[dim]),) if own is None else own.bounds
    return [
        begin
        for begin in range(0, windows.dim_sizes[dim], windows.strides[dim])
        if any(lo <= begin and begin + reach <= hi for lo, hi in bounds)
    ]


def slow_needs(windows: Windows, group: Group, sample: int) -> set[int]:
    """Return the blocks that one sample touches, found element by element."""
    position = np.unravel_index(sample, windows.num_positions)
    found = set()
    for demand in group.demands:
        for access in demand.accesses:
            indices = []
            for dim, (axis, span) in enumerate(zip(demand.axes, access, strict=True)):
                if axis is None or span is None:
                    indices.append({0})
                    continue
                origin = slow_starts(windows, dim)[int(position[dim])]
                blocks = slow_block(axis)
                elements = [origin + offset for offset in span_offsets(span)]
                if windows.ends[dim] == "pad":
                    elements = [element for element in elements if 0 <= element < axis.size]
                indices.append({blocks[element % axis.size] for element in elements})
            for index in itertools.product(*indices):
                found.add(int(np.ravel_multi_index(index, group.shape)))
    return found


@st.composite
def axes(draw: st.DrawFn, size: int) -> Axis:
    """Draw a dimension of ``size`` selected elements, with random chunks and selection."""
    kind = draw(st.sampled_from(["whole", "slice", "step", "picked"]))
    if kind == "whole":
        stored, kept = size, range(size)
    elif kind == "picked":
        gaps = draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
        picked = tuple(int(i) for i in np.cumsum(gaps) - 1)
        stored, kept = picked[-1] + 1 + draw(st.integers(0, 3)), picked
    else:
        step = 1 if kind == "slice" else draw(st.integers(2, 5))
        start = draw(st.integers(0, 5))
        kept = range(start, start + (size - 1) * step + 1, step)
        stored = kept[-1] + 1 + draw(st.integers(0, 4))
    if draw(st.booleans()):
        return Axis(stored, draw(st.integers(1, stored + 2)), kept)
    cuts = draw(st.sets(st.integers(1, stored), max_size=6)) | {0, stored}
    return Axis(stored, tuple(np.diff(sorted(cuts)).tolist()), kept)


@st.composite
def with_gaps(draw: st.DrawFn, windows: Windows) -> Windows:
    """Draw gaps, circles, padded borders and longer extents, unless they leave no window."""
    extents = tuple(
        min(reach + draw(st.sampled_from([0, 0, 2])), size)
        for reach, size in zip(windows.extents, windows.dim_sizes, strict=True)
    )
    segments = tuple(
        Segments.between(
            size, np.array(sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))))
        )
        if size > 1 and draw(st.booleans())
        else None
        for size in windows.dim_sizes
    )
    wraps = tuple(draw(st.integers(0, 2)) == 0 for _ in segments)
    pads = tuple(
        "edge" if dilation == 1 and not w and draw(st.integers(0, 2)) == 0 else None
        for w, dilation in zip(wraps, windows.dilations, strict=True)
    )
    is_free = [not w and pad is None for w, pad in zip(wraps, pads, strict=True)]
    segments = tuple(own if free else None for free, own in zip(is_free, segments, strict=True))
    extents = tuple(
        span if pad else reach
        for pad, span, reach in zip(pads, windows.spans, extents, strict=True)
    )
    try:
        return replace(windows, extents=extents, segments=segments, wraps=wraps, pads=pads)
    except EmptySamplesError:
        return windows


@st.composite
def footprints(draw: st.DrawFn, max_dims: int = 2, max_size: int = 24) -> Footprint:
    """Draw several variables, each with some of the dimensions and its own chunks and accesses."""
    num_dims = draw(st.integers(1, max_dims))
    sizes, window_sizes, strides, dilations = [], [], [], []
    for _ in range(num_dims):
        size = draw(st.integers(1, max_size if num_dims == 1 else max_size // 2))
        window = draw(st.integers(1, min(size, 6)))
        most = (size - 1) // (window - 1) if window > 1 else 3
        sizes.append(size)
        window_sizes.append(window)
        dilations.append(draw(st.integers(1, max(min(most, 5), 1))))
        strides.append(draw(st.integers(1, 9)))
    windows = Windows(
        ("time", "lat", "lon")[:num_dims],
        tuple(sizes),
        tuple(window_sizes),
        tuple(strides),
        tuple(dilations),
    )
    windows = draw(with_gaps(windows))
    demands = []
    for number in range(draw(st.integers(1, 3))):
        has_dim = [draw(st.booleans()) or (number == 0 and d == 0) for d in range(num_dims)]
        own = tuple(
            draw(axes(size)) if has else None for size, has in zip(sizes, has_dim, strict=True)
        )
        taken = draw(st.lists(_access(windows, own), min_size=1, max_size=3))
        whole = (Axis(5, 2, range(5)),) * draw(st.integers(0, 1))
        demands.append(Demand(f"v{number}", own, whole, 4, frozenset(taken)))
    return Footprint.of(windows, tuple(demands))


@st.composite
def _access(draw: st.DrawFn, windows: Windows, own: tuple[Axis | None, ...]) -> Access:
    spans: list[Span | None] = []
    columns = zip(own, windows.window_sizes, windows.dilations, windows.pads, strict=True)
    for axis, size, dilation, pad in columns:
        if axis is None or pad is not None:
            spans.append(None if axis is None else (0, 1, size))
            continue
        first = draw(st.integers(0, size - 1))
        step = draw(st.integers(1, size))
        count = draw(st.integers(1, (size - 1 - first) // step + 1))
        spans.append((first * dilation, step * dilation, count))
    return tuple(spans)
