"""The rows of a process's steps: so many samples of each of its lanes, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from xloader.grid import Ints
from xloader.order import AnyOrder

LOOK_SIZE = 1 << 12
"""Rows that are dealt together, at least: then NumPy's calls cost little for each."""


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

    def take(self, num_steps: int) -> tuple[Ints, Ints, Ints]:
        """Deal the next steps.

        Returns
        -------
        ids, entries : numpy.ndarray of int64, shape (n,)
            The samples, and the entry of each, counted over all lanes.
        edges : numpy.ndarray of int64, shape (num_steps + 1,)
            Where each step's rows begin and end.
        """
        taken = [hand.take(num_steps * self._share) for hand in self._hands]
        ids = np.concatenate([ids for ids, _ in taken])
        entries = np.concatenate(
            [own + base for (_, own), base in zip(taken, self._bases, strict=False)]
        )
        steps = np.concatenate([np.arange(len(own)) // self._share for own, _ in taken])
        if len(taken) > 1:
            # Rows of a step lie lane by lane: a stable sort keeps their order in each.
            line = np.argsort(steps, kind="stable")
            ids, entries, steps = ids[line], entries[line], steps[line]
        return ids, entries, np.searchsorted(steps, np.arange(num_steps + 1))


def deal_ids(orders: Sequence[AnyOrder], share: int, num_steps: int) -> Iterator[Ints]:
    """The ids of each step, a look ahead at a time.

    Examples
    --------
    >>> from xloader.listed import ListedOrder
    >>> from xloader.footprint import Boxes
    >>> order = ListedOrder(np.array([4, 7, 1]), np.array([0]), Boxes.at(np.zeros((1, 1), int)))
    >>> [ids.tolist() for ids in deal_ids([order], share=2, num_steps=2)]
    [[4, 7], [1]]
    """
    dealer = Dealer(orders, share)
    for first in range(0, num_steps, dealer.steps_at_once):
        ids, _, edges = dealer.take(min(dealer.steps_at_once, num_steps - first))
        yield from np.split(ids, edges[1:-1])


class _Hand:
    """Deals one lane's samples."""

    def __init__(self, order: AnyOrder) -> None:
        self._segments = order.segments()
        self._ids = self._entries = np.zeros(0, np.int64)

    def take(self, size: int) -> tuple[Ints, Ints]:
        """The next ids and their entries; fewer than ``size``, or none, at the lane's end."""
        parts = [(self._ids, self._entries)]
        num_left = size - len(self._ids)
        while num_left > 0 and (segment := next(self._segments, None)) is not None:
            parts.append(segment)
            num_left -= len(segment[0])
        ids, entries = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._ids, self._entries = ids[size:], entries[size:]
        return ids[:size], entries[:size]
