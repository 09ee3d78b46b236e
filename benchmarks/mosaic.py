"""Memory and speed of a mosaic: predictions are written and merged in bounded memory.

Run ``python -m benchmarks.mosaic --cells 1000000000`` for a target of 4 GB.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

import xloader

WINDOW = {"time": 10, "lat": 256, "lon": 256}
STRIDE = {"time": 10, "lat": 192, "lon": 192}


def make_store(folder: Path, num_cells: int) -> Path:
    """A store of zeros with that many cells, of which nothing is written but metadata."""
    side = 1024
    num_times = -(-num_cells // (side * side))
    path = folder / "analysis.zarr"
    group = zarr.open_group(str(path), mode="w")
    group.create_array(
        "t2m",
        shape=(num_times, side, side),
        chunks=(10, 256, 256),
        dtype="float32",
        fill_value=0.0,
        dimension_names=("time", "lat", "lon"),
    )
    return path


def run(folder: Path, num_cells: int, memory: str) -> dict[str, Any]:
    """Write and merge a mosaic; return seconds, bytes and the growth of memory in MiB."""
    options: Any = {"wrap": ("lon",), "pad": {"lat": 0.0}}
    samples = xloader.open(make_store(folder, num_cells), on_missing="fill")
    samples = samples.window(WINDOW, stride=STRIDE, **options).targets("t2m")
    # One small mosaic loads all modules.
    row = np.random.default_rng(0).normal(size=(1, *samples.shapes["targets"])).astype("f4")
    with samples.select([0]).mosaic(folder / "small.zarr", memory=memory) as small:
        small.write([0], row)
    before = _peak_mib()
    began = time.perf_counter()
    out = samples.mosaic(folder / "forecast.zarr", memory=memory)
    for number in range(len(samples)):
        out.write([number], row + np.float32(number % 7))
    out.flush()
    written, peak_written = time.perf_counter(), _peak_mib()
    out.close()
    merged = time.perf_counter()
    summary = out.summary
    assert summary is not None
    assert summary.is_complete
    found = xr.open_zarr(folder / "forecast.zarr").t2m.isel(time=0, lat=128, lon=128)
    return {
        "target_nbytes": 4 * summary.num_cells,
        "num_windows": summary.num_windows,
        "num_uncovered": summary.num_uncovered,
        "growth_writing_mib": round(peak_written - before, 1),
        "growth_mib": round(_peak_mib() - before, 1),
        "write_seconds": round(written - began, 1),
        "merge_seconds": round(merged - written, 1),
        "value": float(found),
    }


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main() -> None:
    """Run the benchmark and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1 << 26)
    parser.add_argument("--memory", default="48MiB")
    parser.add_argument("--folder", type=Path, help="where 20 bytes a cell fit")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        print(json.dumps(run(folder, options.cells, options.memory)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
