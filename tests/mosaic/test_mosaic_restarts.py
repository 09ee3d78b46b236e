"""Mosaics of several ranks and runs: the same bits, whatever was killed and in what order."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from xloader import Samples
from xloader.errors import TargetError, TargetWarning
from xloader.testing import write_store

HOLES = "ignore:the mosaic has holes"


def patches() -> Samples:
    values = np.random.default_rng(0).normal(size=(12, 10, 14)).astype("f4")
    values[:, :3, :3] = np.nan
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values, {"units": "K"})}, {"time": range(12)})
    window: dict[str, Any] = {"time": 4, "lat": 4, "lon": 6}
    return (
        xloader.open(write_store(ds, {"t2m": (3, 5, 7)}))
        .window(window, stride={"time": 2, "lat": 2, "lon": 4})
        .targets("t2m")
    )


def model(samples: Samples, ids: Any) -> Any:
    """Predictions that overlapping windows do not agree on."""
    return samples[ids].targets * (1 + 0.1 * np.asarray(ids)[:, None, None, None, None])


def break_off(samples: Samples, path: Path, ids: Any) -> None:
    """Write some samples; then an error leaves the block."""
    with samples.mosaic(path) as out:
        out.write(ids, model(samples, ids))
        raise ZeroDivisionError


def whole(samples: Samples, **options: Any) -> xr.Dataset:
    with samples.mosaic(**options) as out:
        ids = np.arange(len(samples))
        out.write(ids, model(samples, ids))
    return out.dataset.load()


def check_store(path: Path, expected: xr.Dataset) -> None:
    """Check that a merged store equals a Dataset bit for bit, and that no part is left."""
    found = xr.open_zarr(path).load()
    xr.testing.assert_identical(found, expected)
    for name in expected.data_vars:
        assert found[name].values.tobytes() == expected[name].values.tobytes()
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(path.name)] == [path.name]


@pytest.mark.parametrize("blend", ["mean", "linear", "crop"])
@given(data=st.data())
@settings(max_examples=4)
def test_the_bits_do_not_depend_on_order_ranks_and_runs(
    blend: Any, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    samples = patches()
    expected = whole(samples, blend=blend)
    path = tmp_path_factory.mktemp("order") / "forecast.zarr"
    order = data.draw(st.permutations(range(len(samples))))
    left = [np.array(ids) for ids in np.array_split(order, data.draw(st.integers(2, 5)))]
    while left:
        rank = data.draw(st.integers(0, 2))
        out = samples.mosaic(path, blend=blend, world=xloader.World(rank, 3))
        for _ in range(data.draw(st.integers(1, 2))):
            if left:
                ids = left.pop()
                out.write(ids, model(samples, ids))
        out.close()
    # The rank that finds all samples written merges them.
    assert out.summary is not None
    assert out.summary.is_complete
    check_store(path, expected)


RUN = """
import os, signal, sys
import numpy as np
import xloader
from tests.mosaic.test_mosaic_restarts import model, patches
rank, world_size, most = map(int, sys.argv[2:])
samples, world = patches(), xloader.World(rank, world_size)
with samples.mosaic(sys.argv[1], world=world) as out:
    loader = samples.loader(batch_size=3, output="numpy", on_nan="ignore", world=world)
    for number, batch in enumerate(loader):
        if number == most:
            os.kill(os.getpid(), signal.SIGKILL)
        if not out.is_done(batch).all():
            out.write(batch, model(samples, batch.ids))
        if number % 2:
            out.flush()
print(out.num_skipped, out.num_done)
"""


def run(path: Path, rank: int, world_size: int, most: int = -1) -> subprocess.Popen[str]:
    arguments = [str(path), str(rank), str(world_size), str(most)]
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_two_processes_killed_in_the_middle_go_on(tmp_path: Path) -> None:
    samples, path = patches(), tmp_path / "forecast.zarr"
    killed = [run(path, rank, 2, most=3) for rank in range(2)]
    for process in killed:
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    begun = samples.mosaic(path, world=xloader.World(0, 2))
    # Each rank had flushed its first two batches, and loses the third one.
    assert begun.num_done == 2 * 2 * 3
    assert len(begun.remaining_ids) == len(samples) - 12
    for process in [run(path, rank, 2) for rank in range(2)]:
        process.communicate(timeout=120)
        assert process.returncode == 0
    check_store(path, whole(samples))


def test_an_error_keeps_what_was_written_and_merges_nothing(tmp_path: Path) -> None:
    samples, path = patches(), tmp_path / "forecast.zarr"
    with pytest.raises(ZeroDivisionError):
        break_off(samples, path, [4, 2])
    assert not path.exists()
    again = samples.mosaic(path)
    assert again.done_ids.tolist() == [2, 4]
    assert again.is_done([2, 3, 4]).tolist() == [True, False, True]
    left = again.remaining_ids
    with again:
        # What is done is skipped and counted, even if it has other predictions this time.
        again.write([2, 4], np.zeros_like(model(samples, [2, 4])))
        for batch in samples.select(left).loader(batch_size=8, output="numpy", on_nan="ignore"):
            again.write(batch, model(samples, left[batch.ids]), selected=left)
    assert again.num_skipped == 2
    check_store(path, whole(samples))


def test_a_truncated_file_does_not_count(tmp_path: Path) -> None:
    samples, path = patches(), tmp_path / "forecast.zarr"
    out = samples.mosaic(path)
    out.write([0, 1], model(samples, [0, 1]))
    out.flush()
    out.write([2], model(samples, [2]))
    out.flush()
    first, _ = sorted(path.with_name("forecast.zarr.parts").glob("parts/*.part"))
    content = first.read_bytes()
    for damaged in (content[:-1], content[:40], b"", content + b"x", content[:200] + b"?" * 16):
        first.write_bytes(damaged)
        assert samples.mosaic(path).done_ids.tolist() == [2]
    file = io.BytesIO(content)
    _, places = np.load(file), np.load(file)
    at = file.tell() - places.itemsize
    # A place is changed: the sum over ids and places shows it.
    first.write_bytes(content[:at] + b"\7" + content[at + 1 :])
    assert samples.mosaic(path).done_ids.tolist() == [2]
    # A file that is still being written has another name.
    first.rename(first.with_suffix(".partial"))
    with samples.mosaic(path) as out:
        left = out.remaining_ids
        assert len(left) == len(samples) - 1
        out.write(left, model(samples, left))
    check_store(path, whole(samples))


def test_merging_says_what_is_damaged(tmp_path: Path) -> None:
    samples, path = patches(), tmp_path / "forecast.zarr"
    out = samples.mosaic(path)
    out.write([0, 1], model(samples, [0, 1]))
    out.flush()
    (first,) = path.with_name("forecast.zarr.parts").glob("parts/*.part")
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.warns(TargetWarning, match="1 files of predictions are damaged"):
        summary = xloader.merge(path)
    assert summary.num_windows == 0
    assert summary.num_uncovered == summary.num_cells


@pytest.mark.filterwarnings(HOLES)
def test_missing_samples_are_counted_and_can_be_written_later(tmp_path: Path) -> None:
    samples, path = patches(), tmp_path / "forecast.zarr"
    with pytest.warns(TargetWarning, match="is kept, so that"), samples.mosaic(path) as out:
        out.write([0], model(samples, [0]))
    assert out.num_uncovered == 12 * 10 * 14 - 4 * 4 * 6
    counts = xr.open_zarr(path, group="_coverage")
    assert counts.attrs["num_windows"] == 1
    assert int((counts.t2m == 0).sum()) == out.num_uncovered == counts.attrs["num_uncovered"]
    assert np.isnan(out.dataset.t2m.values[counts.t2m.values == 0]).all()
    with samples.mosaic(path) as out:
        ids = out.remaining_ids
        out.write(ids, model(samples, ids))
    check_store(path, whole(samples))


def test_a_sample_of_two_ranks_needs_the_same_bits(tmp_path: Path) -> None:
    samples, path = patches(), tmp_path / "forecast.zarr"
    ids = np.arange(len(samples))
    outs = [samples.mosaic(path, world=xloader.World(rank, 2)) for rank in range(2)]
    for out, own in zip(outs, (ids[:9], ids[8:]), strict=True):
        out.write(own, model(samples, own))
        out.flush()
    assert xloader.merge(path).num_windows == len(samples)
    check_store(path, whole(samples))
    path = tmp_path / "other.zarr"
    outs = [samples.mosaic(path, world=xloader.World(rank, 2)) for rank in range(2)]
    for number, (out, own) in enumerate(zip(outs, (ids[:9], ids[8:]), strict=True)):
        out.write(own, model(samples, own) + number)
        out.flush()
    with pytest.raises(TargetError, match="written twice, with different predictions"):
        xloader.merge(path)
    assert path.with_name("other.zarr.parts").exists()
    assert not path.exists()


@pytest.mark.filterwarnings(HOLES)
def test_weighted_samples_count_once() -> None:
    samples = patches()
    weighted = samples.weighted(np.linspace(0.5, 3, len(samples)), num_samples=3 * len(samples))
    with weighted.mosaic() as out:
        for batch in weighted.loader(batch_size=9, output="numpy", on_nan="ignore"):
            out.write(batch, model(samples, batch.ids))
    assert out.num_skipped + out.num_done == 3 * len(samples)
    assert out.num_done > 0.9 * len(samples)
    done = out.done_ids
    with samples.mosaic() as plain:
        plain.write(done, model(samples, done))
    xr.testing.assert_identical(out.dataset, plain.dataset)


def test_the_chunks_of_the_store_are_chosen(tmp_path: Path) -> None:
    samples = patches()
    whole(samples, target=tmp_path / "a.zarr")
    assert xr.open_zarr(tmp_path / "a.zarr").t2m.encoding["chunks"] == (3, 5, 7)
    whole(samples, target=tmp_path / "b.zarr", chunks={"time": 1, "lon": 100})
    assert xr.open_zarr(tmp_path / "b.zarr").t2m.encoding["chunks"] == (1, 5, 14)
    digests = {
        hashlib.sha256(xr.open_zarr(tmp_path / name).t2m.values.tobytes()).hexdigest()
        for name in ("a.zarr", "b.zarr")
    }
    assert len(digests) == 1


def test_few_predictions_are_written_after_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xloader.mosaic import mosaic

    now = [0.0]
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr(mosaic, "time", clock)
    samples = xr.Dataset({"t": ("x", np.arange(9.0))}).xloader.window(x=1)
    target = tmp_path / "a.zarr"
    out = samples.mosaic(target)
    for number, seconds in enumerate([1.0, 29.0, 31.0, 32.0, 62.0]):
        now[0] = seconds
        out.write([number], samples[[number]].t)
    # A killed process would have lost nothing now but what came after the last file.
    files = sorted((tmp_path / "a.zarr.parts" / "parts").iterdir())
    assert len(files) == 2
    out.write(range(5, 9), samples[5:9].t)
    out.close()


def test_a_merge_waits_for_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples, path = patches(), tmp_path / "forecast.zarr"
    out = samples.mosaic(path)
    out.write(np.arange(len(samples)), model(samples, np.arange(len(samples))))
    with open(tmp_path / "forecast.zarr.parts" / "merging.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merge = threading.Thread(target=out.close)
        merge.start()
        while "another process is merging" not in caplog.text:
            assert merge.is_alive()
        assert not path.exists()
    merge.join()
    check_store(path, whole(samples))
