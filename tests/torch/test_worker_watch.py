"""Workers end with the training process, and not before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from torch.utils.data import ConcatDataset, DataLoader

import xloader
from tests.torch.waves import write_times
from xloader import Samples
from xloader.torch import IterableDataset, MapDataset

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

SECONDS = 20.0
"""Seconds that processes may take to end. On an idle machine they take less than one."""

TRAINING = """
import json, sys, threading
import psutil, xloader
from torch.utils.data import DataLoader
from xloader.torch import IterableDataset, data_loader

def train(door, folder):
    samples = xloader.open(folder).window(time=1)
    settings = {"num_workers": 2, "persistent_workers": True}
    settings["multiprocessing_context"] = "forkserver"
    if door == "data_loader":
        loader = data_loader(samples, 8, memory="64KiB", **settings)
    else:
        stream = IterableDataset(samples, 8, memory="64KiB")
        loader = DataLoader(stream, batch_size=None, **settings)
    batches = []
    def begin():
        batches.append(iter(loader))
        next(batches[0])
    # What ends with a thread would end here.
    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    for _ in range(9):
        next(batches[0])
    print(json.dumps([p.pid for p in psutil.Process().children(recursive=True)]), flush=True)
    sys.stdin.read()

if __name__ == "__main__":
    train(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_times(tmp_path_factory.mktemp("stores") / "times.zarr")


@pytest.fixture
def samples(folder: Path) -> Samples:
    return xloader.open(folder).window(time=1)


@pytest.fixture
def started() -> Iterator[list[psutil.Process]]:
    """Collect processes, and kill those that a test leaves behind, even if it fails."""
    processes: list[psutil.Process] = []
    yield processes
    for process in those_alive(processes):
        process.kill()


@pytest.fixture
def sockets() -> Iterator[str]:
    """Give a folder for the sockets of a killed process; a longer path would not fit a socket."""
    with tempfile.TemporaryDirectory(prefix="x") as path:
        yield path


def those_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    alive = []
    for process in processes:
        # A zombie has ended, although its new parent does not ask for its exit code.
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


@pytest.mark.parametrize("door", ["data_loader", "IterableDataset"])
def test_nothing_is_left_of_a_training_process_that_was_killed(
    folder: Path, tmp_path: Path, sockets: str, started: list[psutil.Process], door: str
) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    root = Path(xloader.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", script, door, folder],
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": sockets},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as training:
        started.append(psutil.Process(training.pid))
        assert training.stdout is not None
        started.extend(psutil.Process(pid) for pid in json.loads(training.stdout.readline()))
        # The training process, the fork server, its semaphore tracker, and two workers.
        assert len(those_alive(started)) == 5
        training.kill()
    give_up = time.monotonic() + SECONDS
    while (alive := those_alive(started)) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert [process.cmdline() for process in alive] == []


def lookouts(x: np.ndarray) -> int:
    return sum(thread.name == "xloader-orphans" for thread in threading.enumerate())


@pytest.mark.parametrize(("method", "expected"), [(None, 0), ("fork", 0), ("forkserver", 1)])
def test_one_lookout_in_each_worker_for_whom_nobody_else_looks_out(
    samples: Samples, method: str | None, expected: int
) -> None:
    # Two datasets in one worker must share one watching thread.
    parts = [MapDataset(samples, "64KiB", transform=lookouts) for _ in range(2)]
    settings: dict[str, Any] = {"num_workers": 0}
    if method is not None:
        settings = {
            "num_workers": 1,
            "multiprocessing_context": method,
            "persistent_workers": True,
        }
    ids = [0, len(samples), 1]
    counts = DataLoader(ConcatDataset(parts), 1, sampler=ids, **settings)
    assert [int(count) for (count,) in counts] == [expected] * 3
    stream = IterableDataset(samples, 120, memory="64KiB", transform=lookouts)
    loader = DataLoader(stream, None, **settings)
    for epoch in range(2):
        stream.set_epoch(epoch)
        assert {int(count) for batch in loader for count in batch[0]} == {expected}
