"""What a shuffle is worth to learning: the same training with different orders of its samples.

python -m benchmarks.learning                            # moving waves, a small network
python -m benchmarks.learning --store FILE --coarsen 2   # and maps over time of a store as well
python -m benchmarks.learning --json kept.json           # go on where a run was ended

The orders: a full shuffle, xloader's even pace with 2 to 32 tiles in memory, chunks in turn with a
shuffle buffer of as many tiles' samples, chunks in turn, and sequential. For each seed,
all orders begin with the same initial weights, take the same number of steps, and are scored on
the same validation set. So the differences to the full shuffle are paired.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.learning.orders import FULL, WAYS
from benchmarks.learning.runs import Kept, Run, Source, Task, run_all, with_schedule
from benchmarks.learning.table import draw, format_rows, make_rows

NOTE = "\\* predicted, not counted: only plans are read from the store."


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8, help="trainings of each order")
    parser.add_argument("--store", help="a store or file of maps over time")
    parser.add_argument("--variables", nargs="*", default=[], help="its variables to forecast")
    parser.add_argument("--time-dim", default="time", help="its dimension of time")
    parser.add_argument("--lead", type=int, default=1, help="its steps from input to target")
    parser.add_argument("--coarsen", type=int, default=1, help="take the mean of N x N points")
    parser.add_argument("--cases", nargs="*", choices=("waves", "store"), help="only these")
    parser.add_argument(
        "--orders", nargs="*", help="only these, as the table names them; always the full shuffle"
    )
    parser.add_argument("--redo", nargs="*", default=[], help="orders to train anew")
    parser.add_argument("--schedule", choices=("cosine", "constant"), default="cosine")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=Path, help="file that keeps the results")
    parser.add_argument("--plot", type=Path, help="PNG or SVG to write")
    folder = Path(tempfile.gettempdir()) / "xloader-bench"
    parser.add_argument("--folder", type=Path, default=folder, help="where the waves are kept")
    chosen = parser.parse_args()
    names = [way.name for way in WAYS]
    for name in [*(chosen.orders or ()), *chosen.redo]:
        if name not in names:
            parser.error(f"there is no order {name!r}, only: {'; '.join(names)}")
    if chosen.cases and "store" in chosen.cases and not chosen.store:
        parser.error("name a store with --store")
    return chosen


def show(one: Run) -> None:
    """Print the result of a training."""
    print(
        f"{one.case}  seed {one.seed}  {one.way:45} loss {one.loss:.4f}  {one.seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )


def sources_of(chosen: argparse.Namespace, temporary: str) -> list[Source]:
    """The cases that are asked for."""
    waves = Source("waves", str(chosen.folder))
    found = [waves]
    if chosen.store:
        store = Source(
            "store",
            temporary,
            chosen.store,
            tuple(chosen.variables),
            chosen.time_dim,
            chosen.lead,
            chosen.coarsen,
        )
        found.append(store)
    return [one for one in found if not chosen.cases or one.name in chosen.cases]


def main() -> None:
    """Train, and print a table for each case."""
    chosen = parse()
    settings = with_schedule(chosen.schedule)
    ways = [
        way for way in WAYS if chosen.orders is None or way == FULL or way.name in chosen.orders
    ]
    with tempfile.TemporaryDirectory() as temporary:
        sources = sources_of(chosen, temporary)
        identity = {one.name: {**vars(settings[one.name]), **one.identity} for one in sources}
        kept = Kept(chosen.json, identity)
        for source in sources:
            for name in chosen.redo:
                kept.forget(source.name, name)
        # Seeds come last, so that a run that is ended has whole pairs.
        tasks: list[Task] = [
            (source, settings[source.name], way, seed)
            for seed in range(chosen.seeds)
            for source in sources
            for way in ways
        ]
        run_all(kept, tasks, chosen.jobs, show)
    rows_of = {one.name: make_rows(kept.runs, one.name) for one in sources}
    for source in sources:
        print(f"\n{source.name} {source.identity}: {settings[source.name]}\n")
        print(format_rows(rows_of[source.name]))
        print(f"\n{NOTE}")
    if chosen.plot:
        draw(rows_of, chosen.plot)


if __name__ == "__main__":
    main()
