"""Batches that are composed of the batches of several sets, each made by a loader of its own.

::

    set era5   [a a a a a] [a a a a a] ...      batches of its own loader, in its own order
    set cmip   [b b] [b b] ...
    step 0     a a a a b                        as many rows of each as the interleaving says
    step 1     a a a b b                        a batch of a set may serve several steps
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.engine.buffers import ArrayKind, BatchPool
from xloader.errors import ClosedError
from xloader.loader.batches.batch import Batch
from xloader.loader.interleaved.sample_sets import Interleaving

NUM_HELD = 2
"""Composed batches in memory at a time: the one under way, and the one before it."""


class RowStack(Protocol):
    """The rows of one batch, as they are put together."""

    def put(self, batch: Batch, rows: slice, at: int) -> None:
        """Add some rows of a set's batch, from row ``at`` of the composed one on."""

    def arrays(self) -> list[Any]:
        """The fields of the composed batch, once all rows were added."""


MakeStack = Callable[[int], RowStack]
"""Makes the place for a batch of so many rows."""


@dataclass(eq=False)
class HostRows:
    """Puts batches together in reused memory of this process."""

    names: Sequence[str]
    hand_over: Callable[[NDArray[Any]], Any]
    batch_size: int
    _pool: BatchPool | None = None

    def __call__(self, num_rows: int) -> RowStack:
        """The place for a batch of so many rows."""
        return _HostStack(self, num_rows)

    def take(self, like: Batch, num_rows: int) -> list[NDArray[Any]]:
        """Uninitialised arrays of so many rows, of the fields of a batch."""
        size = self.batch_size
        kinds = [ArrayKind((size, *like[n].shape[1:]), like[n].dtype) for n in self.names]
        if self._pool is None:
            self._pool = BatchPool(kinds, NUM_HELD)
        return [array[:num_rows] for array in self._pool.take(kinds)]


@dataclass(eq=False)
class _HostStack:
    owner: HostRows
    num_rows: int
    gathered: list[NDArray[Any]] = field(default_factory=list)

    def put(self, batch: Batch, rows: slice, at: int) -> None:
        if not self.gathered:
            self.gathered = self.owner.take(batch, self.num_rows)
        for name, array in zip(self.owner.names, self.gathered, strict=True):
            array[at : at + rows.stop - rows.start] = batch[name][rows]

    def arrays(self) -> list[Any]:
        return [self.owner.hand_over(array) for array in self.gathered]


@dataclass(frozen=True, eq=False)
class DeviceStack:
    """Puts a batch together where its rows are, such as on a GPU."""

    names: Sequence[str]
    join: Callable[[Sequence[Any]], Any]
    pieces: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def put(self, batch: Batch, rows: slice, at: int) -> None:
        """Add some rows of a set's batch, from row ``at`` of the composed one on."""
        self.pieces.append((at, {name: batch[name][rows] for name in self.names}))

    def arrays(self) -> list[Any]:
        """The fields of the composed batch, once all rows were added."""
        self.pieces.sort(key=lambda piece: piece[0])
        return [self.join([piece[name] for _, piece in self.pieces]) for name in self.names]


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


class ComposedRun:
    """One epoch, or the rest of one, whose batches are composed of those of several sets."""

    def __init__(
        self,
        interleaving: Interleaving,
        feeds: Sequence[SetFeed],
        make_stack: MakeStack,
        names: Sequence[str],
        first_step: int,
    ) -> None:
        self._interleaving = interleaving
        self._feeds = feeds
        self._make_stack = make_stack
        self._names = names
        self._step = first_step
        self.is_closed = False

    def take(self) -> Batch | None:
        """The next batch; None after the last one."""
        if self.is_closed:
            raise ClosedError(
                "the iterator is closed",
                remedy="iterate over the loader again; after loader.close(), make a new loader",
            )
        interleaving = self._interleaving
        if self._step == interleaving.num_steps:
            return None
        begun, ended = interleaving.counts(self._step), interleaving.counts(self._step + 1)
        given = [end - begin for begin, end in zip(begun, ended, strict=True)]
        sizes = [interleaving.rank_dealers * rows for rows in given]
        num_rows = sum(sizes)
        rows = _ComposedRows(self._make_stack(num_rows), num_rows)
        at = 0
        for index, size in enumerate(sizes):
            if size:
                self._put(index, (begun[index], ended[index]), rows, at)
            at += size
        self._step += 1
        source = np.repeat(np.array([feed.name for feed in self._feeds]), sizes)
        arrays = rows.stack.arrays()
        return Batch(arrays, self._names, rows.ids, rows.is_padding, source=source)

    def close(self) -> None:
        """Stop the loaders of all sets."""
        self.is_closed = True
        for feed in self._feeds:
            feed.close()

    def _put(self, index: int, given: tuple[int, int], rows: _ComposedRows, at: int) -> None:
        """Put the rows of one set: those that it gives after ``given[0]``, up to ``given[1]``."""
        interleaving, feed = self._interleaving, self._feeds[index]
        share, size = interleaving.share(index), interleaving.lane_rows[index]
        num_lanes = interleaving.rank_dealers * interleaving.dealer_lanes
        done = interleaving.done
        spans = [(done(given[0], lane), done(given[1], lane)) for lane in range(num_lanes)]
        places = at + np.cumsum([0, *(end - begin for begin, end in spans)])
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
                    place = int(places[lane]) + low - begin
                    rows.put(batch, slice(low + shift, high + shift), place)


@dataclass
class _ComposedRows:
    """The rows of a batch under way, with the id and the flag of each."""

    stack: RowStack
    num_rows: int

    def __post_init__(self) -> None:
        self.ids = np.empty(self.num_rows, np.int64)
        self.is_padding = np.empty(self.num_rows, np.bool_)

    def put(self, batch: Batch, rows: slice, at: int) -> None:
        into = slice(at, at + rows.stop - rows.start)
        self.ids[into], self.is_padding[into] = batch.ids[rows], batch.is_padding[rows]
        self.stack.put(batch, rows, at)
