"""Batches of arbitrary ids, read through a least-recently-used cache."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import ZipStore

import xloader
from tests.cases import Case, cases
from tests.hanging import HangingSync, released
from tests.test_engine import Crowd
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.assembly import Borders, EngineParts, stored_variables
from xloader.engine.block_reader import BlockReader
from xloader.engine.buffers import Fields
from xloader.engine.cached_reader import CachedReader
from xloader.engine.change_watch import ChangeWatch
from xloader.engine.field_places import FieldPlaces
from xloader.engine.sample_reader import read_samples
from xloader.engine.threads import TaskThreads, ThreadTask
from xloader.errors import (
    ChunkWarning,
    ClosedError,
    CorruptChunkError,
    MemoryBudgetError,
    ReadTimeoutError,
    SampleIndexError,
    StoreChangedError,
)
from xloader.planning.cache_budget import least_nbytes, simulate
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.samples.samples import Samples
from xloader.testing import FaultyStore, LatencyStore, SourceRecorder, garble, write_store


def make_reader(
    samples: Samples,
    capacity: int | None = None,
    *,
    batch_size: int = 4,
    num_threads: int = 1,
    in_flight: int = 1 << 20,
    retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008
) -> CachedReader:
    """Make a reader with a cache of ``capacity`` bytes; by default it holds one sample's chunks."""
    recipe = samples.recipe
    layouts = make_layouts(recipe)
    footprint = make_footprint(recipe, layouts)
    stored = stored_variables(recipe, footprint)
    fields = Fields(layouts, batch_size, 2)
    parts = EngineParts(
        footprint,
        fields,
        BlockReader(recipe.source, stored, in_flight // num_threads),
        FieldPlaces(footprint, layouts, fields, stored),
        Borders(footprint.windows, layouts),
        num_threads,
        in_flight,
        retry_policy,
    )
    return CachedReader(parts, least_nbytes(footprint) if capacity is None else capacity)


def plain(samples: Samples, ids: np.ndarray) -> dict[str, np.ndarray]:
    return read_samples(samples.recipe, make_layouts(samples.recipe), ids)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].flags.c_contiguous
        np.testing.assert_array_equal(found[name], array)


def line(num_steps: int = 24, chunk: int = 4, window: int = 2, **kwargs: Any) -> Samples:
    """Make windows over a line of steps with 3 numbers each."""
    values = np.arange(num_steps * 3, dtype=np.float32).reshape(num_steps, 3)
    dataset = xr.Dataset({"a": (("time", "x"), values)})
    store = write_store(dataset, {"a": (chunk, 3)})
    return xloader.open(store, **kwargs).window(time=window, stride=1)


BLOCK = 4 * 3 * 4
"""Bytes of a chunk in `line`."""


# Predicted reads and correct values


@given(cases(may_be_weighted=False), st.data())
def test_reads_are_those_foretold_and_values_those_of_the_samples(
    case: Case, data: st.DataObject
) -> None:
    samples, store = case.samples, case.store
    footprint = make_footprint(samples.recipe, make_layouts(samples.recipe))
    some_id = st.integers(0, len(samples) - 1)
    # More rows than a batch has otherwise, none at all, and the same ones again.
    batches = data.draw(st.lists(st.lists(some_id, max_size=9), min_size=1, max_size=8))
    least = least_nbytes(footprint)
    capacity = least + data.draw(st.integers(0, footprint.total_nbytes))
    num_threads = data.draw(st.integers(1, 3))
    in_flight = data.draw(st.sampled_from([1, 100, 1 << 20]))
    expected = simulate(footprint, np.concatenate(batches).astype(np.int64), capacity)
    store.reset()
    with make_reader(samples, capacity, num_threads=num_threads, in_flight=in_flight) as reader:
        found = [reader.read(np.array(batch, np.int64)) for batch in batches]
        assert store.num_reads == expected.num_reads == reader.tally.num_reads
        assert reader.tally.read_nbytes == expected.read_nbytes
        assert reader.tally.peak_nbytes == expected.peak_nbytes <= capacity
    # Label fields are not gathered: they are filled as a batch is finished.
    gathered = [layout.name for layout in make_layouts(samples.recipe) if layout.parts]
    for batch, arrays in zip(batches, found, strict=True):
        assert list(arrays) == list(samples.fields)
        expected_arrays = plain(samples, np.array(batch, np.int64))
        assert_same(
            {name: arrays[name] for name in gathered},
            {name: expected_arrays[name] for name in gathered},
        )


def test_few_rows_do_not_keep_the_memory_of_a_full_batch() -> None:
    with make_reader(line(), batch_size=1000) as reader:
        (array,) = reader.read(np.array([3])).values()
    assert array.base is None


@pytest.mark.parametrize(("room", "num_requests"), [(6, 1), (2, 4)])
def test_chunks_of_a_shard_that_rows_of_a_batch_need_are_read_together(
    room: int, num_requests: int
) -> None:
    values = np.arange(24, dtype=np.float32)
    store = write_store(
        xr.Dataset({"a": ("time", values)}), {"a": (4,)}, encoding={"a": {"shards": (24,)}}
    )
    samples = xloader.open(LatencyStore(store, 0.0)).window(time=1)
    with make_reader(samples, room * 16, batch_size=24) as reader:
        np.testing.assert_array_equal(reader.read(np.arange(24))["a"][:, 0], values)
        # The whole shard; or three parts of it, and its index.
        assert reader.tally.num_requests == num_requests


@pytest.mark.parametrize(("in_flight", "num_fetches"), [(1, 1), (3 * BLOCK, 3), (99 * BLOCK, 6)])
def test_chunks_under_way_are_bounded_by_bytes_alone(in_flight: int, num_fetches: int) -> None:
    values = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    crowd = Crowd(write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (4, 3)}))
    samples = xloader.open(crowd).window(time=1)
    with make_reader(samples, 6 * BLOCK, batch_size=24, in_flight=in_flight) as reader:
        crowd.peak, crowd.expected = 0, num_fetches
        np.testing.assert_array_equal(reader.read(np.arange(24))["a"][:, 0], values)
    assert crowd.peak == num_fetches


def test_a_run_is_followed_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xloader.engine.cached_reader._MOST_LOADS", 7)
    samples = line(window=1)
    with make_reader(samples, 2 * BLOCK) as reader:
        for number in range(1, 5):
            ids = np.arange(24)
            assert_same(reader.read(ids), plain(samples, ids))
            assert reader.tally.num_reads == reader.tally.num_requests == 6 * number


def noting(done: list[int], number: int) -> ThreadTask:
    """A task that notes its number when it is done."""
    return ThreadTask((), lambda _: done.append(number))


def test_where_the_system_gives_no_more_threads_those_there_do_it_all() -> None:
    done, start = list[int](), threading.Thread.start
    # One thread checks the time limits, and one does the tasks.
    num_asked, num_given = 0, 2

    def begin(thread: threading.Thread) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked > num_given:
            raise RuntimeError("no more threads")
        start(thread)

    with (
        TaskThreads(RetryPolicy(), "test") as threads,
        patch.object(threading.Thread, "start", begin),
    ):
        threads.do([noting(done, number) for number in range(5)], 3)
    assert num_asked > num_given
    assert done == [0, 1, 2, 3, 4]


def test_where_the_system_gives_no_thread_at_all_it_is_an_error() -> None:
    done = list[int]()
    with TaskThreads(RetryPolicy(), "test") as threads:
        refused = patch.object(threading.Thread, "start", side_effect=RuntimeError("no threads"))
        with refused, pytest.raises(RuntimeError, match="no threads"):
            threads.do([noting(done, 0)], 3)
        threads.do([noting(done, 1)], 3)
    assert done == [1]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_reader_made_for_a_memory_budget_works_with_the_least_memory(num_workers: int) -> None:
    samples = line()
    make = partial(
        CachedReader.of, samples.recipe, prefetch=2, num_cores=3, num_workers=num_workers
    )
    with pytest.raises(MemoryBudgetError) as caught:
        make(num_workers * BLOCK, 64)
    least = caught.value.minimum_nbytes
    with pytest.raises(MemoryBudgetError):
        make(least - 1, 64)
    with make(least, 64) as reader:
        ids = np.random.default_rng(0).permutation(len(samples))
        assert_same(reader.read(ids), plain(samples, ids))
        assert reader.tally.peak_nbytes == 2 * BLOCK


# Refusals and faults


def test_an_id_out_of_range_leaves_the_reader_as_it_was() -> None:
    samples = line()
    with make_reader(samples) as reader:
        with pytest.raises(SampleIndexError, match="out of range"):
            reader.read(np.array([0, 99]))
        assert_same(reader.read(np.arange(4)), plain(samples, np.arange(4)))


@pytest.mark.parametrize(("num_threads", "room"), [(1, 1), (3, 2), (3, 6)])
def test_after_a_chunk_that_does_not_decode_reading_goes_on(num_threads: int, room: int) -> None:
    values = np.arange(24, dtype=np.float32)
    store = write_store(xr.Dataset({"a": ("time", values)}), {"a": (4,)})
    faulty = FaultyStore(store, {"a/c/2": garble}, times=2)
    samples = xloader.open(faulty).window(time=1)
    ids = np.array([0, 20, 5, 9, 16, 12])
    with make_reader(samples, room * 16, batch_size=6, num_threads=num_threads) as reader:
        for _ in range(2):
            with pytest.raises(CorruptChunkError, match=r"variable 'a', chunk \(2,\)"):
                reader.read(ids)
            np.testing.assert_array_equal(reader.read(ids[:3])["a"][:, 0], values[ids[:3]])
        before = reader.tally.num_reads
        np.testing.assert_array_equal(reader.read(ids)["a"][:, 0], values[ids])
        assert before < reader.tally.num_reads <= before + 6
        assert reader.tally.peak_nbytes <= room * 16


def test_absent_chunks_are_counted() -> None:
    values = np.arange(24, dtype=np.float32)
    store = write_store(xr.Dataset({"a": ("time", values)}), {"a": (4,)})
    samples = xloader.open(FaultyStore(store, {"a/c/2": None})).window(time=1)
    with make_reader(samples, 96) as reader:
        with pytest.warns(ChunkWarning):
            found = reader.read(np.arange(24))["a"]
        assert np.isnan(found[8:12]).all()
        assert reader.tally.num_missing == 1


def test_of_a_store_that_hangs_one_chunk_is_waited_for() -> None:
    values, hung = np.arange(24, dtype=np.float32), list[str]()
    store = write_store(xr.Dataset({"a": ("time", values)}), {"a": (4,)})
    released.append(threading.Event())

    class Hanging(HangingSync):
        def _hang(self, key: str) -> None:
            if "/c/" in key and not released[-1].is_set():
                hung.append(key)
                released[-1].wait(20)

    samples = xloader.open(Hanging(store)).window(time=1)
    with make_reader(samples, 96, batch_size=24, retry_policy=RetryPolicy(0.2, 1)) as reader:
        with pytest.raises(ReadTimeoutError, match="variable 'a'"):
            reader.read(np.arange(24))
        assert len(hung) == 2
        assert len(set(hung)) == 1
        released[-1].set()
        np.testing.assert_array_equal(reader.read(np.arange(24))["a"][:, 0], values)


def test_a_store_that_changed_is_not_read_from_memory() -> None:
    samples = line(window=1)
    with make_reader(samples, 6 * BLOCK) as reader:
        reader.read(np.arange(4))
        changed = patch.object(ChangeWatch, "check", side_effect=StoreChangedError("it changed"))
        with changed, pytest.raises(StoreChangedError):
            reader.read(np.arange(4))
        reader.read(np.arange(4))
        assert reader.tally.num_reads == 2


@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_interrupt_leaves_nothing_half_done(num_threads: int) -> None:
    samples = line(window=1)
    source = _Interrupted(samples.recipe.source)
    broken = Samples(replace_source(samples, source))
    with make_reader(broken, 6 * BLOCK, batch_size=24, num_threads=num_threads) as reader:
        with pytest.raises(KeyboardInterrupt):
            reader.read(np.arange(24))
        assert_same(reader.read(np.arange(24)), plain(samples, np.arange(24)))


class _Interrupted(SourceRecorder):
    """A source that reads chunks one by one, and raises an interrupt at the third read."""

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Any:
        return variable, chunk

    def fetch(self, reads: Any) -> Any:
        if self.num_reads == 2:
            super().fetch(reads)
            raise KeyboardInterrupt
        return super().fetch(reads)


def replace_source(samples: Samples, source: Any) -> Any:
    return replace(samples.recipe, source=source)


# Processes, threads, and the end of a reader


def threads_of_readers() -> set[threading.Thread]:
    """Return all threads but those of zarr, which starts one at the first read of a process."""
    return {own for own in threading.enumerate() if own.name.startswith("xloader-")}


def test_a_closed_reader_reads_no_more_and_has_no_threads() -> None:
    before = threads_of_readers()
    reader = make_reader(line(), 6 * BLOCK, batch_size=23, num_threads=3)
    reader.read(np.arange(23))
    mine = threads_of_readers() - before
    names = {t.name.rpartition("-")[0] for t in mine}
    assert names == {"xloader", "xloader-deadline"}
    reader.close()
    reader.close()
    assert not any(thread.is_alive() for thread in mine)
    with pytest.raises(ClosedError, match="closed"):
        reader.read(np.arange(2))


def test_a_reader_left_to_itself_ends_its_threads() -> None:
    before = threads_of_readers()
    reader = make_reader(line(), 6 * BLOCK, batch_size=23, num_threads=3)
    reader.read(np.arange(23))
    mine = threads_of_readers() - before
    assert mine
    del reader
    gc.collect()
    for thread in mine:
        thread.join(5)
    assert not any(thread.is_alive() for thread in mine)


def test_threads_of_a_user_read_one_after_the_other() -> None:
    samples = line()
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, len(samples), 4) for _ in range(40)]
    found: dict[int, dict[str, np.ndarray]] = {}
    with make_reader(samples, 3 * BLOCK) as reader:

        def read(number: int) -> None:
            found.update({i: reader.read(batches[i]) for i in range(number, 40, 4)})

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, batch in enumerate(batches):
        assert_same(found[number], plain(samples, batch))


@contextmanager
def in_the_midst_of_a_read(reader: CachedReader) -> Iterator[None]:
    """Hold the reader's lock on another thread."""
    is_held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with reader._here().lock:
            is_held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    yield
    go_on.set()
    thread.join()


def in_memory() -> Samples:
    """Return three variables in plain memory, which a forked child may read."""
    values = {name: (("time", "x"), np.ones((24, 3)) * i) for i, name in enumerate("abc")}
    return xloader.open(xr.Dataset(values)).window(time=2, stride=1)


def in_a_zip_file(path: str) -> Samples:
    """Return samples of an open zip file, whose file position a forked child would share."""
    folder = Path(path)
    values = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (4, 3)}, folder / "a.zarr")
    shutil.make_archive(str(folder / "a"), "zip", folder / "a.zarr")
    opened = xloader.open(ZipStore(folder / "a.zip", mode="r"))
    return opened.window(time=2, stride=1)


def run_forked(body: str, samples: str) -> subprocess.CompletedProcess[str]:
    """Run a program that forks while one thread reads and others wait for work."""
    program = f"""
import os, sys
import numpy as np
from tests.test_cached_reader import *
from xloader.errors import ForkError
samples = {samples}
reader = make_reader(samples, 1 << 20, batch_size=23, num_threads=3)
ids = np.arange(23)
reader.read(ids)
num_reads = reader.tally.num_reads
with in_the_midst_of_a_read(reader):
    pid = os.fork()
    if pid == 0:
{body}
        reader.close()
        sys.stdout.flush()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert_same(reader.read(ids), plain(samples, ids))
assert reader.tally.num_reads == num_reads
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_begins_anew() -> None:
    body = """
        assert reader.tally.num_reads == 0
        assert_same(reader.read(ids), plain(samples, ids))
        assert reader.tally.num_reads == num_reads == 3
        assert threading.active_count() > 1
"""
    done = run_forked(body, "in_memory()")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_store_that_does_not_survive_a_fork_says_so_at_once(tmp_path: Path) -> None:
    body = """
        try:
            reader.read(ids)
        except ForkError as error:
            print(error)
"""
    done = run_forked(body, f"in_a_zip_file({str(tmp_path)!r})")
    assert done.returncode == 0, done.stderr
    assert "was opened before this process was forked" in done.stdout
