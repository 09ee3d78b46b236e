"""What an epoch will cost, before the first byte is read: counted on its own schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from xloader.cohorts import tile_edges
from xloader.figures import Figures
from xloader.footprint import Footprint
from xloader.mixing import full_mixing, measure_mixing, region_dim
from xloader.plan import Epoch, Lane, Plan


@dataclass(frozen=True)
class Explanation(Figures):
    """What an epoch will cost, before the first byte is read.

    Attributes
    ----------
    paths : dict of str to str
        How each variable is read.
    num_shared_reads : int
        Of the reads of all ranks, those of a chunk that another rank reads too; 0 for one rank.
    """

    paths: Mapping[str, str]
    num_shared_reads: int = 0

    def _title(self) -> str:
        return "Explanation: nothing has been read"

    def _rows(self) -> list[tuple[str, str]]:
        by_path: dict[str, list[str]] = {}
        for name, path in self.paths.items():
            by_path.setdefault(path, []).append(name)
        read = [("read", f"{', '.join(names)}: {path}") for path, names in by_path.items()]
        if self.num_shared_reads:
            read.append(("shared", f"{self.num_shared_reads:,} reads of a chunk by another rank"))
        if not self.is_exact:
            read.append(("note", "counted on the first part of the order only"))
        return [*super()._rows(), *read]


Cached = set[tuple[int, int]] | frozenset[tuple[int, int]]
"""Blocks in memory from earlier epochs, as (group, block)."""


def explain_epoch(
    epoch: Epoch, own_lanes: range, paths: Mapping[str, str], cached: Cached
) -> Explanation:
    """What one rank will read and hold in one epoch.

    Parameters
    ----------
    epoch : Epoch
    own_lanes : range
        The rank's lanes.
    paths : mapping of str to str
        How each variable is read.
    cached : set of (int, int)
        Blocks in memory from earlier epochs, as (group, block).
    """
    lanes = epoch.lanes(range(epoch.plan.pace.lanes))
    own = lanes[own_lanes.start : own_lanes.stop]
    reads = _count_reads(epoch, own, cached)
    return Explanation(
        num_samples=_num_delivered(epoch, own),
        num_steps=epoch.num_steps,
        num_reads=reads.num_reads,
        read_nbytes=reads.nbytes,
        read_amplification=reads.num_reads / max(reads.num_needed, 1),
        peak_nbytes=_peak_nbytes(epoch, len(own)),
        paths=paths,
        **plan_figures(epoch, lanes),
    )


def explain_world(epoch: Epoch, world_size: int, paths: Mapping[str, str]) -> Explanation:
    """What all ranks together will read and hold in one epoch, nothing being cached."""
    share = epoch.plan.pace.lanes // world_size
    lanes = epoch.lanes(range(epoch.plan.pace.lanes))
    ranks = [lanes[rank * share : (rank + 1) * share] for rank in range(world_size)]
    counted = [_count_reads(epoch, own, frozenset()) for own in ranks]
    together = _count_reads(epoch, lanes, frozenset())
    num_reads = sum(reads.num_reads for reads in counted)
    return Explanation(
        num_samples=sum(_num_delivered(epoch, own) for own in ranks),
        num_steps=epoch.num_steps,
        num_reads=num_reads,
        read_nbytes=sum(reads.nbytes for reads in counted),
        read_amplification=num_reads / max(together.num_needed, 1),
        peak_nbytes=world_size * _peak_nbytes(epoch, share),
        paths=paths,
        num_shared_reads=sum(reads.num_needed for reads in counted) - together.num_needed,
        **plan_figures(epoch, lanes),
    )


@dataclass(frozen=True)
class _Reads:
    num_reads: int
    nbytes: int
    num_needed: int


def _count_reads(epoch: Epoch, lanes: list[Lane], cached: Cached) -> _Reads:
    num_reads = nbytes = num_needed = 0
    for index, group in enumerate(epoch.footprint.groups):
        residences = [lane.schedule.residences[index] for lane in lanes]
        is_touched = np.zeros(group.num_blocks, np.bool_)
        for residence in residences:
            is_touched[residence.block] = True
        blocks = np.flatnonzero(is_touched)
        num_needed += len(blocks) * group.num_reads_per_block
        if epoch.plan.is_resident:
            is_new = [(index, block) not in cached for block in blocks.tolist()]
            blocks = blocks[np.array(is_new, np.bool_)]
            num_reads += len(blocks) * group.num_reads_per_block
            nbytes += int(group.read_nbytes(blocks).sum())
        else:
            num_reads += sum(r.num_reads for r in residences)
            nbytes += sum(r.read_nbytes for r in residences)
    return _Reads(num_reads, nbytes, num_needed)


def _num_delivered(epoch: Epoch, lanes: list[Lane]) -> int:
    most = epoch.num_steps * epoch.plan.lane_share
    return sum(min(lane.order.num_samples, most) for lane in lanes)


def _peak_nbytes(epoch: Epoch, num_lanes: int) -> int:
    plan = epoch.plan
    pool = plan.pool_nbytes(num_lanes)
    if plan.is_resident:
        pool = min(pool, epoch.footprint.total_nbytes)
    return plan.budget.fixed_nbytes + pool


def plan_figures(epoch: Epoch, lanes: list[Lane]) -> dict[str, Any]:
    """The figures of an epoch that are the same for every rank, mixing among them."""
    plan, footprint = epoch.plan, epoch.footprint
    dim = region_dim(footprint)
    return {
        "mixing": measure_mixing(footprint, dim, [lane.order for lane in lanes], plan.lane_share),
        "full_mixing": full_mixing(footprint, dim, plan.global_batch),
        "num_dropped_windows": footprint.windows.num_dropped,
        "is_exact": True,
        "tile": tile_sizes(footprint, plan),
        "run": plan.pace.run,
        "streams": plan.pace.streams,
        "spread": plan.pace.spread,
        "lanes": plan.pace.lanes,
    }


def tile_sizes(footprint: Footprint, plan: Plan) -> dict[str, int]:
    """Per windowed dimension, the elements of the plan's longest tile."""
    return {
        name: int(np.diff(tile_edges(footprint, dim, size)).max())
        for dim, (name, size) in enumerate(
            zip(footprint.windows.dims, plan.pace.tiling, strict=True)
        )
    }
