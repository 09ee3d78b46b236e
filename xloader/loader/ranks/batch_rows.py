"""The samples of batches, found from the plan by arithmetic. Nothing is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xloader.core.axis import Ints
from xloader.order.places import take_places
from xloader.planning.epoch import Epoch
from xloader.planning.remainder import Remainder


def num_full_steps(part: Epoch | Remainder, numbers: Sequence[int]) -> int:
    """Number of steps in which each of some sub-lanes gives its whole share of samples."""
    sublanes = part.sublanes
    return min(
        min(sublanes.most_samples(number), lane.order.num_samples) // sublanes.share
        - sublanes.num_again_of(number)
        for number, lane in zip(numbers, part.lanes(numbers), strict=True)
    )


def rows_of_steps(
    part: Epoch | Remainder, numbers: Sequence[int], steps: Sequence[int]
) -> list[tuple[Ints, Ints | None]]:
    """Ids and occurrences of the samples of batches, in row order, without padding.

    For each step, the sample ids and which time in the epoch each sample occurs; None if each
    occurs for the first time.
    """
    found: list[list[tuple[Ints, Ints]]] = [[] for _ in steps]
    sublanes = part.sublanes
    for number, lane in zip(numbers, part.lanes(numbers), strict=True):
        order = lane.order
        end = min(sublanes.most_samples(number), order.num_samples)
        places = []
        for step in steps:
            # A step that is made again is not delivered.
            begin = (sublanes.num_again_of(number) + step) * sublanes.share
            places.append(take_places(order, begin, min(sublanes.share, end - begin)))
        # All steps at once: names cost as much for a few samples as for many.
        entries, ranks = (np.concatenate(own) for own in zip(*places, strict=True))
        ids, times = order.identify(entries, ranks)
        times = np.zeros(len(ids), np.int64) if times is None else times
        cuts = np.cumsum([len(own) for own, _ in places])[:-1]
        for rows, *own in zip(found, np.split(ids, cuts), np.split(times, cuts), strict=True):
            rows.append((own[0], own[1]))
    return [_joined(rows) for rows in found]


def _joined(rows: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints | None]:
    """The rows of all lanes, one after the other."""
    none = np.zeros(0, np.int64)
    ids, times = (np.concatenate([none, *own]) for own in zip(*rows, strict=True))
    return ids, times if times.any() else None
