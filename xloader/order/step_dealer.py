"""The rows of a process's steps: so many samples of each of its lanes, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from xloader.core.axis import Ints
from xloader.order.protocol import AnyOrder

LOOK_SIZE = 1 << 12
"""Rows that are dealt together, at least: then NumPy's calls cost little for each."""


@dataclass(frozen=True, eq=False)
class Dealt:
    """The rows of some steps.

    Parameters
    ----------
    ids, entries : numpy.ndarray of int64, shape (n,)
        The samples, and the entry of each, counted over all lanes.
    edges : numpy.ndarray of int64, shape (num_steps + 1,)
        Where each step's rows begin and end.
    occurrences : numpy.ndarray of int64, shape (n,), optional
        Which time in the epoch it is that each sample comes; by default, always the first.
    """

    ids: Ints
    entries: Ints
    edges: Ints
    occurrences: Ints | None = None


class Dealer:
    """Deals the samples of some lanes, step by step.

    Parameters
    ----------
    orders : sequence of AnyOrder
        Of the lanes.
    share : int
        Rows that each lane gives to a step.
    """

    def __init__(self, orders: Sequence[AnyOrder], share: int) -> None:
        self._hands = [_Hand(order) for order in orders]
        self._share = share
        self._bases = np.cumsum([0, *(len(order.count) for order in orders)]).tolist()

    @property
    def steps_at_once(self) -> int:
        """How many steps are best dealt together."""
        return max(1, LOOK_SIZE // (self._share * len(self._hands)))

    def take(self, num_steps: int) -> Dealt:
        """Deal the next steps."""
        taken = [hand.take(num_steps * self._share) for hand in self._hands]
        based = [
            (ids, own + base, *times)
            for (ids, own, *times), base in zip(taken, self._bases, strict=False)
        ]
        ids, entries, *times = (np.concatenate(column) for column in zip(*based, strict=True))
        steps = np.concatenate([np.arange(len(own)) // self._share for own, *_ in taken])
        if len(taken) > 1:
            # Rows of a step lie lane by lane: a stable sort keeps their order in each.
            line = np.argsort(steps, kind="stable")
            ids, entries, steps = ids[line], entries[line], steps[line]
            times = [own[line] for own in times]
        edges = np.searchsorted(steps, np.arange(num_steps + 1))
        return Dealt(ids, entries, edges, *times)


def deal_ids(orders: Sequence[AnyOrder], share: int, num_steps: int) -> Iterator[Ints]:
    """The ids of each step, a look ahead at a time.

    Examples
    --------
    >>> from xloader.order.listed import ListedOrder
    >>> from xloader.core.footprint import Boxes
    >>> order = ListedOrder(np.array([4, 7, 1]), np.array([0]), Boxes.at(np.zeros((1, 1), int)))
    >>> [ids.tolist() for ids in deal_ids([order], share=2, num_steps=2)]
    [[4, 7], [1]]
    """
    dealer = Dealer(orders, share)
    for first in range(0, num_steps, dealer.steps_at_once):
        dealt = dealer.take(min(dealer.steps_at_once, num_steps - first))
        yield from np.split(dealt.ids, dealt.edges[1:-1])


class _Hand:
    """Deals one lane's samples."""

    def __init__(self, order: AnyOrder) -> None:
        self._order = order
        self._places = order.places()
        none = np.zeros(0, np.int64)
        self._rest = self._columns(none, none)

    def take(self, size: int) -> tuple[Ints, ...]:
        """The next ids, their entries and, where samples occur more than once, occurrences.

        At the lane's end they are fewer than ``size``, or none.
        """
        parts = [self._rest]
        num_left = size - len(self._rest[0])
        while num_left > 0 and (places := next(self._places, None)) is not None:
            parts.append(self._columns(*places))
            num_left -= len(places[0])
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        self._rest = tuple(column[size:] for column in columns)
        return tuple(column[:size] for column in columns)

    def _columns(self, entries: Ints, ranks: Ints) -> tuple[Ints, ...]:
        ids, occurrences = self._order.identify(entries, ranks)
        return (ids, entries) if occurrences is None else (ids, entries, occurrences)
