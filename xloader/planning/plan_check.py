"""Checks a plan that was not made here, such as that of a saved state, against the samples.

Each number of a plan is compared with the counts and bytes of the data that it is about. A plan
beyond them could wait for memory that never becomes free, or deal samples without an end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from xloader.core.footprint import Footprint
from xloader.core.option_checks import MOST, MOST_NBYTES, check_number, check_whole
from xloader.errors import OptionError
from xloader.planning.candidates import Tiling
from xloader.planning.plan import Plan
from xloader.planning.search import MOST_DRAWS, MOST_STRETCHES


def check_plan(plan: Plan, footprint: Footprint, row_nbytes: int) -> None:
    """Refuse a plan that was not made for these samples."""
    check_number("max_amplification", plan.max_amplification, 1.0)
    for name, value, least, most in _bounds(plan, footprint, row_nbytes):
        check_whole(name, value, least, most)
    if plan.global_batch % plan.pace.lanes:
        raise OptionError("the lanes do not divide the batch", given=f"{plan.pace.lanes} lanes")


def _bounds(
    plan: Plan, footprint: Footprint, row_nbytes: int
) -> Iterator[tuple[str, int, int, int]]:
    """Name, value, least and largest allowed value of each number, those that others use first."""
    pace, budget, last_dim = plan.pace, plan.budget, len(plan.pace.tiling) - 1
    for size, axis in zip(pace.tiling, footprint.leading_axes, strict=True):
        yield "tiling", size, 0, axis.num_blocks if axis else 1
    yield "run_dim", pace.run_dim, 0, last_dim
    yield "depth", plan.depth, 0, last_dim
    num_stretches = math.prod(footprint.windows.num_positions[: plan.depth])
    yield "number of stretches", num_stretches, 0, MOST_STRETCHES
    tiling = Tiling.of(footprint, pace.tiling)
    yield "run", pace.run, 1, tiling.cohorts.home_shape[pace.run_dim]
    yield "streams", pace.streams, 1, tiling.cohorts.num_tiles
    yield "spread", pace.spread, 0, MOST
    yield "draws", pace.draws, 1, MOST_DRAWS
    yield "visits", pace.visits, 1, footprint.num_samples
    yield "global_batch", plan.global_batch, 1, MOST
    yield "lanes", pace.lanes, 1, plan.global_batch
    yield "num_lanes", budget.num_lanes, 1, pace.lanes
    yield "num_batches", budget.num_batches, 2, MOST + 2
    yield "memory_nbytes", budget.memory_nbytes, 0, MOST_NBYTES
    yield "index_nbytes", budget.index_nbytes, 0, MOST_NBYTES
    yield "max_chunk_nbytes", budget.max_chunk_nbytes, footprint.max_chunk_nbytes, MOST_NBYTES
    least_batch = min(plan.lane_share, footprint.num_samples) * row_nbytes
    yield "batch_nbytes", budget.batch_nbytes, least_batch, MOST_NBYTES
    yield "ahead_nbytes", plan.ahead_nbytes, 0, budget.lane_nbytes
    # Without a shuffle, the positions of a tile may be delivered in parts.
    least_pool = tiling.need_nbytes if pace.is_shuffled else 0
    if plan.is_resident:
        least_pool = max(least_pool, -(-footprint.total_nbytes // budget.num_lanes))
    yield (
        "lane_pool_nbytes",
        plan.lane_pool_nbytes,
        least_pool,
        budget.lane_nbytes - plan.ahead_nbytes,
    )
