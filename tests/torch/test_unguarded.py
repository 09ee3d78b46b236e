"""Scripts with workers, with and without the ``__main__`` guard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MADE = """
import sys
import numpy as np, xarray as xr, xloader
from xloader.torch import data_loader

ds = xr.Dataset({"t": (("time", "x"), np.zeros((64, 4), np.float32))})
loaders = [
    data_loader(
        xloader.open(ds).window(time=1),
        batch_size=8, num_workers=1, memory="4MiB", multiprocessing_context=context,
    )
    for context in sys.argv[1:]
]
"""
UNGUARDED = "print([len(list(loader)) for loader in loaders], 'batches')\n"
GUARDED = "if __name__ == '__main__':\n    " + UNGUARDED


def run(folder: Path, text: str, *contexts: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(MADE + text)
    command = [sys.executable, str(script), *contexts]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ})


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path, context: str) -> None:
    ended = run(tmp_path, UNGUARDED, context)
    assert ended.returncode != 0
    assert "batches" not in ended.stdout
    told = next(line for line in ended.stderr.splitlines() if "WorkersError: " in line)
    assert "a worker process imports the script again, and would start its own workers" in told
    assert (
        'To mend it: put the code that trains, writes or prints under if __name__ == "__main__":'
        in told
    )


def test_a_loader_may_be_made_above_the_guard(tmp_path: Path) -> None:
    """Workers import the script and make the loader too, but do not iterate over it."""
    ended = run(tmp_path, GUARDED, "spawn", "forkserver")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "[8, 8] batches\n"
