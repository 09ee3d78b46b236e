"""A read that never returns does not hold up the loop, close() or the end of the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.hanging import (
    FOR_EVER,
    KEY,
    KINDS,
    SEED,
    STEPS,
    HangingAsync,
    HangingSync,
    make_samples,
    released,
)
from xloader.core.retry_policy import RetryPolicy
from xloader.engine.threads import Deadlines
from xloader.errors import ChunkWarning, ClosedError, ReadTimeoutError, SourceAccessError
from xloader.sources.retries import Attempts
from xloader.sources.zarr import object_readers
from xloader.testing import write_store

ENDS_WITHIN = 120.0
"""Seconds, far more than any test here takes and far less than the hanging reads."""

# A blocked event loop would block all tests of this process, so that kind runs elsewhere.
kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:
    """Release stuck threads after each test, so that they end."""
    released.append(threading.Event())
    yield
    released[-1].set()


def read_until_error(loader: Any) -> ReadTimeoutError:
    with pytest.raises(ReadTimeoutError) as caught:
        for _ in loader:
            pass
    return caught.value


@pytest.mark.parametrize(("kind", "shuffle"), [("sync", True), ("async", False)])
def test_a_chunk_that_never_comes_is_an_error_that_names_it(kind: str, shuffle: bool) -> None:
    samples = make_samples(kind, read_timeout=0.2, max_retries=1)
    with samples.loader(batch_size=4, shuffle=shuffle, output="numpy") as loader:
        error = read_until_error(loader)
        assert (error.variable, error.chunk, error.key) == ("t", (3, 0), KEY)
        assert (error.seconds, error.attempts) == (0.2, 2)
        assert isinstance(error, TimeoutError)
        assert "2 attempts of 0.2 s" in str(error)
        report = loader.report()
        assert report.num_retries == 1


@pytest.mark.parametrize(("way", "max_retries"), [("one by one", 2), ("compiled", 0)])
def test_the_chunk_that_hangs_is_named_among_those_read_together(
    way: str, max_retries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small chunks that a sample needs first are one task, of which one chunk hangs."""
    values = np.arange(STEPS * 4.0).reshape(STEPS, 4)
    ds = xr.Dataset(dict.fromkeys("stu", (("time", "x"), values)))
    store = write_store(ds, dict.fromkeys("stu", (5, 2)), tmp_path)
    if way == "one by one":
        store = HangingSync(write_store(ds, dict.fromkeys("stu", (5, 2))))
    else:
        hang_after_two_files(monkeypatch)
        # Native threads read one file at a time.
        monkeypatch.setattr("xloader.engine.run.can_run_natively", lambda parts: False)
    samples = xloader.open(store, read_timeout=0.2, max_retries=max_retries).window(time=1)
    with samples.loader(batch_size=4, shuffle=False, output="numpy") as loader:
        error = read_until_error(loader)
    assert (error.variable, error.chunk, error.key) == ("t", (3, 0), KEY)
    assert error.attempts == max_retries + 1


def test_the_chunk_that_hangs_is_named_in_joined_stores() -> None:
    """Chunks of two stores are one task, and named as in the whole."""
    ds = xr.Dataset({"t": (("time", "x"), np.arange(80.0).reshape(20, 4))})
    stores = [write_store(ds, {"t": (5, 4)}) for _ in range(2)]
    parts = [stores[0], HangingSync(stores[1])]
    whole = xloader.concat(parts, dim="time", read_timeout=0.2, max_retries=0)
    with whole.window(time=40).loader(batch_size=1, output="numpy") as loader:
        error = read_until_error(loader)
    assert (error.variable, error.chunk, error.key) == ("t", (7, 0), KEY)


def test_each_arrival_lets_the_time_limit_start_anew() -> None:
    deadlines = Deadlines(RetryPolicy(), "a store", print)
    attempts = Attempts(RetryPolicy())
    num = 0

    def look(now: float) -> float | None:
        return deadlines._since(attempts, now)

    attempts._keys, attempts._num_there = ("a", "b", "c"), lambda: num
    assert look(1.0) is None
    attempts._waited = [None], 10.0
    assert look(11.0) == 10.0
    num = 2
    assert [look(12.0), look(13.0)] == [12.0, 12.0]
    # The next files that are waited for.
    attempts._waited = [None], 20.0
    num = 0
    assert look(21.0) == 20.0
    num = 2
    assert look(22.0) == 22.0


def hang_after_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiled read of ``KEY`` hang, after the files before it."""
    read_pieces = object_readers.read_pieces

    def read_or_hang(prefix: str, parts: Any, buffer: Any, told: Any) -> Any:
        keys = [part.key for part in parts]
        if KEY in keys and keys.index(KEY):
            read_pieces(prefix, parts[: keys.index(KEY)], buffer, told)
        if KEY in keys:
            released[-1].wait(FOR_EVER)
        return read_pieces(prefix, parts, buffer, told)

    monkeypatch.setattr(object_readers, "read_pieces", read_or_hang)


@kinds
def test_all_batches_before_it_come(kind: str) -> None:
    samples = make_samples(kind, read_timeout=0.2, max_retries=0)
    ids: list[int] = []
    with samples.loader(batch_size=5, output="numpy", shuffle=False) as loader:
        read_until_error(ids.extend(batch.ids.tolist()) for batch in loader)
        assert ids == list(range(15))


@pytest.mark.parametrize(("kind", "door"), [("sync", "map"), ("async", "batches")])
def test_the_error_comes_by_other_doors(kind: str, door: str) -> None:
    from xloader.torch import IterableDataset, data_loader

    samples = make_samples(kind, read_timeout=0.2, max_retries=1)
    read_until_error(data_loader(samples, 4) if door == "map" else IterableDataset(samples, 4))


@kinds
def test_the_error_comes_without_a_plan(kind: str) -> None:
    from xloader.torch import MapDataset

    samples = make_samples(kind, read_timeout=0.2, max_retries=1)
    dataset = MapDataset(samples)
    for read in (samples.__getitem__, samples.to_xarray, dataset.__getitem__):
        with pytest.raises(ReadTimeoutError, match=r"chunk \(3, 0\)"):
            read(17)
        # Other chunks can still be read.
        read(40)
    dataset.close()


@kinds
def test_close_ends_the_loop_of_another_thread(kind: str) -> None:
    loader = make_samples(kind).loader(batch_size=4, output="numpy")
    came: list[BaseException | None] = []

    def take() -> None:
        try:
            for _ in loader:
                pass
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    wait_until(lambda: is_waited_for(loader))
    loader.close()
    thread.join(ENDS_WITHIN)
    assert not thread.is_alive()
    assert isinstance(came[0], ClosedError)


def test_another_epoch_begins_while_a_read_of_the_last_one_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = make_samples("sync")
    with samples.loader(batch_size=4, seed=SEED, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        wait_until(lambda: is_waited_for(loader))
        # New reads are answered, and the one read that hangs still hangs.
        monkeypatch.setattr(KINDS["sync"], "_hang", lambda self, key: None)
        for _ in range(2):
            values = {i: v for b in loader for i, v in zip(b.ids.tolist(), b.t, strict=True)}
            assert sorted(values) == list(range(100))
            assert all((v[0] == np.arange(4.0) + 4 * i).all() for i, v in values.items())


def test_what_comes_back_late_is_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that is answered late, with other bytes, changes no batch."""
    ds = xr.Dataset({"t": (("time", "x"), np.arange(400.0).reshape(100, 4))})
    go_on, has_come = threading.Event(), threading.Event()
    hung: list[str] = []

    class Late(KINDS["sync"]):  # type: ignore[misc, name-defined]
        def _hang(self, key: str) -> None:
            if key == KEY and not hung:
                hung.append(key)
                go_on.wait(ENDS_WITHIN)
                has_come.set()

        def get_sync(self, key: str, **kwargs: Any) -> Any:
            is_late = key == KEY and not hung
            found = super().get_sync(key, **kwargs)
            return type(found).from_bytes(found.to_bytes()[::-1]) if is_late else found

    store = Late(write_store(ds, {"t": (5, 4)}, encoding={"t": {"compressors": None}}))
    samples = xloader.open(store, read_timeout=0.2).window(time=1)
    with samples.loader(batch_size=100, output="numpy", shuffle=False) as loader:
        (batch,) = loader
        before = batch.t.copy()
        go_on.set()
        assert has_come.wait(ENDS_WITHIN)
        assert loader.report().num_retries == 1
        (again,) = loader
        for values in (before, batch.t, again.t):
            np.testing.assert_array_equal(values[:, 0], ds.t.values)


def test_who_waits_long_is_told_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xloader.engine.threads.LONG_SECONDS", 0.05)
    samples = make_samples("sync", read_timeout=0.5, max_retries=0)
    told = pytest.warns(ChunkWarning, match=r"chunk \(3, 0\) of variable 't'.*t/c/3/0")
    with samples.loader(batch_size=4, output="numpy") as loader, told:
        read_until_error(loader)


def test_who_does_not_wait_long_is_told_nothing() -> None:
    samples = make_samples("sync", read_timeout=0.2, max_retries=0)
    with samples.loader(batch_size=4, output="numpy") as loader, warnings.catch_warnings():
        warnings.simplefilter("error", ChunkWarning)
        read_until_error(loader)


def test_shards_whose_index_never_comes() -> None:
    """Threads that wait for the same shard index get an error in time, whoever was reading it."""
    ds = xr.Dataset({"t": (("time", "x"), np.arange(400.0).reshape(100, 4))})
    encoding = {"t": {"shards": (25, 4)}}
    store = KINDS["sync"](write_store(ds, {"t": (5, 4)}, encoding=encoding))
    samples = xloader.open(store, read_timeout=0.2, max_retries=2).window(time=1)
    with samples.loader(batch_size=4, output="numpy", threads=4) as loader:
        assert read_until_error(loader).key == KEY


@pytest.mark.parametrize(
    ("kind", "door", "what"),
    [
        ("sync", "loader", "exit"),
        *(("loop", "loader", what) for what in ("error", "interrupt")),
        *(("sync", "data_loader-2", what) for what in ("exit", "interrupt")),
        ("async", "data_loader-0", "interrupt"),
        ("async", "data_loader-2", "error"),
    ],
)
def test_the_process_ends(kind: str, door: str, what: str, tmp_path: Path) -> None:
    """The process ends, normally or after one Ctrl-C, while a read never returns."""
    folder = str(tmp_path / "store.zarr")
    make_samples(kind, Path(folder))
    done = subprocess.run(
        [sys.executable, "-m", "tests.hanging", kind, door, what, folder],
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
        check=False,
    )
    told = {"exit": "leaving", "interrupt": "interrupted", "error": "timed out"}[what]
    assert done.stdout.strip() == told, done.stderr
    assert done.returncode == 0


def steps_that_come() -> xloader.Samples:
    """A hundred samples of four numbers in twenty chunks, none of which hangs."""
    ds = xr.Dataset({"t": (("time", "x"), np.arange(400.0, dtype="f4").reshape(100, 4))})
    return xloader.open(write_store(ds, {"t": (5, 4)})).window(time=1)


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Tests that run in the background would otherwise ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# An interrupt between two batches leaves the epoch, and the next loop begins it anew.
@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_at_any_moment_is_a_keyboard_interrupt_and_the_loader_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = steps_that_come()
    rng = np.random.default_rng(0)
    main = threading.main_thread().ident
    assert main is not None
    lost_in: list[str] = []

    def interrupt(delay: float) -> threading.Timer:
        timer = threading.Timer(delay, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        return timer

    def interrupt_again(unraisable: Any) -> None:
        # Python itself loses an interrupt that falls into a finalizer. None of them may be ours.
        assert unraisable.exc_type is KeyboardInterrupt
        lost_in.append(unraisable.exc_traceback.tb_frame.f_code.co_filename)
        interrupt(0.001)

    monkeypatch.setattr("sys.unraisablehook", interrupt_again)
    with samples.loader(batch_size=4, output="numpy") as loader:
        num_interrupted = 0
        for delay in rng.uniform(0.0, 0.02, 30):
            try:
                timer = interrupt(delay)
                while True:
                    for _ in loader:
                        pass
            except KeyboardInterrupt:
                num_interrupted += 1
            timer.join()
            assert sorted(i for b in loader for i in b.ids) == list(range(100))
        assert num_interrupted == 30
    ours = Path(xloader.__file__).parent
    assert not [name for name in lost_in if ours in Path(name).parents]


# A thread that begins late begins the epoch once more.
@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
def test_three_threads_over_one_loader_end() -> None:
    samples = steps_that_come()
    for _ in range(10):
        with samples.loader(batch_size=4, output="numpy", memory="64KiB") as loader:
            wrong: list[BaseException] = []

            def iterate(loader: xloader.Loader = loader, wrong: Any = wrong) -> None:
                try:
                    for batch in loader:
                        assert (batch.t[:, 0, 0] == 4 * batch.ids).all()
                except ClosedError:
                    pass
                except BaseException as error:
                    wrong.append(error)

            run_together(iterate, 3)
            assert not wrong
            assert sorted(i for b in loader for i in b.ids) == list(range(100))


def test_three_threads_take_from_one_iterator() -> None:
    samples = steps_that_come()
    for _ in range(10):
        with samples.loader(batch_size=4, output="numpy") as loader:
            iterator, ids, wrong = iter(loader), list[int](), list[BaseException]()

            def take(iterator: Any = iterator, ids: Any = ids, wrong: Any = wrong) -> None:
                try:
                    for batch in iterator:
                        ids.extend(batch.ids.tolist())
                except BaseException as error:
                    wrong.append(error)

            run_together(take, 3)
            assert not wrong
            assert sorted(ids) == list(range(100))


def test_a_thread_that_ctrl_c_kept_from_starting_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = steps_that_come()
    start, num_started = threading.Thread.start, 0

    def interrupted(self: threading.Thread) -> None:
        nonlocal num_started
        num_started += 1
        if num_started == 3:
            raise KeyboardInterrupt
        start(self)

    with samples.loader(batch_size=4, output="numpy", threads=4) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        assert sum(len(batch.ids) for batch in loader) == 100


def run_together(target: Any, count: int) -> None:
    threads = [threading.Thread(target=target, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ENDS_WITHIN)
        assert not thread.is_alive()


def is_waited_for(loader: xloader.Loader) -> bool:
    """Return whether some thread waits for the chunk that never comes."""
    run = loader._run
    return run is not None and any(
        own.key == KEY and own.since is not None for own in list(run._deadlines._under_way)
    )


def wait_until(is_so: Any) -> None:
    until = time.monotonic() + ENDS_WITHIN
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_labels_that_never_come_are_an_error_of_the_store() -> None:
    """A store object whose labels never come raises the same error as a URL."""
    ds = xr.Dataset({"t": (("time",), np.arange(20.0))}, {"time": np.arange(20)})
    store = HangingAsync(write_store(ds, {"t": (5,)}), "time/c/0")
    samples = xloader.open(store, read_timeout=0.2, max_retries=1)
    with pytest.raises(SourceAccessError, match=r"2 attempts of 0\.2 s.*while reading its labels"):
        samples.sel(time=5)
