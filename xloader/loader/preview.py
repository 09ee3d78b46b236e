"""A picture of the batch that comes next, read without a loader's memory and threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import require_matplotlib, show_count
from xloader.core.nbytes import show_nbytes
from xloader.core.option_checks import MOST, check_whole
from xloader.engine.sample_reader import read_samples
from xloader.errors import EmptySamplesError
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.order.protocol import take_places
from xloader.planning.epoch import Epoch, Remainder
from xloader.recipe.names import SAMPLE
from xloader.show.sample_panels import draw_samples
from xloader.transforms.batch_datasets import show_labels
from xloader.transforms.outputs import finish
from xloader.transforms.rng import Chance

if TYPE_CHECKING:
    from xloader.show.canvas import Picture


def num_full_steps(remainder: Epoch | Remainder, numbers: Sequence[int]) -> int:
    """Number of steps in which each of some sub-lanes gives its whole share of samples."""
    sublanes = remainder.sublanes
    return min(
        min(sublanes.most_samples(number), lane.order.num_samples) // sublanes.share
        - sublanes.num_again_of(number)
        for number, lane in zip(numbers, remainder.lanes(numbers), strict=True)
    )


def rows_of_steps(
    remainder: Epoch | Remainder, numbers: Sequence[int], steps: Sequence[int]
) -> list[tuple[Ints, Ints | None]]:
    """Ids and occurrences of the samples of batches, in row order, without padding.

    For each step, the sample ids and which time in the epoch each sample occurs; None if each
    occurs for the first time.
    """
    rows_by_step: list[list[tuple[Ints, Ints]]] = [[] for _ in steps]
    sublanes = remainder.sublanes
    for number, lane in zip(numbers, remainder.lanes(numbers), strict=True):
        order = lane.order
        end = min(sublanes.most_samples(number), order.num_samples)
        places = []
        for step in steps:
            # A step that is made again is not delivered.
            begin = (sublanes.num_again_of(number) + step) * sublanes.share
            places.append(take_places(order, begin, min(sublanes.share, end - begin)))
        # All steps at once: names cost as much for a few samples as for many.
        entries, ranks = (np.concatenate(pieces) for pieces in zip(*places, strict=True))
        ids, times = order.identify(entries, ranks)
        times = np.zeros(len(ids), np.int64) if times is None else times
        cuts = np.cumsum([len(step_entries) for step_entries, _ in places])[:-1]
        by_step = zip(rows_by_step, np.split(ids, cuts), np.split(times, cuts), strict=True)
        for rows, step_ids, step_times in by_step:
            rows.append((step_ids, step_times))
    return [_joined(rows) for rows in rows_by_step]


def _joined(rows: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints | None]:
    """The rows of all lanes, one after the other."""
    none = np.zeros(0, np.int64)
    ids, times = (np.concatenate([none, *pieces]) for pieces in zip(*rows, strict=True))
    return ids, times if times.any() else None


def draw_preview(
    rank_plan: RankPlan,
    remainder: Epoch | Remainder,
    start: Position,
    num_rows: int,
    channel: str | Sequence[str] | None,
) -> Picture:
    """Draw the first batch of an epoch, or of the rest of one; see `Loader.preview`."""
    require_matplotlib()
    check_whole("num_rows", num_rows, 1, MOST)
    rows = rows_of_steps(remainder, rank_plan.sublanes(), [0]) if remainder.num_steps else []
    if not rows or not len(rows[0][0]):
        raise EmptySamplesError(
            "there is no batch to draw",
            given=f"{remainder.num_steps} batches left in epoch {start.epoch}",
            remedy="call set_epoch for another epoch, or pass drop_last=False",
        )
    recipe, (ids, times) = rank_plan.recipe, rows[0]
    arrays = read_samples(recipe, rank_plan.layouts, ids)
    chance = Chance(rank_plan.options.seed, start.epoch, times)
    arrays = finish(recipe, rank_plan.layouts, arrays, ids, chance)
    frame = BatchOrigin.of(recipe, chance).to_xarray(arrays, ids)
    frames = {
        f"sample {ids[row]} (row {row})": show_labels(frame.isel({SAMPLE: row}))
        for row in range(min(num_rows, len(ids)))
    }
    which = "First" if not start.step else f"Batch {start.step + 1}"
    batches = show_count(rank_plan.num_steps, "batch")
    title = f"{which} of {batches} of epoch {start.epoch}: {_facts(arrays)}"
    return draw_samples(frames, recipe, channel, title, len(ids))


def _facts(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Samples, bytes, shapes and dtypes of a batch, and its share of NaN, as text."""
    shapes = []
    for name, array in arrays.items():
        text = f"{name} {array.shape} {array.dtype}"
        num_nan = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
        shapes.append(text + (f", {num_nan / array.size:.2%} NaN" if num_nan else ""))
    num = len(next(iter(arrays.values())))
    size = show_nbytes(sum(array.nbytes for array in arrays.values()))
    return f"{show_count(num, 'sample')}, {size}\n{'; '.join(shapes)}"
