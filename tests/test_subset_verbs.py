"""select, weighted and ids on real stores: values, reads, labels and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

import xloader
from xloader.errors import (
    EmptySamplesError,
    OptionError,
    SampleIndexError,
    UnknownNameError,
)
from xloader.testing import CountingStore, write_store

NUM_DAYS = 365


def make_dataset() -> xr.Dataset:
    rng = np.random.default_rng(5)
    t2m = rng.normal(size=(NUM_DAYS, 6, 8)).astype("f4")
    coords = {
        "time": pd.date_range("2001-01-01", periods=NUM_DAYS),
        "lat": np.linspace(60, 10, 6),
        "lon": np.arange(0.0, 80, 10),
    }
    return xr.Dataset({"t2m": (("time", "lat", "lon"), t2m)}, coords)


@pytest.fixture(scope="module")
def store() -> CountingStore:
    return CountingStore(write_store(make_dataset(), {"t2m": (10, 3, 8)}))


@pytest.fixture(scope="module")
def samples(store: CountingStore) -> xloader.Samples:
    return xloader.open(store).window(time=2, stride=1)


@pytest.fixture(scope="module")
def patches(store: CountingStore) -> xloader.Samples:
    return xloader.open(store).window({"time": 5, "lat": 2, "lon": 4}, stride={"time": 5, "lat": 1})


def test_selected_samples_have_new_ids(samples: xloader.Samples) -> None:
    selected = samples.select([300, 4, 17, 4])
    assert len(selected) == 4
    assert selected.positions([0, 3]).time.values.tolist() == [300, 4]
    assert selected.positions([1]).time_label.values[0] == make_dataset().time.values[4]
    assert selected[[2, 0]].ids.tolist() == [2, 0]


def test_the_text_says_how_many(samples: xloader.Samples) -> None:
    selected = samples.select(range(20))
    assert "20 of 364 windows" in repr(selected)
    assert "draws 50 by weight" in repr(selected.weighted(np.ones(20), 50))


def test_only_what_is_selected_is_read(store: CountingStore, samples: xloader.Samples) -> None:
    # Windows of 2 from day 5 on: days 5 and 6, and days 19 and 20 across the edge of a chunk.
    selected = samples.select([5, 19])
    with selected.loader(batch_size=2, output="numpy") as loader:
        store.reset()
        (batch,) = loader
    assert sorted(batch.ids.tolist()) == [0, 1]
    assert set(store.reads) == {f"t2m/c/{time}/{lat}/0" for time in (0, 1, 2) for lat in (0, 1)}
    assert set(store.reads.values()) == {1}


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
def test_frequencies_match_the_weights_and_chunks_are_read_once(
    store: CountingStore, patches: xloader.Samples
) -> None:
    """Over 30 epochs, draws follow the weights, and each epoch reads each chunk once.

    The memory holds only some of the chunks.
    """
    rng = np.random.default_rng(1)
    aligned = patches.select(patches.ids(lat=[60.0, 50.0, 30.0, 20.0]))
    weights = rng.gamma(1.0, size=len(aligned)) * (rng.random(len(aligned)) < 0.8)
    weighted = aligned.weighted(weights, num_samples=200)
    with weighted.loader(batch_size=20, memory="24KiB", output="numpy") as loader:
        assert not loader.plan.is_resident
        assert loader.num_samples == 200
        counts = np.zeros(len(weighted), np.int64)
        for _ in range(30):
            expected = loader.explain()
            store.reset()
            for batch in loader:
                np.add.at(counts, batch.ids, 1)
            assert store.num_reads == expected.num_reads == loader.report().num_reads
            assert set(store.reads.values()) == {1}
    assert not counts[weights == 0].any()
    wanted = 30 * 200 * weights / weights.sum()
    is_drawn = weights > 0
    statistic = ((counts - wanted)[is_drawn] ** 2 / wanted[is_drawn]).sum()
    assert statistic < stats.chi2.ppf(0.99, is_drawn.sum() - 1)


def test_epochs_draw_anew(samples: xloader.Samples) -> None:
    half = samples.weighted(num_samples=182)
    with half.loader(batch_size=182, output="numpy") as loader:
        epochs = [frozenset(batch.ids.tolist()) for _ in range(3) for batch in loader]
    assert len(set(epochs)) == 3
    assert all(len(epoch) == 182 for epoch in epochs)
    equal = samples.weighted(np.ones(len(samples)), num_samples=182)
    assert half.recipe.fingerprint == equal.recipe.fingerprint


def test_samples_far_from_the_start_are_planned_on_themselves(store: CountingStore) -> None:
    """A plan for late samples of a long dimension fits the selection, with little memory."""
    long = xr.Dataset({"a": (("time", "x"), np.zeros((16_000, 4), "f4"))})
    counting = CountingStore(write_store(long, {"a": (10, 4)}))
    samples = xloader.open(counting).window(time=3, stride=1)
    late = samples.select(np.arange(11_000, 15_000))
    with late.loader(batch_size=16, memory="12KiB", output="numpy") as loader:
        expected = loader.explain()
        assert expected.read_amplification < 1.05
        assert expected.mixing > expected.full_mixing / 2
        counting.reset()
        assert sum(len(batch.ids) for batch in loader) == 4000
    assert counting.num_reads == expected.num_reads


def test_ids_at_labels(patches: xloader.Samples) -> None:
    where = patches.positions(range(len(patches)))
    ids = patches.ids(time=slice("2001-03-01", "2001-03-31"), lat=[50.0, 30.0], lon=0)
    wanted = (
        (where.time_label >= np.datetime64("2001-03-01"))
        & (where.time_label <= np.datetime64("2001-03-31"))
        & where.lat_label.isin([50.0, 30.0])
        & (where.lon_label == 0)
    )
    assert sorted(ids.tolist()) == np.flatnonzero(wanted).tolist()
    assert len(ids) > 5
    assert patches.ids(time="2001-01-06", lat=60, lon=40).tolist() == [
        np.flatnonzero((where.time == 5) & (where.lat == 0) & (where.lon == 4)).item()
    ]
    assert patches.ids().tolist() == list(range(len(patches)))


def test_the_nearest_window_is_one_that_there_is(samples: xloader.Samples) -> None:
    strided = xloader.open(make_dataset()).window(time=2, stride=7)
    assert strided.ids(time="2001-01-10", method="nearest").tolist() == [1]
    with pytest.raises(UnknownNameError, match="no window begins at it"):
        strided.ids(time="2001-01-10")


def test_ids_are_those_of_the_subset(samples: xloader.Samples) -> None:
    selected = samples.select([30, 10, 20, 10])
    assert selected.ids(time="2001-01-11").tolist() == [1, 3]
    assert selected.ids(time=slice("2001-01-21", None)).tolist() == [2, 0]
    with pytest.raises(
        EmptySamplesError, match="windows at these labels are not among the selected samples"
    ):
        selected.ids(time="2001-01-02")


def test_a_dimension_without_labels_counts_elements() -> None:
    samples = xloader.open(xr.Dataset({"a": ("x", np.arange(12))})).window(x=2, stride=3)
    assert samples.ids(x=6).tolist() == [2]
    with pytest.raises(UnknownNameError):
        samples.ids(x=5)


def test_the_order_of_a_subset_is_explained(samples: xloader.Samples) -> None:
    selected = samples.select([0, 100, 200])
    assert selected.explain(order=[2, 0, 2], memory="1MiB").num_samples == 3
    with pytest.raises(SampleIndexError):
        selected.explain(order=[3])


REFUSALS: dict[type[Exception], list[tuple[Any, str]]] = {
    EmptySamplesError: [
        (lambda s: s.select([]), "no sample is selected"),
        (
            lambda s: s.weighted(np.arange(364) > 0).select([0]),
            "all selected samples have weight 0",
        ),
        (lambda s: s.ids(time=slice("1999", "2000")), "no label"),
    ],
    SampleIndexError: [
        (lambda s: s.select([364]), "out of range"),
        (lambda s: s.select(np.ones(5, bool)), "not sample ids"),
        (lambda s: s.select([0.5]), "not sample ids"),
        (lambda s: s.select(np.array([2**64 - 1], "u8")), "out of range"),
    ],
    OptionError: [
        (lambda s: s.weighted(np.ones(5)), "the weights do not fit the samples"),
        (lambda s: s.weighted(np.full(364, np.nan)), "the weights do not fit the samples"),
        (lambda s: s.weighted(np.ones(364) * 1j), "complex128 of shape"),
        (lambda s: s.weighted(["much"] * 364), "the weights do not fit the samples"),
        (lambda s: s.weighted(-np.ones(364)), "the weights are negative, or all 0"),
        (lambda s: s.weighted(np.zeros(364)), "the weights are negative, or all 0"),
        (lambda s: s.weighted(np.ones(364), 0), "num_samples is too small"),
        (lambda s: s.weighted(np.ones(364), 2.5), "num_samples is not a whole number"),
        (lambda s: s.ids(lat=10), "holds all of the dimension 'lat', which has no windows"),
        (lambda s: xloader.open(make_dataset()).select([0]), "the windows are not set"),
    ],
    UnknownNameError: [
        (lambda s: s.ids(depth=10), "no dimension"),
        (lambda s: s.ids(time="1999-01-01"), "no such label"),
    ],
}


@pytest.mark.parametrize(
    ("error", "act", "message"),
    [(error, act, message) for error, rows in REFUSALS.items() for act, message in rows],
)
def test_bad_input_is_named(samples, error: type[Exception], act, message: str) -> None:
    with pytest.raises(error, match=message):
        act(samples)


def test_samples_with_none_near_their_corner_are_planned() -> None:
    """The samples form one row and one column, and none lies at the corner of both."""
    values = np.zeros((600, 600), "f4")
    store = write_store(xr.Dataset({"a": (("y", "x"), values)}), {"a": (10, 10)})
    samples = xloader.open(store).window(y=3, x=3, stride=1)
    along = np.arange(500)
    width = 598
    edges = np.r_[along * width + width - 1, (width - 1) * width + along]
    with samples.select(edges).loader(batch_size=8, memory="24KiB", output="numpy") as loader:
        expected = loader.explain()
        assert sum(len(batch.ids) for batch in loader) == 1000
        assert loader.report().num_reads == expected.num_reads


def test_slices_and_masks_select(samples: xloader.Samples) -> None:
    assert samples.select(slice(10, 20, 3)).positions([1]).time.values.tolist() == [13]
    flags = np.arange(len(samples)) % 7 == 0
    assert samples.select(flags).select([2]).positions([0]).time.values.tolist() == [14]
    with pytest.raises(OptionError, match=r"num_samples is too large.*Allowed"):
        samples.weighted(np.ones(len(samples)), 10**13)


def test_a_long_list_is_not_printed_whole() -> None:
    ds = xr.Dataset({"rain": ("time", np.zeros(10_000))})
    none = [False] * 10_000
    with pytest.raises(EmptySamplesError, match=r"Given: \[False, .* \.\.\. .*False\]\.") as caught:
        ds.xloader.window(time=1).select(none)
    assert len(str(caught.value)) < 3000
    assert caught.value.given == repr(none)


def test_a_random_part_is_fixed_and_fair(store: CountingStore) -> None:
    days = xloader.open(store).window(time=1)
    kept = days.sample(100, seed=3)
    at = kept.positions(range(100))["time"].values
    assert len(kept) == len(set(at.tolist())) == 100
    assert (np.diff(at) > 0).all()
    again = xloader.open(store).window(time=1).sample(np.int64(100), seed=3)
    assert (again.positions(range(100))["time"].values == at).all()
    assert days.sample(NUM_DAYS).positions(range(NUM_DAYS))["time"].values.tolist() == [
        *range(NUM_DAYS)
    ]
    counts = np.zeros(NUM_DAYS)
    for seed in range(400):
        counts[days.sample(73, seed=seed).positions(range(73))["time"].values] += 1
    # Each day is kept with a chance of a fifth.
    assert stats.chi2.sf(((counts - 80) ** 2 / 64).sum(), NUM_DAYS - 1) > 1e-4
    chosen = days.select([300, 7, 20]).sample(2, seed=1)
    assert set(chosen.positions([0, 1])["time"].values.tolist()) < {300, 7, 20}


@pytest.mark.parametrize("n", [0, NUM_DAYS + 1, 2.5, True, None])
def test_a_random_part_of_a_wrong_size(store: CountingStore, n: Any) -> None:
    with pytest.raises(OptionError, match="n is"):
        xloader.open(store).window(time=1).sample(n)
