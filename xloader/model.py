"""A cut-down selection on which plans are measured before one is chosen.

It has the order and the schedule of a real epoch, on about a thousand tiles and at most four
lanes: what is chosen by is what will be counted, and there is no formula to get wrong.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from xloader.cohorts import cut_cohorts
from xloader.footprint import Demand, Footprint
from xloader.grid import Axis
from xloader.mixing import measure_mixing, region_dim
from xloader.order import LaneOrder
from xloader.plan import Epoch, Plan

_FEW_TILES = 1024
_NUM_SAMPLES = 1 << 13
_SEED = 20_241_109
_MOST_LANES = 4


@dataclass(frozen=True)
class Candidate:
    """A plan, and what the model says of it."""

    plan: Plan
    amplification: float
    mixing: float


class Model:
    """Measures plans of one tiling.

    Parameters
    ----------
    footprint : Footprint
    tiling : tuple of int
        As of `Pace`.
    run_dim : int
        The dimension that keeps most of its length.
    spread : int
        The most tiles at work that will be tried.
    lanes : int
        The lanes of the plans.
    """

    def __init__(
        self, footprint: Footprint, tiling: tuple[int, ...], run_dim: int, spread: int, lanes: int
    ) -> None:
        num_tiles = max(_FEW_TILES, 4 * spread)
        self._lanes = model_lanes(lanes)
        self._footprint = _truncate(footprint, tiling, run_dim, num_tiles * self._lanes)
        self._region_dim = region_dim(self._footprint)
        # Where tiles are few, luck makes one epoch unlike another.
        self._num_epochs = 8 if num_tiles <= _FEW_TILES else 3

    def measure(self, plan: Plan) -> Candidate | None:
        """Amplification and mixing of one epoch; ``None`` if its chunks do not fit."""
        trial = self._try_epoch(plan, 0)
        return trial and Candidate(plan, trial[0], self._mixing(plan, trial[1]))

    def confirm(self, candidate: Candidate, enough: float) -> Candidate | None:
        """The candidate by the worst of more epochs; the first beyond ``enough`` ends it."""
        worst, mixing = candidate.amplification, [candidate.mixing]
        for index in range(1, self._num_epochs):
            trial = self._try_epoch(candidate.plan, index)
            if trial is None:
                return None
            worst = max(worst, trial[0])
            if worst > enough:
                break
            if index < 3:
                mixing.append(self._mixing(candidate.plan, trial[1]))
        mean = sum(mixing) / len(mixing)
        return dataclasses.replace(candidate, amplification=worst, mixing=mean)

    def _try_epoch(self, plan: Plan, index: int) -> tuple[float, list[LaneOrder]] | None:
        pace = dataclasses.replace(plan.pace, lanes=self._lanes)
        cut = dataclasses.replace(plan, pace=pace, global_batch=plan.lane_share * self._lanes)
        epoch = Epoch(self._footprint, cut, _SEED, index, spread_is_fixed=True)
        lanes = epoch.lanes(range(self._lanes))
        if max(lane.schedule.peak_nbytes for lane in lanes) > plan.lane_pool_nbytes:
            return None
        num_reads = sum(lane.schedule.num_reads for lane in lanes)
        return num_reads / self._footprint.num_needed, [lane.order for lane in lanes]

    def _mixing(self, plan: Plan, orders: list[LaneOrder]) -> float:
        return measure_mixing(
            self._footprint, self._region_dim, orders, plan.lane_share, _NUM_SAMPLES
        )


def model_lanes(lanes: int) -> int:
    """Lanes that stand for all: each has an order of its own, and four show what they share."""
    return min(lanes, _MOST_LANES)


def _truncate(
    footprint: Footprint, tiling: tuple[int, ...], run_dim: int, num_tiles: int
) -> Footprint:
    """The first part of a selection, about ``num_tiles`` tiles of it, longest along the runs."""
    windows = footprint.windows
    left = num_tiles
    sizes = list(windows.dim_sizes)
    all_pieces = cut_cohorts(footprint, tiling).pieces
    for dim in sorted(range(len(sizes)), key=lambda d: d != run_dim):
        pieces, edges = all_pieces[dim], all_pieces[dim].tile_edges
        # Tiles that strides pass over make no epoch longer.
        keep = min(max(left, 4), pieces.num_homes)
        if keep < pieces.num_homes:
            position = pieces.starts[np.searchsorted(pieces.home, keep)]
            first = position * windows.strides[dim] + footprint.first_offsets[dim]
            end = edges[np.searchsorted(edges, first, side="right") - 1]
            sizes[dim] = max(int(end), windows.spans[dim])
        left //= keep
    if sizes == list(windows.dim_sizes):
        return footprint
    demands = tuple(
        _cut_demand(demand, sizes) for group in footprint.groups for demand in group.demands
    )
    return Footprint.of(dataclasses.replace(windows, dim_sizes=tuple(sizes)), demands)


def _cut_demand(demand: Demand, sizes: list[int]) -> Demand:
    axes = tuple(
        axis and Axis(axis.stored_size, axis.chunks, axis.selection[:size])
        for axis, size in zip(demand.axes, sizes, strict=True)
    )
    return dataclasses.replace(demand, axes=axes)
