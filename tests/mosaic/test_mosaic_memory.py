"""Memory of a mosaic: neither writing nor merging needs more for a larger target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import xloader
from benchmarks.mosaic import make_store

pytestmark = pytest.mark.filterwarnings("ignore:the mosaic has holes")


def test_a_target_of_64_mib_grows_a_process_by_48_mib_at_most(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.mosaic",
            "--cells",
            str(1 << 24),
            "--memory",
            "48MiB",
            "--folder",
            str(tmp_path),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["target_nbytes"] == 4 << 24
    # Its predictions take 140 MB, and the target alone 67 MB.
    assert found["growth_mib"] <= 48
    assert found["growth_writing_mib"] <= 32


def test_predictions_reach_the_disk_as_they_come(tmp_path: Path) -> None:
    samples = xloader.open(make_store(tmp_path, 1 << 22), on_missing="fill")
    samples = samples.window(time=1, lat=512, lon=512).targets("t2m")
    row = np.ones((1, *samples.shapes["targets"]), "f4")
    out = samples.mosaic(tmp_path / "a.zarr", memory="24MiB")
    sizes = []
    for number in range(len(samples)):
        out.write([number], row)
        parts = (tmp_path / "a.zarr.parts").glob("parts/*.part")
        sizes.append(sum(path.stat().st_size for path in parts) >> 20)
    # Each prediction takes 1 MiB, and up to 8 MiB wait.
    assert sizes[:8] == [0] * 7 + [8]
    assert sizes[-1] == len(samples) == 16
    out.close()
    assert zarr.open_array(str(tmp_path / "a.zarr"), path="t2m").chunks == (4, 256, 256)
