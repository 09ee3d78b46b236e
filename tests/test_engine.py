"""The engine from inside: where chunks are decoded, bytes in flight, and the end of a run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.abc.store import Store
from zarr.core.buffer import Buffer

import xloader
from xloader.engine.fetches_ahead import MOST_REQUESTS, FetchesAhead
from xloader.engine.finishes import Finishes
from xloader.engine.run import Run
from xloader.engine.tally import Tally
from xloader.errors import ClosedError
from xloader.sources.zarr.fetched_chunks import SingleChunks
from xloader.testing import LatencyStore, SourceRecorder, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

GUARD = 20.0
"""Seconds after which a waiting task counts as stuck."""


def steps(num_steps: int, size: int = 500) -> xr.Dataset:
    """Make two variables with one step per chunk."""
    values = np.arange(num_steps * size, dtype="f4").reshape(num_steps, size)
    return xr.Dataset({"t": (("time", "x"), values), "u": (("time", "x"), -values)})


def store_of(ds: xr.Dataset, num_steps: int = 1, **encoding: Any) -> Store:
    chunks = {str(name): (num_steps, *v.shape[1:]) for name, v in ds.items()}
    return write_store(ds, chunks, encoding=dict.fromkeys(chunks, encoding))


def recorded(samples: xloader.Samples) -> tuple[xloader.Samples, SourceRecorder]:
    """Return the same samples over a source that records its reads."""
    recorder = SourceRecorder(samples.recipe.source)
    return replace(samples, recipe=replace(samples.recipe, source=recorder)), recorder


def ends(task: Callable[[], object]) -> bool:
    """Return whether a task ends in time."""
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    thread.join(GUARD)
    return not thread.is_alive()


def window(store: Store) -> xloader.Samples:
    return xloader.open(store).window(time=1).field("all", ["t", "u"])


def threads_of_runs() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("xloader-")]


def check(loader: xloader.Loader, ds: xr.Dataset) -> int:
    """Compare every batch of single steps with the dataset; return the number of batches."""
    num_batches = 0
    for batch in loader:
        num_batches += 1
        for number, name in enumerate(ds):
            np.testing.assert_array_equal(batch[0][:, number, 0], ds[name].values[batch.ids])
    return num_batches


# Chunks that are rows


def test_small_chunks_that_a_sample_needs_first_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    fetch = SourceRecorder.fetch

    def note(self: SourceRecorder, reads: Any) -> Any:
        sizes.append(len(reads))
        return fetch(self, reads)

    monkeypatch.setattr(SourceRecorder, "fetch", note)
    samples = xloader.open(store_of(steps(24))).window(time=4)
    samples, recorder = recorded(samples)
    with samples.loader(batch_size=2, memory="192KiB", output="numpy", threads=1) as loader:
        assert len(list(loader)) == 3
    # Of two variables of four steps.
    assert 2 < max(sizes) <= 8
    assert recorder.num_reads == sum(sizes) == 48


def test_batches_cost_no_task_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    num = {"make_segment": 0, "finish": 0}

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def call(*args: Any) -> Any:
            num[name] += 1
            return original(*args)

        monkeypatch.setattr(kind, name, call)

    count(Run, "make_segment")
    count(Finishes, "finish")
    samples = window(store_of(steps(400, 50)))
    # NaN is looked for in the first eight batches by default.
    for own, options, num_finished in (
        (samples, {"on_nan": "ignore"}, 0),
        (samples, {}, 8),
        (samples, {"on_nan": "ignore", "device": xloader.OnDevice(dtype="float16")}, 200),
        (samples.fillna(0.0), {"on_nan": "ignore"}, 200),
    ):
        num.update(make_segment=0, finish=0)
        with own.loader(batch_size=2, memory="1MiB", output="numpy", **options) as loader:
            assert len(list(loader)) == 200
        assert num == {"make_segment": 2, "finish": num_finished}


# Fetching ahead


class Crowd(LatencyStore):
    """Counts waiting requests, and answers none before the expected number of them wait."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 0.005)
        self.num = self.peak = self.expected = 0
        self.patience = 20.0

    async def get(self, key: str, *args: Any, **options: Any) -> Buffer | None:
        if key.endswith("zarr.json"):
            return await super().get(key, *args, **options)
        self.num += 1
        self.peak = max(self.peak, self.num)
        while self.peak < self.expected and self.patience > 0:
            self.patience -= self.seconds
            await self._pause()
        buffer = await super().get(key, *args, **options)
        self.num -= 1
        return buffer


def test_many_are_fetched_at_a_time_and_no_more_than_allowed() -> None:
    ds = steps(300, size=50)
    crowd = Crowd(store_of(ds))
    with window(crowd).loader(batch_size=4, memory="1MiB", output="numpy", threads=2) as loader:
        crowd.peak, crowd.expected = 0, MOST_REQUESTS // 2
        assert check(loader, ds) == 75
    assert crowd.expected <= crowd.peak <= MOST_REQUESTS


@pytest.mark.parametrize("step", [1, 10])
def test_fetched_bytes_stay_within_what_is_in_flight(step: int) -> None:
    """If a chunk is cut down, all its stored bytes count as in flight."""
    ds = steps(200, size=4000)
    store = LatencyStore(store_of(ds, compressors=None), 0.0)
    samples = xloader.open(store).isel(x=slice(None, None, step)).window(time=1)
    samples, recorder = recorded(samples)
    with samples.loader(batch_size=1, memory="512KiB", output="numpy") as loader:
        assert not loader.plan.is_resident
        assert sum(1 for _ in loader) == 200
        assert 0 < recorder.peak_held_nbytes <= loader.plan.budget.in_flight_nbytes


def test_closing_in_the_midst_of_fetching_leaves_no_thread() -> None:
    ds = steps(300, size=50)
    with window(LatencyStore(store_of(ds), 0.01)).loader(batch_size=4, memory="1MiB") as loader:
        iterator: Any = iter(loader)
        next(iterator)
        assert any("fetch" in thread.name for thread in threads_of_runs())
        iterator.close()
        # `close` waits for a second and a half, which may be too short on a busy machine.
        for thread in threads_of_runs():
            thread.join(GUARD)
        assert not threads_of_runs()
        with pytest.raises(ClosedError):
            iterator.run.take()


def test_a_bug_on_a_fetching_thread_ends_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchesAhead, "_pass_on", lambda *args: 1 / 0)
    with window(LatencyStore(store_of(steps(20)), 0.0)).loader(batch_size=4) as loader:
        caught: list[BaseException] = []

        def take() -> None:
            try:
                next(iter(loader))
            except ZeroDivisionError as error:
                caught.append(error)

        assert ends(take)
        assert caught


def outcome_of(code: str) -> tuple[str, int, str]:
    """Run code in a process of its own; return its output, exit code and errors."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=3 * GUARD,
        check=False,
    )
    return done.stdout.strip(), done.returncode, done.stderr.strip()


def test_a_thread_iterates_on_after_the_main_thread_has_ended() -> None:
    code = """
        import threading
        import numpy as np, xarray as xr, xloader
        from xloader.testing import LatencyStore, write_store

        main = threading.main_thread()
        ds = xr.Dataset({"t": ("time", np.arange(400.0))})
        store = LatencyStore(write_store(ds, {"t": (1,)}), 0.001)

        def work():
            with xloader.open(store).window(time=1).loader(batch_size=4, output="numpy") as loader:
                batches = iter(loader)
                main.join()
                print(sum(1 for _ in batches) + sum(1 for _ in loader))

        threading.Thread(target=work).start()
    """
    assert outcome_of(code) == ("200", 0, "")


# The end of a run


def test_an_old_iterator_leaves_the_next_epoch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing an old iterator twice leaves the resident blocks to the next epoch."""
    ds = steps(100)
    gate, is_inside, decode = threading.Event(), threading.Event(), SingleChunks.decode

    def slow(self: SingleChunks, outs: Any) -> Any:
        is_inside.set()
        gate.wait(GUARD)
        return decode(self, outs)

    with window(store_of(ds)).loader(batch_size=4, memory="64MiB", output="numpy") as loader:
        assert loader.plan.is_resident
        old: Any = iter(loader)
        old.run.close()
        monkeypatch.setattr(SingleChunks, "decode", slow)
        batches: list[Any] = []
        consumer = threading.Thread(target=batches.extend, args=(loader,))
        consumer.start()
        assert is_inside.wait(GUARD)
        old.close()
        gate.set()
        consumer.join(GUARD)
        assert len(batches) == len(loader)
        for batch in batches:
            np.testing.assert_array_equal(batch[0][:, 0, 0], ds["t"].values[batch.ids])


@pytest.mark.parametrize("owner", ["hand", "fetch"])
def test_an_iterator_collected_while_a_thread_of_its_run_holds_the_lock(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = steps(100)
    garbage: list[Any] = []
    kind, name = (Tally, "add_work") if owner == "hand" else (FetchesAhead, "_go_on")
    method = getattr(kind, name)

    def collecting(self: Any, *args: Any) -> Any:
        if garbage:
            garbage.clear()
        return method(self, *args)

    monkeypatch.setattr(kind, name, collecting)
    options: dict[str, Any] = {"batch_size": 4, "memory": "96KiB", "output": "numpy"}
    with window(LatencyStore(store_of(ds), 0.001)).loader(**options) as loader:
        iterator: Any = iter(loader)
        next(iterator)
        run: Run = iterator.run
        garbage.append(iterator)
        del iterator

        def rest() -> None:
            try:
                while run.take():
                    pass
            except ClosedError:
                pass
            assert check(loader, ds) == 25

        assert ends(rest)
        assert not garbage


# Batches


def test_batches_lie_where_earlier_ones_lay() -> None:
    ds = steps(100)
    with window(store_of(ds)).loader(
        batch_size=4, memory="96KiB", output="numpy", prefetch=1
    ) as loader:
        epochs = [{batch[0].ctypes.data for batch in loader} for _ in range(3)]
        # A thread that has decoded into a batch may hold it a moment longer.
        assert len(set.union(*epochs)) <= loader.options.prefetch + 2 + loader.options.num_threads
        assert epochs[1] & epochs[2]
