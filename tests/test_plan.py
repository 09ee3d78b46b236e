from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.ground import all_ids, line_footprint, plan_of
from xloader.order.shuffle import Pace
from xloader.planning.epoch import Epoch
from xloader.planning.plan import Budget, Plan
from xloader.planning.reduced_model import PlanGoal
from xloader.planning.search import find_plan


def test_a_plan_survives_json() -> None:
    plan = find_plan(line_footprint(3200, 16, 3), Budget(420, 0, 4, 0, 2), PlanGoal(16, 2))
    text = json.dumps(plan.to_dict())
    assert Plan.from_dict(json.loads(text)) == plan
    assert json.loads(text) == plan.to_dict()
    assert len(text) < 1000
    # The run differs from its default, so it must have been stored.
    assert json.loads(text)["pace"]["run"] == plan.pace.run > 1


@pytest.mark.parametrize("is_resident", [False, True])
def test_the_pool_of_a_process_is_that_of_its_lanes(is_resident: bool) -> None:
    plan = replace(
        plan_of(Pace((1,), spread=3, lanes=4), pool=1000),
        ahead_nbytes=50,
        is_resident=is_resident,
    )
    # Chunks that stay must fit for all lanes that this process may ever carry.
    assert plan.pool_nbytes(2) == (4200 if is_resident else 2100)
    assert plan.lane_share == 4


def test_an_epoch_that_does_not_fit_takes_the_largest_spread_that_does() -> None:
    footprint = line_footprint(640, 16, 3)
    pace = Pace((1,), 0, 5, 4, 12)
    pool = 9 * 16
    (lane,) = Epoch(footprint, plan_of(pace, pool=pool), 0, 0).lanes(range(1))
    assert lane.schedule.peak_nbytes <= pool
    peaks = []
    for spread in range(13):
        plan = plan_of(replace(pace, spread=spread), pool=pool)
        (fixed,) = Epoch(footprint, plan, 0, 0, spread_is_fixed=True).lanes(range(1))
        peaks.append((fixed.schedule.peak_nbytes, all_ids(fixed.order)))
    assert peaks[12][0] > pool
    largest = max(spread for spread, (peak, _) in enumerate(peaks) if peak <= pool)
    assert all_ids(lane.order) == peaks[largest][1]


def test_the_line_of_runs_with_the_fewest_reads_is_taken() -> None:
    footprint = line_footprint(640, 16, 3)
    pool = 10 * 16
    reads = []
    for draws in (1, 4, 16):
        plan = replace(plan_of(Pace((1,), 0, 5, 7, 7, draws=draws), pool=pool), max_amplification=1)
        reads.append(
            [Epoch(footprint, plan, 0, e).lanes(range(1))[0].schedule.num_reads for e in range(8)]
        )
    assert all(a >= b >= c for a, b, c in zip(*reads, strict=True))
    assert sum(reads[0]) > sum(reads[1]) > sum(reads[2])


BILLION = """
import resource
from tests.ground import line_footprint
from xloader.planning.epoch import Epoch
from xloader.planning.plan import Budget
from xloader.planning.search import find_plan
from xloader.planning.reduced_model import PlanGoal

def peak_nbytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak_nbytes()
footprint = line_footprint(10**9, 1000, 3)
assert (len(footprint.windows), footprint.num_needed) == (10**9 - 2, 10**6)
plan = find_plan(footprint, Budget(70_000, 16, 4, 1000, 1), PlanGoal(16, 1))
(lane,) = Epoch(footprint, plan, 0, 0).lanes(range(1))
assert 10**6 <= lane.schedule.num_reads <= 1.05 * 10**6
ids, _ = next(lane.order.segments(7 * 10**8 + 1))
assert len(set(ids.tolist())) == len(ids) > 16
print(peak_nbytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is counted in other units there")
def test_a_billion_samples_are_planned_in_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BILLION],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert int(done.stdout) < 250 * 10**6
