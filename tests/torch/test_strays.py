"""Unusual uses of the doors: other samplers, samples without a plan, and other processes."""

from __future__ import annotations

import functools
import os
import random
import shutil
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset
from zarr.storage import LocalStore

import xloader
from tests.torch.waves import write_times
from xloader import Samples
from xloader.errors import CorruptChunkError, RanksError, WorkersWarning
from xloader.loader.batches.row_list import Rows
from xloader.samples import describe
from xloader.testing import CountingStore
from xloader.torch import (
    ChunkSampler,
    IterableDataset,
    MapDataset,
    collate,
    data_loader,
)

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

MEMORY = "64KiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_times(tmp_path_factory.mktemp("stores") / "times.zarr")


@pytest.fixture
def samples(folder: Path) -> Samples:
    return xloader.open(folder).window(time=1)


def times_of(batches: Iterable[Any]) -> list[int]:
    return [int(time) for batch in batches for time in batch[0].reshape(len(batch[0]), -1)[:, 0]]


def test_ids_of_a_sampler_in_another_order_are_still_those_asked_for(samples: Samples) -> None:
    dealt = list(ChunkSampler(samples, 16, memory=MEMORY))
    # The first id begins a planned batch; the others belong to another batch.
    asked = [dealt[0], *dealt[100:115]]
    with pytest.warns(WorkersWarning, match="distributed again"):
        rows = MapDataset(samples, MEMORY).__getitems__(asked)
    assert [int(row[0].flat[0]) for row in rows] == asked


def test_a_sampler_beside_two_datasets(samples: Samples) -> None:
    class Pairs(Dataset[tuple[float, float]]):
        def __init__(self) -> None:
            other = samples.select(range(239, -1, -1))
            self.both = MapDataset(samples, MEMORY), MapDataset(other, MEMORY)

        def __getitem__(self, index: int) -> tuple[float, float]:
            left, right = (float(dataset[index][0].flat[0]) for dataset in self.both)
            return left, right

    loader = DataLoader(Pairs(), 16, sampler=ChunkSampler(samples, 16, memory=MEMORY))
    with pytest.warns(WorkersWarning, match=r"batches of 1, .* planned 16"):
        pairs = [pair for left, right in loader for pair in zip(left, right, strict=True)]
    assert sorted(pairs) == [(i, 239 - i) for i in range(240)]


@pytest.mark.parametrize("kind", ["samples", "a subset", "ids in lists"])
def test_samples_without_a_door_warn_once(
    samples: Samples, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(describe, "_has_warned", False)
    loader: Any = {
        "samples": lambda: DataLoader(samples, batch_size=16, shuffle=True),
        "a subset": lambda: DataLoader(Subset(samples, range(240)), batch_size=16),
        "ids in lists": lambda: DataLoader(
            samples, batch_size=None, sampler=BatchSampler(range(240), 16, drop_last=False)
        ),
    }[kind]()
    words = r"reads its chunks again.*samples\.loader\(.*xloader\.torch\.data_loader\(samples"
    with pytest.warns(WorkersWarning, match=words) as caught:
        assert len(list(loader)) == len(list(loader)) == 15
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_first_of_two_workers_warns_for_both(
    samples: Samples, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(describe, "_has_warned", False)

    def note(message: object, *_: object, **__: object) -> None:
        (tmp_path / f"{os.getpid()}").write_text(str(message))

    loader = DataLoader(samples, batch_size=16, num_workers=2, multiprocessing_context="fork")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", note)
        assert len(list(loader)) == 15
    (told,) = tmp_path.iterdir()
    assert "data_loader(samples" in told.read_text()


def test_samples_that_no_dataloader_asks_for_do_not_warn(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "_has_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert int(samples[3][0].flat[0]) == 3
        # Reading a few samples is no epoch, so no warning is due.
        assert int(Subset(samples, [7, 3])[1][0].flat[0]) == 3
        assert len(list(data_loader(samples, 16, memory="4MiB"))) == 15


def test_an_epoch_is_over_with_its_last_batch(samples: Samples) -> None:
    loader = data_loader(samples, 16, memory=MEMORY)
    orders = [times_of(batch for _, batch in zip(range(15), loader, strict=False)) for _ in "ab"]
    assert loader.sampler.epoch == 2
    assert orders[0] != orders[1]


def test_a_stream_begun_before_a_fork_is_dealt_out_anew(samples: Samples) -> None:
    dataset = IterableDataset(samples, 16, memory=MEMORY)
    begun = iter(dataset)
    assert next(begun).num_samples == 16
    dataset.set_epoch(1)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        collate_fn=collate,
        multiprocessing_context="fork",
        timeout=60,
    )
    assert sorted(times_of(loader)) == list(range(240))


def test_a_stream_says_what_it_keeps(folder: Path) -> None:
    store = CountingStore(LocalStore(folder, read_only=True))
    dataset = IterableDataset(xloader.open(store).window(time=1), 16, memory="4MiB")
    for epoch, num_reads in enumerate([15, 0]):
        dataset.set_epoch(epoch)
        told = dataset.explain().num_reads
        store.reset()
        assert len(times_of(dataset)) == 240
        assert told == store.num_reads == num_reads


def test_a_cache_begun_for_one_sample_has_room_for_batches(samples: Samples) -> None:
    dataset = MapDataset(samples, "64KiB")
    assert len(dataset[0]) == 1
    # The rows are one array as it was read, without joining parts.
    rows = dataset.__getitems__(list(range(64)))
    assert isinstance(rows, Rows)
    assert rows.batch is not None
    assert rows.batch[0].base is not None
    # Four such batches do not fit into memory, so they are read in parts.
    assert [int(x.flat[0]) for (x,) in dataset.__getitems__(list(range(240)))] == list(range(240))


@pytest.mark.parametrize("door", ["data_loader", "IterableDataset"])
def test_errors_of_classes_that_do_not_pickle_arrive(samples: Samples, door: str) -> None:
    class OddError(Exception):
        """An error class as in a notebook: the main process cannot import it."""

    def fail(x: np.ndarray) -> np.ndarray:
        raise OddError(f"odd: {x.shape}")

    # Without a timeout, PyTorch would wait without end if the error did not arrive.
    settings = {"num_workers": 1, "timeout": 20, "multiprocessing_context": "fork"}
    if door == "data_loader":
        loader = data_loader(samples, 16, memory=MEMORY, transform=fail, **settings)
    else:
        stream = IterableDataset(samples, 16, memory=MEMORY, transform=fail)
        loader = DataLoader(stream, batch_size=None, **settings)
    with pytest.raises(RuntimeError, match=r"OddError: odd: \(1, 3, 4\)") as caught:
        next(iter(loader))
    assert "transform of sample" in str(caught.value)


def unsendable(kind: str, rows: Any) -> Any:
    if kind == "function":
        return lambda: rows
    return torch.nn.Parameter(collate(rows).t) + 1


@pytest.mark.parametrize(
    ("door", "kind"),
    [("data_loader", "function"), ("MapDataset", "gradient"), ("IterableDataset", "function")],
)
def test_a_batch_that_cannot_be_sent_is_an_error(samples: Samples, door: str, kind: str) -> None:
    # Without a timeout, PyTorch would wait without end for the batch that was dropped.
    settings: dict[str, Any] = {
        "num_workers": 1,
        "timeout": 60,
        "multiprocessing_context": "fork",
        "collate_fn": functools.partial(unsendable, kind),
    }
    loader: DataLoader[Any]
    if door == "data_loader":
        loader = data_loader(samples, 16, memory=MEMORY, **settings)
    elif door == "MapDataset":
        loader = DataLoader(MapDataset(samples, MEMORY), 16, **settings)
    else:
        stream = IterableDataset(samples, 16, memory=MEMORY)
        loader = DataLoader(stream, batch_size=None, **settings)
    error, told = {
        "function": (AttributeError, "worker process 0.*Can't pickle local object"),
        "gradient": (RuntimeError, "worker process 0.*refusing to serialize non-leaf tensor"),
    }[kind]
    iterator: Any = iter(loader)
    with pytest.raises(error, match=f"(?s){told}"):
        next(iterator)
    iterator._shutdown_workers()


def test_a_plan_that_fails_is_left_without_a_word(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "broken")
    chunk = tmp_path / "broken" / "t" / "c" / "7" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:20])
    samples = xloader.open(tmp_path / "broken").window(time=1)
    sampler = ChunkSampler(samples, 16, memory=MEMORY, shuffle=False)
    dataset = MapDataset(samples, MEMORY)
    failed = []
    # Warnings are errors in this test.
    for step, ids in enumerate(sampler.batches()):
        try:
            assert [int(row[0].flat[0]) for row in dataset.__getitems__(ids)] == ids
        except CorruptChunkError:
            failed.append(step)
    assert failed == [7]
    dataset.close()


_ACCELERATE = """
class BatchSamplerShard:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield from self.sampler
"""


@pytest.mark.parametrize("door", ["sampler", "batches", "stream"])
def test_who_deals_batches_out_once_more_is_refused(
    samples: Samples, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    names: dict[str, Any] = {"__name__": "accelerate.data_loader"}
    exec(_ACCELERATE, names)
    sampler = ChunkSampler(samples, 16, memory=MEMORY)
    stream = IterableDataset(samples, 16, memory=MEMORY)
    own = {"sampler": sampler, "batches": sampler.batches(), "stream": stream}[door]
    monkeypatch.setitem(sys.modules, "accelerate.state", object())
    with pytest.raises(RanksError, match=r"accelerate .* a second time.*samples\.loader"):
        list(names["BatchSamplerShard"](own))
    # A class of the same name in another module is accepted.
    names["__name__"] = "elsewhere"
    exec(_ACCELERATE, names)
    assert list(names["BatchSamplerShard"](own))


def test_chance_is_the_same_out_of_turn(samples: Samples) -> None:
    def jitter(x: np.ndarray) -> float:
        return float(x.flat[0]) + random.random()

    sampler = ChunkSampler(samples, 16, memory=MEMORY, shuffle=False)
    batches = list(sampler.batches())
    in_turn = MapDataset(samples, MEMORY, transform=jitter)
    expected = [in_turn.__getitems__(ids) for ids in batches]
    in_turn.close()
    out_of_turn = MapDataset(samples, MEMORY, transform=jitter)
    with pytest.warns(WorkersWarning, match="out of order"):
        actual = [out_of_turn.__getitems__(ids) for ids in reversed(batches)]
    assert actual[::-1] == expected
