"""Makes the plan of a loader from its options.

The memory is divided into a budget, and the best plan within that budget is searched.
"""

from __future__ import annotations

import dataclasses

from xloader.core.footprint import Footprint
from xloader.core.options import LoaderOptions
from xloader.core.output_dtypes import OutputDtype, converted_dtype
from xloader.errors import MemoryBudgetError
from xloader.planning.budget import Budget
from xloader.planning.goal import PlanGoal
from xloader.planning.plan import Plan
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
    from xloader.planning.search import find_ascent

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
    from xloader.planning.search import find_plan

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
