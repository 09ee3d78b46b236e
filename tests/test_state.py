"""States: training may stop at any step and continue elsewhere with the remaining batches."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore

import xloader
from tests.cases import Case, cases
from tests.flat_options import grouped
from xloader import Samples
from xloader.errors import ClosedError, MemoryBudgetError, OptionError, StateError
from xloader.loader.batches.batch import Batch
from xloader.loader.loader import Loader
from xloader.loader.ranks import rank_plan
from xloader.loader.ranks.state import sign
from xloader.testing import CountingStore, write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]


def contents(batch: Batch) -> list[Any]:
    return [batch.ids.tolist(), batch.is_padding.tolist(), *(array.tobytes() for array in batch)]


def saved(loader: Loader) -> dict[str, Any]:
    """Return the loader's state after a trip through JSON, which must not change it."""
    state = loader.state_dict()
    found: dict[str, Any] = json.loads(json.dumps(state))
    assert found == state
    return found


@given(case=cases(), data=st.data())
def test_the_rest_is_what_would_have_come(case: Case, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, case.world_size - 1))
    epoch = data.draw(st.integers(0, 2))
    with case.loader(rank) as loader:
        loader.set_epoch(epoch)
        whole, states = [], [saved(loader)]
        for batch in loader:
            whole.append(contents(batch))
            states.append(saved(loader))
        loader.set_epoch(epoch + 1)
        after = [contents(batch) for batch in loader]
    step = data.draw(st.integers(0, len(whole)))
    other_rank = data.draw(st.integers(0, case.world_size - 1))
    with case.loader(other_rank) as other:
        other.load_state_dict(states[step])
        state = saved(other)
    with case.loader(rank, seed=99) as other:
        # The state of another rank, loaded and saved once more.
        other.load_state_dict(state)
        expected = other.explain()
        case.store.reset()
        rest = [contents(batch) for batch in other]
        assert case.store.num_reads == expected.num_reads == other.report().num_reads
        if step < len(whole):
            assert rest == whole[step:]
            assert expected.num_steps == len(rest)
            assert other.epoch == epoch + 1
        else:
            assert rest == after
        if step == len(whole) or other.epoch != epoch + 1:
            return
        # The next epoch equals that of a run without a stop.
        assert [contents(batch) for batch in other] == after


def line(num_samples: int = 400) -> xr.Dataset:
    values = np.arange(num_samples * 32, dtype=np.float32).reshape(num_samples, 32)
    return xr.Dataset({"t": (("time", "x"), values)})


def stored(num_samples: int = 400, chunk: int = 8) -> CountingStore:
    return CountingStore(write_store(line(num_samples), {"t": (chunk, 32)}))


def opened(num_samples: int = 400) -> Samples:
    return xloader.open(stored(num_samples))


def loader_of(samples: Samples, **options: Any) -> Loader:
    return samples.loader(
        **{"batch_size": 16, "memory": "24KiB", "output": "numpy", **grouped(**options)}
    )


def test_a_restart_reads_only_what_was_in_memory_then() -> None:
    store = stored()
    samples = xloader.open(store).window(time=1)
    with loader_of(samples) as loader:
        whole = loader.explain().num_reads
        batches = iter(loader)
        for _ in range(12):
            next(batches)
        state = saved(loader)
    with loader_of(samples) as other:
        other.load_state_dict(state)
        expected = other.explain()
        store.reset()
        rest = list(other)
    assert len(rest) == 13
    assert store.num_reads == expected.num_reads
    room = other.plan.pool_nbytes(1) // (8 * 32 * 4)
    # Half of the epoch is over, so half of its chunks are done, apart from those in memory.
    assert expected.num_reads <= math.ceil(whole * 13 / 25) + room < whole


WORLDS = (1, 2, 4, 8)


def ranks_of(window: int, size: int) -> list[Loader]:
    """Return loaders of all ranks, with one thread each, as more would wait for one another."""
    samples = opened(101).window(time=window, stride=1)
    shared = {"batch_size": 16 // size, "lanes": 8, "memory": "48KiB", "threads": 1}
    return [loader_of(samples, **shared, world_size=size, rank=rank) for rank in range(size)]


def global_batches(loaders: list[Loader]) -> list[list[int]]:
    steps = zip(*loaders, strict=True)
    return [[int(i) for b in step for i in b.ids[~b.is_padding]] for step in steps]


@functools.cache
def whole_epoch(window: int, size: int, epoch: int) -> list[list[int]]:
    loaders = ranks_of(window, size)
    for loader in loaders:
        loader.set_epoch(epoch)
    return global_batches(loaders)


@pytest.mark.parametrize("end", WORLDS)
@settings(max_examples=5)
@given(
    begin=st.sampled_from(WORLDS),
    epoch=st.integers(0, 1),
    window=st.sampled_from([1, 3]),
    data=st.data(),
)
def test_any_number_of_ranks_goes_on_with_the_same_global_batches(
    end: int, begin: int, epoch: int, window: int, data: st.DataObject
) -> None:
    whole = whole_epoch(window, begin, epoch)
    assert sorted(i for batch in whole for i in batch) == list(range(102 - window))
    step = data.draw(st.integers(0, len(whole) - 1))
    stopped = ranks_of(window, begin)[data.draw(st.integers(0, begin - 1))]
    stopped.set_epoch(epoch)
    for _, _ in zip(range(step), stopped, strict=False):
        pass
    state = saved(stopped)
    after = ranks_of(window, end)
    for loader in after:
        loader.load_state_dict(state)
    if not step:
        for loader in after:
            loader.set_epoch(epoch)
    assert global_batches(after) == whole[step:]
    assert len({len(loader) for loader in after}) == 1


def test_ranks_and_batches_that_do_not_fit_are_told_which_do() -> None:
    samples = opened().window(time=1)
    state = saved(loader_of(samples, lanes=8, memory="48KiB"))
    with pytest.raises(OptionError, match=r"world_size in \[1, 2, 4, 8\]"):
        loader_of(samples, batch_size=6, rank=0, world_size=3).load_state_dict(state)
    with pytest.raises(StateError, match="pass batch_size=8"):
        loader_of(samples, rank=0, world_size=2, memory="48KiB").load_state_dict(state)


def test_other_samples_are_named_by_what_differs() -> None:
    samples = opened().window(time=2)
    state = saved(loader_of(samples))
    others = {
        "store": opened(401).window(time=2),
        "windows": opened().window(time=2, stride=1),
        "transforms": samples.fillna(0.0),
        "subset": samples.select(range(100)),
        "fields": samples.inputs("t"),
    }
    for name, other in others.items():
        with pytest.raises(StateError, match=f"other samples: their .*{name}"):
            loader_of(other).load_state_dict(state)


def test_windows_along_other_dimensions_are_named() -> None:
    samples = [opened().window(**dims) for dims in ({"time": 2}, {"x": 4}, {"time": 2, "x": 4})]
    for one, other in permutations(samples, 2):
        with pytest.raises(StateError, match="their windows differ"):
            loader_of(one, memory="1MiB").load_state_dict(saved(loader_of(other, memory="1MiB")))
    # The state of an epoch that takes a part of the samples names this, which other states lack.
    part = xloader.interleave({"a": (samples[0], 1)}, num_samples=100).loader(output="numpy")
    with pytest.raises(StateError, match="their samples of an epoch differ"):
        loader_of(samples[0]).load_state_dict(part.state_dict()["sets"]["a"])


def year(first: str) -> xr.Dataset:
    time = np.datetime64(first, "ns") + np.arange(400).astype("timedelta64[D]")
    return line().assign_coords(time=time, x=np.linspace(0, 1, 32))


def test_a_store_of_other_years_is_told_and_a_moved_one_is_not(tmp_path: Path) -> None:
    for name, first in (("a", "1979-01-01"), ("b", "1981-01-01"), ("moved", "1979-01-01")):
        write_store(year(first), {"t": (8, 32)}, tmp_path / f"{name}.zarr")

    def samples(name: str) -> Samples:
        return xloader.open(tmp_path / f"{name}.zarr").isel(time=slice(0, 80)).window(time=1)

    state = saved(loader_of(samples("a")))
    loader_of(samples("moved")).load_state_dict(state)
    with pytest.raises(StateError, match="their labels differ"):
        loader_of(samples("b")).load_state_dict(state)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_states_read_the_labels_at_both_ends_alone(is_damaged: bool, tmp_path: Path) -> None:
    ds = year("1979-01-01")
    ds.to_zarr(
        tmp_path / "a.zarr",
        zarr_format=3,
        consolidated=False,
        encoding={"t": {"chunks": (8, 32)}, "time": {"chunks": (1,)}},
    )
    if is_damaged:
        (tmp_path / "a.zarr" / "x" / "c" / "0").write_bytes(b"no bytes of a chunk")
    store = CountingStore(LocalStore(tmp_path / "a.zarr", read_only=True))
    loader = loader_of(xloader.open(store).window(time=1))
    store.reset()
    state = saved(loader)
    assert store.num_reads <= 6
    loader.load_state_dict(state)
    assert len(list(loader)) == 25


def test_labels_that_cannot_be_read_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = xloader.open(year("1979-01-01").chunk(time=8)).window(time=1)
    with loader_of(samples) as loader:
        state = saved(loader)

    def unreadable(label: Any) -> str:
        raise OSError("for a while")

    with loader_of(samples) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(rank_plan, "_text", unreadable)
            with pytest.raises(StateError, match="their labels differ"):
                loader.load_state_dict(state)
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(400).astype("timedelta64[s]"),
        np.array([object() for _ in range(400)]),
        np.array([f"day {i}" for i in range(400)]),
        xr.date_range("2000-01-01", periods=400, calendar="noleap", use_cftime=True),
        None,
    ],
    ids=["timedelta", "objects", "text", "cftime", "none"],
)
def test_labels_of_any_kind_give_one_state(labels: Any) -> None:
    def state() -> dict[str, Any]:
        ds = line() if labels is None else line().assign_coords(time=copy.deepcopy(labels))
        return saved(loader_of(xloader.open(ds).window(time=1), memory="1MiB"))

    assert state() == state()


def test_a_unit_of_time_is_no_difference() -> None:
    times = np.arange(400).astype("timedelta64[s]")
    states = [
        saved(loader_of(line().assign_coords(time=own).xloader.window(time=1), memory="1MiB"))
        for own in (times, times.astype("timedelta64[ns]"))
    ]
    assert states[0] == states[1]


def test_less_memory_is_told_how_much_would_do() -> None:
    samples = opened().window(time=1)
    state = saved(loader_of(samples, memory="32KiB"))
    with pytest.raises(MemoryBudgetError, match="state needs more memory") as caught:
        loader_of(samples, memory="24KiB").load_state_dict(state)
    other = loader_of(samples, memory=caught.value.minimum_nbytes)
    other.load_state_dict(state)
    assert other.plan == loader_of(samples, memory="32KiB").plan


@pytest.mark.parametrize(("name", "own"), [("drop_last", True), ("shuffle", False)])
def test_other_options_are_named(name: str, own: bool) -> None:
    samples = opened().window(time=1)
    state = saved(loader_of(samples))
    with pytest.raises(StateError, match=f"another {name}"):
        loader_of(samples, **{name: own}).load_state_dict(state)


def test_damaged_states_are_refused_before_the_first_batch() -> None:
    """`tests/test_edited_states.py` has those that are signed again."""
    loader = loader_of(opened().window(time=1))
    state = saved(loader)
    changed = [{"version": 2}, {"more": 1}, {"step": 1}, {"seed": 1}, {"check": None}]
    changed.append({"plan": {**state["plan"], "is_resident": True}})
    without = {name: value for name, value in state.items() if name != "seed"}
    for damaged in (None, "state", {}, without, *({**state, **change} for change in changed)):
        with pytest.raises(StateError):
            loader.load_state_dict(damaged)
    assert len(list(loader)) == 25


def test_an_epoch_of_no_steps_is_not_passed_over_and_states_are_small() -> None:
    samples = opened(20).window(time=1).select(range(10)).weighted(np.ones(10))
    state = saved(loader_of(samples, drop_last=True, seed=1 << 60))
    assert len(json.dumps(state)) < 2048
    loader = loader_of(samples, drop_last=True)
    loader.load_state_dict(state)
    assert (loader.epoch, len(loader)) == (0, 0)


def test_epochs_chosen_after_loading() -> None:
    samples = opened().window(time=1)
    loader = loader_of(samples)
    whole = [contents(batch) for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    assert (state["epoch"], state["step"]) == (0, 1)
    other = loader_of(samples)
    other.load_state_dict(state)
    other.set_epoch(0)
    # The epoch of the loaded state keeps its step.
    first = iter(other)
    assert contents(next(first)) == whole[1]
    assert saved(other)["step"] == 2
    # A second loop repeats the whole epoch.
    assert [contents(batch) for batch in other] == whole
    other.load_state_dict(state)
    other.set_epoch(3)
    assert len(list(other)) == 25


def digest_of(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("window", "lanes", "golden"),
    [(1, 1, "39c43dc66a2c8b12"), (3, 1, "92a7a980af8e388f"), (3, 4, "5f8664de0ba017a5")],
)
def test_states_of_today_are_understood_in_years(window: int, lanes: int, golden: str) -> None:
    """A state of an older release must give this order; a new meaning needs a new version."""
    samples = opened(203).window(time=window, stride=1)
    options = {"lanes": lanes, "memory": "48KiB", "batch_size": 8}
    loader = loader_of(samples, **options)
    state = sign({**saved(loader), "epoch": 3, "step": 7, "seed": 5})
    loader.load_state_dict(state)
    assert digest_of([batch.ids.tolist() for batch in loader]) == golden


def test_states_go_on_that_told_a_number_of_processes() -> None:
    """Earlier releases divided the memory among worker processes."""
    loader = loader_of(opened().window(time=1))
    state = saved(loader)
    rest = [batch.ids.tolist() for batch in loader]
    state["plan"]["budget"]["num_processes"] = 2
    loader.load_state_dict(json.loads(json.dumps(sign(state))))
    assert [batch.ids.tolist() for batch in loader] == rest


def test_fewer_ranks_must_have_room_for_all_lanes() -> None:
    samples = opened().window(time=1)
    two = {"batch_size": 16, "memory": "24KiB", "world_size": 2}
    state = saved(loader_of(samples, **two, rank=1))
    with pytest.raises(MemoryBudgetError, match="state needs more memory") as caught:
        loader_of(samples, batch_size=32, memory="24KiB").load_state_dict(state)
    enough = caught.value.minimum_nbytes
    assert enough > 24 * 1024
    alone = loader_of(samples, batch_size=32, memory=enough)
    alone.load_state_dict(state)
    assert alone.explain().peak_nbytes <= enough
    assert len(list(alone)) == 13


def test_a_selection_in_memory_needs_no_more_than_itself() -> None:
    samples = opened().window(time=1)
    state = saved(loader_of(samples, memory="1GiB"))
    loader = loader_of(samples, memory="128MiB")
    loader.load_state_dict(state)
    assert loader.plan.budget.memory_nbytes == 1 << 30
    assert loader.explain().peak_nbytes <= 128 << 20


def test_batches_wait_as_the_plan_has_counted() -> None:
    samples = opened().window(time=1)
    loader = loader_of(samples, prefetch=12, memory="64KiB")
    loader.load_state_dict(saved(loader_of(samples, memory="64KiB")))
    held = []
    for batch in loader:
        held.append(batch.t.ctypes.data)
        del batch
    # One batch in progress, one held by the loop, and two that wait.
    assert len(set(held)) <= 2 + 2


def test_numbers_of_numpy_are_as_good() -> None:
    samples = opened().window(time=1)
    numbers = {"batch_size": np.int64(16), "seed": np.int64(4), "prefetch": np.int32(2)}
    more = {"lanes": np.int64(2), "spread": np.int64(1), "max_amplification": np.float32(2)}
    loader = loader_of(samples, **numbers, **more, rank=np.int64(0), world_size=np.int64(1))
    plain = loader_of(samples, seed=4, lanes=2, spread=1, max_amplification=2)
    for own in (loader, plain):
        own.set_epoch(np.int64(3))
    assert saved(loader) == saved(plain)
    assert [b.ids.tolist() for b in loader] == [b.ids.tolist() for b in plain]
    states = [saved(loader_of(samples, drop_last=value)) for value in (True, np.True_, 1)]
    assert states[0] == states[1] == states[2]
    with pytest.raises(OptionError, match="max_amplification is infinite"):
        loader_of(samples, max_amplification=float("inf"))
    for epoch in (1.5, True, "1", None, 1 << 63):
        with pytest.raises(OptionError, match="no such epoch"):
            loader.set_epoch(epoch)  # type: ignore[arg-type]


def test_checkpoints_around_a_state_and_closed_loaders_are_refused() -> None:
    loader = loader_of(opened().window(time=1))
    state = saved(loader)
    with pytest.raises(StateError, match=r"contains one.*the value of the key 'sampler'"):
        loader.load_state_dict({"net": {}, "sampler": state})
    loader.close()
    with pytest.raises(ClosedError):
        loader.load_state_dict(state)
