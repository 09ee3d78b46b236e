"""The executors of programs: both give the same, and what NumPy gives."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from zarr.storage import LocalStore

import xloader
from tests import sanitize
from tests.random_programs import check
from xloader.compiled.library import load_library
from xloader.engine import program as programs
from xloader.errors import ChunkError, ChunkWarning, ClosedError
from xloader.order.step_dealer import LOOK_SIZE
from xloader.sources.zarr import fetched_chunks
from xloader.testing import LatencyStore, pretend_codec, pretend_disk

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

NEEDS_LIBRARY = pytest.mark.skipif(load_library()[0] is None, reason="there is no library")

WINDOW, STRIDE = {"time": 2, "y": 5}, {"time": 1, "y": 3}

OPTIONS: dict[str, Any] = {
    "batch_size": 6,
    "shuffle": True,
    "seed": 3,
    "output": "numpy",
    "on_nan": "ignore",
}


def make_dataset() -> xr.Dataset:
    rng = np.random.default_rng(1)
    return xr.Dataset(
        {
            "a": (("time", "y", "x"), rng.standard_normal((24, 17, 6)).astype("f4")),
            "b": (("time", "y", "x"), rng.standard_normal((24, 17, 6)).astype("f4")),
            "z": (("time", "level", "y"), rng.standard_normal((24, 3, 17))),
            "o": (("y", "x"), rng.standard_normal((17, 6)).astype("f4")),
        }
    )


GONE = {
    "a/c/1/1/0": {"time": slice(5, 10), "y": slice(4, 8)},
    "z/c/2/0/1": {"time": slice(12, 18), "y": slice(8, 16)},
    "o/c/0/1": {"y": slice(0, 8), "x": slice(3, 6)},
}
"""Files of chunks and of a shard, with what they hold."""


def with_gaps() -> xr.Dataset:
    """The dataset without what these files hold."""
    dataset = make_dataset()
    for key, box in GONE.items():
        dataset[key[0]][box] = np.nan
    return dataset


def write(folder: Path) -> Path:
    encoding: dict[str, dict[str, Any]] = {
        "a": {"chunks": (5, 4, 6)},
        "b": {"chunks": (5, 4, 6)},
        "z": {"chunks": (3, 1, 4), "shards": (6, 3, 8)},
        "o": {"chunks": (8, 3)},
    }
    path = folder / "store.zarr"
    make_dataset().to_zarr(path, encoding=encoding, zarr_format=3, consolidated=False)
    return path


def run_of(loader: xloader.Loader) -> Any:
    assert loader._run is not None
    return loader._run


def batches_of(
    path: Any,
    memory: str | None = "40kB",
    num_epochs: int = 2,
    dataset: xr.Dataset | None = None,
    **options: Any,
) -> list[list[bytes]]:
    """The bytes of all fields of each batch, with ids and padding, over some epochs.

    If a dataset is given, the values must be its values.
    """
    samples = xloader.open(path, on_missing="fill").window(WINDOW, stride=STRIDE)
    found = []
    with samples.loader(**{**OPTIONS, **options}, memory=memory) as loader:
        for batch in (batch for _ in range(num_epochs) for batch in loader):
            if dataset is not None:
                check_values(batch, dataset)
            arrays = [*batch, batch.ids, batch.is_padding]
            found.append([np.asarray(array).tobytes() for array in arrays])
    return found


def check_values(batch: xloader.Batch, dataset: xr.Dataset) -> None:
    """Compare the rows of a batch with NumPy."""
    for row, (step, y) in enumerate(zip(*np.unravel_index(batch.ids, (23, 5)), strict=True)):
        part = dataset.isel(time=slice(step, step + 2), y=slice(3 * y, 3 * y + 5))
        for name, array in zip(batch.names, batch, strict=True):
            wanted = part[name].to_numpy()
            np.testing.assert_array_equal(np.asarray(array[row]).reshape(wanted.shape), wanted)


def plainly(path: Any, *args: Any, **options: Any) -> list[list[bytes]]:
    """The same by the plain executor and one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xloader.engine.run.can_run_natively", lambda parts: False)
        return batches_of(path, *args, **{**options, "threads": 1})


@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
@pytest.mark.parametrize("seed", range(12))
def test_random_configurations(executor: str, seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def test_the_executor_is_the_one_asked_for(executor: str, tmp_path: Path) -> None:
    samples = xloader.open(write(tmp_path)).window(WINDOW)
    with samples.loader(**OPTIONS) as loader:
        next(iter(loader))
        run = run_of(loader)
        assert type(run._executor).__name__.lower().startswith(executor)


@pytest.mark.parametrize("memory", ["60kB", "10MB"])
def test_stores_that_are_waited_for(executor: str, memory: str, tmp_path: Path) -> None:
    store = LatencyStore(LocalStore(write(tmp_path), read_only=True), 0.001)
    assert batches_of(store, memory, dataset=make_dataset()) == plainly(store, memory)


def test_near_and_far_variables_that_are_chunked_alike(executor: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    stored = xr.open_zarr(path, consolidated=False, chunks=None)
    for name in "ab":
        stored[[name]].to_zarr(tmp_path / name, zarr_format=3, consolidated=False)
    far = LatencyStore(LocalStore(tmp_path / "b", read_only=True), 0.001)
    samples = xloader.open([tmp_path / "a", far]).window(WINDOW, stride=STRIDE)
    with samples.loader(**OPTIONS, memory="60kB") as loader:
        for batch in loader:
            check_values(batch, make_dataset())


@pytest.mark.parametrize("memory", ["60kB", "10MB"])
def test_chunks_are_fetched_ahead_and_those_of_a_shard_together(
    executor: str, memory: str, tmp_path: Path
) -> None:
    def report_of(path: Path) -> Any:
        store = LatencyStore(LocalStore(path, read_only=True), 0.0)
        samples = xloader.open(store).window(WINDOW, stride=STRIDE)
        with samples.loader(**OPTIONS, memory=memory) as loader:
            expected = loader.explain()
            for _ in loader:
                pass
            report = loader.report()
            assert report.peak_nbytes <= expected.peak_nbytes
            assert report.num_reads == expected.num_reads
            assert loader._progress is not None
            assert loader._progress.tally.num_ahead > 0
            return report

    report = report_of(write(tmp_path))
    assert report.num_requests < 0.6 * report.num_reads


def test_python_decodes_only_what_native_threads_cannot(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, decoded = write(tmp_path), []
    for key in GONE:
        (path / key).unlink()
    spoil(path)
    store = LatencyStore(LocalStore(path, read_only=True), 0.0)
    options: dict[str, Any] = {"num_epochs": 1, "on_error": "skip", "batch_size": 12}
    with pytest.warns(ChunkWarning):
        wanted = plainly(store, "200kB", **options)
    decode = fetched_chunks._Chunks.decode

    def note(own: Any, outs: Any) -> Any:
        decoded.extend((read.variable, read.chunk) for read in own._reads)
        return decode(own, outs)

    monkeypatch.setattr(fetched_chunks._Chunks, "decode", note)
    with pytest.warns(ChunkWarning):
        assert batches_of(store, "200kB", dataset=with_gaps(), **options) == wanted
    num_chunks = 5 * 5 * 2 + 8 * 3 * 5 + 3 * 2
    if executor == "plain":
        assert len(set(decoded)) == num_chunks
        return
    # Those of four objects: absent, or damaged, and the latter were fetched again.
    assert len(set(decoded)) < num_chunks / 3
    assert {("a", (1, 1, 0)), ("a", (2, 1, 0)), ("o", (0, 1))} < set(decoded)
    assert decoded.count(("a", (2, 1, 0))) == 2


# All in place; with edges, room for one chunk; several chunks a row, for each thread, but at most a
# quarter.
@pytest.mark.parametrize(("size", "chunk", "nbytes"), [(64, 64, 0), (60, 64, 960), (64, 32, 1000)])
def test_fetches_leave_memory_for_what_is_not_decoded_into_place(
    size: int, chunk: int, nbytes: int, tmp_path: Path
) -> None:
    values = np.arange(64 * size, dtype="f4").reshape(64, size)
    xr.Dataset({"a": (("time", "x"), values)}).to_zarr(
        tmp_path, encoding={"a": {"chunks": (4, chunk)}}, zarr_format=3, consolidated=False
    )
    store = LatencyStore(LocalStore(tmp_path, read_only=True), 0.0)
    options = {**OPTIONS, "shuffle": False, "threads": 2, "memory": "64kB"}
    with xloader.open(store).window(time=4, stride=4).loader(**options) as loader:
        assert np.array_equal(
            np.concatenate([batch["a"] for batch in loader]).ravel(), values.ravel()
        )
        run = run_of(loader)
        in_flight = run._job.parts.in_flight_nbytes
        assert in_flight - run._job.most_fetched_nbytes == nbytes


def test_what_a_traceback_holds_stays_in_memory(executor: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    (path / "a" / "c" / "1" / "1" / "0").write_bytes(b"broken")
    with pytest.raises(ChunkError) as error:
        batches_of(path)
    frames, trace = [], error.value.__cause__.__traceback__ if error.value.__cause__ else None
    while trace is not None:
        frames.append(repr(trace.tb_frame.f_locals))
        trace = trace.tb_next
    assert "outs" in "".join(frames)


def spoil(path: Path) -> None:
    """Damage a chunk of a file and the chunks of a shard, all but its index."""
    chunk, shard = path / "a/c/2/1/0", path / "z/c/0/0/0"
    chunk.write_bytes(b"\0" * 40)
    data = bytearray(shard.read_bytes())
    data[:64] = b"\xff" * 64
    shard.write_bytes(bytes(data))


def test_batches_that_are_kept_never_change(executor: str, tmp_path: Path) -> None:
    samples = xloader.open(write(tmp_path)).window(WINDOW, stride=STRIDE)
    with samples.loader(**OPTIONS, memory="40kB", threads=3) as loader:
        kept = list(loader)
        # A view of one row keeps the memory of its batch, too.
        rows = [(batch["a"][1:2], batch["a"][1:2].copy()) for batch in loader]
        for _ in loader:
            pass
    for batch in kept:
        check_values(batch, make_dataset())
    for view, copy in rows:
        np.testing.assert_array_equal(view, copy)


def test_it_may_be_closed_and_left_at_any_moment(executor: str, tmp_path: Path) -> None:
    samples = xloader.open(write(tmp_path)).window(WINDOW, stride=STRIDE)
    with samples.loader(**OPTIONS, memory="40kB", threads=3) as loader:
        whole = [np.asarray(batch.ids).tolist() for batch in loader]
        for num in range(0, len(whole), 5):
            loader.set_epoch(0)
            iterator = iter(loader)
            for wanted in whole[:num]:
                assert np.asarray(next(iterator).ids).tolist() == wanted
            if num % 2:
                iterator.close()
                with pytest.raises(ClosedError):
                    next(iterator)
            del iterator
            gc.collect()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("xloader")]


@NEEDS_LIBRARY
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted on Linux")
def test_native_threads_end_with_the_epoch(tmp_path: Path) -> None:
    def num_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    samples = xloader.open(write(tmp_path)).window(WINDOW, stride=STRIDE)
    with samples.loader(**OPTIONS, memory="40kB", threads=20) as loader:
        list(loader)
        before = num_threads()
        iterator = iter(loader)
        next(iterator)
        assert num_threads() >= before + 16
        iterator.close()
        until = time.monotonic() + 20
        while num_threads() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert num_threads() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_memory_of_its_own(executor: str, tmp_path: Path) -> None:
    samples = xloader.open(write(tmp_path)).window(WINDOW, stride=STRIDE)
    with samples.loader(**OPTIONS, memory="10MB") as loader:
        wanted = [np.asarray(batch[0]).tobytes() for batch in loader]
        if not (pid := os.fork()):
            loader.set_epoch(0)
            found = [np.asarray(batch[0]).tobytes() for batch in loader]
            os._exit(0 if found == wanted else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@NEEDS_LIBRARY
@pytest.mark.parametrize("memory", ["2MB", "700kB"])
def test_segments_in_c_are_those_of_numpy(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = xloader.open(sanitize.write_store(tmp_path)).window({"time": 1, "y": 8, "x": 8})

    def segments() -> list[programs.Segment]:
        with samples.loader(batch_size=12, shuffle=True, memory=memory, output="numpy") as loader:
            iter(loader)
            run = run_of(loader)
            program, found = run._job.program, []
            while not program.is_over:
                found.append(program.next_segment(lambda index: index % 2 == 0))
            return found

    compiled = segments()
    monkeypatch.setattr(programs, "_functions", lambda: (None, None))
    plain = segments()
    assert len(compiled) == len(plain) > 1
    for one, other in zip(compiled, plain, strict=True):
        assert one.first_load == other.first_load
        for name, table in one.tables().items():
            np.testing.assert_array_equal(table, other.tables()[name], err_msg=name)


@NEEDS_LIBRARY
def test_wrong_programs_are_refused(tmp_path: Path) -> None:
    """An executor reads and writes nothing by tables that point to what is not there."""
    samples = xloader.open(write(tmp_path)).window(WINDOW, stride=STRIDE)
    with samples.loader(**OPTIONS, memory="40kB") as loader:
        iter(loader)
        run = run_of(loader)
        segment = run._job.program.next_segment(bool)
        assert len(segment.copies)
        segment.copies[0, -1] = 1 << 20
        with pytest.raises(AssertionError, match="the program is wrong"):
            run._executor.add(segment, is_last=False)


@NEEDS_LIBRARY
def test_a_codec_that_is_pretended_decodes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    wanted = batches_of(path, "10MB", num_epochs=1)
    with pretend_codec(0.0):
        assert batches_of(path, "10MB", num_epochs=1) != wanted
    with pretend_disk(0.1):
        assert batches_of(path, "10MB", num_epochs=1) == wanted
    assert batches_of(path, "10MB", num_epochs=1) == wanted


def chunks_of_two(folder: Path, *shape: int) -> Path:
    path = folder / "two.zarr"
    ds = xr.Dataset({"a": (("time", "y"), np.arange(np.prod(shape) * 1.0).reshape(shape))})
    ds.to_zarr(path, encoding={"a": {"chunks": (2, shape[1])}}, zarr_format=3, consolidated=False)
    return path


def values_of(path: Path, read_timeout: float = 300.0, **options: Any) -> list[list[float]]:
    samples = xloader.open(path, read_timeout=read_timeout).window(time=1)
    with samples.loader(batch_size=2, shuffle=False, output="numpy", **options) as loader:
        return [np.asarray(batch.a).ravel().tolist() for batch in loader]


@NEEDS_LIBRARY
def test_reads_that_hang_leave_their_memory_to_python(tmp_path: Path) -> None:
    """With memory for two chunks, both of which hang, Python reads them nevertheless."""
    path = chunks_of_two(tmp_path, 4, 20_000)
    wanted = values_of(path)
    with pretend_disk(3000.0):
        assert values_of(path, 0.3, threads=2, memory="3MB", prefetch=0) == wanted


@NEEDS_LIBRARY
def test_a_batch_does_not_wait_for_chunks_of_later_ones(tmp_path: Path) -> None:
    """Where one thread decodes what many read ahead, a batch is opened next."""
    samples = xloader.open(chunks_of_two(tmp_path, 1200, 1000)).window(time=1)
    options: dict[str, Any] = {"shuffle": False, "threads": 1, "memory": "40MB", "output": "numpy"}
    with samples.loader(batch_size=2, **options) as loader, pretend_disk(10), pretend_codec(1e3):
        batches = iter(loader)
        for _ in range(60):
            next(batches)
        # Threads read 64 chunks ahead, of which all but a few wait for a core.
        assert loader.report().num_reads < 300


@NEEDS_LIBRARY
def test_a_transform_may_close_the_loader(tmp_path: Path) -> None:
    """Native threads still decode into the memory then."""
    path, called = write(tmp_path), []

    def close(ds: xr.Dataset) -> xr.Dataset:
        called.append(ds.sizes["sample"])
        if sum(num > 1 for num in called) == 2:
            loader.close()
        return ds

    samples = xloader.open(path).window(WINDOW, stride=STRIDE).map(close)
    loader = samples.loader(**OPTIONS, memory="10MB", threads=4)
    with pytest.raises(ClosedError), pretend_disk(20.0):
        list(loader)


@NEEDS_LIBRARY
def test_a_slow_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xloader.engine.run.LONG_SECONDS", 0.3)
    with pretend_disk(1000.0), pytest.warns(ChunkWarning, match="has not arrived after"):
        values_of(chunks_of_two(tmp_path, 8, 6), threads=2)


def test_the_program_is_made_only_a_little_ahead(executor: str, tmp_path: Path) -> None:
    """Also where all blocks are in memory, so that nothing is left to load."""
    ds = xr.Dataset({"a": ("time", np.arange(110_000, dtype="f4"))})
    encoding = {"a": {"chunks": (110_000,)}}
    ds.to_zarr(tmp_path / "long.zarr", encoding=encoding, zarr_format=3, consolidated=False)
    samples = xloader.open(tmp_path / "long.zarr").window(time=1)
    with samples.loader(batch_size=64, memory="10MB", output="numpy", threads=2) as loader:
        iterator: Any = iter(loader)
        for _ in iterator:
            # A copy for each row, and what is being made besides.
            assert 64 * len(iterator.run._steps) <= (1 << 16) + 2 * LOOK_SIZE
