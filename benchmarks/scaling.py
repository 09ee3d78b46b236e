"""Speed by the number of cores, beside the machine's limit and sequential readers.

python -m benchmarks.scaling                              # 1, 2, 4, ... cores, up to all
python -m benchmarks.scaling --cores 1 16 --only steps1   # some of them, and one layout

Each competitor runs in a process that may use so many cores and no more, with as many threads as it
likes. From 8 cores on, the data and the memory are three times those of `python -m benchmarks`, so
that an epoch lasts longer than its first batch. `benchmarks.cores` pretends that there are more
cores than there are.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Final

from benchmarks import contest, reference
from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.measure import Effort
from benchmarks.results import Result
from benchmarks.stores import ensure_grown, ensure_stores
from benchmarks.table import show_speed

MANY_CORES: Final = 8
TIMES_FOR_MANY: Final = 3
EFFORT: Final = Effort(num_turns=2, seconds=0.6)
READERS: Final = ("tensorstore", "zarrs")


def main() -> None:
    """Measure the layouts that were asked for, and print a table."""
    options = _parse()
    heads = [f"{number} cores" if number > 1 else "1 core" for number in options.cores]
    print(f"| layout | decoded, GB/s | {' | '.join(heads)} |")
    print("| --- " * (2 + len(heads)) + "|", flush=True)
    layouts = {layout.name: layout for layout in LAYOUTS}
    for name in options.only:
        layout = layouts[name]
        results = [_measure(layout, number, options.folder) for number in options.cores]
        for who, cells in _rows(results).items():
            print(f"| {layout.title} | {who} | {' | '.join(cells)} |", flush=True)


def _measure(layout: Layout, num_cores: int, folder: Path) -> Result:
    path = ensure_stores(folder, [layout.store])[layout.store]
    if num_cores >= MANY_CORES:
        store, path = ensure_grown(folder, layout.store, TIMES_FOR_MANY)
        layout = dataclasses.replace(layout, store=store)
    return contest.hold(
        layout, str(path), EFFORT, limit=reference.play, readers=READERS, num_cores=num_cores
    )


def _rows(results: list[Result]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {"xloader, shuffled": [], "of the reference": []}
    for result in results:
        rows["xloader, shuffled"].append(show_speed(result.decoded))
        rows["of the reference"].append(f"{result.figures['reference']:.2f}")
        for name, speed in result.sequential.items():
            rows.setdefault(name, []).append(show_speed(speed))
    return rows


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=(__doc__ or "").splitlines()[0]
    )
    names = [layout.name for layout in LAYOUTS if not layout.is_in_memory]
    most = reference.count_cores()
    doubled = [2**power for power in range(most.bit_length()) if 2**power < most]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--cores", nargs="+", type=int, default=[*doubled, most])
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "xloader-bench"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
