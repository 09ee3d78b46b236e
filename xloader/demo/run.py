"""The whole of ``xloader demo``: data, plan, one training fed in three ways, table and picture.

`run_demo` does these steps in order and prints what happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from xloader.core.cores import usable_cores
from xloader.demo.task import LEAD, ForecastTask, PlainDataset, make_task
from xloader.demo.training import Course, train
from xloader.jobs.valid.cache_files import default_cache_dir
from xloader.show.canvas import COLOURS, new_picture
from xloader.show.cards import align_columns
from xloader.show.json_values import values_by_name
from xloader.testing.waves import VARIABLE_ATTRS, WaveSpec, ensure_store, store_path

SPEC = WaveSpec(num_steps=4096, num_lats=36, num_lons=72, chunk_steps=64)
# A quarter of the training part, so that not all chunks fit and the plan matters.
MEMORY = "32 MiB"
BATCH_SIZE = 8
NUM_HELD_OUT = 128
_MOST_WORKERS = 8
_TICKS = (0.2, 0.3, 0.5, 1.0, 2.0)
_PLAIN, _IN_TURN, _OURS = "plain, shuffled", "in the order of the store", "xloader, shuffled"
_WAYS = {
    _PLAIN: "a PyTorch dataset that reads a sample when it is asked for, and worker processes",
    _IN_TURN: "xloader with shuffle=False",
    _OURS: "xloader with its plan",
}


@dataclass(frozen=True)
class DemoResult:
    """The course of the training in each way, and the seconds to a loss that all have reached."""

    courses: dict[str, Course]
    reads_per_chunk: dict[str, float]
    same_loss: float
    seconds_to_same_loss: dict[str, float]
    picture: Path

    def to_dict(self) -> dict[str, Any]:
        """The results by name, in types that JSON can hold."""
        courses = {name: values_by_name(course) for name, course in self.courses.items()}
        return values_by_name(self) | {"courses": courses, "picture": self.picture.resolve()}


def run_demo(
    *,
    seconds: float = 40.0,
    picture: Path = Path("xloader-demo.png"),
    cache: Path | None = None,
    spec: WaveSpec = SPEC,
) -> DemoResult:
    """Train a small forecast model from a chunked store in three ways, and print what happens."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    path = store_path(cache or default_cache_dir(), spec)
    if not path.is_dir():
        print(f"Making a store of waves: {path}", flush=True)
    ensure_store(path, spec)
    task = make_task(str(path))
    reads = _print_plan(task, spec)
    with task.held_out.loader(batch_size=NUM_HELD_OUT, output="torch") as loader:
        held_out = tuple(field.clone() for field in next(iter(loader)))
    print(f"\nThe same training in three ways, {seconds:g} s each after the first batch")
    courses = {}
    for name, way in _WAYS.items():
        print(f"  {name:26}{way}", flush=True)
        with _batches(name, task) as batches, _half_the_cores():
            courses[name] = train(name, batches, held_out, task.weights, seconds)
    same_loss = max(min(course.losses) for course in courses.values())
    reached = {name: course.seconds_to(same_loss) for name, course in courses.items()}
    result = DemoResult(courses, reads, same_loss, reached, picture)
    _print_table(result)
    draw_courses(result)
    print(f"\nPicture: {picture.resolve()}")
    print("Your own data: xloader bench STORE --window time=4 --stride 1")
    return result


@contextmanager
def _batches(name: str, task: ForecastTask) -> Iterator[Any]:
    """The batches of one way, epoch after epoch."""
    if name != _PLAIN:
        options: Any = {"batch_size": BATCH_SIZE, "memory": MEMORY, "output": "torch"}
        with task.training.loader(shuffle=name == _OURS, **options) as loader:
            yield loader
        return
    # Workers that were forked could hang in zarr.
    yield DataLoader(
        PlainDataset(task),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=min(usable_cores(), _MOST_WORKERS),
        persistent_workers=True,
        multiprocessing_context="spawn",
    )


@contextmanager
def _half_the_cores() -> Iterator[None]:
    """Leave half of the cores to those who read, in all ways."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, usable_cores() // 2))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _print_plan(task: ForecastTask, spec: WaveSpec) -> dict[str, float]:
    """Print the data and the plan in words. Returns the reads per chunk and epoch of each way."""
    plan = task.training.explain(batch_size=BATCH_SIZE, memory=MEMORY)
    num_chunks = sum(figures.num_chunks for figures in plan.variables.values())
    reads = {
        # A pair of maps lies in two chunks where it crosses an edge.
        _PLAIN: (1 + LEAD / spec.chunk_steps)
        * len(VARIABLE_ATTRS)
        * len(task.training)
        / num_chunks,
        _IN_TURN: task.training.explain(
            shuffle=False, batch_size=BATCH_SIZE, memory=MEMORY
        ).read_amplification,
        _OURS: plan.read_amplification,
    }
    print(
        f"Data      {task.store}\n"
        f"          {', '.join(VARIABLE_ATTRS)}: {spec.num_steps:,} maps each, "
        f"{spec.num_lats} x {spec.num_lons} points, {spec.chunk_steps} maps per chunk\n"
        f"Forecast  {6 * LEAD} hours ahead, from {len(task.training):,} start times, in batches of "
        f"{BATCH_SIZE}\n"
        f"The plan  of xloader: {plan.num_reads:,} reads per epoch for {num_chunks:,} chunks, "
        f"within {MEMORY} of memory.\n"
        f"          A batch has samples of {plan.mixing:.1f} places in time, one of a full shuffle "
        f"{plan.full_mixing:.1f}.\n"
        f"          A plain shuffle reads each chunk {reads[_PLAIN]:.0f} times per epoch."
    )
    return reads


def _print_table(result: DemoResult) -> None:
    """Print what each way reads, and how far and how fast it came."""
    rows = [
        ("", "reads per chunk", "batches", "last loss", f"time to a loss of {result.same_loss:.3f}")
    ]
    for name, course in result.courses.items():
        reads, second = result.reads_per_chunk[name], result.seconds_to_same_loss[name]
        figures = f"{reads:.2f}", f"{course.num_batches:,}", f"{course.losses[-1]:.3f}"
        rows.append((name, *figures, f"{second:.1f} s"))
    print(f"\n{align_columns(rows)}")
    plain, ours = (result.seconds_to_same_loss[name] for name in (_PLAIN, _OURS))
    if 0 < ours < plain:
        print(f"\nWith xloader, training came to that loss {plain / ours:.1f} times sooner.")


def draw_courses(result: DemoResult) -> None:
    """Draw the loss of each way against seconds, and write it as a PNG."""
    figure = new_picture(7, 4.2)
    axes = figure.subplots()
    for colour, (name, course) in zip(COLOURS, result.courses.items(), strict=False):
        axes.plot(course.seconds, course.losses, color=colour, label=name, linewidth=2)
    goal = f"reached by all: {result.same_loss:.3f}"
    axes.axhline(result.same_loss, color="0.5", linestyle=":", linewidth=1, label=goal)
    axes.set_title("The same training, fed in three ways")
    axes.set_yscale("log")
    axes.set_yticks([], minor=True)
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("loss on held-out samples")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(result.picture, dpi=150, format="png")
