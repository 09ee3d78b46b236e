"""The cost of reading samples in an order that the user gives as a list of ids.

The cost is simulated sample by sample, for one of two readers. `explain_order` is for a loader
that knows the whole order in advance. `explain_cached` is for workers with least-recently-used
caches, which get one batch after another and do not know the later ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from xloader.core.axis import Ints
from xloader.core.footprint import Footprint
from xloader.errors import EmptySamplesError
from xloader.order.listed import ListedOrder
from xloader.planning.cache_budget import cache_budget, simulate
from xloader.planning.explain import Explanation, tile_sizes
from xloader.planning.mixing import Regions, full_mixing
from xloader.planning.plan import Plan
from xloader.planning.schedule import Schedule
from xloader.recipe.layout import FieldLayout
from xloader.show.cost_figures import count_reads, scaled_reads, sum_variables

_MOST_SAMPLES = 10_000_000
"""The number of ids that are simulated. A longer order is scaled up from its first part."""


def explain_order(
    footprint: Footprint, plan: Plan, ids: Ints, expected: Explanation
) -> Explanation:
    """Predict the cost of an order of ids within a plan's memory."""
    figures = _order_figures(footprint, ids, plan.global_batch)
    looked_at = ids[:_MOST_SAMPLES]
    pool = plan.lane_pool_nbytes + plan.ahead_nbytes
    order = ListedOrder.of(footprint, looked_at)
    schedule = Schedule(footprint, order, pool, is_resident=plan.is_resident)
    counted = count_reads(footprint.groups, schedule.group_reads)
    scale = len(ids) / len(looked_at)
    return dataclasses.replace(
        expected,
        **scaled_reads(counted, scale),
        peak_nbytes=schedule.peak_nbytes
        + plan.budget.needed_nbytes(
            figures["num_steps"], plan.budget.batch_nbytes, round(schedule.most_read_nbytes * scale)
        ),
        # The residences and notes of the plan are not those of this order.
        _times=None,
        notes=(),
        **figures,
    )


def explain_cached(
    footprint: Footprint,
    layouts: tuple[FieldLayout, ...],
    ids: Ints,
    paths: Mapping[str, str],
    *,
    memory_nbytes: int,
    batch_size: int,
    prefetch: int,
    num_workers: int,
) -> Explanation:
    """Predict the cost of an order of ids through least-recently-used caches that begin empty."""
    figures = _order_figures(footprint, ids, batch_size)
    budget = cache_budget(
        footprint, layouts, memory_nbytes, batch_size, prefetch, num_workers=num_workers
    )
    looked_at = ids[:_MOST_SAMPLES]
    count = simulate(
        footprint, looked_at, budget.lane_nbytes, batch_size=batch_size, num_workers=num_workers
    )
    scale = len(ids) / len(looked_at)
    reads = scaled_reads(sum_variables(count.variables), scale)
    steps = range(figures["num_steps"])
    needed = [
        budget.needed_nbytes(len(steps[worker::num_workers]), budget.batch_nbytes, 0)
        for worker in range(num_workers)
    ]
    in_flight = min(num_workers * budget.in_flight_nbytes, reads["read_nbytes"])
    return Explanation(
        peak_nbytes=sum(needed) + in_flight + count.peak_nbytes,
        num_dropped_windows=footprint.windows.num_dropped,
        dropped_windows=footprint.windows.dropped,
        tile=tile_sizes(footprint, (1,) * len(footprint.windows.dims)),
        paths=paths,
        num_shared_reads=round(count.num_shared_reads * scale),
        **reads,
        **figures,
    )


def _order_figures(footprint: Footprint, ids: Ints, batch_size: int) -> dict[str, Any]:
    """The figures that depend on the order alone, and not on how it is read."""
    if not len(ids):
        raise EmptySamplesError("the order is empty", remedy="pass at least one id")
    looked_at = ids[:_MOST_SAMPLES]
    # Full batches are looked at. If none is full, the only batch counts.
    num_batches = max(len(looked_at) // batch_size, 1)
    edges = np.minimum(np.arange(num_batches + 1) * batch_size, len(looked_at))
    positions = footprint.positions_of(looked_at[: edges[-1]])
    return {
        "num_samples": len(ids),
        "num_padding": 0,
        "num_steps": -(-len(ids) // batch_size),
        "mixing": float(Regions(footprint).count(positions, edges).mean()),
        "full_mixing": full_mixing(footprint, batch_size),
        "is_exact": len(looked_at) == len(ids),
        "run": 1,
        "streams": 1,
        "spread": 0,
        "lanes": 1,
        "visits": 1,
    }
