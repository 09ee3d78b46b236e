"""The memory of a process that writes a store stays within the budget of the job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import sys, zarr, xloader
from pathlib import Path

def read_status(name):
    (line,) = [x for x in open("/proc/self/status") if x.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024

source, target, chunk, memory = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
samples = xloader.open(source).window(time=2)
Path("/proc/self/clear_refs").write_text("5")
begin = read_status("VmRSS")
done = samples.materialize(target, chunks={"time": chunk}, memory=memory, threads=2)
(own,) = done.variables
print(read_status("VmHWM") - begin, done.expected_peak_nbytes, own.intermediate_chunks is not None)
"""

BUDGET = 96 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
@pytest.mark.parametrize(
    ("source_chunks", "chunk", "is_between"),
    [((32, 128, 256), 16, False), ((2048, 8, 16), 16, True)],
)
def test_the_peak_of_a_fresh_process(
    tmp_path: Path, source_chunks: tuple[int, ...], chunk: int, is_between: bool
) -> None:
    """The libraries that a first job loads count too: 256 MiB of data in 96 MiB."""
    make = f"""
import zarr, numpy as np
group = zarr.open_group({str(tmp_path / "source.zarr")!r}, mode="w", zarr_format=3)
own = group.create_array(
    "v", shape=(2048, 128, 256), chunks={source_chunks}, dtype="f4",
    dimension_names=["time", "lat", "lon"],
)
times = np.arange(2048, dtype="f4")[:, None, None]
own[:] = np.broadcast_to(times + np.arange(256, dtype="f4"), own.shape)
"""
    subprocess.run([sys.executable, "-c", make], check=True, timeout=120)
    told = [str(tmp_path / "source.zarr"), str(tmp_path / "target.zarr"), str(chunk), str(BUDGET)]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *told],
        check=True, timeout=120, capture_output=True, text=True,
    )  # fmt: skip
    peak, expected, through = done.stdout.split()
    assert (through == "True") == is_between
    assert int(expected) <= BUDGET
    assert int(peak) <= BUDGET
