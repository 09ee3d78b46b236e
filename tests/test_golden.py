"""The order of an epoch is pinned: the same on every machine and with every version of NumPy.

Saved states and repeated training runs rely on this order. A change of ``golden_order.json`` breaks
both. It needs a new version of the state and a line in the changelog. To write the file again::

    python -m tests.test_golden
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ground import box_footprint, line_footprint, plan_of
from xloader.core.footprint import Footprint
from xloader.core.subset import Subset
from xloader.order.shuffle import Pace
from xloader.planning.epoch import Epoch
from xloader.planning.plan import Plan

PATH = Path(__file__).with_name("ledger") / "golden_order.json"
SEED = 2024
EPOCHS = (0, 1)
NUM_FIRST = 64


def with_subset(footprint: Footprint, step: int) -> Footprint:
    """Return a footprint with every ``step``-th window, without those of some slabs."""
    windows = np.arange(0, len(footprint.windows), step)
    windows = windows[windows // 50 % 3 > 0]
    return replace(footprint, subset=Subset(len(footprint.windows), windows))


CASES: dict[str, tuple[Footprint, Plan]] = {
    "no window straddles tiles; spread 10": (
        line_footprint(640, 16, 1),
        plan_of(Pace((1,), spread=10)),
    ),
    "windows straddle; runs of 12 in 5 streams": (
        line_footprint(1600, 16, 3),
        plan_of(Pace((1,), 0, 12, 5, 8)),
    ),
    "the same in two lanes": (
        line_footprint(1600, 16, 3),
        plan_of(Pace((1,), 0, 12, 5, 8, lanes=2)),
    ),
    "the same, of 8 draws the one with the fewest reads": (
        line_footprint(1600, 16, 3),
        replace(plan_of(Pace((1,), 0, 12, 5, 8, draws=8), pool=160), max_amplification=1.0),
    ),
    "patches in 2-d, tiles whole along the second": (
        box_footprint((96, 40), (8, 8), (3, 3)),
        plan_of(Pace((1, 0), 0, 4, 2, 3)),
    ),
    "a full shuffle": (line_footprint(800, 16, 3), plan_of(Pace((1,), spread=50))),
    "a full shuffle that begins with few tiles": (
        line_footprint(960, 16, 3),
        plan_of(Pace((1,), spread=60, is_growing=True)),
    ),
    "patches in 2-d, every third window but some": (
        with_subset(box_footprint((96, 40), (8, 8), (3, 3)), 3),
        plan_of(Pace((1, 0), 0, 4, 2, 3)),
    ),
    "windows straddle; three visits of each tile, in two lanes": (
        line_footprint(1600, 16, 3),
        plan_of(Pace((1,), 0, 4, 2, 3, lanes=2, visits=3)),
    ),
    "patches in 2-d, every third window but some; two visits": (
        with_subset(box_footprint((96, 40), (8, 8), (3, 3)), 3),
        plan_of(Pace((1, 1), 0, 1, 1, 2, visits=2)),
    ),
    "no shuffle, two lanes": (
        box_footprint((24, 12), (8, 8), (3, 3)),
        plan_of(Pace((1, 1), lanes=2, is_shuffled=False), depth=1),
    ),
    "no shuffle, every second window but some, two lanes": (
        with_subset(box_footprint((24, 12), (8, 8), (3, 3)), 2),
        plan_of(Pace((1, 1), lanes=2, is_shuffled=False), depth=1),
    ),
}


def orders(footprint: Footprint, plan: Plan) -> list[list[dict[str, Any]]]:
    """Return, for each epoch and lane, the first ids and a digest of all ids."""
    found = []
    for number in EPOCHS:
        epoch = Epoch(footprint, plan, SEED, number)
        lanes = []
        for lane in epoch.lanes(range(plan.pace.lanes)):
            parts = [ids for ids, _ in lane.order.segments()]
            ids = np.concatenate(parts).astype("<i8")
            digest = hashlib.sha256(ids.tobytes()).hexdigest()
            lanes.append({"first": ids[:NUM_FIRST].tolist(), "sha256": digest})
        found.append(lanes)
    return found


@pytest.mark.parametrize("name", CASES)
def test_order_is_the_golden_one(name: str) -> None:
    assert orders(*CASES[name]) == json.loads(PATH.read_text())[name]


def test_the_golden_file_holds_these_cases_and_no_two_alike() -> None:
    golden = json.loads(PATH.read_text())
    assert list(golden) == list(CASES)
    shuffled = [
        lane["sha256"]
        for name, epochs in golden.items()
        for lanes in epochs
        for lane in lanes
        if not name.startswith("no shuffle")
    ]
    assert len(set(shuffled)) == len(shuffled)


def _write() -> None:
    golden = {name: orders(*case) for name, case in CASES.items()}
    # A list of numbers takes one line, so that a change shows as a few changed lines.
    lines = [
        f"{json.dumps(name)}: [\n    "
        + ",\n    ".join(json.dumps(lane) for lane in epochs)
        + "\n  ]"
        for name, epochs in golden.items()
    ]
    PATH.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


if __name__ == "__main__":
    _write()
