"""PyTorch's doors in real worker processes: the batches, and the reads for them."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from packaging.version import Version
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset, random_split
from zarr.storage import LocalStore, ZipStore

import xloader
from tests.torch.waves import MEMORY, check_values, ids_of, make_dataset, samples_of, write_waves
from xloader import Samples
from xloader.errors import (
    CorruptChunkError,
    ForkError,
    MemoryBudgetError,
    OptionError,
    WorkersWarning,
)
from xloader.testing import CountingStore, SourceRecorder, write_store
from xloader.torch import ChunkSampler, IterableDataset, MapDataset, batch_of, collate, data_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    return make_dataset(480)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_waves(tmp_path_factory.mktemp("stores") / "waves.zarr", 480)


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(folder, read_only=True), log=tmp_path / "reads")


@pytest.mark.skipif(
    Version(zarr.__version__) < Version("3.2"), reason="this zarr reads no rectilinear chunk grids"
)
def test_workers_read_chunks_of_several_sizes(dataset: xr.Dataset, tmp_path: Path) -> None:
    edges = (7, 20, 3, 50, 16, 4) * 4 + (80,)
    chunks = {"t": (edges, 6, 10), "u": (4, 6, 10)}
    shards = {"u": {"shards": ((40, 8, 112, 160, 160), 6, 10)}}
    write_store(dataset, chunks, tmp_path / "a.zarr", encoding=shards)
    opened = xloader.open(tmp_path / "a.zarr")
    recorder = SourceRecorder(opened.recipe.source, log=tmp_path / "reads")
    recorded = Samples(replace(opened.recipe, source=recorder))
    samples = recorded.window(time=3, stride=1).inputs("t").targets("u")
    loader = data_loader(
        samples,
        batch_size=16,
        num_workers=2,
        memory="600KiB",
        multiprocessing_context="forkserver",
    )
    for _ in range(2):
        expected = loader.explain()
        recorder.reset()
        found = []
        for batch in loader:
            found += batch.ids.tolist()
            check_values(dataset, batch, 3)
        assert sorted(found) == list(range(478))
        assert recorder.num_reads == expected.num_reads


def test_a_store_that_no_fork_survives_says_so_at_once(folder: Path, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "waves"), "zip", folder)
    loader = data_loader(
        samples_of(ZipStore(tmp_path / "waves.zip", mode="r")),
        batch_size=16,
        num_workers=2,
        memory=MEMORY,
        multiprocessing_context="fork",
    )
    with pytest.raises(ForkError, match="forkserver"):
        next(iter(loader))


def test_a_broken_chunk_is_named_by_the_worker(dataset: xr.Dataset, tmp_path: Path) -> None:
    write_store(dataset, {"t": (16, 6, 10), "u": (16, 6, 10)}, tmp_path / "broken")
    chunk = tmp_path / "broken" / "t" / "c" / "7" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:50])
    loader = data_loader(samples_of(tmp_path / "broken"), num_workers=1, memory="1MiB")
    with pytest.raises(CorruptChunkError, match="t/c/7/0/0"):
        list(loader)


@pytest.mark.parametrize(
    ("context", "num_workers", "window"), [("fork", 4, 1), ("forkserver", 3, 3), ("spawn", 1, 1)]
)
def test_workers_read_what_was_told(
    store: CountingStore, dataset: xr.Dataset, context: str, num_workers: int, window: int
) -> None:
    samples = samples_of(store, window)
    # The parent has read something before, and a fork must still work.
    assert samples[3][0].shape == (1, window, 6, 10)
    loader = data_loader(
        samples,
        batch_size=16,
        num_workers=num_workers,
        memory=MEMORY if window == 1 else "500KiB",
        multiprocessing_context=context,
    )
    orders = []
    for _ in range(2):
        expected = loader.explain()
        store.reset()
        batches = list(loader)
        assert store.num_reads == expected.num_reads
        again = [key for key, pids in store.readers.items() if len(pids) > 1]
        assert len(again) <= expected.num_shared_reads
        if window == 1:
            # Each chunk is read once, except those of both variables at the cuts between parts.
            assert len(again) <= 2 * (num_workers - 1)
            assert expected.num_reads == 60 + len(again)
        assert len(batches) == len(loader)
        orders.append(ids_of(batches))
        assert sorted(orders[-1]) == list(range(len(samples)))
    check_values(dataset, batches[0], window)
    assert orders[0] != orders[1]


def test_an_iterable_dataset_reads_what_was_told(store: CountingStore, dataset: xr.Dataset) -> None:
    samples = samples_of(store)
    shared = IterableDataset(samples, batch_size=16, memory=MEMORY)
    loader = DataLoader(
        shared,
        batch_size=None,
        num_workers=4,
        collate_fn=collate,
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )
    orders = []
    for epoch in range(2):
        shared.set_epoch(epoch)
        expected = shared.explain(num_workers=4)
        store.reset()
        batches = list(loader)
        assert store.num_reads == expected.num_reads
        assert max(map(len, store.readers.values())) <= 2
        orders.append(ids_of(batches))
        assert sorted(orders[-1]) == list(range(len(samples)))
        check_values(dataset, batches[-1], 1)
    # Workers that stay alive learn the new epoch.
    assert orders[0] != orders[1]
    # Both doors give the same order.
    sampler = ChunkSampler(samples, batch_size=16, num_workers=4, memory=MEMORY)
    assert list(sampler) == orders[0]


@pytest.mark.parametrize(("num_workers", "is_changed"), [(0, True), (2, False), (2, True)])
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_a_stream_gives_batches_without_a_collate_fn(
    folder: Path, dataset: xr.Dataset, num_workers: int, is_changed: bool
) -> None:
    """Batches keep their ids, which PyTorch's default for batch_size=None would lose."""
    own = IterableDataset(
        samples_of(folder),
        16,
        memory=MEMORY,
        transforms=(lambda x, y: (torch.from_numpy(x), y)) if is_changed else None,
    )
    loader = DataLoader(
        own,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
        pin_memory=True,
    )
    batches = list(loader)
    assert len(batches) == 30
    assert all(isinstance(batch, xloader.Batch) for batch in batches)
    assert all(isinstance(array, torch.Tensor) for batch in batches for array in batch)
    assert sorted(ids_of(batches)) == list(range(480))
    check_values(dataset, batches[-1], 1)


def test_a_collate_fn_and_single_samples_stay_as_they_are(folder: Path) -> None:
    own = IterableDataset(samples_of(folder), 16, memory=MEMORY)
    (batch, *_) = DataLoader(own, batch_size=None, collate_fn=lambda batch: batch)
    assert isinstance(batch.inputs, np.ndarray)
    single = IterableDataset(samples_of(folder), None, memory=MEMORY)
    ((inputs, targets), *_) = DataLoader(single, batch_size=None)
    assert inputs.shape == targets.shape == (1, 1, 6, 10)


def test_a_random_sampler_reads_as_was_told_many_times_more(
    store: CountingStore, dataset: xr.Dataset
) -> None:
    samples = samples_of(store)
    generator = torch.Generator().manual_seed(0)
    order = list(RandomSampler(range(len(samples)), generator=generator))
    expected = samples.explain(
        order=order, cache="lru", memory=MEMORY, batch_size=16, num_workers=2
    )
    loader = DataLoader(
        MapDataset(samples, memory=MEMORY),
        batch_size=16,
        sampler=order,
        num_workers=2,
        collate_fn=collate,
        multiprocessing_context="forkserver",
    )
    store.reset()
    batches = list(loader)
    assert ids_of(batches) == order
    check_values(dataset, batches[3], 1)
    assert store.num_reads == expected.num_reads
    planned = data_loader(samples, batch_size=16, num_workers=2, memory=MEMORY).explain()
    assert expected.num_reads > 5 * planned.num_reads


def test_without_workers_threads_read(store: CountingStore, dataset: xr.Dataset) -> None:
    samples = samples_of(store, 3)
    loader = data_loader(samples, batch_size=16, memory=MEMORY)
    expected = loader.explain()
    store.reset()
    batches = list(loader)
    assert store.num_reads == expected.num_reads
    assert sorted(ids_of(batches)) == list(range(len(samples)))
    check_values(dataset, batches[5], 3)
    with samples.loader(batch_size=16, memory=MEMORY) as plain:
        assert ids_of(plain) == ids_of(batches)


def test_what_fits_is_read_once_for_all_epochs(store: CountingStore) -> None:
    loader = data_loader(samples_of(store), batch_size=16, num_workers=2, memory="8MiB")
    store.reset()
    told, counted = [], []
    for _ in range(3):
        told.append(loader.explain().num_reads)
        ids_of(loader)
        counted.append(store.num_reads)
    # Workers keep their chunks, and in the second epoch some need chunks that others had read.
    assert np.diff([0, *counted]).tolist() == told
    assert told[0] >= 60
    assert told[2] < told[0]


def test_breaking_out_begins_the_epoch_anew(folder: Path) -> None:
    loader = data_loader(samples_of(folder), batch_size=16, num_workers=2, memory=MEMORY)
    first = next(iter(loader)).ids.tolist()
    for batch in loader:
        assert batch.ids.tolist() == first
        break
    assert len(ids_of(loader)) == 480
    assert loader.sampler.epoch == 1
    loader.sampler.set_epoch(0)
    assert next(iter(loader)).ids.tolist() == first


def test_several_ranks_take_equal_steps(folder: Path) -> None:
    samples = samples_of(folder).select(range(470))
    loaders = [
        data_loader(samples, batch_size=16, memory=MEMORY, world=xloader.World(rank, 3))
        for rank in range(3)
    ]
    batches = [list(loader) for loader in loaders]
    assert {len(own) for own in batches} == {len(loader) for loader in loaders} == {10}
    assert [[len(batch.ids) for batch in own] for own in batches] == [[*[16] * 9, 13]] * 3
    real = [batch.ids[~batch.is_padding] for own in batches for batch in own]
    assert sorted(np.concatenate(real).tolist()) == list(range(470))
    # The sampler yields the ids of the batches, padding included.
    for loader, own in zip(loaders, batches, strict=True):
        loader.sampler.set_epoch(0)
        assert list(loader.sampler) == ids_of(own)
        assert len(loader.sampler) == 157


@pytest.mark.parametrize("workers", [0, 2])
def test_other_numbers_of_workers_than_planned_warn(folder: Path, workers: int) -> None:
    samples = samples_of(folder)
    sampler = ChunkSampler(samples, batch_size=16, num_workers=4, memory=MEMORY)
    dataset = MapDataset(samples, memory=MEMORY)
    loader = DataLoader(
        dataset,
        16,
        sampler=sampler,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context="fork" if workers else None,
    )
    if workers:
        # The warning is raised in the worker, where warnings are errors as in this process.
        with pytest.raises(WorkersWarning, match=r"planned for 4.*still read once"):
            next(iter(loader))
        return
    with pytest.warns(WorkersWarning, match=r"planned for 4.*still read once"):
        assert sorted(ids_of(loader)) == list(range(480))


def test_another_batch_size_than_planned_warns_once(store: CountingStore) -> None:
    samples = samples_of(store)
    sampler = ChunkSampler(samples, batch_size=16, memory=MEMORY)
    dataset = MapDataset(samples, memory=MEMORY)
    loader = DataLoader(dataset, batch_size=24, sampler=sampler, collate_fn=collate)
    with pytest.warns(WorkersWarning, match=r"batches of 24.*planned 16") as caught:
        assert sorted(ids_of(loader)) == list(range(480))
    assert len(caught) == 1


def test_batches_out_of_order_warn(folder: Path) -> None:
    with pytest.warns(WorkersWarning, match="in_order=False"):
        data_loader(samples_of(folder), num_workers=2, in_order=False)


def test_datasets_of_pytorch_wrap_ours(folder: Path, dataset: xr.Dataset) -> None:
    samples = samples_of(folder)
    whole = MapDataset(samples, memory=MEMORY)
    part = Subset(whole, [7, 3, 470])
    np.testing.assert_array_equal(part[1][0][0, 0], dataset.t[3])
    both = ConcatDataset([part, whole])
    assert len(both) == 483
    np.testing.assert_array_equal(both[4][1][0, 0], dataset.u[1])
    train, valid = random_split(whole, [0.75, 0.25], generator=torch.Generator().manual_seed(0))
    found = [x for x, _ in DataLoader(train, batch_size=100)]
    assert [tuple(x.shape) for x in found] == [(100, 1, 1, 6, 10)] * 3 + [(60, 1, 1, 6, 10)]
    np.testing.assert_array_equal(found[0][0, 0, 0], dataset.t[train.indices[0]])
    assert len(valid) == 120


def test_items_are_arrays_and_nothing_else(folder: Path, dataset: xr.Dataset) -> None:
    items = MapDataset(samples_of(folder), memory=MEMORY)
    sample = items[-1]
    assert [type(array) for array in sample] == [np.ndarray] * 2
    np.testing.assert_array_equal(sample[0][0, 0], dataset.t[479])
    assert len(items[2:5]) == 3
    with pytest.raises(IndexError):
        items[480]


@pytest.mark.parametrize("kind", [MapDataset, IterableDataset])
def test_datasets_travel_light(folder: Path, kind: Any) -> None:
    sizes = []
    for window in (1, 2):
        own = kind(samples_of(folder, window), memory=MEMORY)
        used = next(iter(own)) if kind is IterableDataset else own[3]
        assert used is not None
        sizes.append(len(pickle.dumps(own)))
    assert max(sizes) <= 1 << 16


def test_iterating_sample_by_sample(folder: Path, dataset: xr.Dataset) -> None:
    own = IterableDataset(samples_of(folder), batch_size=None, memory=MEMORY)
    assert len(own) == 480
    counts: Counter[float] = Counter()
    for inputs, _ in DataLoader(own, batch_size=20, num_workers=0):
        assert inputs.shape == (20, 1, 1, 6, 10)
        counts.update(inputs[:, 0, 0, 0, 0].tolist())
    assert counts == Counter(dataset.t[:, 0, 0].to_numpy().tolist())


def test_batches_within_bytes(folder: Path) -> None:
    samples = samples_of(folder)
    loader = data_loader(samples, batch_of(nbytes="5KiB"), memory=MEMORY)
    # A sample has two fields of 60 float32 each.
    assert loader.batch_size == 10
    assert data_loader(samples, batch_of(num_elements=240), memory=MEMORY).batch_size == 2
    with pytest.raises(OptionError, match="batch_of needs a limit"):
        batch_of()


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_samplers_are_not_taken(folder: Path, name: str) -> None:
    with pytest.raises(OptionError, match=rf"data_loader makes the {name} itself.*MapDataset"):
        data_loader(samples_of(folder), **{name: []})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("rank", "xloader.World"), ("memroy", "'memory'"), ("lanes", "xloader.PlanRules")],
)
def test_options_that_no_loader_has_are_refused(folder: Path, name: str, remedy: str) -> None:
    with pytest.raises(OptionError, match=rf"no option '{name}'.*{remedy}"):
        data_loader(samples_of(folder), **{name: 1})


def test_batches_of_batches_are_refused(folder: Path) -> None:
    batches = IterableDataset(samples_of(folder), batch_size=16, memory=MEMORY)
    for size in (1, 16):
        with pytest.raises(OptionError, match="batch_size=None"):
            next(iter(DataLoader(batches, batch_size=size)))
    assert next(iter(DataLoader(batches, batch_size=None)))[0].shape == (16, 1, 1, 6, 10)


def test_a_sampler_of_other_samples_is_refused(folder: Path) -> None:
    samples = samples_of(folder)
    sampler = ChunkSampler(samples.select(np.arange(100, 200)), batch_size=16, memory=MEMORY)
    loader = DataLoader(MapDataset(samples, memory=MEMORY), batch_size=16, sampler=sampler)
    with pytest.raises(OptionError, match="have different samples"):
        next(iter(loader))


@pytest.mark.parametrize("door", [MapDataset, IterableDataset, ChunkSampler, data_loader])
def test_what_are_no_samples(folder: Path, dataset: xr.Dataset, door: Any) -> None:
    whole = MapDataset(samples_of(folder), memory=MEMORY)
    for given, remedy in [
        (dataset, "xloader.open"),
        (str(folder), "xloader.open"),
        (whole, r"dataset\.samples"),
        (Subset(whole, [1, 2]), r"select\(subset\.indices\)"),
    ]:
        with pytest.raises(OptionError, match=f"takes xloader.Samples only.*{remedy}"):
            door(given)


def test_too_little_memory_tells_what_all_workers_need(folder: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="3 workers") as caught:
        data_loader(samples_of(folder), num_workers=3, memory="50KiB")
    enough = caught.value.minimum_nbytes
    data_loader(samples_of(folder), num_workers=3, memory=enough)
