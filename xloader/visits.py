"""The cost of an order that somebody else made: a list of ids, simulated sample by sample."""

from __future__ import annotations

import dataclasses

import numpy as np

from xloader.errors import EmptySamplesError
from xloader.explain import Explanation
from xloader.footprint import Footprint
from xloader.grid import Ints
from xloader.listed import ListedOrder
from xloader.mixing import full_mixing, region_dim, regions_of
from xloader.plan import Plan
from xloader.schedule import make_schedule

_MOST_SAMPLES = 10_000_000
"""Beyond so many ids, the first of them stand for all."""


def explain_order(
    footprint: Footprint, plan: Plan, ids: Ints, expected: Explanation
) -> Explanation:
    """What an order of ids costs within a plan's memory.

    Parameters
    ----------
    footprint : Footprint
    plan : Plan
        Its budget counts, its order does not.
    ids : numpy.ndarray of int64
        Samples in the order of delivery.
    expected : Explanation
        Of the plan's own order, for what is the same.

    Raises
    ------
    EmptySamplesError
        If there are no ids.
    """
    if not len(ids):
        raise EmptySamplesError("the order names no samples", remedy="pass at least one id")
    looked_at = ids[:_MOST_SAMPLES]
    pool = plan.lane_pool_nbytes + plan.ahead_nbytes
    order = ListedOrder.of(footprint, looked_at)
    schedule = make_schedule(footprint, order, pool, is_resident=plan.is_resident)
    num_needed = sum(
        len(np.unique(r.block)) * r.group.num_reads_per_block for r in schedule.residences
    )
    scale = len(ids) / len(looked_at)
    dim = region_dim(footprint)
    return dataclasses.replace(
        expected,
        num_samples=len(ids),
        num_steps=-(-len(ids) // plan.global_batch),
        num_reads=round(schedule.num_reads * scale),
        read_nbytes=round(schedule.read_nbytes * scale),
        read_amplification=schedule.num_reads / num_needed,
        peak_nbytes=plan.budget.fixed_nbytes + schedule.peak_nbytes,
        mixing=_mixing(footprint, dim, looked_at, plan.global_batch),
        full_mixing=full_mixing(footprint, dim, plan.global_batch),
        is_exact=len(looked_at) == len(ids),
        run=1,
        streams=1,
        spread=0,
        lanes=1,
    )


def _mixing(footprint: Footprint, dim: int, ids: Ints, batch_size: int) -> float:
    num_batches = max(len(ids) // batch_size, 1)
    used = ids[: num_batches * batch_size]
    regions = regions_of(footprint, dim, tuple(footprint.positions_of(used).T))
    rows = np.sort(regions.reshape(num_batches, -1), axis=1)
    return float((np.diff(rows, axis=1, prepend=-1) != 0).sum(axis=1).mean())
