"""The arrays of a batch. Fields of one shape lie side by side, so that one call copies to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from xloader.engine.pool import BatchPool
from xloader.layout import FieldLayout

Arrays = dict[str, NDArray[Any]]


class Fields:
    """Allocates the fields of batches.

    Parameters
    ----------
    layouts : sequence of FieldLayout
    batch_size : int
        Rows of a full batch.
    num_batches : int
        Batches that are in memory at a time, whose memory is used again.

    Attributes
    ----------
    batch_nbytes : int
        The memory of one batch: that of a full one, for short ones too.
    """

    def __init__(self, layouts: Sequence[FieldLayout], batch_size: int, num_batches: int) -> None:
        self._batch_size = batch_size
        self._names = [layout.name for layout in layouts]
        self._alike: dict[tuple[object, ...], list[FieldLayout]] = {}
        for layout in layouts:
            self._alike.setdefault((layout.shape, layout.dtype), []).append(layout)
        most: dict[int, int] = {}
        for alike in self._alike.values():
            nbytes = batch_size * sum(layout.sample_nbytes for layout in alike)
            most[nbytes] = most.get(nbytes, 0) + num_batches
        self._pool = BatchPool(most)
        self.batch_nbytes = batch_size * sum(layout.sample_nbytes for layout in layouts)

    def take(self, num_rows: int) -> Arrays:
        """Uninitialised arrays of so many rows, by field, C-contiguous."""
        arrays: Arrays = {}
        for alike in self._alike.values():
            shape = (len(alike), self._batch_size, *alike[0].shape)
            # A short batch is a part of a full one's buffer, which then serves again.
            joint = self._pool.take(shape, alike[0].dtype)
            arrays.update({own.name: joint[at, :num_rows] for at, own in enumerate(alike)})
        return {name: arrays[name] for name in self._names}
