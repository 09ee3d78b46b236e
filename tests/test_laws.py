"""The laws of the loader on random datasets; ``docs/design.md`` states the seven laws.

These tests cover laws 1 to 4 and 6. Law 5, on stopping and on numbers of ranks, is tested in
test_state and test_loader_batches. Law 7, on permutations, is a rule for tests, which test_shuffle
follows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import event, given, settings
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases, least_memory
from xloader.compiled.library import load_library
from xloader.engine import buffers as pool
from xloader.engine.buffers import allocate
from xloader.loader.batches.batch import Batch
from xloader.loader.reports.report import Report
from xloader.planning.explain import Explanation
from xloader.show.cost_figures import Figures
from xloader.testing import CountingStore, write_store

# Budgets are as small as possible, so poor mixing and extra reads are normal here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]

MANY = settings(max_examples=2 * settings().max_examples)


def real_ids(batches: list[Batch]) -> list[int]:
    return [int(i) for batch in batches for i in batch.ids[~batch.is_padding]]


@MANY
@given(case=cases(), epoch=st.integers(0, 3))
def test_each_sample_comes_once(case: Case, epoch: int) -> None:
    """Laws 1 and 6: each sample comes once over all ranks, in the promised number of steps."""
    global_batch = case.options["batch_size"] * case.world_size
    delivered: list[int] = []
    repeated: list[int] = []
    steps = set()
    for rank in range(case.world_size):
        with case.loader(rank) as loader:
            loader.set_epoch(epoch)
            expected = loader.explain()
            batches = list(loader)
            loader.set_epoch(epoch)
            assert len(batches) == len(loader) == expected.num_steps == loader.report().num_steps
            world = loader.explain("world")
        steps.add(tuple(len(batch.ids) for batch in batches))
        own = real_ids(batches)
        added = [int(i) for batch in batches for i in batch.ids[batch.is_padding]]
        assert len(added) == expected.num_padding == loader.report().num_padding
        repeated += added
        assert len(own) == expected.num_samples == loader.report().num_samples
        delivered += own
        _check_padding(case, batches)
    # All ranks have equally many rows in each step, so each repeats one row at most, its own.
    assert len(steps) == 1
    assert len(repeated) == world.num_padding < case.world_size
    assert len(set(repeated)) == len(repeated) or case.chosen.weights is not None
    num_samples = case.chosen.num_samples or len(case.samples)
    left_out = num_samples % global_batch if case.options["drop_last"] else 0
    assert len(delivered) == num_samples - left_out
    _check_occurrences(case, delivered, num_samples, left_out)
    is_alone = case.world_size == 1 and case.options["lanes"] is None
    if is_alone and not case.options["shuffle"]:
        assert delivered == sorted(delivered)


def _check_occurrences(
    case: Case, delivered: list[int], num_samples: int, num_left_out: int
) -> None:
    """Check that each id occurs as often as its weight says, give or take one.

    Without weights each id occurs once.
    """
    weights = np.array(case.chosen.weights or [1.0] * len(case.samples))
    wanted = weights * num_samples / weights.sum()
    counts = np.bincount(delivered, minlength=len(wanted))
    assert len(counts) == len(wanted)
    assert (counts <= np.ceil(wanted - 1e-9)).all()
    assert np.maximum(np.floor(wanted + 1e-9) - counts, 0).sum() <= num_left_out


def _check_padding(case: Case, batches: list[Batch]) -> None:
    batch_size, last = case.options["batch_size"], None
    for number, batch in enumerate(batches):
        is_last = number + 1 == len(batches)
        assert not batch.is_padding.any() or (is_last and case.world_size > 1)
        assert len(batch.ids) == batch_size or (is_last and not case.options["drop_last"])
        assert {len(array) for array in batch} == {len(batch.ids)}
        for row, is_padding in enumerate(batch.is_padding):
            if is_padding:
                assert last is not None
                assert batch.ids[row] == last[0]
                for array, wanted in zip(batch, last[1], strict=True):
                    np.testing.assert_array_equal(array[row], wanted)
            else:
                last = int(batch.ids[row]), [array[row].copy() for array in batch]


def test_a_batch_of_nothing_but_padding() -> None:
    """Law 6: with three samples on two ranks, one rank has a single sample and repeats it."""
    dataset = xr.Dataset({"a": (("time", "x"), np.arange(6.0).reshape(3, 2))})
    samples = xloader.open(write_store(dataset, {"a": (1, 2)})).window(time=1)
    padded = []
    for rank in range(2):
        with samples.loader(batch_size=1, output="numpy", world=xloader.World(rank, 2)) as loader:
            first, second = loader
        padded.append(bool(second.is_padding[0]))
        if padded[-1]:
            assert second.ids.tolist() == first.ids.tolist()
            assert second.a.tolist() == first.a.tolist() == [dataset.a[first.ids].values.tolist()]
    assert sorted(padded) == [False, True]


@pytest.mark.parametrize(("size", "padded"), [(98, [1, 0, 1, 0]), (100, [0, 0, 0, 0])])
def test_padding_is_told(size: int, padded: list[int]) -> None:
    """Law 6: ranks of 24 and 25 samples have 25 rows each. Tables say so, if there is padding."""
    samples = xloader.open(xr.Dataset({"a": ("time", np.arange(float(size)))})).window(time=1)

    def told(figures: Figures) -> list[str]:
        return [text for heading, text in figures._rows() if heading == "padding"]

    for rank, num in enumerate(padded):
        options = {"batch_size": 8, "output": "numpy", "world": xloader.World(rank, 4)}
        with samples.loader(**options, plan=xloader.PlanRules(lanes=8)) as loader:
            row = ["1 row in the last batch"] * num
            assert told(loader.explain()) == row
            assert told(loader.explain("world")) == ["2 rows in the last batch"] * any(padded)
            *_, last = loader
            assert last.is_padding.tolist() == [bool(num)]
            assert told(loader.report()) == row


@MANY
@given(case=cases())
def test_values_are_those_of_isel(case: Case) -> None:
    """Law 2: values equal xarray's bit for bit, for all chunks, threads and memory sizes."""
    for rank in range(case.world_size):
        with case.loader(rank) as loader:
            for batch in loader:
                assert batch.names == case.samples.fields
                for row, index in enumerate(batch.ids.tolist()):
                    wanted = case.sample(index)
                    assert len(batch) == len(wanted)
                    for array, value in zip(batch, wanted, strict=True):
                        assert array.dtype == value.dtype
                        assert array[row].shape == value.shape
                        assert array[row].tobytes() == value.tobytes()


@MANY
@given(case=cases(), rank=st.integers(0, 2))
def test_reads_are_as_predicted(case: Case, rank: int) -> None:
    """Laws 3 and 4: reads are as predicted in every epoch, and the peak stays within the memory."""
    with case.loader(rank % case.world_size) as loader:
        for epoch in range(3):
            expected = loader.explain()
            case.store.reset()
            for _ in loader:
                pass
            report = loader.report()
            assert case.store.num_reads == expected.num_reads == report.num_reads
            _check_plan_tag(expected, report)
            assert report.peak_nbytes <= expected.peak_nbytes <= case.options["memory"]
            # With several ranks or a dropped last batch, epochs need different chunks.
            is_same = case.world_size == 1 and not case.options["drop_last"]
            is_same &= case.chosen.weights is None
            assert not (loader.plan.is_resident and epoch and is_same and case.store.num_reads)
            if not loader.plan.is_resident:
                event("less memory than data")
            event(f"amplification {'is' if expected.read_amplification <= 1 else 'is not'} 1")


def _check_plan_tag(expected: Explanation, report: Report) -> None:
    for name in ("num_samples", "num_steps", "read_nbytes", "mixing", "full_mixing", "spread",
                 "tile", "run", "streams", "lanes", "num_dropped_windows", "is_exact"):  # fmt: skip
        assert getattr(expected, name) == getattr(report, name), name
    assert report.read_amplification == pytest.approx(expected.read_amplification)


def test_a_batch_that_is_dropped_does_not_mix() -> None:
    """Mixing leaves out dropped batches: lanes of 26, 25 and 25 samples make 25 batches of 3."""
    dataset = xr.Dataset({"a": ("time", np.arange(76.0))})
    samples = xloader.open(write_store(dataset, {"a": (2,)})).window(time=1)
    with samples.loader(
        batch_size=3, plan=xloader.PlanRules(lanes=3), drop_last=True, output="numpy"
    ) as loader:
        for _ in range(3):
            expected = loader.explain()
            assert sum(1 for _ in loader) == expected.num_steps == 25
            _check_plan_tag(expected, loader.report())


@MANY
@given(case=cases(may_be_weighted=False, world_size=1, drop_last=False, shuffle=True))
def test_memory_for_all_is_read_once(case: Case) -> None:
    """Law 3: if the budget holds the selection, each chunk is read once and never again."""
    memory = least_memory(case) + 3 * case.dataset.nbytes
    with case.loader(memory=memory) as loader:
        expected = loader.explain()
        assert loader.plan.is_resident
        assert expected.read_amplification == 1.0
        case.store.reset()
        first = list(loader)
        assert case.store.num_reads == expected.num_reads > 0
        assert set(case.store.reads.values()) == {1}
        case.store.reset()
        assert loader.explain().num_reads == 0
        second = list(loader)
        assert case.store.num_reads == loader.report().num_reads == 0
    assert sorted(real_ids(first)) == sorted(real_ids(second))


@given(data=st.data())
def test_one_grid_and_no_straddling_is_one_read(data: st.DataObject) -> None:
    """Law 3: without straddling, each chunk is read once, even with the least memory."""
    chunk = data.draw(st.integers(1, 4), label="windows a chunk")
    window = data.draw(st.integers(1, 3), label="window")
    num_chunks = data.draw(st.integers(1, 12), label="chunks")
    size = chunk * window * num_chunks + data.draw(st.integers(0, window), label="ragged end")
    shape, chunks = (size, 3), (chunk * window, 2)
    values = np.arange(size * 3, dtype=np.float32).reshape(shape)
    dataset = xr.Dataset({name: (("time", "x"), values + i) for i, name in enumerate("ab")})
    store = CountingStore(write_store(dataset, dict.fromkeys("ab", chunks)))
    case = Case(dataset, {}, {}, None, (), {  # type: ignore[arg-type]
        "batch_size": data.draw(st.integers(1, 6)), "output": "numpy",
        "prefetch": data.draw(st.integers(0, 2)), "world_size": 1,
    }, store, xloader.open(store).window(time=window))  # fmt: skip
    memory = least_memory(case) + data.draw(st.integers(0, 4), label="tiles more") * (
        2 * chunk * window * 3 * 4
    )
    with case.loader(memory=memory) as loader:
        for _ in range(3):
            expected = loader.explain()
            store.reset()
            for _ in loader:
                pass
            if not loader.plan.is_resident:
                assert expected.read_amplification == 1.0
                assert set(store.reads.values()) == {1}


def test_variables_in_other_chunks_are_counted_apart() -> None:
    """Law 3: each pair of variable and chunk counts as one read, whole dimensions included."""
    dataset = xr.Dataset(
        {
            "t": (("time", "x"), np.arange(96.0).reshape(24, 4)),
            "z": (("time", "level"), np.arange(72.0).reshape(24, 3)),
            "oro": (("x",), np.arange(4.0)),
        }
    )
    store = CountingStore(write_store(dataset, {"t": (4, 4), "z": (6, 1), "oro": (2,)}))
    samples = xloader.open(store).window(time=2, stride=1).inputs("t", "oro").targets("z")
    with samples.loader(batch_size=4, output="numpy") as loader:
        assert loader.explain().num_reads == 24 // 4 + 24 // 6 * 3 + 2
        store.reset()
        for _ in loader:
            pass
    assert store.num_reads == 20
    assert {key.split("/")[0] for key in store.reads} == {"t", "z", "oro"}


@pytest.mark.parametrize("threads", [1, 4])
def test_what_is_held_at_a_time(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 4: if the loop drops its batches, the planned buffers suffice."""
    values = np.arange(40 * 500, dtype=np.float32).reshape(40, 500)
    dataset = xr.Dataset({"a": (("time", "x"), values)})
    samples = xloader.open(write_store(dataset, {"a": (4, 500)})).window(time=1)
    asked: list[int] = []
    held: Counter[int] = Counter()
    most: Counter[int] = Counter()

    def allocate_and_record(nbytes: int) -> np.ndarray:
        asked.append(nbytes)
        array = allocate(nbytes)
        held[nbytes] += 1
        most[nbytes] = max(most[nbytes], held[nbytes])
        weakref.finalize(array, held.subtract, [nbytes])
        return array

    monkeypatch.setattr(pool, "allocate", allocate_and_record)
    with samples.loader(batch_size=3, memory="90kB", output="numpy", threads=threads) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        budget, pool_nbytes = loader.plan.budget, loader.plan.pool_nbytes(1)
    batch_nbytes, block_nbytes = 3 * 500 * 4, 4 * 500 * 4
    # Compiled code finds what rows take, and writes it to a table; NumPy needs none.
    table_nbytes = {(3 + 4) * (2 * num_rows + 24) * 8 for num_rows in (3, 37)}
    tables = set() if load_library()[0] is None else table_nbytes
    # Blocks of programs have memory of their own, which the report counts.
    assert {batch_nbytes} <= set(asked) <= {batch_nbytes, block_nbytes} | tables
    assert budget.num_batches == 2 + 2
    # Batches or blocks may also hold a part of the bytes in flight.
    lent_nbytes = budget.in_flight_nbytes
    # On free-threaded Python, what a thread made is freed when that thread next runs.
    num_late = threads if sysconfig.get_config_var("Py_GIL_DISABLED") else 0
    most_nbytes = (budget.num_batches + num_late) * batch_nbytes + lent_nbytes
    assert most[batch_nbytes] * batch_nbytes <= most_nbytes < len(loader) * batch_nbytes
    assert most[block_nbytes] <= (pool_nbytes + lent_nbytes) // block_nbytes
    assert loader.report().peak_nbytes <= 90_000


MEASURE = """
import sys, threading, psutil, xloader
samples = xloader.open(sys.argv[1]).window(time=3, stride=1).inputs("a", "b").targets("a", time=2)
loader = samples.loader(batch_size=8, memory=sys.argv[2], output="numpy")
expected = loader.explain()
process, is_over = psutil.Process(), threading.Event()
before = peak = process.memory_info().rss
def watch():
    global peak
    while not is_over.wait(0.002):
        peak = max(peak, process.memory_info().rss)
watcher = threading.Thread(target=watch)
watcher.start()
for batch in loader:
    peak = max(peak, process.memory_info().rss)
is_over.set()
watcher.join()
report = loader.report()
assert report.num_reads == expected.num_reads and not loader.plan.is_resident
assert report.read_nbytes > 190 * 2**20, report
print("peak", peak - before, report.peak_nbytes)
"""


def test_resident_memory_stays_within_the_budget(tmp_path: Path) -> None:
    """Law 4: resident memory stays within the budget when 200 MB pass through 64 MiB."""
    rng = np.random.default_rng(0)
    shape = (768, 180, 180)
    dataset = xr.Dataset(
        {name: (("time", "y", "x"), rng.integers(0, 9, shape).astype("f4")) for name in "ab"}
    )
    write_store(dataset, dict.fromkeys("ab", (16, 180, 180)), tmp_path / "store")
    budget = 64 * 2**20
    command = [sys.executable, "-W", "ignore", "-c", MEASURE, tmp_path / "store", str(budget)]
    # With one malloc arena, memory that malloc keeps per thread is not counted as the loader's.
    environ = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    match = re.search(r"peak (\d+) (\d+)", done.stdout)
    assert match is not None
    growth, reported = map(int, match.groups())
    assert reported <= budget
    assert growth <= 1.1 * budget + 32 * 2**20
    # The watcher must have seen the peak, so it must include the decoded chunks.
    assert growth >= reported // 2
