"""Ranks are looked up when they are first needed, once, and all ranks must agree."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import MemoryBudgetError, OptionError, RanksError
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.loader import Loader
from xloader.loader.ranks import rank_resolver as ranks
from xloader.loader.ranks.state import sign
from xloader.testing import CountingStore, write_store


def loader_of(**options: Any) -> Loader:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((40, 2), np.float32))})
    samples = xloader.open(ds).window(time=1)
    return samples.loader(**{"batch_size": 4, "memory": "1MiB", "output": "numpy", **options})


class Store:
    """The key-value store that the ranks of a process group share."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, 0)) + amount)
        return int(self.values[key])

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
    # A given rank is not looked up.
    assert len(loader_of(world=xloader.World())) == 10


def test_a_rank_says_once_what_is_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    become(monkeypatch, 1, 2)
    loader = loader_of(plan=xloader.PlanRules(lanes=4))
    with caplog.at_level(logging.INFO, "xloader"):
        for _ in range(2):
            list(loader)
    num_reads = loader_of(plan=xloader.PlanRules(lanes=4)).explain().num_reads
    said = f"rank 1 of 2: lanes 2 to 3 of 4, {num_reads} reads of chunks an epoch"
    assert [record.message for record in caplog.records] == [said]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({}, None),
        ({"seed": 1}, "seed"),
        ({"memory": "2MiB"}, "memory=2097152"),
        ({"plan": xloader.PlanRules(spread=0)}, "spread=0"),
        ({"drop_last": True}, "drop_last=True"),
        ({"batch_size": 8}, "batch_size=8"),
    ],
)
def test_ranks_that_planned_differently_are_told(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], named: str | None
) -> None:
    store = Store()
    monkeypatch.setattr(ranks, "process_group", lambda: store)
    for rank, options in enumerate([{}, other]):
        become(monkeypatch, rank, 2)
        loader = loader_of(**options)
        if rank == 0 or named is None:
            next(iter(loader))
        else:
            for _ in range(2):
                with pytest.raises(RanksError, match=named):
                    iter(loader)
    assert [key for key in store.values if "begin" in key] == ["xloader/begin/1/0"]


def meet(monkeypatch: pytest.MonkeyPatch, *ranks_do: Callable[[Loader], None]) -> list[int]:
    """Let ranks that can talk begin one after another; return the ranks that were refused."""
    store, refused = Store(), []
    monkeypatch.setattr(ranks, "process_group", lambda: store)
    for rank, prepare in enumerate(ranks_do):
        become(monkeypatch, rank, len(ranks_do))
        loader = loader_of(plan=xloader.PlanRules(lanes=2))
        try:
            prepare(loader)
            next(iter(loader))
        except RanksError:
            refused.append(rank)
    return refused


def test_ranks_that_stand_at_different_places_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def resume(loader: Loader, step: int = 2, *, is_under_way: bool = False) -> None:
        state = loader.state_dict()
        if is_under_way:
            next(iter(loader))
        loader.load_state_dict(sign({**state, "step": step}))

    def stay(loader: Loader) -> None:
        loader.set_epoch(0)

    assert meet(monkeypatch, stay, stay) == meet(monkeypatch, resume, resume) == []
    assert meet(monkeypatch, resume, stay) == [1]
    assert meet(monkeypatch, resume, lambda loader: resume(loader, 3)) == [1]
    assert meet(monkeypatch, stay, lambda loader: loader.set_epoch(1)) == [1]
    under_way = partial(resume, is_under_way=True)
    assert meet(monkeypatch, under_way, under_way) == []
    assert meet(monkeypatch, under_way, partial(under_way, step=3)) == [1]


def test_a_state_that_one_rank_has_loaded_is_not_blamed_on_the_next_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    monkeypatch.setattr(ranks, "process_group", lambda: store)
    for rank in range(2):
        become(monkeypatch, rank, 2)
        loader = loader_of()
        next(iter(loader))
        if rank == 0:
            loader.load_state_dict(loader.state_dict())
            next(iter(loader))
        next(iter(loader_of(seed=4)))


def test_a_store_of_a_dry_run_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeStore:
        def add(self, key: str, amount: int) -> int:
            raise RuntimeError("INTERNAL ASSERT FAILED")

    monkeypatch.setattr(ranks, "process_group", FakeStore)
    become(monkeypatch, 0, 2)
    assert len(list(loader_of())) == 5


def test_what_hangs_on_ranks_to_come_is_decided_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(plan=xloader.PlanRules(lanes=8))
    assert repr(loader) == "<xloader.Loader: batches of 4, epoch 0>"
    small = loader_of(plan=xloader.PlanRules(lanes=8), batch_size=8, memory=2000)
    become(monkeypatch, 1, 4)
    assert len(loader) == 3
    assert repr(loader) == "<xloader.Loader: 3 batches of 4, epoch 0>"
    with pytest.raises(MemoryBudgetError):
        small.explain()
    become(monkeypatch, 0, 3)
    with pytest.raises(
        OptionError, match=r"multiples of 3.*choose the number of ranks from \[1, 2, 4, 8\]"
    ):
        len(loader_of(plan=xloader.PlanRules(lanes=8), batch_size=8))
    # Lightning sets these variables on further nodes before its process group exists.
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    loader = loader_of()
    with pytest.raises(OptionError, match="RANK"):
        len(loader)
    become(monkeypatch, 2, 3)
    assert len(loader) == 4


def test_what_ranks_cannot_mend_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryBudgetError):
        loader_of(memory=10)
    monkeypatch.setattr(ranks, "process_group", Store)
    for world in (None, xloader.World()):
        with pytest.raises(OptionError, match="the lanes do not divide the global batch"):
            loader_of(plan=xloader.PlanRules(lanes=3), world=world)


def test_a_state_may_be_saved_and_loaded_before_the_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader, other = loader_of(), loader_of()
    become(monkeypatch, 1, 2)
    state = loader.state_dict()
    assert state["plan"]["global_batch"] == 8
    other.load_state_dict(state)
    assert other.plan.global_batch == 8


def test_a_loader_outlives_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, 1, 2)
    loader = loader_of()
    batches = iter(loader)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert len(list(batches)) == len(loader) == 5
    assert loader.state_dict()["epoch"] == 1
    assert loader.report().num_steps == loader.num_samples // 8
    assert "5 batches" in repr(loader)


def test_ranks_of_a_group_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((40, 4), np.float32))})
    samples = xloader.open(ds).window(time=1).slab("x", 0, 2)
    options: dict[str, Any] = {"batch_size": 4, "memory": "1MiB", "output": "numpy"}
    assert len(samples.loader(**options)) == 10
    become(monkeypatch, 1, 2)
    with pytest.raises(RanksError, match=r"group of ranks.*pass world=xloader.World\(mesh"):
        len(samples.loader(**options))
    assert len(samples.loader(**options, world=xloader.World())) == 10


def test_the_world_is_the_same_for_a_rank_that_has_padding_alone() -> None:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((17, 2), np.float32))})
    store = write_store(ds, {"t": (1, 2)})
    samples = xloader.open(store).window(time=1)
    told = []
    shared: dict[str, Any] = {"batch_size": 2, "memory": "1KiB", "output": "numpy"}
    shared["plan"] = xloader.PlanRules(lanes=2, spread=0)
    for rank in range(2):
        loader = samples.loader(**shared, world=xloader.World(rank, 2))
        state = loader.state_dict()
        loader.load_state_dict(sign({**state, "step": 4}))
        told.append(loader.explain("world"))
    assert told[0] == told[1]
    # One sample is left. The rank without it reads its last batch again, for the padding.
    assert (told[0].num_steps, told[0].num_samples, told[0].num_reads) == (1, 1, 3)


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
@pytest.mark.parametrize(("window", "epoch"), [(1, 0), (3, 1)])
def test_chunks_that_several_ranks_read_are_those_that_were_named(window: int, epoch: int) -> None:
    values = np.zeros((400, 4, 6), np.float32)
    ds = xr.Dataset(dict.fromkeys("tu", (("time", "lat", "lon"), values)))
    store = CountingStore(write_store(ds, {"t": (8, 2, 6), "u": (16, 4, 6)}))
    samples = xloader.open(store).window(time=window, stride=1)
    readers: dict[str, set[int]] = {}
    shared: dict[str, Any] = {"batch_size": 4, "memory": "120KiB", "output": "numpy"}
    shared["plan"] = xloader.PlanRules(lanes=8)
    for rank in range(4):
        with samples.loader(**shared, world=xloader.World(rank, 4)) as loader:
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
        # Only chunks at the three cuts between ranks: four of t and one of u at each.
        assert len(named) <= 3 * 5
    first, index = expected.shared_chunks[0]
    assert f"{first} {list(index)}" in str(expected)


def test_names_of_samples_and_their_rows() -> None:
    names = SampleNames(None, np.array([3, 7, 9]))
    assert names.of(np.array([2, 0])).tolist() == [9, 3]
    assert names.rows_of(np.array([9, 3])).tolist() == [2, 0]
