"""Batches that are composed of the batches of several sets, each made by a loader of its own.

::

    set era5   [a a a a a] [a a a a a] ...      batches of its own loader, in its own order
    set cmip   [b b] [b b] ...
    step 0     a a a a b                        as many rows of each as the interleaving says
    step 1     a a a b b                        a batch of a set may serve several steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.engine.buffers import ArrayKind, BatchPool
from xloader.errors import ClosedError
from xloader.loader.batches.batch import Batch
from xloader.loader.interleaved.sample_sets import Interleaving

NUM_HELD = 2
"""Composed batches in memory at a time: the one under way, and the one before it."""


Piece = tuple[Batch, slice, int]
"""Rows of a set's batch, and the row of the composed batch at which they begin."""


@dataclass(eq=False)
class Composer:
    """Puts batches together: in reused memory of this process, or, with `join`, on their device."""

    names: Sequence[str]
    batch_size: int
    hand_over: Callable[[NDArray[Any]], Any]
    join: Callable[[Sequence[Any]], Any] | None
    _pool: BatchPool | None = None

    def compose(self, pieces: Iterable[Piece], num_rows: int, source: NDArray[np.str_]) -> Batch:
        """Make a batch of its pieces. `source` is the name of the set of each row."""
        ids, is_padding = np.empty(num_rows, np.int64), np.empty(num_rows, np.bool_)
        gathered: list[NDArray[Any]] = []
        kept: list[tuple[int, list[Any]]] = []
        for batch, rows, at in pieces:
            into = slice(at, at + rows.stop - rows.start)
            ids[into], is_padding[into] = batch.ids[rows], batch.is_padding[rows]
            cut = [batch[name][rows] for name in self.names]
            if self.join is not None:
                kept.append((at, cut))
                continue
            gathered = gathered or self._take(batch, num_rows)
            for array, values in zip(gathered, cut, strict=True):
                array[into] = values
        if self.join is None:
            arrays = [self.hand_over(array) for array in gathered]
        else:
            kept.sort(key=lambda piece: piece[0])
            arrays = [self.join(column) for column in zip(*(cut for _, cut in kept), strict=True)]
        return Batch(arrays, self.names, ids, is_padding, source=source)

    def _take(self, like: Batch, num_rows: int) -> list[NDArray[Any]]:
        """Uninitialised arrays of so many rows, of the fields of a batch."""
        size = self.batch_size
        kinds = [ArrayKind((size, *like[n].shape[1:]), like[n].dtype) for n in self.names]
        if self._pool is None:
            self._pool = BatchPool(kinds, NUM_HELD)
        return [array[:num_rows] for array in self._pool.take(kinds)]


@dataclass(eq=False)
class SetFeed:
    """The batches of one set, in order. It holds one of them at a time.

    `batches`: the batches of its own loader; None if the set has given all its rows.
    """

    name: str
    batches: Iterator[Batch] | None
    next: int
    held: Batch | None = None

    def batch(self, number: int) -> Batch:
        """The batch of that number. Numbers must ascend."""
        while self.held is None or self.next <= number:
            assert self.batches is not None
            # Dropped first, so that its memory is free for the batches to come.
            self.held = None
            self.held = next(self.batches)
            self.next += 1
        return self.held

    def close(self) -> None:
        """Stop the making of batches."""
        self.held = None
        if self.batches is not None:
            self.batches.close()  # type: ignore[attr-defined]


@dataclass(eq=False)
class ComposedRun:
    """One epoch, or the rest of one, whose batches are composed of those of several sets.

    `step`: the one that comes next.
    """

    interleaving: Interleaving
    feeds: Sequence[SetFeed]
    composer: Composer
    step: int
    is_closed: bool = False

    def take(self) -> Batch | None:
        """The next batch; None after the last one."""
        if self.is_closed:
            raise ClosedError(
                "the iterator is closed",
                remedy="iterate over the loader again; after loader.close(), make a new loader",
            )
        interleaving = self.interleaving
        if self.step == interleaving.num_steps:
            return None
        begun, ended = interleaving.counts(self.step), interleaving.counts(self.step + 1)
        sizes = interleaving.rank_dealers * np.subtract(ended, begun)
        source = np.repeat(np.array([feed.name for feed in self.feeds]), sizes)
        batch = self.composer.compose(self._pieces(begun, ended), len(source), source)
        self.step += 1
        return batch

    def close(self) -> None:
        """Stop the loaders of all sets."""
        self.is_closed = True
        for feed in self.feeds:
            feed.close()

    def _pieces(self, begun: Sequence[int], ended: Sequence[int]) -> Iterator[Piece]:
        """The rows that each set gives after so many of an epoch, up to so many."""
        interleaving = self.interleaving
        num_lanes = interleaving.rank_dealers * interleaving.dealer_lanes
        done, at = interleaving.done, 0
        for index, feed in enumerate(self.feeds):
            if begun[index] == ended[index]:
                continue
            share, size = interleaving.share(index), interleaving.lane_rows[index]
            spans = [
                (done(begun[index], lane), done(ended[index], lane)) for lane in range(num_lanes)
            ]
            *places, at = accumulate((end - begin for begin, end in spans), initial=at)
            first = min(begin for begin, end in spans if begin < end) // share
            last = (max(end for begin, end in spans if begin < end) - 1) // share
            for number in range(first, last + 1):
                batch = feed.batch(number)
                # The rows of a batch are sorted by lane. At the end, all lanes have equally few.
                num_each = min(share, size - number * share)
                for lane, (begin, end) in enumerate(spans):
                    low, high = max(begin, number * share), min(end, number * share + num_each)
                    if low < high:
                        shift = lane * num_each - number * share
                        yield batch, slice(low + shift, high + shift), places[lane] + low - begin
