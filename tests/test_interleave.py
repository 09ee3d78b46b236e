"""Several sets of samples in one epoch: exact proportions, each chunk once, resume anywhere."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from math import ceil, floor
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from tests.flat_options import grouped
from xloader import Batch, Interleaved, Loader, Samples
from xloader.errors import (
    ClosedError,
    EmptySamplesError,
    EpochWarning,
    MemoryBudgetError,
    OptionError,
    PlanWarning,
    RanksError,
    StateError,
)
from xloader.testing import CountingStore, FaultyStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

FEW = settings(max_examples=max(settings().max_examples // 4, 5))


def make_set(number: int, length: int, chunk: int) -> CountingStore:
    """A store whose values tell the set, the time and the cell."""
    values = np.arange(length * 12, dtype=np.float32).reshape(length, 3, 4) + 100_000 * number
    ds = xr.Dataset({"t": (("time", "y", "x"), values)})
    return CountingStore(write_store(ds, {"t": (chunk, 3, 2)}))


STORES = {"era5": make_set(0, 60, 8), "cmip": make_set(1, 45, 5), "obs": make_set(2, 97, 16)}


def samples_of(name: str) -> Samples:
    return xloader.open(STORES[name]).window(time=1)


def three(weights: Any = (5, 3, 2), num_samples: int | None = None) -> Interleaved:
    pairs = {n: (samples_of(n), w) for n, w in zip(STORES, weights, strict=True)}
    return xloader.interleave(pairs, num_samples=num_samples)


def rows_of(batches: list[Batch]) -> list[tuple[str, int]]:
    return [
        (str(name), int(i))
        for batch in batches
        for name, i in zip(batch.source, batch.ids, strict=True)
    ]


def contents(batch: Batch) -> tuple[Any, ...]:
    return batch.source.tolist(), batch.ids.tolist(), batch.is_padding.tolist(), batch.t.tobytes()


def check_values(batches: list[Batch]) -> None:
    for batch in batches:
        for name, i, value in zip(batch.source, batch.ids, batch.t, strict=True):
            number = list(STORES).index(str(name))
            np.testing.assert_array_equal(
                value.ravel(), np.arange(i * 12, i * 12 + 12) + 100_000 * number
            )


def reset() -> None:
    for store in STORES.values():
        store.reset()


WEIGHTS = st.lists(
    st.one_of(st.integers(1, 60), st.sampled_from([0.1, 0.7, 1 / 3, 0.125, Fraction(2, 7)])),
    min_size=3,
    max_size=3,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Interleaved, dict[str, Any]]:
    both = three(draw(WEIGHTS), draw(st.none() | st.integers(40, 400)))
    ranks = draw(st.sampled_from([1, 1, 2, 3]))
    lanes = draw(st.sampled_from([None, ranks, 2 * ranks]))
    options: dict[str, Any] = {
        "batch_size": 2 * draw(st.integers(1, 12)),
        "world_size": ranks,
        "lanes": lanes,
        "memory": draw(st.sampled_from(["8KiB", "24KiB", "1MiB"])),
        "prefetch": draw(st.integers(0, 2)),
        "shuffle": draw(st.sampled_from([True, True, False])),
        "drop_last": draw(st.booleans()),
        "output": "numpy",
        "seed": draw(st.integers(0, 3)),
    }
    return both, options


def make_loader(both: Interleaved, options: dict[str, Any], rank: int = 0) -> Any:
    """The loader, with more memory if that is too little; None if a set would have no row."""
    while True:
        try:
            return both.loader(**grouped(**options, rank=rank))
        except MemoryBudgetError as error:
            options["memory"] = error.minimum_nbytes
        except EmptySamplesError:
            return None


@FEW
@given(case=cases(), epoch=st.integers(0, 4))
def test_each_set_gives_its_proportion_and_no_sample_twice(
    case: tuple[Interleaved, dict[str, Any]], epoch: int
) -> None:
    both, options = case
    ranks, lanes = options["world_size"], options["lanes"]
    delivered: Counter[tuple[str, int]] = Counter()
    steps = set()
    for rank in range(ranks):
        loader = make_loader(both, options, rank)
        if loader is None:
            return
        with loader:
            loader.set_epoch(epoch)
            expected = loader.explain()
            reset()
            batches = list(loader)
            loader.set_epoch(epoch)
            report = loader.report()
        assert len(batches) == len(loader) == expected.num_steps == report.num_steps
        steps.add(len(batches))
        rows = rows_of(batches)
        assert len(rows) == expected.num_samples == report.num_samples
        assert not any(batch.is_padding.any() for batch in batches)
        check_values(batches)
        delivered.update(rows)
        # Law: predicted reads are counted reads, for each set.
        for name, store in STORES.items():
            assert store.num_reads == expected.sets[name].num_reads
        assert report.num_reads == expected.num_reads == sum(s.num_reads for s in STORES.values())
        assert report.peak_nbytes <= expected.peak_nbytes <= loader.options.memory_nbytes
        # Exact after every batch, and rows are grouped by set, in the order given.
        given, num_rows = Counter[str](), 0
        patterns = 1 if lanes is None else lanes // ranks
        for batch in batches:
            assert batch.source.tolist() == sorted(batch.source, key=list(STORES).index)
            given.update(batch.source.tolist())
            num_rows += len(batch.ids)
            for name, weight in both.weights.items():
                due = weight * num_rows / patterns
                assert floor(due) * patterns <= given[name] <= ceil(due) * patterns
        sizes = {len(batch.ids) for batch in batches[:-1]} | {options["batch_size"]}
        assert sizes == {options["batch_size"]}
    assert len(steps) == 1
    totals = Counter[str]()
    for (name, _), count in delivered.items():
        totals[name] += count
    for name, share in expected.shares.items():
        size = len(samples_of(name))
        assert totals[name] == share.num_samples
        assert share.num_left_out == max(size - totals[name], 0)
        assert max(delivered[name, i] for i in range(size)) <= max(ceil(totals[name] / size), 1)
        if lanes is None:
            least = min(delivered[name, i] for i in range(size))
            assert least >= floor(totals[name] / size)


def test_epochs_of_a_long_set_take_turns() -> None:
    """A set of 97 samples of which an epoch takes 30 gives three epochs without a repeat."""
    pairs = {"obs": (samples_of("obs"), 1), "era5": (samples_of("era5").select(slice(0, 30)), 1)}
    with xloader.interleave(pairs, num_samples=60).loader(batch_size=10, output="numpy") as loader:
        passes = [rows_of(list(loader)) for _ in range(6)]
    for first in (0, 3):
        taken = [i for rows in passes[first : first + 3] for name, i in rows if name == "obs"]
        assert len(taken) == len(set(taken)) == 90
    assert passes[0] != passes[3]
    for rows in passes:
        assert sorted(i for name, i in rows if name == "era5") == list(range(30))


@pytest.mark.parametrize(
    ("num_samples", "options"),
    [
        (None, {}),
        (150, {"drop_last": True, "plan": xloader.PlanRules(lanes=2)}),
        (150, {"world": xloader.World(1, 2), "plan": xloader.PlanRules(lanes=4)}),
        (None, {"world": xloader.World(1, 2), "shuffle": False}),
    ],
)
def test_a_stop_anywhere_changes_nothing(num_samples: int | None, options: dict[str, Any]) -> None:
    options = {"batch_size": 8, "memory": "24KiB", "output": "numpy", **options}
    both = three(num_samples=num_samples)
    with both.loader(**options) as loader:
        whole = [[contents(batch) for batch in loader] for _ in range(3)]
    last = len(whole[1])
    for step in (0, 1, last // 2, last - 1, last):
        with both.loader(**options) as loader:
            loader.set_epoch(1)
            batches = iter(loader)
            for _ in range(step):
                next(batches)
            given = loader.state_dict()
            state = json.loads(json.dumps(given))
            assert state == given
            assert len(json.dumps(state)) < 4000
        with both.loader(**{**options, "seed": 7}) as loader:
            loader.load_state_dict(state)
            expected = loader.explain()
            reset()
            rest = [contents(batch) for batch in loader]
            assert expected.num_reads == sum(store.num_reads for store in STORES.values())
            if 0 < step < last:
                assert rest == whole[1][step:]
                assert expected.num_steps == len(rest)
                assert expected.num_samples == sum(len(own[1]) for own in rest)
                rest = [contents(batch) for batch in loader]
            if step:
                assert rest == whole[2]
            else:
                assert rest == whole[1]


def global_rows(ranks: int, **options: Any) -> list[list[tuple[str, int]]]:
    steps: list[list[tuple[str, int]]] = []
    for rank in range(ranks):
        ranked = {"world": xloader.World(rank, ranks), "batch_size": 12 // ranks}
        with three().loader(**ranked, memory="64KiB", output="numpy", **options) as loader:
            for step, batch in enumerate(loader):
                steps += [[]] * (step == len(steps))
                steps[step] = steps[step] + rows_of([batch])
    return steps


def test_with_lanes_steps_do_not_depend_on_the_number_of_ranks() -> None:
    alone = global_rows(1, plan=xloader.PlanRules(lanes=6))
    for ranks in (2, 3, 6):
        found = global_rows(ranks, plan=xloader.PlanRules(lanes=6))
        assert [sorted(step) for step in found] == [sorted(step) for step in alone]


def test_another_number_of_ranks_needs_lanes() -> None:
    def loader(ranks: int, **options: Any) -> Loader:
        ranked = {"world": xloader.World(0, ranks), "batch_size": 12 // ranks}
        return three().loader(**ranked, memory="64KiB", output="numpy", **options)

    with pytest.raises(
        StateError, match=r"another number of ranks.*PlanRules\(lanes=...\) from its start"
    ):
        loader(1).load_state_dict(loader(2).state_dict())
    source = loader(2, plan=xloader.PlanRules(lanes=2))
    batches = iter(source)
    next(batches)
    other = loader(1, plan=xloader.PlanRules(lanes=2))
    other.load_state_dict(source.state_dict())
    rest = [sorted(rows_of([batch])) for batch in other]
    assert rest == [sorted(step) for step in global_rows(1, plan=xloader.PlanRules(lanes=2))[1:]]
    source.close()


def test_a_weighted_set_keeps_its_weights() -> None:
    weights = np.zeros(60)
    weights[[3, 40]] = 1.0, 3.0
    heavy = samples_of("era5").weighted(weights, num_samples=20)
    pairs = {"era5": (heavy, 0.5), "cmip": (samples_of("cmip"), 0.5)}
    with xloader.interleave(pairs).loader(batch_size=10, output="numpy") as loader:
        rows = Counter(rows_of(list(loader)))
    assert (rows["era5", 3], rows["era5", 40]) == (5, 15)
    assert sum(rows.values()) == 40
    more = xloader.interleave(pairs, num_samples=80)
    with more.loader(batch_size=10, output="numpy") as loader:
        rows = Counter(rows_of(list(loader)))
    assert (rows["era5", 3], rows["era5", 40]) == (10, 30)


def test_equal_sets_come_in_orders_of_their_own() -> None:
    pairs = {"a": (samples_of("obs"), 1), "b": (samples_of("obs"), 1)}
    with xloader.interleave(pairs).loader(batch_size=8, output="numpy") as loader:
        rows = rows_of(list(loader))
    ids = {name: [i for own, i in rows if own == name] for name in pairs}
    assert sorted(ids["a"]) == sorted(ids["b"])
    assert ids["a"] != ids["b"]


def test_a_break_starts_the_epoch_again_and_epochs_move_on() -> None:
    with three().loader(batch_size=8, output="numpy") as loader:
        first = contents(next(iter(loader)))
        assert loader.epoch == 0
        whole = [contents(batch) for batch in loader]
        assert whole[0] == first
        assert loader.epoch == loader.sampler.epoch == 1
        loader.sampler.set_epoch(0)
        assert [contents(batch) for batch in loader] == whole
        # Trainers make the iterator before they choose the epoch.
        batches = iter(loader)
        loader.set_epoch(0)
        assert [contents(batch) for batch in batches] == whole
        assert "<xloader.Loader: era5, cmip, obs: " in repr(loader)
        loader.set_epoch(2)
        assert len(list(islice(loader, 2))) == 2
        with pytest.warns(EpochWarning, match="epoch 2") as caught:
            assert len(list(loader)) == len(whole)
        assert [own.filename for own in caught] == [__file__]
    with pytest.raises(ClosedError):
        iter(loader)


def test_batches_of_torch_and_of_a_collate_function() -> None:
    torch = pytest.importorskip("torch")
    with three().loader(batch_size=8) as loader:
        batches = list(loader)
    assert all(isinstance(batch.t, torch.Tensor) for batch in batches)
    check_values(batches)
    moved = batches[0].to("cpu")
    assert moved.source.tolist() == batches[0].source.tolist()
    assert next(iter(batches))[0].dtype == torch.float32
    # A batch that was kept keeps its values while later ones come.
    kept = [batch.t.clone() for batch in batches]
    assert all(torch.equal(a, batch.t) for a, batch in zip(kept, batches, strict=True))
    with three().loader(batch_size=8, collate_fn=len) as loader:
        assert sum(loader) == loader.num_samples
    with three().loader(batch_size=8, device="cpu") as loader:
        check_values(list(loader))
    with three().loader(batch_size=8, device=xloader.OnDevice(dtype="bfloat16")) as loader:
        assert next(iter(loader)).t.dtype == torch.bfloat16


def test_fields_in_another_order_are_joined_by_name() -> None:
    ds = xr.Dataset({n: ("time", np.arange(8.0) + 10 * k) for k, n in enumerate("ab")})
    one = xloader.open(ds).window(time=1).inputs("a").targets("b")
    other = xloader.open(ds).window(time=1).targets("b").inputs("a")
    both = xloader.interleave({"one": (one, 1), "other": (other, 1)})
    assert both.fields == ("inputs", "targets")
    with both.loader(batch_size=4, output="numpy") as loader:
        for inputs, targets in loader:
            assert (targets == inputs + 10).all()


def test_damaged_chunks_are_skipped_set_by_set() -> None:
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    ds = xr.Dataset({"t": (("time", "x"), values)})
    good = xloader.open(ds).window(time=1)
    stored = write_store(ds, {"t": (1, 4)})
    bad = xloader.open(FaultyStore(stored, {"t/c/3/0": lambda raw: b"no"})).window(time=1)
    both = xloader.interleave({"good": (good, 1), "bad": (bad, 1)})
    with both.loader(batch_size=20, on_error="skip", output="numpy") as loader:
        with pytest.warns(xloader.errors.ChunkWarning):
            (batch,) = loader
        assert batch.source[batch.is_padding].tolist() == ["bad"]
        assert loader.report().num_skipped_samples == 1
        assert loader.report().num_samples == 19


def bad_input() -> Iterator[tuple[Any, dict[str, Any], type[Exception], str]]:
    era5, cmip = samples_of("era5"), samples_of("cmip")
    wide = xloader.open(STORES["obs"]).window(time=2)
    double = era5.map(lambda ds: ds.astype("float64"))
    renamed = era5.map(lambda ds: ds.rename(t="u"))
    yield {}, {}, OptionError, "no set"
    yield [era5], {}, OptionError, "by name"
    yield {"a": era5}, {}, OptionError, "pair of samples and a weight"
    for weight in (0, float("nan"), True, "1"):
        yield {"a": (era5, weight)}, {}, OptionError, "'a' is not a number above 0"
    yield {"a": (STORES["obs"], 1)}, {}, OptionError, "holds no samples"
    yield {"a": (xloader.open(STORES["obs"]), 1)}, {}, OptionError, "windows are not set"
    yield {1: (era5, 1)}, {}, OptionError, "not a text"
    yield {"a": (era5, 1)}, {"num_samples": 0}, OptionError, "num_samples"
    yield (
        {"a": (era5, 1), "b": (wide, 1)},
        {},
        OptionError,
        r"'t' has another shape in the set 'b' than in 'a'.*\(time: 1, y: 3, x: 4\).*time: 2",
    )
    yield {"a": (cmip, 1), "b": (double, 1)}, {}, OptionError, "another dtype.*float32.*float64"
    yield {"a": (cmip, 1), "b": (renamed, 1)}, {}, OptionError, "different fields.*'a' with t"


@pytest.mark.parametrize(("sets", "options", "kind", "text"), list(bad_input()))
def test_bad_sets_are_refused(
    sets: Any, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        xloader.interleave(sets, **options)


def test_classes_must_have_the_same_codes() -> None:
    def stations(kinds: list[str]) -> Samples:
        table = pd.DataFrame({"time": [1, 2, 3], "kind": kinds})
        ds = xr.Dataset({"t": ("time", np.arange(8.0))})
        return xloader.open(ds).window(time=1).at_points(table)

    one, other = stations(["a", "b", "b"]), stations(["b", "c", "b"])
    with pytest.raises(OptionError, match="'kind' has another classes"):
        xloader.interleave({"one": (one, 1), "other": (other, 1)})


def test_class_folders_must_have_the_same_classes(tmp_path: Path) -> None:
    for root, names in ("one", "ab"), ("same", "ab"), ("other", "bc"):
        for number, name in enumerate(names):
            (tmp_path / root / name).mkdir(parents=True)
            scene = xr.Dataset({"t": ("x", np.full(3, number, "f4"))})
            scene.to_netcdf(tmp_path / root / name / "0.nc")
    one, same, other = (xloader.open_classes(tmp_path / root) for root in ("one", "same", "other"))
    with xloader.interleave({"one": (one, 1), "same": (same, 1)}).loader(batch_size=4) as loader:
        (batch,) = loader
        assert batch.label.tolist() == batch.t[:, 0].tolist()
        assert sorted(batch.source) == ["one", "one", "same", "same"]
    with pytest.raises(OptionError, match=r"'label' has another classes.*'b', 'c'.*class folders"):
        xloader.interleave({"one": (one, 1), "other": (other, 1)})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": xloader.OnDevice(transform=len), "output": "torch"}, "no transform"),
        ({"device": xloader.OnDevice(out=()), "output": "torch"}, "no out"),
        ({"num_workers": 2}, "num_workers"),
        ({"plan": xloader.PlanRules(lanes=3), "batch_size": 8, "world": xloader.World()}, "lanes"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        three().loader(**{"output": "numpy", **options})


def test_ranks_without_a_row_of_a_set_are_refused() -> None:
    with pytest.raises(EmptySamplesError, match=r"no row of the set 'era5'.*drop_last"):
        three().loader(batch_size=64, drop_last=True, world=xloader.World(0, 4), output="numpy")


def test_the_named_memory_is_enough() -> None:
    with pytest.raises(
        MemoryBudgetError, match=r"3 sets of samples together.*era5 needs"
    ) as caught:
        three().loader(batch_size=8, memory=1, output="numpy")
    least = caught.value.minimum_nbytes
    with pytest.raises(MemoryBudgetError):
        three().loader(batch_size=8, memory=least - 1, output="numpy")
    with three().loader(batch_size=8, memory=least, output="numpy") as loader:
        list(loader)
        assert loader.report().peak_nbytes <= loader.explain().peak_nbytes <= least


def test_states_that_do_not_fit_are_refused() -> None:
    def loader(both: Interleaved, **options: Any) -> Loader:
        return both.loader(**{"batch_size": 8, "output": "numpy", **options})

    own = loader(three())
    good = own.state_dict()
    for both, options, text in (
        (three((5, 2, 3)), {}, "ratio of weights"),
        (three(num_samples=50), {}, "num_samples"),
        (three(), {"drop_last": True}, "drop_last"),
        (three(), {"batch_size": 9}, "batch_size"),
        (three(), {"shuffle": False}, "the set 'era5': .*shuffle"),
    ):
        with pytest.raises(StateError, match=text):
            own.load_state_dict(loader(both, **options).state_dict())
    other = {n: (samples_of(n), w) for n, w in zip(STORES, (5, 3, 2), strict=True)}
    other["obs"] = (samples_of("obs").select(slice(0, 95)), 2)
    with pytest.raises(StateError, match=r"the set 'obs': .*subset"):
        own.load_state_dict(loader(xloader.interleave(other)).state_dict())
    one = samples_of("era5").loader(output="numpy").state_dict()
    for state, text in (
        (None, "not a state"),
        (one, "loader of one set"),
        ({**good, "step": 1}, "changed after it was saved"),
        ({**good, "step": -1}, "step is not"),
        ({**good, "more": 1}, "keys of a state"),
        ({**good, "version": 99}, "another version"),
    ):
        with pytest.raises(StateError, match=text):
            own.load_state_dict(state)
    own.load_state_dict(good)


def test_a_rank_that_becomes_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"batch_size": 6, "output": "numpy"}
    loader = three().loader(**options)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with loader, three().loader(**options, world=xloader.World(1, 2)) as other:
        assert len(loader) == len(other)
        assert [contents(a) for a in loader] == [contents(b) for b in other]
        monkeypatch.setenv("WORLD_SIZE", "3")
        with pytest.raises(RanksError):
            iter(loader)


def test_copies_of_loaders_and_sets_are_small_and_alike() -> None:
    both = pickle.loads(pickle.dumps(three()))
    assert both.weights == three().weights
    with (
        three().loader(batch_size=8, output="numpy", collate_fn=rows_of_one) as loader,
        pickle.loads(pickle.dumps(loader)) as other,
    ):
        assert list(loader) == list(other)


def rows_of_one(rows: Any) -> list[tuple[str, int]]:
    return rows_of([rows.batch])


@pytest.mark.filterwarnings("default::xloader.errors.PlanWarning")
def test_a_warning_names_the_set() -> None:
    days = xloader.open(make_set(3, 2000, 8)).window(time=1)
    pairs = {"era5": (days, 1), "cmip": (samples_of("cmip"), 1)}
    with (
        xloader.interleave(pairs).loader(
            batch_size=32, plan=xloader.PlanRules(spread=0), output="numpy"
        ) as loader,
        pytest.warns(PlanWarning, match=r"set 'era5', with .* of the memory: batches mix"),
    ):
        iter(loader)


def test_labels_are_those_of_a_set() -> None:
    with three().loader(batch_size=8, output="numpy") as loader:
        batch = next(iter(loader))
    for ask in (batch.to_xarray, lambda: batch.coords):
        with pytest.raises(OptionError, match=r"several sets.*era5, cmip.*batch.source == name"):
            ask()
    ids = batch.ids[batch.source == "cmip"]
    read = samples_of("cmip").to_xarray(ids)
    np.testing.assert_array_equal(read.t, batch.t[batch.source == "cmip"])


def test_verbs_come_before() -> None:
    with pytest.raises(AttributeError, match=r"no 'select': call it on the samples of each set"):
        three().select([1])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        three().nothing  # noqa: B018


def test_other_doors_name_the_loader() -> None:
    torch_doors = pytest.importorskip("xloader.torch")
    with pytest.raises(OptionError, match=r"iterate over .loader\(...\) of the sets together"):
        torch_doors.data_loader(three(), batch_size=4)


def test_sets_of_many_samples_take_little_memory() -> None:
    lazy = xr.Dataset({"t": ("time", da.zeros(10**8, chunks=10**6, dtype="f4"))})
    one, other = (xloader.open(lazy).window(time=1) for _ in range(2))
    tracemalloc.start()
    try:
        both = xloader.interleave({"one": (one, 0.7), "other": (other, 0.3)})
        expected = both.explain(batch_size=64, memory="64MiB")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert expected.num_samples == 142_857_143
    assert expected.read_amplification == 1.0
    assert expected.sets["other"].num_reads < 50
    assert peak < 32 << 20


def test_ranks_together_are_explained() -> None:
    loaders = [
        three().loader(batch_size=6, world=xloader.World(rank, 2), output="numpy")
        for rank in range(2)
    ]
    world = loaders[0].explain("world")
    alone = [loader.explain() for loader in loaders]
    assert world.num_reads == sum(own.num_reads for own in alone)
    assert world.num_samples == loaders[0].num_samples == sum(own.num_samples for own in alone)
    with pytest.raises(OptionError, match="unknown scope"):
        loaders[0].explain("all")  # type: ignore[arg-type]
