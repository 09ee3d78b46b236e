"""A free-threaded Python: the lock stays off, and what threads share bears it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xloader.engine import threads
from xloader.jobs.statistics import moments

pytestmark = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has its lock"
)

SCRIPT = """
import sys

import numpy as np
import xarray as xr

import xloader

values = np.arange(4096, dtype=np.int64).reshape(64, 64)
folder = sys.argv[1]
xr.Dataset({"a": (("t", "x"), values)}).chunk(t=4).to_zarr(folder, consolidated=False)
samples = xloader.open(folder).window(t=2).map(lambda sample: sample + 1)
with samples.loader(batch_size=4, memory="4MiB", output="numpy", threads=2) as loader:
    for batch in loader:
        assert np.array_equal(batch["a"], values[2 * batch.ids[:, None] + [0, 1]] + 1)
print(sys._is_gil_enabled())
"""


def run_epoch(folder: str, **changes: str) -> tuple[str, str]:
    """Run an epoch in a process of its own; what it printed, and its warnings."""
    env = {name: text for name, text in os.environ.items() if name != "PYTHON_GIL"} | changes
    run = subprocess.run(
        [sys.executable, "-W", "always", "-c", SCRIPT, folder],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip(), run.stderr


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_the_lock_stays_off(tmp_path, compiled: str):
    printed, _ = run_epoch(str(tmp_path), PYTHON_GIL="0", XLOADER_COMPILED=compiled)
    assert printed == "False"


def test_only_a_known_dependency_turns_the_lock_on(tmp_path):
    printed, warned = run_epoch(str(tmp_path))
    assert printed == "False" or "to load module 'google_crc32c" in warned


def test_these_tests_run_without_the_lock():
    assert not sys._is_gil_enabled(), "run these tests with PYTHON_GIL=0"


def at_once(*functions: Callable[[], object]) -> list[Exception]:
    """Call each function many times on a thread of its own; the errors."""
    errors: list[Exception] = []

    def work(function: Callable[[], object]) -> None:
        try:
            for _ in range(20_000):
                function()
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(function,)) for function in functions]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return errors


def test_threads_share_no_buffer_of_sums():
    def check(first: float) -> None:
        values = np.arange(first, first + 9.0)
        assert moments._of_row(values, None, None)[2] == first + 4.0

    assert at_once(*(lambda first=first: check(first) for first in (0.0, 10.0, 20.0))) == []


def test_a_slow_read_is_told_while_a_call_ends():
    calls: deque[Any] = deque(maxlen=1)

    def begin_and_end() -> None:
        calls.append(SimpleNamespace(ended=SimpleQueue()))
        calls.clear()

    assert at_once(begin_and_end, *[lambda: threads._tell(calls, "slow")] * 2) == []
