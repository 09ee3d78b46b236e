"""The first epoch begins with few chunks: of a plan that holds everything, and of any run."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.engine.run import Run
from xloader.planning.mixing import batch_regions
from xloader.testing import LatencyStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

NUM_CHUNKS, PER_CHUNK, BATCH = 90, 8, 16


def dataset() -> xr.Dataset:
    values = np.arange(NUM_CHUNKS * PER_CHUNK * 4, dtype="f4").reshape(-1, 4)
    return xr.Dataset({"t": (("time", "x"), values)})


def samples_of(store: Any, time: int = 1) -> xloader.Samples:
    return xloader.open(store).window(time=time, stride=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("first") / "t.zarr"
    dataset().to_zarr(path, consolidated=False, encoding={"t": {"chunks": (PER_CHUNK, 4)}})
    return path


def loader_of(samples: xloader.Samples, **options: Any) -> xloader.Loader:
    return samples.loader(batch_size=BATCH, output="numpy", memory="16MiB", **options)


def ids_of(loader: xloader.Loader) -> np.ndarray:
    return np.concatenate([batch.ids for batch in loader])


def chunks_known(ids: np.ndarray) -> list[int]:
    """Return how many chunks are needed up to each batch."""
    batches = np.array_split(ids // PER_CHUNK, range(BATCH, len(ids), BATCH))
    known: set[int] = set()
    return [len(known := known | set(batch.tolist())) for batch in batches]


def test_the_first_epoch_reads_while_it_delivers_and_later_ones_are_shuffled_in_full(
    path: Path,
) -> None:
    with loader_of(samples_of(path), seed=3) as loader:
        expected = loader.explain()
        assert expected.num_reads == NUM_CHUNKS
        first = ids_of(loader)
        assert loader.report().num_reads == NUM_CHUNKS
        assert loader.report().mixing == pytest.approx(expected.mixing)
        second = ids_of(loader)
        assert loader.report().num_reads == 0
    for ids in (first, second):
        assert sorted(ids) == list(range(NUM_CHUNKS * PER_CHUNK))
    known = chunks_known(first)
    num_steps = len(known)
    assert known[0] <= 10
    # Never far ahead of what is delivered, and all there before the end.
    for step, num in enumerate(known):
        assert num <= NUM_CHUNKS * (0.15 + 1.6 * (step + 1) / num_steps)
    assert known[num_steps * 9 // 10] >= NUM_CHUNKS - 2
    assert chunks_known(second)[num_steps // 5] >= NUM_CHUNKS * 0.8


def test_what_the_first_batches_lose_is_told(path: Path) -> None:
    with loader_of(samples_of(path)) as loader:
        (note,) = [note for note in loader.explain().notes if "first epoch" in note]
        rank_plan = loader._resolver.rank_plan
        lanes = rank_plan.epoch(0).lanes([0])
        steps, counts = batch_regions(rank_plan.footprint, [lanes[0].order], BATCH)
        assert f"mixes {counts[: len(steps) // 10 + 1].mean():.1f} places" in note
        loader.set_epoch(1)
        later = loader.explain()
        assert not [note for note in later.notes if "first epoch" in note]
        assert later.mixing == pytest.approx(later.full_mixing, rel=0.1)


@pytest.mark.parametrize("lanes", [1, 4])
def test_windows_over_two_chunks_come_once_on_any_number_of_ranks(path: Path, lanes: int) -> None:
    rules = xloader.PlanRules(lanes=lanes)

    def batches_of(num_ranks: int) -> list[list[int]]:
        options = {"plan": rules, "drop_last": True, "batch_size": 16 // num_ranks}
        parts = [
            [
                batch.ids
                for batch in samples_of(path, 3).loader(
                    output="numpy", memory="16MiB", world=xloader.World(rank, num_ranks), **options
                )
            ]
            for rank in range(num_ranks)
        ]
        return [sorted(np.concatenate(step).tolist()) for step in zip(*parts, strict=True)]

    whole = batches_of(1)
    ids = np.concatenate(whole)
    assert len(set(ids.tolist())) == len(ids) == 44 * 16
    if lanes > 1:
        assert batches_of(2) == batches_of(4) == whole


def test_a_state_within_the_first_epoch_goes_on(path: Path) -> None:
    whole = ids_of(loader_of(samples_of(path, 2)))
    first = loader_of(samples_of(path, 2))
    batches = iter(first)
    taken = [next(batches).ids for _ in range(5)]
    state = first.state_dict()
    second = loader_of(samples_of(path, 2))
    second.load_state_dict(state)
    np.testing.assert_array_equal(np.concatenate([*taken, ids_of(second)]), whole)


def test_a_state_from_before_goes_on_in_its_own_order(path: Path) -> None:
    """As a plan of that time is saved: it lacks the word."""
    from xloader.loader.ranks.state import sign

    loader = loader_of(samples_of(path))
    state = loader.state_dict()
    plan = {**state["plan"], "pace": dict(state["plan"]["pace"])}
    del plan["pace"]["is_growing"]
    loader.load_state_dict(sign({**state, "plan": plan}))
    assert chunks_known(ids_of(loader))[0] >= 14
    # As in a later epoch, each place of an epoch draws from all chunks.
    resumed = loader._resolver.rank_plan
    assert resumed.plan == replace(resumed.plan, pace=replace(resumed.plan.pace, is_growing=False))


@pytest.mark.parametrize("kind", ["local", "waiting"])
def test_before_the_first_batch_no_more_chunks_are_begun_than_it_needs(
    kind: str, path: Path, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = path
    if kind == "waiting":
        store = LatencyStore(write_store(dataset(), {"t": (PER_CHUNK, 4)}), 0.0)
    runs: list[Run] = []
    make = Run.__init__

    def note(run: Run, job: Any) -> None:
        make(run, job)
        runs.append(run)

    monkeypatch.setattr(Run, "__init__", note)
    threads, begun, is_first = 2, [], threading.Lock()

    def hold(batch: xr.Dataset) -> xr.Dataset:
        """Keep the first batch, while threads might read on."""
        # A function is tried on two labels before there is a run.
        if runs and is_first.acquire(blocking=False):
            until = time.monotonic() + 0.3
            while num_begun() <= most and time.monotonic() < until:
                time.sleep(0.01)
            begun.append(num_begun())
        return batch

    def num_begun() -> int:
        runs[-1]._refresh()
        return runs[-1].tally.num_reads

    samples = samples_of(store)
    with loader_of(samples) as loader:
        most = max(2 * threads, len(set((next(iter(loader)).ids // PER_CHUNK).tolist())))
    runs.clear()
    with loader_of(samples.map(hold), threads=threads) as loader:
        assert sorted(ids_of(loader)) == list(range(NUM_CHUNKS * PER_CHUNK))
        assert loader.report().num_reads == NUM_CHUNKS
    assert 0 < begun[0] <= most
