"""The example for SLURM, stopped by signals: all jobs together see what one would see."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.trainers.ranks import ROOT, Place, own_fork_server, plain_environ, run_as_main
from tests.trainers.stopped import ASLEEP, CLOSED

torch = pytest.importorskip("torch")
GUARD = 200.0
"""Seconds after which a job that has not ended is killed."""
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no process groups there"),
    # Three jobs, each of which imports PyTorch, take minutes beside other programs.
    pytest.mark.timeout(4 * GUARD),
]

SCRIPT = ROOT / "examples" / "requeue.py"
AGAIN = 75
NUM_STEPS = 30
"""Of an epoch, and the script trains for two."""

Ids = list[list[int]]
"""Of the batches of a rank, one after the other."""
Training = tuple[Ids, dict[str, Any]]
"""The batches, and the checkpoint at the end."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data that the script wants."""
    folder = tmp_path_factory.mktemp("data")
    values = np.random.default_rng(0).normal(size=(480, 16, 32)).astype("float32")
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values)})
    encoding = {"t2m": {"chunks": (16, 16, 32)}}
    ds.to_zarr(folder / "weather.zarr", zarr_format=3, consolidated=False, encoding=encoding)
    return folder


def write_script(folder: Path, data: Path, processes: int = 0) -> None:
    """Write the example beside its data. It tells the test where it is."""
    (folder / "weather.zarr").symlink_to(data / "weather.zarr")
    script = SCRIPT.read_text("utf-8")
    changes = {
        "import xloader\n": "import xloader\nfrom tests.trainers import stopped\n",
        "optimizer.step()\n": "optimizer.step(); stopped.trained(batch)\n",
        "samples.loader(": f"samples.map(stopped.hold).loader(processes={processes}, ",
    }
    for old, new in changes.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    (folder / "train.py").write_text(script)


class Rank:
    """A process of a job, which does not go on after a batch until the test tells it to."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.ids: Ids = []
        context = multiprocessing.get_context("forkserver")
        (self._told, told), (asked, self._asked) = (context.Pipe(duplex=False) for _ in range(2))
        place = (str(folder / "output"), folder, plain_environ() | environ)
        (folder / "output").touch()
        self._process = context.Process(target=begin, args=(place, asked, told))
        self._process.start()
        for theirs in (asked, told):
            theirs.close()
        self._lines = os.fdopen(os.dup(self._told.fileno()))

    def hear(self) -> bool:
        """Wait until it has trained on a batch, and return whether there was one."""
        line = self._lines.readline()
        if line:
            self.ids.append(json.loads(line))
        return bool(line)

    def go_on(self) -> None:
        """Let it go on after the batch."""
        os.write(self._asked.fileno(), b"\n")

    def send(self, number: int) -> None:
        """Send a signal to it and to all processes that it has started, as SLURM may do."""
        assert self._process.pid is not None
        os.killpg(self._process.pid, number)

    def end(self) -> int | None:
        """Let it go on to its end, and return its exit code."""
        while self.hear():
            self.go_on()
        self._process.join(GUARD)
        return self._process.exitcode

    def kill(self) -> None:
        """Kill all its processes, those too that have outlived it."""
        with suppress(ProcessLookupError):
            self.send(signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing of it behind."""
        self.kill()
        for stream in (self._lines, self._told, self._asked):
            stream.close()
        self._process.join()


def begin(place: Place, asked: Connection, told: Connection) -> None:
    """Run the script in this new process, with pipes as its terminal."""
    os.setsid()
    os.environ.clear()
    own_fork_server()
    os.dup2(asked.fileno(), 0)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(told.fileno(), "w", closefd=False)
    _, folder, _ = place
    run_as_main(place, str(folder / "train.py"), [])


@contextmanager
def job(folder: Path, world_size: int = 1) -> Iterator[list[Rank]]:
    """Start the ranks of a job, as srun does it if there are several."""
    environs: list[dict[str, str]] = [{}]
    if world_size > 1:
        # The ranks meet here, and not at rank 0, so that no port has to be guessed.
        meeting = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        shared = {
            "SLURM_STEP_NUM_TASKS": str(world_size),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(meeting.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        environs = [{"SLURM_PROCID": str(rank), **shared} for rank in range(world_size)]
    ranks: list[Rank] = []
    guard = threading.Timer(GUARD, lambda: [rank.kill() for rank in ranks])
    guard.start()
    try:
        ranks += [Rank(folder, environ) for environ in environs]
        yield ranks
    finally:
        guard.cancel()
        for rank in ranks:
            rank.close()


def checkpoint(folder: Path) -> dict[str, Any]:
    """The checkpoint, which must be whole, and no part of another one beside it."""
    assert not (folder / "checkpoint.tmp").exists()
    parts: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return parts


def position(folder: Path) -> tuple[int, int]:
    """The epoch of the checkpoint, and the number of its batches that were trained on."""
    state = checkpoint(folder)["loader"]
    return state["epoch"], state["step"]


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The batches of a job that no signal stops, and its last checkpoint."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_script(folder, data)
    with job(folder) as (rank,):
        assert rank.end() == 0
    assert len(rank.ids) == 2 * NUM_STEPS
    assert position(folder) == (2, 0)
    return rank.ids, checkpoint(folder)


def assert_same_training(ids: Ids, folder: Path, undisturbed: Training) -> None:
    """Check that a training in several jobs saw the same batches, and learned the same."""
    assert ids == undisturbed[0]
    assert position(folder) == (2, 0)
    torch.testing.assert_close(checkpoint(folder)["net"], undisturbed[1]["net"])


@pytest.mark.parametrize(
    ("step", "number", "processes"),
    [
        pytest.param(4, signal.SIGUSR1, 2, id="USR1, processes"),
        pytest.param(NUM_STEPS, signal.SIGTERM, 0, id="TERM, threads, the end of an epoch"),
        pytest.param(NUM_STEPS + 7, signal.SIGUSR1, 0, id="USR1, threads, second epoch"),
    ],
)
def test_the_next_job_goes_on_with_the_next_batch(
    step: int,
    number: int,
    processes: int,
    data: Path,
    tmp_path: Path,
    undisturbed: Training,
) -> None:
    write_script(tmp_path, data, processes)
    with job(tmp_path) as (first,):
        # It hears the signal between two batches of its own, while others are made ahead.
        for _ in range(step - 1):
            first.hear()
            first.go_on()
        first.hear()
        first.send(number)
        first.go_on()
        assert first.end() == AGAIN
    assert len(first.ids) == step
    assert position(tmp_path) == divmod(step, NUM_STEPS)
    (tmp_path / CLOSED).touch()
    with job(tmp_path) as (second,):
        # It hears the signal while it waits for a batch, and a transform makes that one.
        # Up to the first batch, chunks of others may not be read.
        wait_for_transforms(tmp_path)
        second.send(number)
        (tmp_path / CLOSED).unlink()
        assert second.end() == AGAIN
    assert len(second.ids) == 1
    assert position(tmp_path) == divmod(step + 1, NUM_STEPS)
    with job(tmp_path) as (last,):
        assert last.end() == 0
    assert_same_training(first.ids + second.ids + last.ids, tmp_path, undisturbed)


def wait_for_transforms(folder: Path) -> None:
    """Wait until a transform runs."""
    end = time.monotonic() + GUARD
    while not list(folder.glob(f"{ASLEEP}*")):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ranks_stop_at_the_same_step(data: Path, tmp_path: Path, undisturbed: Training) -> None:
    write_script(tmp_path, data)
    step = NUM_STEPS + 5
    with job(tmp_path, world_size=2) as first:
        for number in range(step):
            for rank in first:
                rank.hear()
            first[0].go_on()
            if number == step - 1:
                # It comes to one rank alone, when the other one has gone on already.
                first[1].send(signal.SIGUSR1)
            first[1].go_on()
        assert [rank.end() for rank in first] == [AGAIN, AGAIN]
    assert [len(rank.ids) for rank in first] == [step, step]
    assert position(tmp_path) == divmod(step, NUM_STEPS)
    with job(tmp_path, world_size=2) as last:
        for _ in range(2 * NUM_STEPS - step):
            for rank in last:
                rank.hear()
            for rank in last:
                rank.go_on()
        assert [rank.end() for rank in last] == [0, 0]
    halves = [before.ids + after.ids for before, after in zip(first, last, strict=True)]
    # With lanes, two ranks have the global batches of one.
    ids = [[*one, *other] for one, other in zip(*halves, strict=True)]
    assert_same_training(ids, tmp_path, undisturbed)
