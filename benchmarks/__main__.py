"""Benchmarks of xloader against the machine's limit and against other libraries.

python -m benchmarks                          # everything, in less than ten minutes on two cores
python -m benchmarks --only steps3,small      # some layouts
python -m benchmarks --quick                  # small data, to check that everything runs

A full run writes its first table to docs/benchmarks.md, and all of them to files beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import contest, growth, latency, page, reference
from benchmarks.growth import Growth
from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.measure import Effort
from benchmarks.results import Result
from benchmarks.rivals import sequential, shuffled
from benchmarks.stores import ensure_stores
from benchmarks.turns import NOT_INSTALLED, AbsentError

NAMES = (*(layout.name for layout in LAYOUTS), latency.LAYOUT.name, "growth")

QUICK = Effort(num_turns=1, seconds=0.1, most_batch=8)


def main() -> None:
    """Run the chosen benchmarks and print the results; a full run also writes them to the page."""
    options = _parse()
    begin = time.perf_counter()
    effort = QUICK if options.quick else Effort()
    results, left_out = _measure_layouts(
        options.folder, options.only, effort, is_quick=options.quick
    )
    grown = []
    if "growth" in options.only:
        grown = _measure_growth(options.folder, effort, is_quick=options.quick)
    is_whole = set(options.only) == set(NAMES) and not options.quick
    command = "python -m benchmarks" + " --quick" * options.quick
    about = page.describe_run(command, time.perf_counter() - begin)
    about = " ".join([about, *left_out])
    tables = page.make_tables(results, grown)
    print("\n\n".join([about, *tables.values()]))
    if is_whole and options.write:
        page.write_tables(tables)
        made = page.make_page(about, tables["speeds"])
        page.PAGE.write_text(page.write_between(page.PAGE.read_text("utf-8"), made), "utf-8")
        # The chart of the page is drawn from the first table.
        subprocess.run([sys.executable, page.ROOT / "docs" / "drawings"], check=True)


def _measure_layouts(
    folder: Path, names: list[str], effort: Effort, *, is_quick: bool
) -> tuple[list[Result], list[str]]:
    """Return the results, and a note for each layout that lacks an installed library."""
    chosen = [layout for layout in (*LAYOUTS, latency.LAYOUT) if layout.name in names]
    layouts = [layout.shrink() if is_quick else layout for layout in chosen]
    _tell("stores")
    paths = ensure_stores(folder, [layout.store for layout in layouts])
    results, left_out = [], []
    for layout in layouts:
        _tell(layout.name)
        try:
            results.append(_measure(layout, paths[layout.store], effort))
        except AbsentError as error:
            if error.absence.reason != NOT_INSTALLED:
                raise
            left_out.append(f"Not measured: {layout.title} ({error.absence.details}).")
    return results, left_out


def _measure(layout: Layout, path: Path, effort: Effort) -> Result:
    if layout.name == latency.LAYOUT.name:
        return latency.hold(layout, path, effort)
    # Data that are in memory already are neither read nor decoded.
    limit = None if layout.is_in_memory else reference.play
    readers = [] if layout.is_in_memory else list(sequential.WAYS)
    # The others unpack what they shuffle.
    makers = [] if layout.is_as_stored else list(shuffled.WAYS)
    return contest.hold(layout, str(path), effort, limit=limit, readers=readers, makers=makers)


def _measure_growth(folder: Path, effort: Effort, *, is_quick: bool) -> list[Growth]:
    _tell("growth")
    layouts = growth.LAYOUTS
    if not is_quick:
        return growth.measure(folder, layouts, growth.TIMES, effort)
    return growth.measure(folder, [x.shrink() for x in layouts], growth.QUICK_TIMES, effort)


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="small data, one turn each")
    parser.add_argument(
        "--only", type=_names, default=list(NAMES), help=f"some of {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "xloader-bench",
        help="where stores are made, and found again",
    )
    parser.add_argument(
        "--no-write", dest="write", action="store_false", help="leave docs/ as they are"
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there is only {', '.join(NAMES)}")
    return names


if __name__ == "__main__":
    main()
