"""Ranks: looked up when they are first needed, told once, and all alike."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import ranks
from xloader.errors import RanksError
from xloader.loader import Loader
from xloader.testing import CountingStore, write_store


def loader_of(**options: Any) -> Loader:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((40, 2), np.float32))})
    samples = xloader.open(ds).window(time=1)
    return samples.loader(**{"batch_size": 4, "memory": "1MiB", "output": "numpy", **options})


class Store:
    """What the ranks of a process group share."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values[key].encode()


def become(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def test_a_loader_may_be_made_before_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of()
    become(monkeypatch, 1, 2)
    assert len(loader) == 5
    ids = sorted(int(i) for batch in loader for i in batch.ids)
    monkeypatch.setenv("RANK", "0")
    other = loader_of()
    assert sorted([*ids, *(int(i) for batch in other for i in batch.ids)]) == list(range(40))


def test_a_later_contradiction_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of()
    assert len(loader) == 10
    become(monkeypatch, 1, 2)
    for attempt in (lambda: len(loader), loader.explain, lambda: iter(loader)):
        with pytest.raises(RanksError, match=r"rank 1 of 2.*rank 0 of 1"):
            attempt()
    # What was said is not looked up.
    assert len(loader_of(rank=0, world_size=1)) == 10


def test_a_rank_says_once_what_is_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    become(monkeypatch, 1, 2)
    loader = loader_of(lanes=4)
    with caplog.at_level(logging.INFO, "xloader"):
        for _ in range(2):
            list(loader)
    num_reads = loader_of(lanes=4).explain().num_reads
    said = f"rank 1 of 2: lanes 2 to 3 of 4, {num_reads} reads of chunks an epoch"
    assert [record.message for record in caplog.records] == [said]


@pytest.mark.parametrize(
    ("other", "named"),
    [({}, None), ({"seed": 1}, "seed"), ({"memory": "2MiB"}, "budget"), ({"spread": 0}, "pace")],
)
def test_ranks_that_planned_differently_are_told(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], named: str | None
) -> None:
    store = Store()
    monkeypatch.setattr(ranks, "_store", lambda: store)
    for rank, options in enumerate([{}, other]):
        monkeypatch.setattr(ranks, "_NUMBERS", iter(range(10)))
        become(monkeypatch, rank, 2)
        loader = loader_of(**options)
        if rank == 0 or named is None:
            next(iter(loader))
        else:
            for _ in range(2):
                with pytest.raises(RanksError, match=named):
                    iter(loader)
    assert len(store.values) == 1


@pytest.mark.filterwarnings("ignore::xloader.errors.MixingWarning")
@pytest.mark.filterwarnings("ignore::xloader.errors.AmplificationWarning")
@pytest.mark.parametrize(("window", "epoch"), [(1, 0), (3, 0), (3, 1)])
def test_chunks_that_several_ranks_read_are_those_that_were_named(window: int, epoch: int) -> None:
    values = np.zeros((400, 4, 6), np.float32)
    ds = xr.Dataset(dict.fromkeys("tu", (("time", "lat", "lon"), values)))
    store = CountingStore(write_store(ds, {"t": (8, 2, 6), "u": (16, 4, 6)}))
    samples = xloader.open(store).window(time=window, stride=1)
    readers: dict[str, set[int]] = {}
    for rank in range(4):
        shared = {"batch_size": 4, "lanes": 8, "memory": "120KiB", "output": "numpy"}
        with samples.loader(**shared, rank=rank, world_size=4) as loader:
            loader.set_epoch(epoch)
            expected = loader.explain(scope="world")
            store.reset()
            for _ in loader:
                pass
        for key in store.reads:
            readers.setdefault(key, set()).add(rank)
    named = {f"{name}/c/" + "/".join(map(str, index)) for name, index in expected.shared_chunks}
    assert named == {key for key, ranks in readers.items() if len(ranks) > 1}
    assert expected.num_shared_reads == sum(len(ranks) - 1 for ranks in readers.values())
    if window == 1:
        # Only chunks of the tiles at the cuts between ranks: four of t and one of u at each.
        assert len(named) <= 3 * 5
    first, index = expected.shared_chunks[0]
    assert f"{first} {list(index)}" in str(expected)
