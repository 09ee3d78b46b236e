from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import xarray as xr

import xloader
import xloader.planning.explain_order
from tests.ground import line_footprint, plan_of
from xloader.core.footprint import Footprint
from xloader.errors import EmptySamplesError, OptionError, SampleIndexError
from xloader.order.shuffle import Pace
from xloader.planning.epoch import Epoch
from xloader.planning.explain import Explanation, explain_epoch
from xloader.planning.explain_order import explain_order
from xloader.planning.plan import Plan
from xloader.testing import write_store

PATHS: Mapping[str, str] = {"x": "memory"}


def explain(footprint: Footprint, plan: Plan, ids: list[int]) -> Explanation:
    expected = explain_epoch(Epoch(footprint, plan, 0, 0), [range(1)], PATHS)
    return explain_order(footprint, plan, np.array(ids, np.int64), expected)


IDS = [0, 40, 1, 41, 2, 42, 9]


@pytest.mark.parametrize(
    ("pool", "num_reads"),
    [
        pytest.param(0, 7, id="room for the sample's own chunk"),
        pytest.param(16, 7, id="room for one chunk, and one is at work"),
        pytest.param(32, 2, id="room for two chunks"),
    ],
)
def test_figures_of_an_order(pool: int, num_reads: int) -> None:
    footprint = line_footprint(64, 16, 1)
    plan = plan_of(Pace((1,), spread=2), batch=2, pool=pool)
    found = explain(footprint, plan, IDS)
    assert (found.num_samples, found.num_steps, found.num_reads) == (7, 4, num_reads)
    assert found.read_nbytes == 16 * num_reads
    assert found.read_amplification == num_reads / 2
    assert found.is_exact
    assert (found.run, found.streams, found.spread, found.lanes) == (1, 1, 0, 1)
    held = 16 if pool < 32 else 32
    # Four batches of two bytes, and all reads in flight, because the budget allows as many.
    assert found.peak_nbytes == 4 * 2 + 16 * num_reads + held


def test_mixing_of_an_order() -> None:
    footprint = line_footprint(640, 16, 1)
    plan = plan_of(Pace((1,), spread=2), batch=4)
    # A region has 64 elements here. The batches have 1, 2 and 4 regions; the rest fills no batch.
    ids = [0, 63, 5, 6, 0, 64, 1, 65, 0, 64, 128, 192, 400, 500]
    assert explain(footprint, plan, ids).mixing == pytest.approx((1 + 2 + 4) / 3)


def test_a_long_order_is_counted_in_part_and_says_so() -> None:
    footprint = line_footprint(64, 16, 1)
    plan = plan_of(Pace((1,), spread=2), batch=2, pool=0)
    with patch.object(xloader.planning.explain_order, "_MOST_SAMPLES", 4):
        found = explain(footprint, plan, IDS)
    assert not found.is_exact
    assert (found.num_samples, found.num_reads) == (7, 7)
    assert "first part" in str(found)


# Workers with caches


def make_samples(**kwargs: Any) -> xloader.Samples:
    """Make 320 samples in 20 chunks of 64 bytes."""
    line = xr.Dataset({"a": ("time", np.arange(320, dtype=np.float32))})
    return xloader.open(write_store(line, {"a": (16,)}), **kwargs).window(time=1)


def test_figures_of_an_order_through_caches() -> None:
    # Each worker has 64 bytes for each of two reads in flight, 32 for batches, and 128 for its
    # cache.
    options = {"memory": 2 * 288, "batch_size": 2, "prefetch": 2, "num_workers": 2}
    order = [0, 16, 32, 1, 2, 17, 33, 48, 0, 32, 0, 34, 18]
    # The chunks of one worker's samples are 0 1 0 1 0 2 1, those of the other's 2 0 2 3 0 2.
    found = make_samples().explain(order, cache="lru", **options)
    assert (found.num_samples, found.num_steps) == (13, 7)
    assert found.num_reads == 4 + 5
    assert found.read_nbytes == 64 * found.num_reads
    assert found.read_amplification == found.num_reads / 4
    assert found.num_shared_reads == 6 - 4
    # One worker makes only three batches of eight bytes each.
    assert found.peak_nbytes == 2 * 288 - 8
    assert found.is_exact
    assert found.tile == {"time": 16}
    assert (found.run, found.streams, found.spread, found.lanes) == (1, 1, 0, 1)
    assert set(found.paths) == {"a"}
    assert "extra reads of chunks that ranks or workers share" in str(found)


def test_a_cache_mixes_as_the_order_does() -> None:
    samples = make_samples()
    order = np.random.default_rng(0).permutation(320)
    known = samples.explain(order, batch_size=8)
    cached = samples.explain(order, batch_size=8, cache="lru", num_workers=3)
    assert cached.mixing == known.mixing
    assert cached.full_mixing == known.full_mixing


def test_a_long_order_through_a_cache_is_counted_in_part_and_says_so() -> None:
    samples = make_samples()
    with patch.object(xloader.planning.explain_order, "_MOST_SAMPLES", 4):
        found = samples.explain([0, 16, 32, 48, 0, 0, 0, 0], cache="lru", memory=1000)
    assert not found.is_exact
    assert (found.num_samples, found.num_reads) == (8, 8)


def test_subsets_are_told_by_their_own_ids() -> None:
    samples = make_samples().select([300, 5, 6, 301])
    found = samples.explain([0, -1, 1, 2], cache="lru", memory=1000, batch_size=1)
    assert found.num_reads == 2
    with pytest.raises(SampleIndexError, match="out of range"):
        samples.explain([4], cache="lru")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"cache": "fifo", "order": [0]},
            r"cache is not one of the choices.*'fifo'.*cache=\"lru\"",
        ),
        ({"cache": "lru"}, r"an order that you pass.*pass order="),
        ({"cache": "lru", "order": [0], "num_workers": -1}, r"num_workers is too small.*-1.*>= 0"),
        (
            {"cache": "lru", "order": [0], "num_workers": 1.5},
            r"num_workers is not a whole number.*1\.5",
        ),
        ({"cache": "lru", "order": []}, r"the order is empty"),
        ({"cache": "lru", "order": [0], "batchsize": 4}, r"did you mean 'batch_size'"),
        ({"cache": "lru", "order": [0], "memory": 100}, r"chunks of one sample.*memory=100"),
        ({"order": [0], "num_workers": 2}, r"no option 'num_workers'"),
    ],
)
def test_what_no_cache_can_do_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make_samples().explain(**options)


def test_an_order_of_nothing_is_refused() -> None:
    plan = plan_of(Pace((1,), spread=2), batch=2)
    with pytest.raises(EmptySamplesError, match=r"the order is empty.*To mend it: pass at least"):
        explain(line_footprint(64, 16, 1), plan, [])
