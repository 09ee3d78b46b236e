"""Makes the plan of a loader from its options.

The memory is divided into a budget, and the best plan within that budget is searched.

Checks a plan that was not made here, such as that of a saved state, against the samples.

Each number of a plan is compared with the counts and bytes of the data that it is about. A plan
beyond them could wait for memory that never becomes free, or deal samples without an end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from xloader.core.footprint import Footprint
from xloader.core.option_checks import MOST, MOST_NBYTES, check_number, check_whole
from xloader.core.options import LoaderOptions
from xloader.core.output_dtypes import OutputDtype, converted_dtype
from xloader.errors import MemoryBudgetError, OptionError
from xloader.planning.candidates import Tiling
from xloader.planning.plan import Budget, Plan
from xloader.planning.reduced_model import PlanGoal
from xloader.planning.search import MOST_DRAWS, MOST_STRETCHES, find_ascent, find_plan
from xloader.recipe.layout import FieldLayout
from xloader.sources.base import MOST_INDEX_NBYTES


def make_plan(
    footprint: Footprint, layouts: tuple[FieldLayout, ...], options: LoaderOptions, workers: int = 1
) -> Plan:
    """The plan of a loader, or of each of several workers that share its memory.

    The plan depends only on the samples, ``shuffle``, the global batch, ``memory``, ``prefetch``,
    ``lanes``, ``spread``, ``max_amplification`` and the number of workers. If ``lanes`` is given,
    the plan does not depend on the number of ranks.
    """
    budget = make_budget(footprint, layouts, options, workers)
    goal = PlanGoal(
        global_batch=options.global_batch,
        lanes=options.num_lanes,
        max_amplification=options.plan.max_amplification,
        spread=options.plan.spread,
    )
    try:
        if not options.shuffle:
            plan = find_ascent(footprint, budget, goal, workers)
        else:
            plan = _find_shuffle(footprint, budget, goal, workers)
    except MemoryBudgetError as error:
        if workers == 1:
            raise
        raise MemoryBudgetError(
            f"the memory is too small for {workers} workers, which share it equally",
            given=f"memory={options.memory_nbytes} bytes",
            minimum_nbytes=workers * error.minimum_nbytes,
        ) from error
    return dataclasses.replace(plan, workers=workers)


def make_budget(
    footprint: Footprint, layouts: tuple[FieldLayout, ...], options: LoaderOptions, workers: int = 1
) -> Budget:
    """The division of the memory of a loader, or of one of its workers; see `make_plan`."""
    return Budget(
        memory_nbytes=options.memory_nbytes // workers,
        batch_nbytes=batch_nbytes(footprint, layouts, options),
        num_batches=options.prefetch + 2,
        max_chunk_nbytes=footprint.max_chunk_nbytes,
        num_lanes=options.carried_lanes,
        index_nbytes=min(footprint.index_nbytes, MOST_INDEX_NBYTES),
    )


def _find_shuffle(footprint: Footprint, budget: Budget, goal: PlanGoal, workers: int) -> Plan:
    """The plan of a shuffle. With several workers, each lane has a sub-lane for each worker.

    A worker makes whole batches from its own sub-lanes. The search therefore sees ``workers``
    times the lanes and ``workers`` times the global batch, so that a lane's share of a batch is
    the same.
    """
    several = dataclasses.replace(
        goal, global_batch=workers * goal.global_batch, lanes=workers * goal.lanes
    )
    plan = find_plan(footprint, budget, several)
    pace = dataclasses.replace(plan.pace, lanes=goal.lanes)
    return dataclasses.replace(plan, pace=pace, global_batch=goal.global_batch)


def batch_nbytes(
    footprint: Footprint, layouts: tuple[FieldLayout, ...], options: LoaderOptions
) -> int:
    """Most bytes of one batch in one process."""
    # If `lanes` is given, a run may be resumed by one process that carries all of them.
    num_rows = options.global_batch if options.plan.lanes else most_rows(footprint, options)
    return num_rows * delivered_nbytes(layouts, options.on_device.dtype)


def delivered_nbytes(layouts: tuple[FieldLayout, ...], output_dtype: OutputDtype | None) -> int:
    """Bytes of one sample in a batch, as gathered, or as delivered where that is more."""
    return sum(
        layout.sample_nbytes
        // layout.dtype.itemsize
        * max(layout.dtype.itemsize, converted_dtype(layout.dtype, output_dtype).itemsize)
        for layout in layouts
    )


def most_rows(footprint: Footprint, options: LoaderOptions) -> int:
    """Rows of the largest batch of a rank.

    A single rank has fewer rows than ``batch_size`` if there are fewer samples.
    """
    if options.ranks.world_size > 1:
        # States hold plans that were made for full batches of several ranks.
        return options.batch_size
    return min(options.batch_size, footprint.num_samples)


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
