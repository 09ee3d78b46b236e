"""What a training step loses to its loader, for each way of the batches to the device."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.layouts import VARIABLES
from benchmarks.on_device.clock import (
    NOT_MEASURED,
    DeviceClock,
    StepTimes,
    loader_share,
    overlap,
)
from benchmarks.on_device.feeds import FEEDS, RING, Feed, FeedKind, open_samples
from benchmarks.on_device.scale import Scale
from benchmarks.on_device.unet import Training
from benchmarks.table import make_table

NUM_FIRST = 2
"""Steps of an epoch that do not count: the first batches of an epoch come later than others."""


@dataclass(frozen=True)
class Turn:
    """One epoch without training, and one with it.

    Parameters
    ----------
    copy_seconds : float
        Seconds a batch if nothing is done with it.
    both_seconds : float
        Seconds a batch if each is trained on.
    share : float
        Share of the steps' time in which the device waited for the loader.
    """

    copy_seconds: float
    both_seconds: float
    share: float


def show_training(clock: DeviceClock, scale: Scale, path: Path) -> str:
    """Return a table of speed, overlap and stalls, one row for each way."""
    training = Training(len(VARIABLES), scale.width, clock.device)
    kinds = [kind for kind in FEEDS if clock.is_cuda or not kind.needs_cuda]
    with ExitStack() as closing:
        feeds = {}
        for kind in kinds:
            feed = kind.make(open_samples(path), scale, clock.device)
            closing.enter_context(feed.closing)
            feeds[kind.name] = feed
        for feed in feeds.values():
            # The first epoch reads. Later ones find all chunks in memory.
            _run(feed, None, clock)
        step_seconds = _step_alone(feeds[RING], training, clock, scale.num_turns)
        turns: dict[str, list[Turn]] = {name: [] for name in feeds}
        for _ in range(scale.num_turns):
            for name, feed in feeds.items():
                turns[name].append(take_turn(feed, training, clock))
    rows = [row(kind, turns.get(kind.name), turns[RING], step_seconds, scale) for kind in FEEDS]
    if not clock.is_cuda:
        # Nothing is copied beside a step there.
        rows = [[*cells[:6], NOT_MEASURED, cells[7]] for cells in rows]
    heads = [
        "way",
        "alone, GB/s of float32",
        "of the ring's",
        "batch alone, ms",
        "step alone, ms",
        "both, ms",
        "overlap",
        "loader's share of a step",
    ]
    return make_table(heads, rows)


def take_turn(feed: Feed, training: Training, clock: DeviceClock) -> Turn:
    """Run an epoch without training and one with it."""
    alone = _run(feed, None, clock)
    both = _run(feed, training, clock)
    counted = both[NUM_FIRST:]
    return Turn(_mean_seconds(alone), _mean_seconds(counted), loader_share(counted))


def _run(feed: Feed, training: Training | None, clock: DeviceClock) -> list[StepTimes]:
    """Run an epoch and return the times of its steps."""
    marks = [(clock.mark(), clock.mark())]
    for batch in feed.batches():
        arrived = clock.mark()
        if training is not None:
            training.step(batch)
        marks.append((arrived, clock.mark()))
    clock.wait()
    return [
        StepTimes(clock.between(end, arrived), clock.between(arrived, done))
        for (_, end), (arrived, done) in itertools.pairwise(marks)
    ]


def _mean_seconds(steps: Sequence[StepTimes]) -> float:
    return statistics.mean(step.wait_seconds + step.train_seconds for step in steps)


def _step_alone(feed: Feed, training: Training, clock: DeviceClock, num_turns: int) -> float:
    """Return the seconds of a step whose batch is on the device already."""
    batches = feed.batches()
    batch = next(batches)
    for _ in batches:
        pass
    return clock.medians({"step": lambda: training.step(batch)}, 2 + num_turns)["step"]


def row(
    kind: FeedKind,
    turns: Sequence[Turn] | None,
    ring: Sequence[Turn],
    step_seconds: float,
    scale: Scale,
) -> list[str]:
    """Return the cells of one way. Ratios are of the same turn, and medians over the turns."""
    if turns is None:
        return [kind.name, *[NOT_MEASURED] * 7]
    copy = statistics.median(turn.copy_seconds for turn in turns)
    ratio = statistics.median(
        first.copy_seconds / own.copy_seconds for own, first in zip(turns, ring, strict=True)
    )
    hidden = statistics.median(
        overlap(turn.copy_seconds, step_seconds, turn.both_seconds) for turn in turns
    )
    return [
        kind.name,
        f"{scale.batch_nbytes / copy / 1e9:.2f}",
        f"{ratio:.2f}",
        f"{1e3 * copy:.2f}",
        f"{1e3 * step_seconds:.2f}",
        f"{1e3 * statistics.median(turn.both_seconds for turn in turns):.2f}",
        f"{hidden:.2f}",
        f"{statistics.median(turn.share for turn in turns):.1%}",
    ]
