"""PyTorch's doors with several ranks: they may be made before the ranks are known."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from typing import Any

import numpy as np
import pytest
import xarray as xr
from torch.utils.data import DataLoader

import xloader
from tests.test_rank_resolution import Store, become
from xloader import Samples
from xloader.errors import RanksError
from xloader.loader.ranks import rank_resolver as ranks
from xloader.torch import ChunkSampler, IterableDataset, collate, data_loader

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

NUM_SAMPLES = 40
OPTIONS = {"batch_size": 4, "memory": "1MiB"}


def make_samples() -> Samples:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((NUM_SAMPLES, 2), np.float32))})
    return xloader.open(ds).window(time=1)


def ids_of_sampler(sampler: ChunkSampler) -> Iterator[int]:
    yield from sampler


def ids_of_batches(sampler: ChunkSampler) -> Iterator[int]:
    for ids in sampler.batches():
        yield from ids


def ids_of_items(dataset: Any) -> Iterator[int]:
    for batch in dataset:
        yield from batch.ids.tolist()


def make_sampler(**options: Any) -> ChunkSampler:
    return ChunkSampler(make_samples(), **OPTIONS, **options)


def make_dataset(**options: Any) -> IterableDataset:
    return IterableDataset(make_samples(), **OPTIONS, **options)


def make_loader(**options: Any) -> DataLoader[Any]:
    return data_loader(make_samples(), **OPTIONS, **options)


DOORS = [
    pytest.param(make_sampler, ids_of_sampler, 20, id="sampler"),
    pytest.param(make_sampler, ids_of_batches, 20, id="batches"),
    pytest.param(make_dataset, ids_of_items, 5, id="dataset"),
    pytest.param(make_loader, ids_of_items, 5, id="loader"),
]


@pytest.mark.parametrize(("make", "ids_of", "length"), DOORS)
@pytest.mark.parametrize("is_asked", [False, True])
def test_a_door_may_be_made_before_the_ranks(
    make: Callable[[], Any],
    ids_of: Callable[[Any], Iterator[int]],
    length: int,
    is_asked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doors = [make(), make()]
    found = []
    for rank, door in enumerate(doors):
        become(monkeypatch, rank, 2)
        if is_asked:
            assert len(door) == length
            assert door.explain().num_samples == NUM_SAMPLES // 2
        found += list(ids_of(door))
    assert sorted(found) == list(range(NUM_SAMPLES))


def test_a_sampler_tells_trainers_the_rank_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = make_sampler()
    become(monkeypatch, 1, 2)
    iter(sampler)
    assert (sampler.rank, sampler.num_replicas) == (1, 2)
    assert (sampler.num_samples, sampler.total_size) == (20, 40)


@pytest.mark.parametrize(("make", "ids_of", "length"), DOORS)
def test_a_later_contradiction_is_an_error(
    make: Callable[[], Any],
    ids_of: Callable[[Any], Iterator[int]],
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = make()
    assert len(door) == 2 * length
    become(monkeypatch, 1, 2)
    for attempt in (lambda: len(door), door.explain, lambda: list(ids_of(door))):
        with pytest.raises(RanksError, match=r"rank 1 of 2.*rank 0 of 1"):
            attempt()


@pytest.mark.parametrize(("make", "ids_of", "length"), DOORS)
@pytest.mark.parametrize(("seed", "is_alike"), [(0, True), (1, False)])
@pytest.mark.filterwarnings("ignore:epoch 0 begins anew")
def test_ranks_that_planned_differently_are_told(
    make: Callable[..., Any],
    ids_of: Callable[[Any], Iterator[int]],
    length: int,
    seed: int,
    is_alike: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    monkeypatch.setattr(ranks, "process_group", lambda: store)
    for rank, own in enumerate([0, seed]):
        become(monkeypatch, rank, 2)
        door = make(seed=own)
        for _ in range(2):
            if rank == 0 or is_alike:
                assert len(list(ids_of(door))) == NUM_SAMPLES // 2
                continue
            with pytest.raises(RanksError, match="seed=1"):
                list(ids_of(door))
    assert [key for key in store.values if "begin" in key] == ["xloader/begin/1/0"]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:This process")
def test_workers_have_the_rank_of_their_process(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "forkserver":
        # It keeps the environment with which it begins, for all later tests.
        forkserver.ensure_running()
    datasets = [make_dataset(), make_dataset()]
    found = []
    for rank, dataset in enumerate(datasets):
        become(monkeypatch, rank, 2)
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=None,
            num_workers=1,
            collate_fn=collate,
            multiprocessing_context=method,
        )
        assert len(loader) == 5
        found += list(ids_of_items(loader))
    assert sorted(found) == list(range(NUM_SAMPLES))


def test_a_dataset_travels_with_the_rank_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset()
    become(monkeypatch, 1, 2)
    copied = pickle.loads(pickle.dumps(dataset))
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    # The copy is used in a process without a process group.
    assert len(copied) == 5
    alone = pickle.loads(pickle.dumps(make_dataset()))
    become(monkeypatch, 0, 2)
    assert len(alone) == 5
    assert sorted([*ids_of_items(copied), *ids_of_items(alone)]) == list(range(NUM_SAMPLES))
