"""Batches under way, and trays of them.

A *tray* holds batches that follow each other. Their rows lie side by side in memory, and are
gathered as if they were one batch. So a small batch costs little. Each batch is finished and
delivered by itself.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.nans import FieldNans
from xloader.engine.buffers import Arrays
from xloader.engine.gather import Places
from xloader.engine.job import Sent
from xloader.engine.step_needs import BatchRows, TrayRows


@dataclass(eq=False)
class OpenBatch:
    """A batch under way.

    Parameters
    ----------
    step : BatchRows
        The rows of the batch.
    arrays : dict of str to numpy.ndarray, optional
        The arrays of its fields, from the time when its tray is opened.
    is_final : bool
        Whether it is finished, or failed, so that it can be delivered.
    is_finishing : bool
        Whether a worker has begun to finish it.
    error : BaseException, optional
        The error that is raised instead of delivering it.
    bad_rows : numpy.ndarray of bool, shape (n,), optional
        Whether each row has a chunk that could not be read, if such rows are skipped.
    first_error : BaseException, optional
        The error of the first such row that was noted.
    nans : tuple of FieldNans
        The NaN values found, if they were looked for.
    sent : Sent, optional
        The batch on its way to a device, once it was sent. ``arrays`` is empty then.
    """

    step: BatchRows
    arrays: Arrays | None = None
    is_final: bool = False
    is_finishing: bool = False
    error: BaseException | None = None
    bad_rows: NDArray[np.bool_] | None = None
    first_error: BaseException | None = None
    nans: tuple[FieldNans, ...] = ()
    sent: Sent | None = None

    @property
    def num_skipped(self) -> int:
        """Number of rows that were skipped."""
        return 0 if self.bad_rows is None else int(np.count_nonzero(self.bad_rows))


class OpenTray:
    """A tray of batches under way.

    Parameters
    ----------
    rows : TrayRows
        The rows of the batches.

    Attributes
    ----------
    batches : deque of OpenBatch
        The batches that are not delivered yet.
    num_missing : int
        Hits that are not gathered yet, plus blocks that begin with this tray and are not loaded.
    is_open : bool
        Whether the batches have arrays.
    places : sequence
        The places that rows are copied to, from the opening until all are gathered.
    left : dict of int to numpy.ndarray of int64, shape (n,)
        Per group, how many hits of each row are not gathered yet. Only for groups whose hits are
        gathered in several parts.
    """

    def __init__(self, rows: TrayRows) -> None:
        self.rows = rows
        self.batches = deque(OpenBatch(step) for step in rows.batches)
        sizes = (len(step.ids) for step in rows.batches)
        self._edges = list(itertools.accumulate(sizes, initial=0))
        num_hits = sum(len(hits) for accesses in rows.hits for hits in accesses)
        self.num_missing = num_hits + len(rows.begins)
        self.is_open = False
        self.places: Places = ()
        self.left: dict[int, Ints] = {}

    def open(self, arrays: Arrays, places: Places) -> None:
        """Give the batches memory.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The fields of all rows, and of those that fill up the last batch.
        places : sequence
            The places that rows are copied to.
        """
        self.is_open, self.places = True, places
        edges = [*self._edges[:-1], None]
        for open_batch, (lo, hi) in zip(self.batches, itertools.pairwise(edges), strict=True):
            open_batch.arrays = {name: array[lo:hi] for name, array in arrays.items()}

    def find(self, rows: Ints) -> Iterator[tuple[OpenBatch, Ints]]:
        """The batches that have some rows of the tray, each with its own numbers of these.

        Only while something is missing, so that no batch is delivered.
        """
        for open_batch, (lo, hi) in zip(self.batches, itertools.pairwise(self._edges), strict=True):
            own = rows[(rows >= lo) & (rows < hi)]
            if len(own):
                yield open_batch, own - lo
