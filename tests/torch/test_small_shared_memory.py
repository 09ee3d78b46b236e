"""Worker processes where ``/dev/shm`` is small, as in a container, and the loop keeps batches."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import xloader
from tests.torch.small_shared_memory import DOORS, NUM_SAMPLES, make_dataset
from xloader.errors import WorkersError
from xloader.testing import write_store
from xloader.torch import worker_setup

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

PROGRAM = "tests.torch.small_shared_memory"

ENDS_WITHIN = 240
"""Seconds after which the program hangs for sure."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program says where ``/dev/shm`` has 2 MiB. All batches together take 12 MiB."""
    # Only root may mount a folder without a user namespace.
    alone = ["unshare", "-m" if os.getuid() == 0 else "-rm", "sh", "-c"]
    mount = "mount -t tmpfs -o size=2m tmpfs /dev/shm"
    if shutil.which("unshare") is None:
        pytest.skip("there is no program unshare, which gives a process mounts of its own")
    if subprocess.run([*alone, mount], capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount a /dev/shm of its own")
    path = tmp_path_factory.mktemp("stores") / "t.zarr"
    write_store(make_dataset(), {"t": (4, 1 << 15)}, path)
    done = subprocess.run(
        [*alone, f'{mount} && exec "$@"', "sh", sys.executable, "-m", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {door: rest for door, *rest in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("door", DOORS)
def test_all_batches_come_and_are_right(told: dict[str, Any], door: str) -> None:
    ids, num_wrong, left_behind = told[door]
    assert ids == list(range(NUM_SAMPLES))
    assert num_wrong == 0
    # PyTorch leaves the file of each tensor for which there was no room.
    assert left_behind == []


def test_half_of_the_folder_is_left_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "memfd_create", None, raising=False)
    assert not worker_setup._has_room(1, str(tmp_path / "none"))
    sizes = SimpleNamespace(f_frsize=4096, f_blocks=100, f_bavail=80)
    monkeypatch.setattr(os, "statvfs", lambda folder: sizes)
    assert worker_setup._has_room(30 * 4096)
    assert not worker_setup._has_room(30 * 4096 + 1)


def test_where_there_is_room_pytorch_moves_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a tensor that each batch has again is sent without another copy."""
    monkeypatch.setattr(worker_setup, "_has_room", lambda nbytes: nbytes == 4000)
    for size, is_moved in ((1000, True), (1001, False)):
        tensor = torch.arange(float(size))
        rebuild, args = worker_setup._reduce(tensor.untyped_storage())
        found = torch.empty(0).set_(rebuild(*args))
        assert torch.equal(found, tensor)
        assert found.is_shared()
        assert tensor.is_shared() == is_moved


@pytest.mark.parametrize("door", ["data_loader", "MapDataset", "IterableDataset"])
def test_no_memory_at_all_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    monkeypatch.setattr(worker_setup, "_has_room", lambda nbytes: False)
    write_store(make_dataset().isel(x=slice(4)), {"t": (4, 4)}, tmp_path / "t.zarr")
    iterator: Any = iter(DOORS[door](xloader.open(tmp_path / "t.zarr").window(time=1)))
    with pytest.raises(WorkersError, match=r"worker process \d[\s\S]*no room .* \d+ bytes"):
        next(iterator)
    iterator._shutdown_workers()
