"""The mixing of batches: how many distinct regions a global batch draws from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, draw_below
from xloader.core.footprint import Footprint
from xloader.core.sorting import distinct_near
from xloader.order.cohorts import cut_cohorts
from xloader.order.protocol import AnyOrder, take_places

REGION_CHUNKS: Final = 4
"""Chunks of a region along `region_dim`."""

_MOST_IN_TABLE: Final = 1 << 14
"""If a dimension has at most this many positions, the region of each is found once and kept."""


def region_dim(footprint: Footprint) -> int:
    """The number of the windowed dimension with the most chunks, along which four make a region."""
    counts = [0 if axis is None else axis.num_blocks for axis in footprint.leading_axes]
    return counts.index(max(counts))


class Regions:
    """The regions of samples."""

    def __init__(self, footprint: Footprint) -> None:
        self.footprint = footprint
        self._merged = region_dim(footprint)

    def of(self, positions: tuple[Ints, ...]) -> Ints:
        """The region of each sample."""
        regions = np.zeros(len(positions[0]), np.int64)
        for dim, weight, table in self._dims:
            if table is None:
                regions += self.along(dim, positions[dim]) * weight
            else:
                regions += table.take(positions[dim])
        return regions

    def along(self, dim: int, positions: Ints) -> Ints:
        """The regions of windows along one dimension, which some variable has."""
        axis = self.footprint.leading_axes[dim]
        assert axis is not None
        chunk = axis.block_of(self.footprint.first_elements(dim, positions))
        return (chunk + axis.stored_chunk(0)) // REGION_CHUNKS if dim == self._merged else chunk

    def count(self, positions: Ints, edges: Ints) -> Ints:
        """Count the distinct regions of each batch.

        `positions` has shape (n, num_dims).
        """
        sizes, regions = np.diff(edges), self.of(tuple(positions.T))
        most = sizes.max(initial=0)
        if len(regions) == len(sizes) * most:
            return num_distinct(regions.reshape(len(sizes), most))
        rows = np.full((len(sizes), most), -1, np.int64)
        rows[np.arange(most) < sizes[:, None]] = regions
        return num_distinct(rows)

    @cached_property
    def _dims(self) -> list[tuple[int, int, Ints | None]]:
        """The dimensions with several chunks: number, weight, and each position's region.

        These regions are multiplied by the weight; None if there are too many positions.
        """
        dims: list[tuple[int, int, Ints | None]] = []
        weight = 1
        for dim, count in reversed(list(enumerate(self.footprint.windows.num_positions))):
            axis = self.footprint.leading_axes[dim]
            if axis is None or axis.num_blocks == 1:
                continue
            table = None
            if count <= _MOST_IN_TABLE:
                table = self.along(dim, np.arange(count)) * weight
            dims.append((dim, weight, table))
            weight *= axis.num_blocks + 1
        return dims


def num_distinct(rows: Ints) -> Ints:
    """Number of distinct regions in each row. Entries of -1 do not count. May sort the rows."""
    if len(rows) == 1 and rows.max(initial=0) < 2 * rows.size:
        # To mark the regions of many samples takes less time than to sort them. -1 marks the end.
        is_there = np.zeros(2 * rows.size + 1, np.bool_)
        is_there[rows[0]] = True
        return np.count_nonzero(is_there[:-1], keepdims=True)
    rows.sort(axis=1)
    num_changes = np.count_nonzero(rows[:, 1:] != rows[:, :-1], axis=1)
    counts: Ints = num_changes + np.count_nonzero(rows[:, :1] >= 0, axis=1)
    return counts


_EXACT_SAMPLES = 1 << 17
_NUM_SPOTS = 8


def full_mixing(footprint: Footprint, batch_size: int) -> float:
    """Expected number of distinct regions in a batch of a full shuffle."""
    if footprint.subset is not None:
        # Samples may be drawn anew in each epoch. Epoch 0 of seed 0 stands for all of them.
        # Cohorts of tiles of one chunk are cut at the edges of chunks, so each is in one region.
        cohorts = cut_cohorts(footprint, (1,) * len(footprint.windows.dims))
        used = cohorts.used
        regions = Regions(footprint).of(cohorts.boxes(used).lo)
        _, region = np.unique(regions, return_inverse=True)
        counts = np.bincount(region, cohorts.counts_of(used)).astype(np.int64)
        return _expected_regions(_repeats(counts), footprint.num_samples, batch_size)
    kinds: list[list[tuple[int, int]]] = []
    windows, merged = footprint.windows, region_dim(footprint)
    for d, (first, count) in enumerate(
        zip(footprint.first_offsets, windows.num_positions, strict=True)
    ):
        axis = footprint.leading_axes[d]
        if axis is None:
            kinds.append([(count, 1)])
            continue
        if windows.ends[d] == "pad" or (windows.ends[d] == "wrap" and first):
            # Windows that begin before the first element, or that wrap before the first one that
            # they need, belong to the first regions.
            every = Regions(footprint).along(d, np.arange(count))
            kinds.append(_repeats(np.unique(every, return_counts=True)[1]))
            continue
        edges = axis.edges[:-1]
        if d == merged:
            chunks = np.arange(axis.num_blocks) + axis.stored_chunk(0)
            edges = edges[np.diff(chunks // REGION_CHUNKS, prepend=-1) > 0]
        begins = windows.num_before(d, edges - first)
        kinds.append(_repeats(np.diff(np.append(begins, count))))
    products = [
        (math.prod(size for size, _ in combination), math.prod(num for _, num in combination))
        for combination in itertools.product(*kinds)
    ]
    return _expected_regions(products, footprint.num_samples, batch_size)


def _repeats(sizes: Ints) -> list[tuple[int, int]]:
    """The distinct sizes, each with the number of times that it occurs."""
    distinct, counts = np.unique(sizes, return_counts=True)
    return list(zip(distinct.tolist(), counts.tolist(), strict=True))


def _expected_regions(regions: list[tuple[int, int]], num_samples: int, batch_size: int) -> float:
    """Expected number of regions in a batch, given their sizes and how many have each."""
    num_draws = min(batch_size, num_samples)
    return sum(num * _chance_of_one(size, num_samples, num_draws) for size, num in regions)


def measure_mixing(
    footprint: Footprint,
    lanes: Sequence[AnyOrder],
    share: int,
    most_samples: int = _EXACT_SAMPLES,
    num_spots: int = _NUM_SPOTS,
) -> float:
    """Mean number of distinct regions in the full global batches of an order."""
    counts = batch_regions(footprint, lanes, share, most_samples, num_spots)[1]
    return float(counts.mean()) if len(counts) else 0.0


def batch_regions(
    footprint: Footprint,
    lanes: Sequence[AnyOrder],
    share: int,
    most_samples: int = _EXACT_SAMPLES,
    num_spots: int = _NUM_SPOTS,
) -> tuple[Ints, Ints]:
    """Number of distinct regions in each full global batch of an order."""
    num_samples = max(lane.num_samples for lane in lanes)
    # A batch may ask for more samples than there are.
    share = max(min(share, num_samples), 1)
    # A batch takes samples from every lane, so the shortest lane limits the number of full
    # batches. If no batch is full, the only batch counts.
    num_batches = max(min(lane.num_samples for lane in lanes) // share, 1)
    spots, per_spot = np.zeros(1, np.int64), num_batches
    if num_samples * len(lanes) > most_samples:
        per_spot = max(most_samples // (num_spots * share * len(lanes)), 1)
        per_spot = min(per_spot, -(-num_batches // num_spots))
        bound = num_batches - per_spot + 1
        # `draw_below` gives numbers below 2**32, so they are stretched over longer epochs.
        stretch = -(-bound // (1 << 32))
        drawn = draw_below(derive_key(0), np.arange(num_spots), bound // stretch)
        # One place in each part of the epoch, as its end mixes differently from its middle.
        spots = (np.arange(num_spots) * (bound // stretch) + drawn) // num_spots * stretch
    regions = Regions(footprint)
    rows = np.concatenate(
        [_lane_rows(regions, lane, spots, per_spot, share) for lane in lanes], axis=1
    )
    batches = (spots[:, None] + np.arange(per_spot)).reshape(-1)
    return batches, num_distinct(rows)


def _lane_rows(regions: Regions, lane: AnyOrder, spots: Ints, num_batches: int, share: int) -> Ints:
    """Regions of one lane's part of ``num_batches`` batches from each spot on."""
    size = num_batches * share
    places = [take_places(lane, spot * share, size) for spot in spots.tolist()]
    entries, ranks = (np.concatenate(part) for part in zip(*places, strict=True))
    rows = np.full((len(spots), size), -1, np.int64)
    ends = np.array([len(part) for part, _ in places])
    # All spots at once: drawing positions costs as much for a few samples as for many.
    rows[np.arange(size) < ends[:, None]] = _regions_of(regions, lane, entries, ranks)
    return rows.reshape(-1, share)


def _regions_of(regions: Regions, lane: AnyOrder, entries: Ints, ranks: Ints) -> Ints:
    """The regions of samples, given their entries and ranks."""
    distinct, which = distinct_near(entries)
    boxes = lane.boxes_of(distinct)
    of_entry = regions.of(boxes.lo)
    last = regions.of(tuple(hi - 1 for hi in boxes.hi))
    # The box of a visit holds only its first sample, so it does not show where the others lie.
    if (of_entry == last).all() and (boxes.num_samples >= lane.count[distinct]).all():
        # Each cohort lies within one region, so its samples need not be drawn.
        return of_entry[which]
    positions = regions.footprint.positions_of(lane.ids(entries, ranks))
    return regions.of(tuple(positions.T))


def _chance_of_one(size: int, total: int, num_draws: int) -> float:
    """Chance that draws without replacement hit at least one of ``size`` among ``total``."""
    if total - size < num_draws:
        return float(size > 0)
    # 1 - C(total - size, draws) / C(total, draws), as a sum that stays exact for huge totals.
    steps = min(size, num_draws)
    larger = max(size, num_draws)
    log_missed = math.fsum(math.log1p(-larger / (total - i)) for i in range(steps))
    return round(-math.expm1(log_missed), 12)
