"""Take the rows of a process's steps from its lanes.

Each step takes the next ``share`` samples of each lane. Its rows are sorted by lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Ints
from xloader.order.protocol import AnyOrder

LOOK_SIZE = 1 << 14
"""Number of rows up to which steps are dealt together, so that NumPy's calls cost little."""


@dataclass(frozen=True, eq=False)
class Dealt:
    """The rows of successive steps."""

    ids: Ints
    entries: Ints
    edges: Ints
    occurrences: Ints | None = None


class Dealer:
    """Takes the rows of one step after another from several lanes."""

    def __init__(self, orders: Sequence[AnyOrder], share: int) -> None:
        self._hands = [_Hand(order) for order in orders]
        self._share = share
        self._bases = np.cumsum([0, *(len(order.count) for order in orders)]).tolist()

    @property
    def steps_at_once(self) -> int:
        """Number of steps that are best dealt in one call: about `LOOK_SIZE` rows, or one step."""
        return max(1, LOOK_SIZE // (self._share * len(self._hands)))

    def take(self, num_steps: int) -> Dealt:
        """Deal the rows of the next ``num_steps`` steps.

        At the end of a lane, steps have fewer rows, or none.
        """
        taken = [hand.take(num_steps * self._share) for hand in self._hands]
        if len(taken) == 1:
            ids, entries, *times = taken[0]
            edges = np.minimum(np.arange(num_steps + 1) * self._share, len(ids))
            return Dealt(ids, entries, edges, *times)
        based = [
            (columns[0], columns[1] + base, *columns[2:])
            for columns, base in zip(taken, self._bases, strict=False)
        ]
        steps = np.concatenate([np.arange(len(columns[0])) // self._share for columns in taken])
        # The sort is stable, so that the rows of a step stay sorted by lane and in order.
        by_step = np.argsort(steps, kind="stable")
        ids, entries, *times = (
            np.concatenate(parts)[by_step] for parts in zip(*based, strict=True)
        )
        edges = np.searchsorted(steps[by_step], np.arange(num_steps + 1))
        return Dealt(ids, entries, edges, *times)


def deal_ids(orders: Sequence[AnyOrder], share: int, num_steps: int) -> Iterator[Ints]:
    """Yield the sample ids of each step, of `Dealer.steps_at_once` steps computed together."""
    dealer = Dealer(orders, share)
    for first in range(0, num_steps, dealer.steps_at_once):
        dealt = dealer.take(min(dealer.steps_at_once, num_steps - first))
        yield from np.split(dealt.ids, dealt.edges[1:-1])


class _Hand:
    """Takes the samples of one lane in order, any number at a time."""

    def __init__(self, order: AnyOrder) -> None:
        self._order = order
        self._places = order.places()
        none = np.zeros(0, np.int64)
        self._rest = self._columns(none, none)

    def take(self, size: int) -> tuple[Ints, ...]:
        """Take the next ids and their entries, and their occurrences if the order has any.

        At the lane's end there are fewer than ``size``, or none.
        """
        columns = self._rest
        parts, num_left = [columns], size - len(columns[0])
        while num_left > 0 and (places := next(self._places, None)) is not None:
            parts.append(self._columns(*places))
            num_left -= len(places[0])
        if len(parts) > 1:
            columns = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        self._rest = tuple(column[size:] for column in columns)
        return tuple(column[:size] for column in columns)

    def _columns(self, entries: Ints, ranks: Ints) -> tuple[Ints, ...]:
        ids, occurrences = self._order.identify(entries, ranks)
        return (ids, entries) if occurrences is None else (ids, entries, occurrences)
