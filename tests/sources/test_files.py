"""Files that xarray opens: no read runs during an opening, and no library cache is kept."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK

import xloader
from tests.sources import kinds
from xloader.sources.open.open_source import open_source
from xloader.sources.stores.file_openers import FILE_LOCK, Gate


def write_years(folder: Path, num_years: int = 6) -> list[Path]:
    paths = []
    for year in range(num_years):
        values = np.full((10, 4), year, "f4")
        path = folder / f"{year}.nc"
        xr.Dataset({"t": (("time", "x"), values)}).to_netcdf(path, engine="netcdf4")
        paths.append(path)
    return paths


def is_locked() -> bool:
    """Whether some thread holds the lock under which xarray reads netCDF files."""
    if NETCDF4_PYTHON_LOCK.acquire(blocking=False):
        NETCDF4_PYTHON_LOCK.release()
        return False
    return True


class Watch:
    """Records how many reads and openings are behind a gate at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = {"reading": 0, "opening": 0}
        self.seen: set[tuple[int, int]] = set()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        with self.lock:
            self.now[what] += 1
            self.seen.add((self.now["reading"], self.now["opening"]))
        yield
        with self.lock:
            self.now[what] -= 1


class Queued(Gate):
    """A gate that signals when a thread has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)
        wait = self._changed.wait

        def told(timeout: float | None = None) -> bool:
            self.waits.release()
            return wait(timeout)

        self._changed.wait = told  # type: ignore[method-assign]


def test_who_came_first_goes_first() -> None:
    """Openers wait for earlier readers, and later readers wait for openers, so none starves."""
    gate = Queued()
    order: list[str] = []
    is_reading, may_leave = threading.Event(), threading.Event()

    def read_first() -> None:
        with gate.reading():
            is_reading.set()
            assert may_leave.wait(30)
            order.append("read")

    def pass_through(what: str, name: str) -> None:
        with getattr(gate, what)():
            order.append(name)

    threads = [threading.Thread(target=read_first)]
    threads[0].start()
    assert is_reading.wait(30)
    for args in [("opening", "opened"), ("reading", "read later"), ("opening", "opened later")]:
        threads.append(threading.Thread(target=pass_through, args=args))
        threads[-1].start()
        assert gate.waits.acquire(timeout=30)
    may_leave.set()
    for thread in threads:
        thread.join(30)
    assert order == ["read", "opened", "read later", "opened later"]


def test_one_who_comes_again_and_again_goes_to_the_end_of_the_queue() -> None:
    gate = Queued()
    order: list[str] = []

    def read() -> None:
        with gate.reading():
            order.append("read")

    reader = threading.Thread(target=read)
    with gate.opening():
        reader.start()
        assert gate.waits.acquire(timeout=30)
    with gate.opening():
        order.append("opened again")
    reader.join(30)
    assert order == ["read", "opened again"]


def test_an_interrupted_wait_keeps_nobody_waiting() -> None:
    gate = Gate()

    def interrupt(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    with gate.reading():
        gate._changed.wait = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt), gate.opening():
            pass
    # A thread that had to wait now would be interrupted as well.
    with gate.reading():
        pass
    with gate.opening():
        pass


def test_a_gate_is_left_when_opening_fails() -> None:
    gate = Gate()
    with pytest.raises(OSError, match="no file"), gate.opening():
        raise OSError("no file")
    with pytest.raises(OSError, match="no data"), gate.reading():
        raise OSError("no data")
    with gate.opening():
        pass


Look = Callable[[], Any]


@pytest.fixture
def at_each_opening(monkeypatch: pytest.MonkeyPatch) -> Callable[[Look], list[Any]]:
    """Make a list of what a function returns at each opening of a file by xarray."""

    def note(look: Look) -> list[Any]:
        found: list[Any] = []
        open_dataset = xr.open_dataset

        def looked_at(*args: object, **kwargs: object) -> xr.Dataset:
            found.append(look())
            return open_dataset(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(xr, "open_dataset", looked_at)
        return found

    return note


def test_files_are_opened_and_read_behind_the_gate(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_each_opening: Callable[[Look], list[Any]],
) -> None:
    watch, gate = Watch(), Gate.of_process()
    reading, opening = gate.reading, gate.opening

    @contextmanager
    def watched(what: str) -> Iterator[None]:
        with {"reading": reading, "opening": opening}[what](), watch.during(what):
            yield

    monkeypatch.setattr(gate, "reading", lambda: watched("reading"))
    monkeypatch.setattr(gate, "opening", lambda: watched("opening"))
    opened = at_each_opening(lambda: dict(watch.now))
    samples = xloader.concat(write_years(tmp_path)).window(time=3, stride=1)
    with samples.loader(batch_size=4, threads=4, output="numpy") as loader:
        assert sum(len(batch.ids) for batch in loader) == 58
    # Each file is opened for its metadata, its labels and its values.
    assert len(opened) == 3 * 6
    assert all(now == {"reading": 0, "opening": 1} for now in opened)
    assert any(reading for reading, _ in watch.seen)


def test_nothing_that_xarray_reads_is_read_beside_an_opening(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_each_opening: Callable[[Look], list[Any]],
) -> None:
    """Labels and dask tasks do not pass the gate; xarray's lock protects them."""
    path = tmp_path / "swath.nc"
    lat = (("y", "x"), np.arange(12.0).reshape(3, 4))
    xr.Dataset({"t": (("y", "x"), np.zeros((3, 4)))}, {"lat": lat}).to_netcdf(path)
    is_held = at_each_opening(is_locked)
    labels = open_source(path).coordinates()["lat"].variable
    assert is_held == [True, True]
    assert not is_locked()
    taken: list[bool] = []
    acquire = FILE_LOCK.acquire

    def counted(blocking: bool = True) -> bool:
        taken.append(acquire(blocking))
        return taken[-1]

    monkeypatch.setattr(FILE_LOCK, "acquire", counted)
    assert labels.isel(y=slice(1, 3)).to_numpy().tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert taken == [True]
    assert not FILE_LOCK.locked()


def test_a_lock_of_files_is_taken_again_by_its_thread_and_not_by_another() -> None:
    lock = FILE_LOCK
    others: list[bool] = []
    with lock:
        assert lock.acquire(blocking=False)
        lock.release()
        other = threading.Thread(target=lambda: others.append(lock.acquire(blocking=False)))
        other.start()
        other.join(30)
        assert lock.locked()
        assert is_locked()
    assert others == [False]
    assert not is_locked()
    # Unpickling gives the same lock. It cannot be taken while somebody holds xarray's own lock.
    assert pickle.loads(pickle.dumps(lock)) is lock
    with NETCDF4_PYTHON_LOCK:
        assert not lock.acquire(blocking=False)
    assert not lock.locked()


def test_the_library_keeps_no_chunks_of_ours(
    tmp_path: Path, at_each_opening: Callable[[Look], list[Any]]
) -> None:
    (path,) = write_years(tmp_path, 1)
    before = netCDF4.get_chunk_cache()
    sizes = at_each_opening(lambda: netCDF4.get_chunk_cache()[0])
    source = open_source(path)
    out = np.empty((10, 4), "f4")
    assert kinds.read_into(source, "t", (0, 0), (slice(None), slice(None)), out)
    assert sizes == [0, 0]
    assert netCDF4.get_chunk_cache() == before
    with pytest.raises(FileNotFoundError):
        open_source(tmp_path / "absent.nc")
    assert netCDF4.get_chunk_cache() == before
