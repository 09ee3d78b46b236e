"""Masks and scores computed in units, as tasks of a cluster do it, but in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import event, given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from tests.jobs.tasks_here import TasksHere, run_here
from tests.jobs.test_valid_samples import SHARES, is_enough, with_mask
from xloader.errors import MemoryBudgetError
from xloader.jobs.valid import sweep_line, valid_samples
from xloader.jobs.valid.batch_sweep import cut_samples, ids_of, num_reads
from xloader.loader.batches.batch import Batch
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.testing import CountingStore, write_store


def described(batch: Batch) -> Any:
    """A number that depends on values, ids, order of fields and labels."""
    values = [array.reshape(len(batch.ids), -1).astype("f8") for array in batch]
    return sum(np.nan_to_num(own).sum(axis=1) for own in values) + 1000.0 * batch.ids


def reads_of(case: Case) -> dict[str, int]:
    names = set(case.dataset.data_vars)
    return {key: n for key, n in case.store.reads.items() if key.split("/")[0] in names}


@given(case=cases(has_nan=True), at_least=st.sampled_from(SHARES), data=st.data())
def test_masks_and_scores_of_units_are_those_of_threads(
    case: Case, at_least: float, data: st.DataObject
) -> None:
    """Random cases take longer to make than to check, so that all checks share them."""
    check_masks(case, at_least, data)
    check_scores(case, data)
    check_samples_of_units(case, data)


def check_masks(case: Case, at_least: float, data: st.DataObject) -> None:
    """Wherever the sweep is cut, also within a block; and each chunk is read by one unit."""
    expected = case.samples.is_valid(at_least=at_least)
    tasks = TasksHere(
        None, data.draw(st.sampled_from([1, 100, 1000, 10**6])), data.draw(st.integers(0, 9))
    )
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, tasks)
        patch.setattr(sweep_line, "_ENOUGH", data.draw(st.sampled_from([0.0, 0.75, 9.0])))
        case.store.reset()
        mask = case.samples.is_valid(at_least=at_least)
    np.testing.assert_array_equal(mask, expected)
    reads = reads_of(case)
    assert mask.num_reads == sum(reads.values())
    if not case.spans.wrap and not case.spans.pad:
        assert mask.num_reads == len(reads) == expected.num_reads
    event(f"{len(reads)} chunks read")


def check_scores(case: Case, data: st.DataObject) -> None:
    """Bit for bit, by the ids of all samples."""
    expected = case.samples.score(described, memory="64MiB", batch_size=5)
    tasks = TasksHere(
        None, data.draw(st.sampled_from([1, 100, 10**6])), data.draw(st.integers(0, 9))
    )
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, tasks)
        found = case.samples.score(described, memory="64MiB", batch_size=5)
    np.testing.assert_array_equal(found, expected)


def check_samples_of_units(case: Case, data: st.DataObject) -> None:
    """Units hold each sample once."""
    recipe = case.samples.recipe
    footprint = make_footprint(recipe, make_layouts(recipe))
    units = cut_samples(footprint, data.draw(st.sampled_from([1, 50, 500, 10**9])), 2)
    ids = np.concatenate([ids_of(recipe, unit) for unit in units])
    assert np.sort(ids).tolist() == list(range(recipe.num_ids))
    # Also where the samples of a unit are fewer than its windows.
    for unit in units:
        along = recipe.positions_of(ids_of(recipe, unit))[:, unit.dim]
        assert ((unit.begin <= along) & (along < unit.end)).all()


@given(
    seed=st.integers(0, 99),
    chunk=st.integers(2, 9),
    window=st.integers(1, 7),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    num_chunks=st.integers(1, 6),
    is_2d=st.booleans(),
)
def test_windows_at_the_borders_of_units(
    seed: int, chunk: int, window: int, stride: int, dilation: int, num_chunks: int, is_2d: bool
) -> None:
    """Units of several chunks, with windows of their own between those that they share."""
    rng = np.random.default_rng(seed)
    values = rng.random((40, 4))
    values[rng.random(values.shape) < 0.1] = np.nan
    ds = xr.Dataset({"t": (("time", "lat"), values), "n": ("lat", values[0])})
    store = CountingStore(write_store(ds, {"t": (chunk, 2), "n": (3,)}))
    sizes = {"time": window, "lat": 2} if is_2d else {"time": window}
    samples = xloader.open(store).window(sizes, stride=stride, dilation={"time": dilation})
    shares = [is_enough(array, 0.9) for array in samples[:]["t"]]
    store.reset()
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, TasksHere(None, num_chunks * chunk * 4 * 8, seed))
        mask = samples.is_valid("t", at_least=0.9)
        both = samples.is_valid(at_least=0.75)
    assert np.asarray(mask).tolist() == shares
    assert mask.num_reads == -(-40 // chunk) * 2 or stride * dilation > 1
    assert both == samples.is_valid(at_least=0.75)
    event(f"{'some' if any(shares) else 'none'} valid")


@pytest.mark.parametrize(
    ("windows", "num_again"),
    [
        ({"time": 4}, 0),
        ({"lat": 6, "time": 8}, 0),
        # Three windows of 12 steps: the chunks of steps 8 to 15 and 16 to 23 are straddled.
        ({"time": 12}, 1),
    ],
)
def test_chunks_are_read_again_only_where_windows_straddle_a_cut(
    windows: dict[str, int], num_again: int
) -> None:
    rng = np.random.default_rng(1)
    ds = xr.Dataset({"t": (("time", "lat"), rng.random((40, 12)))})
    store = CountingStore(write_store(ds, {"t": (8, 6)}))
    samples = xloader.open(store).window(windows)
    recipe = samples.recipe
    footprint = make_footprint(recipe, make_layouts(recipe))
    units = cut_samples(footprint, 8 * 12 * 8, 2)
    assert len(units) > 1
    assert num_reads(footprint, units) == footprint.num_needed + 2 * num_again
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, TasksHere(None, 8 * 12 * 8, threads=2))
        store.reset()
        scores = samples.score(described)
    assert store.num_reads == num_reads(footprint, units)
    np.testing.assert_array_equal(scores, samples.score(described))


def test_random_numbers_labels_and_tables_are_those_of_all_samples() -> None:
    ds = xr.Dataset(
        {"t": (("time", "x"), np.random.default_rng(0).random((60, 4)))},
        {"time": np.arange(60) * 10},
    )
    samples = xloader.open(write_store(ds, {"t": (5, 4)})).window(time=3)
    noisy = samples.map(lambda ds, rng: ds + xr.DataArray(rng.normal(), dims="sample"), random=True)

    def fn(batch: Batch) -> Any:
        return batch["t"].sum(axis=(1, 2)) + batch.to_xarray()["time_label"].values[:, 0]

    for own in (noisy, noisy.select(np.arange(19, 0, -1)), noisy.weighted(np.arange(20.0))):
        expected = own.score(fn)
        with pytest.MonkeyPatch.context() as patch:
            run_here(patch, TasksHere(None, 20 * 4 * 8))
            np.testing.assert_array_equal(own.score(fn), expected)


def test_memory_is_that_of_a_worker() -> None:
    _ds, store, _ = with_mask("static")
    samples = xloader.open(store).window(time=2)
    told = r"4 threads of a worker.*fewer threads"
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, TasksHere(None, 1, threads=4))
        for verb in (samples.is_valid, lambda **o: samples.score(described, **o)):
            with pytest.raises(MemoryBudgetError, match=told) as caught:
                verb(memory=1000)
            least = caught.value.minimum_nbytes
            with pytest.raises(MemoryBudgetError, match=told):
                verb(memory=least - 4)
            verb(memory=least)


def test_units_begin_at_new_windows_and_large_blocks_are_shared() -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.random.default_rng(0).random((64, 12)))})
    ds["t"][9, 2] = np.nan
    recipe = xloader.open(write_store(ds, {"t": (4, 3)})).window(time=4).recipe
    check = valid_samples.SampleCheck(recipe, make_layouts(recipe), 1.0)
    cut = sweep_line.cut_sweep
    units = cut(check.line, 16 * 12 * 8, 10**9)
    assert [(unit.begin, unit.end) for unit in units] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert [unit.alone for unit in units] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert len(cut(check.line, 4 * 12 * 8, 10**9)) == 16
    # One block of four chunks, by chunk; but not where that gives more counts than fit.
    tall = xloader.open(write_store(ds, {"t": (64, 3)})).window(time=4).recipe
    check = valid_samples.SampleCheck(tall, make_layouts(tall), 1.0)
    units = cut(check.line, 64 * 3 * 8, 10**9)
    assert [unit.share for unit in units] == [(number, 4) for number in range(4)]
    assert sum(unit.num_border for unit in units) == 4 * 16
    assert len(cut(check.line, 64 * 3 * 8, 40)) == 2
