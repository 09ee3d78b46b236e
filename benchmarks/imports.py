"""Time ``import xloader`` beside ``import xarray, zarr``, which it cannot do without.

Each import is done by processes of its own, in turns. The figures are medians, in seconds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

OURS, THEIRS = "xloader", "xarray, zarr"
MOST_TIMES = 1.2
_PROGRAM = "import time; begin = time.perf_counter(); import {}; print(time.perf_counter() - begin)"


def main() -> None:
    """Print both times, and whether ours is at most 1.2 times theirs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="processes for each import")
    turns = range(parser.parse_args().turns)
    seconds: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for name in [name for _ in turns for name in seconds]:
        line = [sys.executable, "-c", _PROGRAM.format(name)]
        seconds[name].append(float(subprocess.check_output(line, text=True)))
    ours, theirs = (statistics.median(seconds[name]) for name in (OURS, THEIRS))
    verdict = "held" if ours <= MOST_TIMES * theirs else "missed"
    print(f"import {OURS}: {ours:.3f} s; import {THEIRS}: {theirs:.3f} s")
    print(f"{ours / theirs:.2f} times, at most {MOST_TIMES}: {verdict}")


if __name__ == "__main__":
    main()
