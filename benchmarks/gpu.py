"""Batches on a GPU: how fast they get there, and what a training step loses to it.

python -m benchmarks.gpu                        # everything, on the GPU
python -m benchmarks.gpu --only training memory # some parts
python -m benchmarks.gpu --quick --device cpu   # small data, to check that everything runs
python -m benchmarks.gpu --sanitize             # the checks under PyTorch's stream sanitizer

Without a GPU, everything runs on the processor with small data. Such figures say nothing about a
GPU, and those that need one are marked as not measured.

Speeds and ratios are medians over turns that the competitors take one after the other. Except for
decompression, the memory holds all decoded chunks, so an epoch measures the way from there to the
device. A step is one of a U-Net on 16-bit floats (on a GPU), with its loss and its optimizer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from benchmarks.layouts import VARIABLES
from benchmarks.measure import MIB
from benchmarks.on_device import (
    bandwidth,
    checks,
    decompress,
    end_to_end,
    held_memory,
    training,
    unet,
)
from benchmarks.on_device.clock import NOT_MEASURED, DeviceClock
from benchmarks.on_device.scale import FULL, QUICK, Scale
from benchmarks.page import describe_run
from benchmarks.stores import ensure_stores

Show = Callable[[DeviceClock, Scale, Path], str]
"""Measures one part, on a store at a path, and returns a table."""

PARTS: Final[dict[str, tuple[str, Show]]] = {
    "bandwidth": (
        "Copies from pinned and from pageable memory",
        lambda clock, scale, _: bandwidth.show_bandwidth(clock, scale),
    ),
    "ladder": (
        "Dtypes that cross, and float32 that comes of them",
        lambda clock, scale, _: bandwidth.show_ladder(clock, scale),
    ),
    "end-to-end": ("From a store to a trained network", end_to_end.show_end_to_end),
    "training": ("A training step beside its loader", training.show_training),
    "packed": ("The same, from a store of packed integers", training.show_training),
    "memory": ("Memory over the epochs", held_memory.show_memory),
    "decompression": ("Chunks decompressed on the device", decompress.show_decompression),
    "checks": ("Values on the device", checks.show_checks),
}
"""Title and table of each part, by name."""


def main() -> int:
    """Measure the parts that were asked for, print their tables, and return the exit status."""
    options = _parse()
    device = _find_device(options.device)
    clock = DeviceClock(device)
    scale = FULL if clock.is_cuda and not options.quick else QUICK
    if options.sanitize:
        if not clock.is_cuda:
            print(f"The stream sanitizer: {NOT_MEASURED}, as {str(device)!r} has no streams.")
            return 0
        given = ["--device", str(device), "--quick", "--folder", str(options.folder)]
        return checks.run_sanitized(given)
    if device.type == "cpu":
        # Threads of one step wait for each other, which takes long where others use the cores.
        torch.set_num_threads(1)
    begin = time.perf_counter()
    paths = ensure_stores(options.folder, [scale.store, scale.packed_store])
    is_whole = True
    for name in options.only:
        title, show = PARTS[name]
        spec = scale.packed_store if name == "packed" else scale.store
        print(f"### {title}\n", flush=True)
        table = show(clock, scale, paths[spec])
        is_whole &= checks.BROKEN not in table
        print(f"{table}\n", flush=True)
    print(_describe(clock, scale, time.perf_counter() - begin))
    return 0 if is_whole else 1


def _find_device(wanted: str | None) -> torch.device:
    if wanted is None:
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SystemExit(f"PyTorch cannot use {wanted!r} here: {error}") from None


def _describe(clock: DeviceClock, scale: Scale, seconds: float) -> str:
    """Describe the run, the sizes, and what was not measured."""
    million = unet.num_parameters(len(VARIABLES), scale.width) / 1e6
    lines = [describe_run("python -m benchmarks.gpu " + " ".join(sys.argv[1:]), seconds)]
    lines.append(
        f"{len(VARIABLES)} variables of {scale.lats} x {scale.lons}, batches of "
        f"{scale.batch_size} samples ({scale.batch_nbytes / MIB:.1f} MiB in float32); a U-Net of "
        f"{million:.1f} million parameters."
    )
    if clock.is_cuda:
        lines.append(f"The GPU: {torch.cuda.get_device_name(clock.device)}.")
    else:
        lines.append(
            f"This ran on {str(clock.device)!r}, without a GPU by CUDA. What needs one is marked "
            f'as "{NOT_MEASURED}": pinned memory, copies beside a step, streams, decompressing on '
            "the device. The other figures show that everything runs, and say nothing about a GPU."
        )
    return "\n\n".join(lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--device", help="such as cuda:1 or cpu; by default the GPU, if any")
    parser.add_argument("--quick", action="store_true", help="small data, one turn each")
    parser.add_argument(
        "--sanitize", action="store_true", help="the checks under PyTorch's stream sanitizer"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "xloader-bench",
        help="where stores are made, and found again",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
