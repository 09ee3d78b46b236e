"""A materialize job that was killed, or whose disk was full, goes on; parts add up to a whole."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import StoreFullError, TargetError, TargetWarning
from xloader.sources.stores.writable_store import WritableStore
from xloader.testing import write_store

OPTIONS: dict[str, Any] = {"chunks": {"time": 4}, "shards": {"time": 8}, "threads": 2}
DIRECT, BETWEEN = "1MiB", "256KiB"
"""Memory with which chunks are read once, and with which values pass an intermediate store."""


def make_dataset() -> xr.Dataset:
    values = np.random.default_rng(0).normal(280, 9, (2, 96, 32, 32)).astype("f4")
    return xr.Dataset(
        {"t": (("time", "y", "x"), values[0]), "u": (("time", "y", "x"), values[1])},
        {"time": np.arange(96), "y": np.linspace(0, 1, 32)},
    )


def source_at(path: Path) -> Samples:
    write_store(make_dataset(), {"t": (96, 4, 4), "u": (10, 32, 32)}, path)
    return xloader.open(path).window(time=3)


def objects_in(target: Path) -> dict[str, str]:
    """The digest of each file but the store's own attributes, which hold the time."""
    return {
        str(path.relative_to(target)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.rglob("*"))
        if path.is_file() and path != target / "zarr.json"
    }


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return source_at(tmp_path / "source.zarr")


@pytest.fixture
def expected(samples: Samples, tmp_path: Path) -> dict[str, str]:
    """What an undisturbed job writes."""
    done = samples.materialize(tmp_path / "whole.zarr", memory=DIRECT, **OPTIONS)
    assert done.is_complete
    with xr.open_zarr(tmp_path / "whole.zarr") as found:
        xr.testing.assert_equal(found, make_dataset())
    return objects_in(tmp_path / "whole.zarr")


class Breaking:
    """Lets some objects be written, then breaks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> None:
        self.keys: list[str] = []
        put = WritableStore.put

        def breaking(store: WritableStore, key: str, data: bytes) -> None:
            if len(self.keys) >= most:
                raise error
            self.keys.append(key)
            put(store, key, data)

        monkeypatch.setattr(WritableStore, "put", breaking)


RUN = """
import os, signal, sys
from pathlib import Path
import xloader
from tests.jobs.test_materialize_restarts import OPTIONS
from xloader.sources.stores.writable_store import WritableStore
folder, memory, most, part = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
put, count = WritableStore.put, 0

def killed(store, key, data):
    global count
    count += 1
    if count == most:
        # The file was begun under another name.
        path = folder / "t.zarr" / (key + "." + "0" * 32 + ".partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:7])
        os.kill(os.getpid(), signal.SIGKILL)
    put(store, key, data)

WritableStore.put = killed
samples = xloader.open(folder / "source.zarr").window(time=3)
done = samples.materialize(folder / "t.zarr", memory=memory, part=part, **OPTIONS)
print(done.is_complete, done.num_reads)
"""


def run(folder: Path, memory: str, most: int, part: object = None) -> subprocess.Popen[str]:
    arguments = [str(folder), memory, str(most), repr(part)]
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_job_that_is_killed_twice_goes_on(
    samples: Samples, expected: dict[str, str], tmp_path: Path
) -> None:
    # The first is killed among the metadata or the first shards, the second later.
    for most in (9, 23):
        process = run(tmp_path, BETWEEN, most)
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    assert list((tmp_path / "t.zarr").rglob("*.partial"))
    done = samples.materialize(tmp_path / "t.zarr", memory=BETWEEN, verify=True, **OPTIONS)
    assert done.is_complete
    assert done.num_reads == done.expected_reads
    # With nothing lost, doubled or left over.
    assert objects_in(tmp_path / "t.zarr") == expected


def test_parts_in_processes_of_their_own(
    samples: Samples, expected: dict[str, str], tmp_path: Path
) -> None:
    parts = [run(tmp_path, "400KiB", -1, (number, 3)) for number in range(3)]
    told = [part.communicate(timeout=120)[0].split() for part in parts]
    assert all(part.returncode == 0 for part in parts)
    assert "True" in [one for one, _ in told]
    assert objects_in(tmp_path / "t.zarr") == expected


def test_parts_one_after_another(
    samples: Samples, expected: dict[str, str], tmp_path: Path
) -> None:
    done = []
    for number in (2, 0, 1):
        # Each part may have another memory: who writes what does not depend on it.
        memory = ["1MiB", "500KiB", "2MiB"][number]
        options = {**OPTIONS, "memory": memory, "part": (number, 3)}
        done.append(samples.materialize(tmp_path / "t.zarr", **options))
        # A part that is called again has nothing to do.
        again = samples.materialize(tmp_path / "t.zarr", **options)
        assert again.num_reads == 0
        assert again.is_complete == done[-1].is_complete
    assert [one.is_complete for one in done] == [False, False, True]
    assert [sum(own.num_written for own in one.variables) for one in done] == [8, 8, 8]
    assert "not complete yet" in str(done[0])
    assert objects_in(tmp_path / "t.zarr") == expected


def test_who_opens_a_store_that_is_not_complete_is_told(
    samples: Samples, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for number in range(2):
        samples.materialize(tmp_path / "t.zarr", part=(number, 2), **OPTIONS)
        if not number:
            with pytest.warns(TargetWarning, match="is not complete.*Call it again"):
                xloader.open(tmp_path / "t.zarr")
    recwarn.clear()
    xloader.open(tmp_path / "t.zarr")
    assert not recwarn.list


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_in_earnest(
    samples: Samples, expected: dict[str, str], small_disk: Path
) -> None:
    stuffing = small_disk / "stuffing"
    stuffing.write_bytes(bytes(1 << 19))
    with pytest.raises(StoreFullError):
        samples.materialize(small_disk / "t.zarr", memory=DIRECT, **OPTIONS)
    stuffing.unlink()
    done = samples.materialize(small_disk / "t.zarr", memory=DIRECT, **OPTIONS)
    assert sum(own.num_written for own in done.variables) > 0
    assert objects_in(small_disk / "t.zarr") == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"chunks": {"time": 8}}, "chunks"),
        ({"shards": {"time": 16}}, "shards"),
        ({"compressor": "lz4"}, "codecs"),
        ({"dtype": "float64"}, "dtype"),
        ({"pack": {"t": "int16"}}, "pack"),
    ],
)
def test_other_arguments_are_refused(
    samples: Samples, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    target = tmp_path / "t.zarr"
    samples.materialize(target, **OPTIONS)
    with pytest.raises(TargetError, match=f"other .*{named}"):
        samples.materialize(target, **{**OPTIONS, **changes})
    done = samples.materialize(target, **{**OPTIONS, **changes}, overwrite=True)
    assert sum(own.num_written for own in done.variables) > 0


def test_other_samples_are_refused(samples: Samples, tmp_path: Path) -> None:
    target = tmp_path / "t.zarr"
    samples.materialize(target, **OPTIONS)
    with pytest.raises(TargetError, match="Given: other source"):
        xloader.open(tmp_path / "source.zarr").isel(x=slice(0, 8)).window(time=3).materialize(
            target, **OPTIONS
        )
    with pytest.raises(TargetError, match="Given: other samples"):
        samples.select([0]).materialize(target, **OPTIONS)
    # Other windows that need the same elements are no others.
    other = xloader.open(tmp_path / "source.zarr").window(time=4, stride=1)
    assert other.materialize(target, **OPTIONS).num_reads == 0


def test_objects_that_are_lost_or_changed(
    samples: Samples, expected: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "t.zarr"
    first = samples.materialize(target, **OPTIONS)
    (target / "t" / "c" / "3" / "0" / "0").unlink()
    again = samples.materialize(target, **OPTIONS)
    assert [own.num_written for own in again.variables] == [1, 0]
    assert [own.digest for own in again.variables] == [own.digest for own in first.variables]
    assert objects_in(target) == expected
    path = target / "u" / "c" / "3" / "0" / "0"
    path.write_bytes(path.read_bytes()[::-1])
    assert samples.materialize(target, **OPTIONS).is_complete
    with pytest.raises(TargetError, match="digest of u"):
        samples.materialize(target, verify=True, **OPTIONS)


def test_bounds_that_were_found_are_not_read_again(
    samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "pack": {"u": "int16"}}
    with monkeypatch.context() as patched:
        Breaking(patched, 12, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            samples.materialize(tmp_path / "t.zarr", **options)
    done = samples.materialize(tmp_path / "t.zarr", **options)
    assert done.num_bounds_reads == 0
    assert done.is_complete
