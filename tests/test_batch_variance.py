"""`Loader.batch_variance` against NumPy, and the chunks that it reads against its prediction."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from xloader import BatchVariance
from xloader.core.options import LoaderOptions
from xloader.errors import (
    ClosedError,
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    UnknownNameError,
)
from xloader.loader.interleaved.sample_sets import taking
from xloader.loader.planned_loader import PlannedLoader
from xloader.loader.preview import num_full_steps, rows_of_steps
from xloader.loader.variance_measurement import (
    BatchMembers,
    BatchSums,
    spread_evenly,
)
from xloader.samples.samples import Samples
from xloader.testing import CountingStore, is_chunk_key, write_store

RNG = np.random.default_rng(3)
SEASON = np.sin(np.arange(960) / 960 * 2 * np.pi)[:, None]
DATA = xr.Dataset(
    {
        "t": (("time", "x"), (280 + 9 * SEASON + RNG.normal(size=(960, 6))).astype("f4")),
        "u": (("time", "x"), RNG.normal(size=(960, 6)).astype("f4")),
    }
)
STORE = write_store(DATA, {"t": (8, 6), "u": (8, 6)})


def opened(store: object = STORE) -> Samples:
    return xloader.open(store).window(time=2, stride=1)


def effect_of(batches: list[np.ndarray], everything: np.ndarray | None = None) -> float:
    """The design effect of all batches of an epoch, each of shape (batch_size, num_elements)."""
    values = np.stack(batches).astype(np.float64)
    means = values.mean(axis=1)
    samples = values.reshape(-1, values.shape[2]) if everything is None else everything
    spread = samples.var(axis=0, ddof=1).sum()
    return float(means.var(axis=0, ddof=1).sum() / (spread / values.shape[1]))


def delivered(loader: object, field: str, epoch: int = 0) -> list[np.ndarray]:
    """The full batches of an epoch, as the loader delivers them."""
    loader.set_epoch(epoch)
    arrays = [np.asarray(getattr(batch, field)) for batch in loader]
    full = max(map(len, arrays))
    return [array.reshape(full, -1) for array in arrays if len(array) == full]


@pytest.mark.parametrize(
    ("options", "prepare"),
    [
        ({"plan": xloader.PlanRules(spread=1)}, lambda samples: samples),
        ({"shuffle": False}, lambda samples: samples),
        (
            {"plan": xloader.PlanRules(spread=3, lanes=2), "drop_last": True},
            lambda samples: samples,
        ),
        (
            {"plan": xloader.PlanRules(spread=3)},
            lambda samples: samples.select(np.arange(100, 900)[::-1]),
        ),
        ({"plan": xloader.PlanRules(spread=3)}, lambda samples: samples.normalize(samples.stats())),
        ({"plan": xloader.PlanRules(spread=3)}, lambda samples: samples.map(lambda ds: ds**2)),
        ({}, lambda samples: samples.slab("x", 1, 2)),
        (
            {"plan": xloader.PlanRules(spread=3), "seed": 5},
            lambda samples: samples.map(
                lambda ds, rng: ds * rng.uniform().reshape(-1, 1, 1), random=True
            ),
        ),
        (
            {"plan": xloader.PlanRules(spread=3)},
            lambda samples: samples.weighted(np.arange(959.0), num_samples=600),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
def test_all_batches_of_an_epoch_against_numpy(options, prepare):
    samples = prepare(opened())
    # A small spread mixes as a small memory does, and leaves room for the sums of all elements.
    with samples.loader(
        **{"batch_size": 8, "memory": "4MiB", "output": "numpy", **options}
    ) as loader:
        batches = delivered(loader, "t", epoch=2)
        found = loader.batch_variance("t", num_batches=10_000, epoch=2)
    assert found.num_batches == found.num_epoch_batches == len(batches)
    assert found.ratio == pytest.approx(effect_of(batches), rel=1e-4)
    assert found.effective_batch_size == 8 / found.ratio


@given(
    batches=st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=3, max_size=6),
    seed=st.integers(0, 100),
)
def test_the_estimator_of_all_batches_against_numpy(batches, seed):
    values = np.random.default_rng(seed).normal(1e6, 1.0, size=(7, 5))
    values[2, 3] = np.nan
    used = {sample for batch in batches for sample in batch}
    rows = [np.array(batch) for batch in batches]
    members = BatchMembers.of(rows)
    sums = BatchSums(len(batches), 5)
    # Samples may come in any order.
    for row in np.random.default_rng(seed).permutation(len(members.ids)):
        sums.add(values[members.ids[[row]]], np.array([row]), members)
    kept = [0, 1, 2, 4] if 2 in used else [0, 1, 2, 3, 4]
    found, _ = sums.design_effect(3, len(batches))
    assert (found.num_elements, found.num_left_out) == (len(kept), 5 - len(kept))
    if len(used) == 1:
        assert math.isnan(found.ratio)
        return
    assert found.ratio == pytest.approx(effect_of([values[own][:, kept] for own in rows]))
    # The jackknife, the long way: each batch left out once, of an epoch of as many as before.
    others = []
    for left in range(len(rows)):
        some = rows[:left] + rows[left + 1 :]
        part = BatchMembers.of(some)
        own = BatchSums(len(some), 5)
        own.add(values[part.ids], np.arange(len(part.ids)), part)
        # Whether an element is left out is known from all batches.
        own._is_finite = sums._is_finite
        others.append(own.design_effect(3, len(batches))[0].ratio)
    if not np.isnan(others).any():
        num = len(others)
        error = math.sqrt((num - 1) * np.var(others))
        assert found.standard_error == pytest.approx(error, abs=1e-7)


def test_some_batches_of_an_epoch_are_its_own():
    with opened().loader(batch_size=8, seed=1, memory="4MiB", output="numpy") as loader:
        every = [batch.ids.tolist() for batch in loader]
        loader.set_epoch(0)
        rank_plan = loader._resolver.settle()
        part = rank_plan.remainder(0, 0)
        assert num_full_steps(part, range(1)) == 119
        steps = [0, 3, 60, 118, 119]
        found = rows_of_steps(part, range(1), steps)
        assert [ids.tolist() for ids, _ in found] == [every[step] for step in steps]
        some, most = (loader.batch_variance("t", num_batches=num) for num in (40, 1000))
    assert abs(some.ratio - most.ratio) < 2 * some.standard_error
    assert (some.num_batches, some.num_samples) == (40, 320)
    assert most.standard_error < some.standard_error < some.ratio / 2


def test_a_full_shuffle_has_ratio_1_and_batches_of_equal_samples_their_size():
    found = []
    for seed in range(6):
        with opened().loader(batch_size=8, seed=seed, memory="64MiB", output="numpy") as loader:
            found.append(loader.batch_variance("u", num_batches=1000).ratio)
    assert np.mean(found) == pytest.approx(1.0, abs=0.1)
    equal = xr.Dataset({"t": (("time", "x"), np.repeat(RNG.normal(size=(64, 3)), 8, axis=0))})
    samples = xloader.open(equal).window(time=1)
    with samples.loader(batch_size=8, shuffle=False, output="numpy") as loader:
        found = loader.batch_variance()
    assert found.ratio == pytest.approx(8.0, rel=0.02)
    assert found.effective_batch_size == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("memory", "num_batches"), [("16KiB", 2), ("16KiB", 1000), ("64KiB", 20), ("64MiB", 1000)]
)
def test_the_chunks_read_are_those_predicted(memory, num_batches):
    store = CountingStore(STORE)
    with opened(store).loader(batch_size=8, memory=memory, output="numpy") as loader:
        found = loader.batch_variance(num_batches=num_batches)
        counted = sum(count for key, count in store.reads.items() if is_chunk_key(key))
        assert counted == found.num_reads == found.num_expected_reads > 0
        # Two variables of 120 chunks each, and windows that straddle them.
        assert found.num_reads <= 240
        assert found.read_nbytes == found.num_reads * 8 * 6 * 4
        assert found.sums_nbytes <= max(loader.options.memory_nbytes // 16, 2 * 16 * num_batches)
        assert [len(batch.ids) for batch in loader][:2] == [8, 8]


def test_all_ranks_find_the_same_figures_as_one():
    options = {
        "plan": xloader.PlanRules(lanes=4),
        "memory": "64KiB",
        "output": "numpy",
        "drop_last": True,
    }
    with opened().loader(batch_size=16, **options) as alone:
        expected = alone.batch_variance(num_batches=20)
    for world_size in (2, 4):
        for rank in (0, world_size - 1):
            with opened().loader(
                batch_size=16 // world_size, world=xloader.World(rank, world_size), **options
            ) as loader:
                assert loader.batch_variance(num_batches=20) == expected
    assert expected.batch_size == 16


def test_a_loader_under_way_goes_on_undisturbed_and_after_a_state():
    with opened().loader(batch_size=8, memory="16KiB", output="numpy") as loader:
        expected = [batch.ids.tolist() for batch in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        ids = [next(batches).ids.tolist() for _ in range(5)]
        first = loader.batch_variance("t", num_batches=8)
        state = loader.state_dict()
        ids += [batch.ids.tolist() for batch in batches]
        assert ids == expected
        loader.load_state_dict(state)
        # Of the whole epoch, not of the rest.
        assert loader.batch_variance("t", num_batches=8) == first
        assert loader.batch_variance("t", num_batches=8, epoch=1) != first


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
def test_variables_of_fields_have_ratios_of_their_own():
    samples = opened().inputs("t", "u", time=0).targets("t", time=1)
    with samples.loader(
        batch_size=8, memory="4MiB", plan=xloader.PlanRules(spread=2), output="numpy"
    ) as loader:
        found = loader.batch_variance(num_batches=1000)
        inputs = delivered(loader, "inputs")
        own = loader.batch_variance("u", num_batches=1000, epoch=0)
        same = loader.batch_variance("inputs/u", num_batches=2)
        both = loader.batch_variance("t", num_batches=1000, epoch=0)
        with pytest.raises(UnknownNameError, match="variable of the fields"):
            loader.batch_variance("q")
    assert list(found.variables) == ["inputs/t", "inputs/u", "targets/t"]
    for name, columns in (("inputs/t", slice(0, 6)), ("inputs/u", slice(6, 12))):
        expected = effect_of([batch[:, columns] for batch in inputs])
        assert found.variables[name].ratio == pytest.approx(expected, rel=1e-4)
    assert found.ratio == pytest.approx(np.mean([v.ratio for v in found.variables.values()]))
    assert own.variables["inputs/u"].ratio == pytest.approx(found.variables["inputs/u"].ratio)
    # The chunks of the other variable are not read.
    assert (found.num_reads, both.num_reads, own.num_reads) == (240, 120, 120)
    assert list(own.variables) == list(same.variables) == ["inputs/u"]
    assert list(both.variables) == ["inputs/t", "targets/t"]


def test_functions_give_channels_ratios_of_their_own():
    samples = opened().inputs("t", "u").map(lambda ds: ds * 2)
    with samples.loader(batch_size=8, memory="64KiB", output="numpy") as loader:
        mapped = loader.batch_variance(num_batches=20)
    with opened().inputs("t", "u").loader(batch_size=8, memory="64KiB", output="numpy") as loader:
        plain = loader.batch_variance(num_batches=20)
    assert list(mapped.variables) == ["inputs/t", "inputs/u"]
    for name, own in plain.variables.items():
        assert mapped.variables[name].ratio == pytest.approx(own.ratio)


def test_nan_and_constants_are_left_out_and_shown():
    masked = DATA.copy(deep=True)
    masked["t"][:, 2] = np.nan
    masked["t"][17, 5] = np.inf
    masked["u"][:] = 1.0
    with opened(write_store(masked, {"t": (8, 6), "u": (8, 6)})).loader(
        batch_size=8, memory="1MiB", output="numpy", on_nan="ignore"
    ) as loader:
        found = loader.batch_variance(num_batches=1000)
        batches = delivered(loader, "t")
    t, u = found.variables.values()
    # Two steps of six places, of which land is never finite, and one place not always.
    assert (t.num_elements, t.num_left_out) == (8, 4)
    kept = [0, 1, 3, 4, 6, 7, 9, 10]
    expected = effect_of([batch[:, kept] for batch in batches])
    assert found.ratio == t.ratio == pytest.approx(expected, rel=1e-4)
    assert math.isnan(u.ratio)
    assert str(found).splitlines()[-1].split() == ["u", "constant", "-", "-", "12", "0"]
    assert str(found).splitlines()[-2].split()[-2:] == ["8", "4"]
    assert found.to_dict()["variables"]["u"]["ratio"] is None


def test_label_fields_count_as_variables():
    table = pd.DataFrame({"time": np.arange(2, 900), "kind": np.arange(2, 900) // 300})
    store = write_store(DATA.assign_coords(time=np.arange(960)), {"t": (8, 6), "u": (8, 6)})
    samples = xloader.open(store).window(time=2).at_points(table)
    with samples.loader(batch_size=8, memory="64KiB", output="numpy") as loader:
        found = loader.batch_variance("kind", num_batches=1000)
        assert found.ratio == pytest.approx(effect_of(delivered(loader, "kind")))


def test_large_samples_are_looked_at_evenly_within_the_memory():
    wide = xr.Dataset({"t": (("time", "x"), RNG.normal(size=(64, 20_000)).astype("f4"))})
    samples = xloader.open(write_store(wide, {"t": (4, 20_000)})).window(time=1)
    with samples.loader(batch_size=4, memory="64MiB", output="numpy") as loader:
        found = loader.batch_variance()
        batches = delivered(loader, "t")
    assert found.variables["t"].num_elements == 4096
    assert found.sums_nbytes == 2 * 8 * 16 * 4096
    assert found.ratio == pytest.approx(effect_of(batches), rel=0.05)
    with samples.loader(batch_size=4, memory="4MiB", output="numpy") as loader:
        assert loader.batch_variance().variables["t"].num_elements == (4 << 16) // (2 * 8 * 16)


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_numbers_are_spread_evenly(total, count):
    found = spread_evenly(total, count).tolist()
    assert len(set(found)) == len(found) == min(total, count)
    edges = [part * total // len(found) for part in range(len(found) + 1)]
    assert all(edges[n] <= own < edges[n + 1] for n, own in enumerate(found))


def test_numbers_that_are_spread_have_no_period():
    distances = np.diff(spread_evenly(64 * 365, 64))
    assert len(set(distances.tolist())) > 32
    assert len(set((spread_evenly(1 << 16, 256) % 256).tolist())) > 128


def test_parts_of_a_pass_are_epochs_of_their_own():
    options = LoaderOptions(batch_size=8, memory="4MiB", output="numpy")
    with PlannedLoader(taking(opened().recipe, 300), options, np.asarray) as loader:
        for epoch in (0, 1, 2):
            batches = delivered(loader, "t", epoch)
            found = loader.batch_variance("t", num_batches=1000, epoch=epoch)
            assert found.num_epoch_batches == len(batches) == 37
            assert found.ratio == pytest.approx(effect_of(batches), rel=1e-4)


def test_bad_calls_say_what_to_do():
    with opened().loader(batch_size=500, output="numpy") as loader:
        with pytest.raises(EmptySamplesError, match="1 full batches of 500"):
            loader.batch_variance()
        for options in ({"num_batches": 1}, {"num_batches": 2.5}, {"epoch": -1}):
            with pytest.raises(OptionError):
                loader.batch_variance(**options)
    with pytest.raises(ClosedError):
        loader.batch_variance()
    sets = xloader.interleave({"a": (opened(), 0.5), "b": (opened(), 0.5)})
    loader = sets.loader(batch_size=8, output="numpy")
    with pytest.raises(OptionError, match="one set of samples"):
        loader.batch_variance("t")
    loader.close()


def test_too_little_memory_for_sums_is_an_error_with_the_bytes_that_do():
    samples = xloader.open(STORE).window(time=1)
    least = smallest(lambda memory: samples.loader(batch_size=1, memory=memory, output="numpy"))
    loader = samples.loader(batch_size=1, memory=least, output="numpy")
    with pytest.raises(MemoryBudgetError, match="beside sums") as raised:
        loader.batch_variance(num_batches=500)
    loader.close()
    with samples.loader(batch_size=1, memory=raised.value.minimum_nbytes, output="numpy") as loader:
        assert loader.batch_variance(num_batches=500).num_batches == 500


def smallest(make: Callable[[int], object]) -> int:
    """The least memory that a loader accepts."""
    with pytest.raises(MemoryBudgetError) as raised:
        make(1)
    return raised.value.minimum_nbytes


def test_the_text_has_the_figures():
    found = BatchVariance(3.0, 0.25, 15, 64, 1200, 2, 950, 180, 180, 1 << 20, 4096, {})
    assert found.effective_batch_size == 5.0
    lines = [" ".join(line.split()) for line in str(found).splitlines()]
    assert lines[1:6] == [
        "ratio 3.00 +- 0.25 times the variance of a full shuffle's batch means",
        "effective batch 5 samples drawn at random are worth as much as a batch of 15",
        "batches 64 of 1,200 of epoch 2, 15 samples each",
        "reads 180 chunks, 1.0 MiB decoded, for 950 samples",
        "memory 4.0 KiB of sums",
    ]
    assert found.metrics()["xloader/effective_batch_size"] == 5.0
    explained = set(re.findall(r'title="[^"]+">([^<]+)</th>', found._repr_html_()))
    heads = {"standard error", "looked at", "left out"}
    assert explained == {"ratio", "effective batch", "reads"} | heads
