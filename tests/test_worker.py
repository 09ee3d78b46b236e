"""Workers of a rank deliver and read together what was planned, each its own part."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader.core.options import make_options
from xloader.engine.batches import Delivery
from xloader.errors import MemoryBudgetError, OptionError
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.testing import CountingStore, write_store
from xloader.torch.worker_reader import Worker

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]


def rank_plan_of(case: Case, rank: int, workers: int) -> RankPlan:
    options = case.options_of(rank, output="numpy")
    del options["memory"]
    try:
        return RankPlan(case.samples.recipe, make_options(**options, memory=1), workers)
    except MemoryBudgetError as error:
        memory = error.minimum_nbytes
    return RankPlan(case.samples.recipe, make_options(**options, memory=memory), workers)


@given(case=cases(), workers=st.integers(1, 4), epoch=st.integers(0, 2))
def test_workers_deliver_each_sample_once_and_read_what_was_told(
    case: Case, workers: int, epoch: int
) -> None:
    delivered: list[int] = []
    for rank in range(case.world_size):
        try:
            rank_plan = rank_plan_of(case, rank, workers)
        except OptionError:
            assume(False)
        expected = rank_plan.explain(rank_plan.epoch(epoch))
        case.store.reset()
        batches: dict[int, Delivery] = {}
        for number in range(workers):
            worker = Worker(rank_plan, number)
            for index, delivery in enumerate(worker.steps(epoch)):
                batches[number + index * workers] = delivery
        assert case.store.num_reads == expected.num_reads
        assert sorted(batches) == list(range(expected.num_steps))
        real = [batches[step].ids[~batches[step].is_padding] for step in sorted(batches)]
        assert sum(map(len, real)) == expected.num_samples
        for ids in real[:-1]:
            assert len(ids) == case.options["batch_size"]
        delivered += np.concatenate([*real, np.zeros(0, np.int64)]).tolist()
    num_samples = case.chosen.num_samples or len(case.samples)
    left_out = num_samples % (case.options["batch_size"] * case.world_size)
    assert len(delivered) == num_samples - left_out * case.options["drop_last"]
    if case.chosen.weights is None:
        assert max(Counter(delivered).values(), default=1) == 1


def made(rank_plan: RankPlan, epoch: int, first_step: int = 0) -> dict[int, list[bytes]]:
    """Return the batches that a rank's workers make of each remaining step."""
    workers, found = rank_plan.plan.workers, {}
    for number in range(workers):
        worker = Worker(rank_plan, number)
        first = first_step + (number - first_step) % workers
        for index, delivery in enumerate(worker.steps(epoch, first_step)):
            arrays = [delivery.ids, delivery.is_padding, *delivery.arrays.values()]
            found[first + index * workers] = [np.asarray(array).tobytes() for array in arrays]
    return found


def test_padding_that_is_left_alone_repeats_the_row_before() -> None:
    store = CountingStore(write_store(_line(9), {"t": (3,)}))
    samples = xloader.open(store).window(time=1)
    options = make_options(output="numpy", batch_size=2, world=xloader.World(0, 2), memory="1MiB")
    rank_plan = RankPlan(samples.recipe, options, 2)
    whole = made(rank_plan, 0)
    assert sorted(whole) == [0, 1, 2]
    # This rank has no sample for step 2. The worker of that step also made step 0.
    assert np.frombuffer(whole[2][1], np.bool_).all()
    for first in (1, 2):
        expected = rank_plan.explain(rank_plan.remainder(0, first))
        store.reset()
        assert made(rank_plan, 0, first) == {k: v for k, v in whole.items() if k >= first}
        assert store.num_reads == expected.num_reads > 0
        assert expected.num_samples == 2 * (2 - first)
        # The other rank still has all its samples.
        world = rank_plan.explain(rank_plan.remainder(0, first), "world")
        assert world.num_samples == expected.num_samples + 2 * (2 - first) + 1
        assert world.num_reads > expected.num_reads


def test_a_worker_with_padding_alone_is_refused() -> None:
    samples = xloader.open(_line(9)).window(time=1)
    options = make_options(output="numpy", batch_size=2, world=xloader.World(0, 2), memory="1MiB")
    # There are three steps. This rank has no sample for the last one, which is the third worker's
    # only one.
    with pytest.raises(OptionError, match=r"only padding.*up to 2 workers"):
        RankPlan(samples.recipe, options, 3)
    RankPlan(samples.recipe, options, 2)


def _line(size: int) -> xr.Dataset:
    return xr.Dataset({"t": ("time", np.arange(size, dtype=np.float32))})


def test_a_script_that_keeps_its_loaders_ends_in_silence() -> None:
    script = (
        "import numpy as np, xarray as xr, xloader\n"
        "from xloader.torch import data_loader\n"
        "samples = xloader.open(xr.DataArray(np.zeros((64, 8), 'f4'), name='t')).window(dim_0=2)\n"
        "for batch in (loader := data_loader(samples, batch_size=8)): pass\n"
        "for batch in (other := data_loader(samples, batch_size=8)): break\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
