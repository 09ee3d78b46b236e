"""Loaders whose batches are made in worker processes: the same batches, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader.errors import (
    ChunkWarning,
    ClosedError,
    NanWarning,
    OptionError,
    TransformError,
    WorkersError,
)
from xloader.loader.batches.batch import Batch
from xloader.testing import write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]

FEW = settings(max_examples=max(settings().max_examples // 5, 5))
GUARD = 60.0
"""Seconds after which waiting for another process fails."""


def dataset(num_steps: int = 100) -> xr.Dataset:
    values = np.arange(num_steps * 6, dtype="f4").reshape(num_steps, 6)
    return xr.Dataset(
        {"t": (("time", "x"), values), "u": (("time", "x"), values + 0.5)},
        {"time": np.arange(num_steps)},
    )


def write(folder: Path, ds: xr.Dataset | None = None, chunk: int = 5) -> str:
    path = folder / "store.zarr"
    write_store(dataset() if ds is None else ds, {"t": (chunk, 6), "u": (chunk, 6)}, path)
    return str(path)


def options_of(*, lanes: int, **others: Any) -> dict[str, Any]:
    """Options of loaders with threads and with processes alike."""
    return {"batch_size": 8, "output": "numpy", "plan": xloader.PlanRules(lanes=lanes), **others}


@pytest.fixture
def samples(tmp_path: Path) -> xloader.Samples:
    return xloader.open(write(tmp_path)).window(time=2, stride=1)


def copies(loader: xloader.Loader) -> list[Batch]:
    """The batches of an epoch, each copied before the next one is asked for."""
    return [
        Batch([array.copy() for array in b], b.names, b.ids.copy(), b.is_padding.copy())
        for b in loader
    ]


def assert_same(own: list[Batch], wanted: list[Batch]) -> None:
    assert len(own) == len(wanted)
    for batch, other in zip(own, wanted, strict=True):
        assert batch.names == other.names
        np.testing.assert_array_equal(batch.ids, other.ids)
        np.testing.assert_array_equal(batch.is_padding, other.is_padding)
        for array, value in zip(batch, other, strict=True):
            assert array.dtype == value.dtype
            np.testing.assert_array_equal(array, value)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int]) -> bool:
    """Whether processes have ended, now or soon."""
    end = time.monotonic() + GUARD
    while time.monotonic() < end:
        if not any(map(runs, pids)):
            return True
        time.sleep(0.01)
    return False


def pids_of(loader: xloader.Loader) -> list[int]:
    pids = loader._carried.pids  # type: ignore[union-attr]
    assert pids
    return list(pids)


# The batches


def add(ds: xr.Dataset) -> xr.Dataset:
    return ds.assign(v=ds.t + ds.u)


def swap(ds: xr.Dataset) -> xr.Dataset:
    return ds.assign(t=ds.u, u=ds.t)


def jitter(ds: xr.Dataset, rng: Any) -> xr.Dataset:
    return ds + rng.normal((2, 6))


CHANGES: dict[str, Any] = {
    "as stored": lambda s: s,
    "another field": lambda s: s.map(add),
    "two fields swapped": lambda s: s.map(swap),
    "random numbers": lambda s: s.map(jitter, random=True),
    "a weighted draw": lambda s: s.weighted(np.arange(len(s)) % 3 + 0.5).map(jitter, random=True),
    "a subset": lambda s: s.select(np.arange(0, len(s), 3)),
}


@pytest.mark.parametrize(("processes", "change"), [*zip((1, 2, 2, 4, 2, 2), CHANGES, strict=True)])
def test_processes_make_the_batches_of_threads(
    processes: int, change: str, samples: xloader.Samples
) -> None:
    own = CHANGES[change](samples)
    options = options_of(lanes=4)
    with own.loader(**options) as threads, own.loader(**options, processes=processes) as loader:
        for _ in range(2):
            assert_same(copies(loader), copies(threads))


@FEW
@given(case=cases(), processes=st.integers(1, 3))
def test_laws(case: Case, processes: int) -> None:
    """Each sample comes once, with the values of isel, and predicted reads are counted reads."""
    case.options["lanes"] = None
    case.options["batch_size"] *= processes
    case.options["memory"] *= 4 * processes
    delivered: list[int] = []
    for rank in range(case.world_size):
        with case.loader(rank, processes=processes) as loader:
            expected = loader.explain()
            for batch in loader:
                for row, index in enumerate(batch.ids.tolist()):
                    for array, value in zip(batch, case.sample(index), strict=True):
                        assert array[row].tobytes() == value.tobytes()
                delivered += batch.ids[~batch.is_padding].tolist()
            report = loader.report()
        assert report.num_reads == expected.num_reads
        assert report.variables == expected.variables
        assert report.num_samples == expected.num_samples
        assert report.peak_nbytes <= expected.peak_nbytes
    counts = np.bincount(delivered, minlength=1)
    if case.chosen.weights is None and not case.options["drop_last"]:
        assert (counts == 1).all()


def test_a_state_goes_on_with_other_processes(samples: xloader.Samples) -> None:
    options = options_of(lanes=4)
    with samples.loader(**options) as threads:
        whole = copies(threads)
        after = copies(threads)
    for first, then, stop in ((0, 2, 1), (2, 0, 1), (4, 1, len(whole) - 1), (1, 4, len(whole))):
        with samples.loader(**options, processes=first) as loader:
            iterator = iter(loader)
            for _ in range(stop):
                next(iterator)
            state = loader.state_dict()
        with samples.loader(**options, processes=then) as loader:
            loader.load_state_dict(state)
            assert_same(copies(loader), whole[stop:] or after)


def test_batches_that_are_kept_stay_as_they_were(samples: xloader.Samples) -> None:
    options = options_of(lanes=2, batch_size=4)
    with samples.loader(**options) as threads:
        wanted = copies(threads)
    for prefetch in (0, 3):
        with samples.loader(**options, processes=2, prefetch=prefetch) as loader:
            kept = list(loader)
            assert_same(kept, wanted)
            again = list(loader)
            assert_same(kept, wanted)
        assert len(again) == len(kept)


# What runs in the processes


def wait(ds: xr.Dataset) -> xr.Dataset:
    if ds.sizes["sample"] > 1:
        time.sleep(0.05)
    return ds


def test_the_report_counts_what_functions_take(samples: xloader.Samples) -> None:
    with samples.map(wait).loader(
        batch_size=20, output="numpy", processes=2, plan=xloader.PlanRules(lanes=2)
    ) as loader:
        num_batches = len(list(loader))
        assert loader.report().busy_seconds["transform"] >= 0.05 * num_batches


def draw(rows: Any) -> float:
    return float(np.random.random())  # noqa: NPY002


def test_global_random_numbers_differ_between_processes(samples: xloader.Samples) -> None:
    with samples.loader(batch_size=4, output="numpy", processes=2, collate_fn=draw) as loader:
        drawn = list(loader)
        assert len(set(drawn)) == len(drawn)
        assert loader.report().delivered_nbytes == 99 * 2 * 2 * 6 * 4


def where(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    return {"pid": os.getpid(), "t": np.stack([row[0] for row in rows])}


def test_collate_fn_and_transforms_run_in_the_processes(samples: xloader.Samples) -> None:
    pid = os.getpid()

    def check(ds: xr.Dataset) -> xr.Dataset:
        if os.getpid() == pid and ds.sizes["sample"] > 1:
            raise AssertionError("in the process that trains")
        return ds + 1

    own = samples.map(check)
    options = options_of(lanes=2)
    with (
        samples.loader(**options) as threads,
        own.loader(**options, processes=2, collate_fn=where) as loader,
    ):
        made = [(one["pid"], one["t"].copy()) for one in loader]
        for (own_pid, values), batch in zip(made, threads, strict=True):
            assert own_pid in pids_of(loader)
            np.testing.assert_array_equal(values, batch.t + 1)
        assert {own_pid for own_pid, _ in made} == set(pids_of(loader))


def test_tensors_of_a_collate_fn(samples: xloader.Samples) -> None:
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"batch_size": 8, "plan": xloader.PlanRules(lanes=2)}

    def stack(rows: Any) -> Any:
        low = rows.batch.u.bfloat16().requires_grad_()
        joined = torch.stack([row[0] for row in rows])
        return {"t": joined, "name": "t", "half": rows.batch.u.half(), "low": low}

    with (
        samples.loader(**options) as threads,
        samples.loader(**options, processes=2, collate_fn=stack) as loader,
    ):
        kept = list(loader)
        for own, batch in zip(kept, threads, strict=True):
            assert torch.equal(own["t"], batch.t)
            assert torch.equal(own["half"], batch.u.half())
            assert torch.equal(own["low"].detach(), batch.u.bfloat16())


class OddError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fail(ds: xr.Dataset) -> xr.Dataset:
    if (ds.t == 300).any():
        raise ZeroDivisionError("by hand") from OddError(1, 2)
    return ds


def test_an_error_of_a_transform(samples: xloader.Samples) -> None:
    options = options_of(lanes=2)
    told = []
    for num in (0, 2):
        with samples.map(fail).loader(**options, processes=num) as loader:
            with pytest.raises(TransformError) as raised:
                list(loader)
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
            if num:
                (note,) = raised.value.__cause__.__notes__
                assert "raised in worker process" in note
                assert "in fail" in note
            assert "1 and 2" in str(raised.value.__cause__.__cause__)
            told.append((loader.report().num_steps, str(raised.value)))
    assert told[0] == told[1]


def test_warnings_are_given_here(tmp_path: Path) -> None:
    ds = dataset()
    ds.t[40] = np.nan
    samples = xloader.open(write(tmp_path, ds)).window(time=1)
    loader = samples.loader(batch_size=20, output="numpy", processes=2)
    with loader, pytest.warns(NanWarning, match="'t'"):
        list(loader)

    def warn(ds: xr.Dataset) -> xr.Dataset:
        class OwnWarning(UserWarning):
            pass

        if ds.sizes["sample"] > 1:
            warnings.warn("a word", OwnWarning, stacklevel=1)
        return ds

    with (
        samples.map(warn).loader(
            batch_size=20, output="numpy", processes=1, on_nan="ignore"
        ) as loader,
        pytest.warns(UserWarning, match="a word"),
    ):
        for _ in loader:
            pass


# Faults


def damage(folder: Path) -> str:
    path = write(folder)
    for name in ("3", "7"):
        (Path(path) / "t" / "c" / name / "0").write_bytes(b"nonsense")
    return path


@pytest.mark.parametrize(("shuffle", "processes"), [(True, 1), (True, 4), (False, 2)])
def test_rows_that_are_skipped(shuffle: bool, processes: int, tmp_path: Path) -> None:
    samples = xloader.open(damage(tmp_path), max_retries=0).window(time=1)
    options = options_of(lanes=4, batch_size=20, shuffle=shuffle, on_error="skip")
    made, reports = [], []
    for num in (0, processes):
        with samples.loader(**options, processes=num) as loader:
            with pytest.warns(ChunkWarning, match=r"could not be read.*do not decode"):
                made.append(copies(loader))
            reports.append(loader.report())
    assert_same(*made)
    assert [report.num_skipped_samples for report in reports] == [10, 10]
    assert reports[0].skipped_chunks == reports[1].skipped_chunks


@pytest.mark.parametrize("moment", ["before", "between", "waiting"])
def test_a_process_that_is_killed(moment: str, samples: xloader.Samples) -> None:
    def sleep(ds: xr.Dataset) -> xr.Dataset:
        if moment == "waiting" and ds.sizes["sample"] > 1:
            time.sleep(1e6)
        return ds

    with samples.map(sleep).loader(batch_size=4, output="numpy", processes=2) as loader:
        iterator = iter(loader)
        if moment == "between":
            next(iterator)
        pids = pids_of(loader)
        number = int(signal.SIGKILL) if moment != "between" else 40
        killer = threading.Timer(0.2, os.kill, (pids[1], number))
        if moment == "waiting":
            killer.start()
        else:
            os.kill(pids[1], number)
            assert gone(pids[1:])
        how = "SIGKILL" if moment != "between" else "signal 40"
        told = rf"worker process 2 of 2 has died; it .*killed by {how}"
        with pytest.raises(WorkersError, match=told):
            list(iterator)
        assert gone(pids)
        if moment != "waiting":
            assert len(list(loader)) == len(loader)
            assert pids_of(loader) != pids


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_signals_for_the_training_end_no_process(samples: xloader.Samples) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    with samples.map(add).loader(batch_size=8, output="numpy", processes=2) as loader:
        whole = len(list(loader))
        pids = pids_of(loader)
        for pid in pids:
            for number in numbers:
                os.kill(pid, number)
        assert len(list(loader)) == whole
        assert pids_of(loader) == pids


def test_a_process_that_dies_between_epochs_is_replaced(samples: xloader.Samples) -> None:
    with samples.map(add).loader(batch_size=8, output="numpy", processes=2) as loader:
        assert len(list(loader)) == len(loader)
        pids = pids_of(loader)
        os.kill(pids[1], signal.SIGKILL)
        assert gone(pids[1:])
        # The process that started it hears of it a little later.
        team, end = loader._carried._team, time.monotonic() + GUARD  # type: ignore[union-attr]
        while team.is_usable and time.monotonic() < end:  # type: ignore[union-attr]
            time.sleep(0.01)
        assert len(list(loader)) == len(loader)
        assert not set(pids) & set(pids_of(loader))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_that_are_kept_keep_no_slot(prefetch: int, samples: xloader.Samples) -> None:
    with samples.map(fail).loader(
        batch_size=8, output="numpy", processes=1, prefetch=prefetch
    ) as loader:
        kept = []
        for _ in range(5):
            with pytest.raises(TransformError) as raised:
                list(loader)
            kept.append(raised)


def leave(ds: xr.Dataset) -> xr.Dataset:
    if (ds.t == 300).any():
        sys.exit("by hand")
    return ds


def test_an_exit_in_a_function_comes_at_its_batch(samples: xloader.Samples) -> None:
    told = []
    for num in (0, 2):
        options: dict[str, Any] = {"batch_size": 8, "output": "numpy", "shuffle": False}
        with samples.map(leave).loader(**options, processes=num) as loader:
            with pytest.raises(SystemExit, match="by hand"):
                list(loader)
            told.append(loader.report().num_steps)
    assert told[0] == told[1] > 0


def test_close_ends_the_processes_whatever_they_do(samples: xloader.Samples) -> None:
    def sleep(ds: xr.Dataset) -> xr.Dataset:
        if ds.sizes["sample"] > 1:
            time.sleep(1e6)
        return ds

    loader = samples.map(sleep).loader(batch_size=4, output="numpy", processes=2)
    iterator = iter(loader)
    closer = threading.Timer(0.2, loader.close)
    closer.start()
    with pytest.raises(ClosedError):
        next(iterator)
    closer.join()
    assert not psutil.Process().children() or all(
        "xloader" not in child.name() for child in psutil.Process().children()
    )


def test_nothing_is_left_behind(samples: xloader.Samples) -> None:
    options: dict[str, Any] = {"batch_size": 8, "output": "numpy", "processes": 2}
    list(samples.loader(**options))
    gc.collect()
    me = psutil.Process()
    num_files, num_threads = me.num_fds(), threading.active_count()
    pids: list[int] = []
    for number in range(8):
        loader = samples.loader(**options)
        iterator = iter(loader)
        if number % 4:
            next(iterator)
            pids += pids_of(loader)
        if number % 4 == 2:
            list(iterator)
        if number % 4 == 3:
            loader.close()
        del loader, iterator
    gc.collect()
    assert gone(pids)
    assert me.num_fds() <= num_files
    assert threading.active_count() <= num_threads
    assert not [one for one in me.memory_maps(grouped=False) if "memfd:xloader" in one.path]


def run_python(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python, with a text on its standard input."""
    return subprocess.run(
        [sys.executable, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )


def run_script(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that gets a store, and further arguments."""
    script = folder / "script.py"
    script.write_text(text)
    return run_python(str(script), write(folder), *arguments)


SCRIPT = """
import os, signal, sys, time, weakref
# At the exit, this lets all finalizers run after multiprocessing has waited for its processes.
weakref.finalize(sys, int)
import numpy as np
import xloader

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    samples = xloader.open(sys.argv[1]).window(time=1)
    loader = samples.loader(batch_size=4, output="numpy", processes=1)
    iterator = iter(loader)
    next(iterator)
    print(*loader._carried.pids, flush=True)
    what = sys.argv[2]
    if what == "exit":
        return
    if what == "keep":
        list(iterator)
        sys.kept = loader
        return
    if what == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1e6)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("what", "code"), [("exit", 0), ("keep", 0), ("interrupt", -2), ("kill", -9)]
)
def test_processes_end_with_their_loader(what: str, code: int, tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT, what)
    assert done.returncode in (code, 130 if what == "interrupt" else code), done.stderr
    assert gone([int(pid) for pid in done.stdout.split()])
    assert "leaked" not in done.stderr


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        "import sys, xloader\n"
        "samples = xloader.open(sys.argv[1]).window(time=1)\n"
        "for _ in samples.loader(batch_size=4, output='numpy', processes=1): pass\n",
    )
    assert done.returncode == 1
    assert 'put what starts the training under if __name__ == "__main__":' in done.stderr
    # The process says it in one line, and only the program itself shows where it was.
    (line,) = [line for line in done.stderr.splitlines() if "imports the script again" in line]
    assert line.startswith("WorkersError: ")
    assert done.stderr.count("Traceback") == 1


FORK = """
import os, sys
import xloader

def child_of(task):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    task()

def start(samples):
    try:
        list(samples.loader(batch_size=4, output="numpy", processes=2))
    except xloader.errors.ForkError:
        os._exit(8)
    os._exit(9)

def main():
    samples = xloader.open(sys.argv[1]).window(time=1)
    with samples.loader(batch_size=4, output="numpy", processes=2, prefetch=0) as loader:
        iterator = iter(loader)
        next(iterator)
        assert child_of(lambda: sys.exit(7)) == 7
        assert child_of(lambda: start(samples)) == 8
        assert len(list(iterator)) == len(loader) - 1

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_starts_no_processes_and_ends_none_of_its_parent(tmp_path: Path) -> None:
    done = run_script(tmp_path, FORK)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_functions_of_a_notebook_need_no_main_guard(tmp_path: Path) -> None:
    # A notebook is no file that a process could import.
    text = (
        "import xloader, os\n"
        "pid = os.getpid()\n"
        "def where(rows): return os.getpid() != pid\n"
        f"samples = xloader.open({write(tmp_path)!r}).window(time=1)\n"
        "loader = samples.loader(batch_size=4, output='numpy', processes=1, collate_fn=where)\n"
        "assert all(loader)\n"
        "loader.close()\n"
    )
    done = run_python("-c", text)
    assert done.returncode == 0, done.stderr


# Bad input


def test_what_cannot_be_sent_is_named(samples: xloader.Samples) -> None:
    lock = threading.Lock()

    def locked(ds: xr.Dataset) -> xr.Dataset:
        with lock:
            return ds

    with pytest.raises(OptionError, match=r"map\(.*locked.*\).* cannot be sent to worker proc"):
        next(iter(samples.map(locked).loader(batch_size=4, output="numpy", processes=1)))

    def collate(rows: Any) -> Any:
        with lock:
            return rows

    with pytest.raises(OptionError, match="the collate_fn cannot be sent"):
        next(iter(samples.loader(batch_size=4, output="numpy", processes=1, collate_fn=collate)))


def test_no_room_for_the_shared_memory(
    samples: xloader.Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    num_files = psutil.Process().num_fds()
    with pytest.raises(WorkersError, match=r"no room .* \d+ bytes \(.*B\).*smaller batch_size"):
        next(iter(samples.loader(batch_size=4, output="numpy", processes=1)))
    assert psutil.Process().num_fds() == num_files


def peaks_of(pids: list[int]) -> list[int]:
    """The most bytes that each process has ever had in memory, as Linux counts them itself."""
    found = []
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        found.append(int(line.split()[1]) << 10)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the peak of each process")
def test_the_memory_of_each_process_stays_within_its_share(tmp_path: Path) -> None:
    """Law 4: beyond an idle process, each takes its share of the memory, in every epoch alike.

    Its rows of the shared slots are among what Linux counts, and a part of the memory too.
    """
    values = np.random.default_rng(0).integers(0, 9, (512, 64, 512)).astype("f4")
    ds = xr.Dataset({"t": (("time", "y", "x"), values)})
    write_store(ds, {"t": (8, 64, 512)}, tmp_path / "large.zarr")
    write_store(ds.isel(y=slice(1), x=slice(1)), {"t": (8, 1, 1)}, tmp_path / "small.zarr")
    budget = 24 << 20
    options: dict[str, Any] = {"batch_size": 8, "memory": budget, "output": "numpy", "threads": 1}
    peaks: dict[str, list[list[int]]] = {}
    for name in ("small", "large"):
        samples = xloader.open(tmp_path / f"{name}.zarr").window(time=1)
        with samples.loader(**options, processes=2) as loader:
            peaks[name] = []
            for _ in range(3):
                assert sum(1 for _ in loader) == 64
                peaks[name].append(peaks_of(pids_of(loader)))
    idle = max(peaks["small"][0])
    first, *later = [max(peak) - idle for peak in peaks["large"]]
    # 64 MiB of chunks pass through each epoch, so a process that kept them would be seen.
    assert first <= 1.1 * budget / 2 + (8 << 20)
    assert max(later) <= first + (4 << 20)
