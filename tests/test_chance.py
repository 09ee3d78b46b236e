"""Random numbers belong to the sample, independent of the batch and of the reader that makes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from tests.flat_options import grouped
from xloader import Samples
from xloader.core.options import make_options
from xloader.engine.batches import Delivery
from xloader.errors import MemoryBudgetError, OptionError
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.order.step_dealer import Dealer
from xloader.torch.worker_reader import Worker
from xloader.transforms.rng import Chance, Rng
from xloader.transforms.steps import Map

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]

Draw = tuple[int, int]
"""A sample's id and its occurrence in the epoch."""


def noise(frame: xr.Dataset, rng: Rng) -> xr.Dataset:
    """Return random numbers only, for a batch or for one sample."""
    numbers = np.concatenate([rng.uniform(2), rng.normal(2, name="noise")], axis=1)
    if "sample" in frame.dims:
        return xr.Dataset({"noise": (("sample", "k"), numbers)})
    return xr.Dataset({"noise": ("k", numbers[0])})


def rank_plan_of(samples: Samples, workers: int, **options: Any) -> RankPlan:
    try:
        return RankPlan(samples.recipe, make_options(**{**options, "memory": 1}), workers)
    except MemoryBudgetError as error:
        least = make_options(**{**options, "memory": error.minimum_nbytes})
    return RankPlan(samples.recipe, least, workers)


def deliveries(rank_plan: RankPlan, epoch: int) -> Iterator[Delivery]:
    """Yield all batches of all workers of a rank."""
    for number in range(rank_plan.plan.workers):
        yield from Worker(rank_plan, number).steps(epoch)


def drawn(case: Case, epoch: int) -> dict[Draw, int]:
    """Return the ids and occurrences of an epoch, computed without a plan."""
    subset = case.samples.recipe.subset
    ids = np.arange(len(case.samples))
    if subset is not None:
        ids = subset.drawn(case.options["seed"], epoch)
    return {(i, time): 1 for i, count in Counter(ids.tolist()).items() for time in range(count)}


def draws_of(delivery: Delivery) -> list[Draw]:
    times = delivery.occurrences
    times = np.zeros(len(delivery.ids), np.int64) if times is None else times
    return list(zip(delivery.ids.tolist(), times.tolist(), strict=True))


@given(
    case=cases(),
    epoch=st.integers(0, 2),
    world_size=st.integers(1, 3),
    lanes_per_rank=st.sampled_from([None, 1, 2]),
    workers=st.integers(1, 4),
    per=st.sampled_from(["batch", "sample"]),
)
def test_numbers_are_a_samples_own(
    case: Case,
    epoch: int,
    world_size: int,
    lanes_per_rank: int | None,
    workers: int,
    per: Any,
) -> None:
    lanes = None if lanes_per_rank is None else lanes_per_rank * world_size
    samples = case.samples.map(noise, per=per, random=True)
    options = {**case.options, "world_size": world_size, "lanes": lanes, "output": "numpy"}
    found: Counter[Draw] = Counter()
    expected = drawn(case, epoch)
    for rank in range(world_size):
        try:
            rank_plan = rank_plan_of(samples, workers, **grouped(**options, rank=rank))
        except OptionError:
            assume(False)
        for delivery in deliveries(rank_plan, epoch):
            draws = draws_of(delivery)
            rng = Rng(delivery.ids, delivery.occurrences, seed=options["seed"], epoch=epoch)
            numbers = np.concatenate([rng.uniform(2), rng.normal(2, name="noise")], axis=1)
            np.testing.assert_array_equal(delivery.arrays["noise"], numbers, strict=True)
            flags = delivery.is_padding.tolist()
            found.update(d for d, is_padding in zip(draws, flags, strict=True) if not is_padding)
            if any(flags) and not all(flags):
                # Padding repeats the last sample of the batch, with the same occurrence.
                real = draws[: flags.index(True)]
                assert set(draws[len(real) :]) == {real[-1]}
    left_out = len(expected) - sum(found.values())
    assert found <= Counter(expected)
    assert not left_out or case.options["drop_last"]
    assert left_out < case.options["batch_size"] * world_size


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_rest_of_an_epoch_goes_on_with_the_same_occurrences(shuffle: bool) -> None:
    samples = line(40).weighted(np.arange(40) % 4, num_samples=180)
    options = make_options(
        output="numpy",
        batch_size=8,
        memory="1MiB",
        shuffle=shuffle,
        plan=xloader.PlanRules(lanes=2),
    )
    rank_plan = RankPlan(samples.recipe, options, 1)

    def dealt_from(first_step: int) -> list[Draw]:
        rest = rank_plan.remainder(1, first_step)
        orders = [lane.order for lane in rest.lanes(rank_plan.sublanes())]
        dealt = Dealer(orders, rank_plan.plan.lane_share).take(rest.num_steps)
        assert dealt.occurrences is not None
        return list(zip(dealt.ids.tolist(), dealt.occurrences.tolist(), strict=True))

    assert dealt_from(9) == dealt_from(0)[9 * 8 :]


def test_a_loader_gives_the_same_with_any_threads() -> None:
    samples = line(100).weighted(np.linspace(0, 3, 100), 150).map(noise, random=True)

    def epoch_of(**changes: Any) -> dict[int, list[list[float]]]:
        given = {"batch_size": 10, "memory": "1MiB", "threads": 1, "seed": 4, **changes}
        number = given.pop("epoch", 0)
        found: dict[int, list[list[float]]] = {}
        with samples.loader(output="numpy", **given) as loader:
            loader.set_epoch(number)
            for batch in loader:
                for index, row in zip(batch.ids.tolist(), batch.noise.tolist(), strict=True):
                    found.setdefault(index, []).append(row)
        return {index: sorted(rows) for index, rows in found.items()}

    expected = epoch_of()
    rows = [tuple(row) for rows in expected.values() for row in rows]
    assert len(set(rows)) == len(rows) == 150
    for changes in (
        {"threads": 2},
        {"batch_size": 7},
        {"plan": xloader.PlanRules(lanes=2)},
        {"shuffle": False},
    ):
        assert epoch_of(**changes) == expected
    for changes in ({"seed": 5}, {"epoch": 1}):
        other = epoch_of(**changes)
        shared = expected.keys() & other.keys()
        assert len(shared) > 50
        assert not any(expected[i][0] == other[i][0] for i in shared)


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_what_is_read_one_by_one_is_of_no_epoch(per: Any) -> None:
    samples = line(20).map(noise, per=per, random=True)
    assert (samples.fields, samples.shapes) == (("noise",), {"noise": (4,)})
    rng = Rng([3, 7])
    expected = np.concatenate([rng.uniform(2), rng.normal(2, name="noise")], axis=1)
    np.testing.assert_array_equal(samples[[3, 7]].noise, expected)
    np.testing.assert_array_equal(samples[7][0], expected[1])
    np.testing.assert_array_equal(samples.to_xarray(7)["noise"], expected[1])


def test_functions_have_numbers_of_their_own_but_by_name() -> None:
    def add(name: str, draw: Callable[[Rng], Any]) -> Callable[[xr.Dataset, Rng], xr.Dataset]:
        return lambda ds, rng: ds.assign({name: ("sample", draw(rng))})

    samples = line(5).map(add("a", lambda rng: rng.uniform()), random=True)
    alone = samples[:].a
    samples = samples.map(lambda ds: ds).map(add("b", lambda rng: rng.uniform()), random=True)
    for name in ("c", "d"):
        samples = samples.map(add(name, lambda rng: rng.uniform(name="same")), random=True)
    batch = samples[:]
    # The first function's numbers equal those of a user's own Rng, whichever functions follow.
    np.testing.assert_array_equal(batch.a, Rng(range(5)).uniform())
    np.testing.assert_array_equal(batch.a, alone)
    assert not np.any(batch.a == batch.b)
    np.testing.assert_array_equal(batch.c, batch.d)


def test_split_gives_each_sample_its_numbers() -> None:
    whole = Chance(3, 2, np.array([0, 1])).rng([5, 5], 1)
    ones = whole.split()
    for call in (lambda rng: rng.normal(3), lambda rng: rng.integers(1000, shape=2)):
        np.testing.assert_array_equal(np.concatenate([call(one) for one in ones]), call(whole))


def test_a_recording_says_that_it_is_random() -> None:
    assert Map(noise).describe() == "map(tests.test_chance.noise, per='batch')"
    assert Map(noise, random=True).describe().endswith("noise, per='batch', random=True)")
    with pytest.raises(OptionError, match="random='yes'"):
        line(4).map(noise, random="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"failed on a sample of zeros.*\(TypeError"):
        _ = line(4).map(lambda ds: ds, random=True).fields


def line(size: int) -> Samples:
    return xloader.open(xr.Dataset({"t": ("time", np.arange(size, dtype=np.float32))})).window(
        time=1
    )
