"""Statistics and training-ready stores: their speed, memory and reads, beside the loader and dask.

python -m benchmarks.jobs                        # in less than eight minutes on two cores
python -m benchmarks.jobs --quick                # small data, to check that everything runs
python -m benchmarks.jobs --only stats --json figures.json

Two parts:

- statistics of a store beside an epoch of the loader, and beside ``ds.mean()`` and others by dask;
- a store with one chunk over all time: chunks that ``advise`` proposes, the store that
  ``materialize`` writes, and shuffled epochs before and after. Beside it, ``ds.chunk().to_zarr()``,
  also with 16 times the data and the same memory.

All take turns in one run, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import chunking, job_tables, page, stats_contest
from benchmarks.stores import ensure_stores

PARTS: Final = ("stats", "chunks")


def main() -> None:
    """Run the chosen parts, print their tables, and write the figures as JSON."""
    options = _parse()
    begin = time.perf_counter()
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    num_turns = 1 if options.quick else 3
    figures: dict[str, Any] = {}
    tables = []
    if "stats" in options.only:
        spec = stats_contest.QUICK_STORE if options.quick else stats_contest.STORE
        _tell("stats")
        path = ensure_stores(options.folder, [spec])[spec]
        stats = stats_contest.measure(spec, path, num_turns, num_cores)
        figures["stats"] = stats.to_dict()
        tables.append(job_tables.show_stats(stats))
    if "chunks" in options.only:
        cases = _measure_cases(options.folder, num_turns, num_cores, is_quick=options.quick)
        figures["chunks"] = {case.layout.name: case.to_dict() for case in cases}
        tables += [case.text for case in cases]
        tables += [job_tables.show_epochs(cases), job_tables.show_copies(cases)]
    command = "python -m benchmarks.jobs" + " --quick" * options.quick
    about = page.describe_run(command, time.perf_counter() - begin)
    print("\n\n".join([about, *tables]))
    if options.json is not None:
        options.json.write_text(json.dumps({"run": about, **figures}, indent=2), "utf-8")


def _measure_cases(
    folder: Path, num_turns: int, num_cores: int, *, is_quick: bool
) -> list[chunking.CaseFigures]:
    layouts = chunking.make_cases(is_quick=is_quick)
    paths = ensure_stores(folder, [layout.store for layout in layouts])
    times = chunking.QUICK_TIMES if is_quick else chunking.TIMES
    cases = []
    for layout in layouts:
        _tell(layout.title)
        cases.append(
            chunking.measure(
                folder,
                layout,
                paths[layout.store],
                # Whole maps are the harder case: a chunk of a target needs all of the source.
                times=times if layout.name == "maps" else 1,
                num_turns=num_turns,
                num_cores=num_cores,
            )
        )
    return cases


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.jobs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="small data, one turn each")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "xloader-bench",
        help="where stores are made, and found again",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
