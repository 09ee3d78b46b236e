"""The index of all records: which predictions lie in a box of cells, in ascending order of ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import MosaicError
from xloader.mosaic.records import Record, RecordReader
from xloader.mosaic.target_grid import Box, GridVariable, PlacedAxis, TargetGrid


class RecordIndex:
    """Finds the predictions of a box of cells. Takes about 100 bytes for each sample."""

    def __init__(self, grid: TargetGrid, records: Sequence[Record]) -> None:
        self._grid = grid
        num_rows = [len(record.ids) for record in records]
        ids = np.concatenate([np.zeros(0, np.int64), *(record.ids for record in records)])
        starts = np.concatenate(
            [np.zeros((0, len(grid.axes)), np.int64), *(record.starts for record in records)]
        )
        # The rows of all records are counted through. Each record begins at one of these numbers.
        self._begins = np.concatenate([[0], np.cumsum(num_rows, dtype=np.int64)[:-1]])
        # Equal ids stay in the order of the records.
        order = np.argsort(ids, kind="stable")
        is_new = np.diff(ids[order], prepend=-1) > 0
        if not is_new.all():
            self._check_twice(records, ids, order, is_new)
            order = order[is_new]
        # By place along the dimension with the most cells, because most boxes are cut there.
        self._lead = int(np.argmax([axis.size for axis in grid.axes]))
        order = order[np.argsort(starts[order, self._lead], kind="stable")]
        self.ids, self._starts, self._rows = ids[order], starts[order], order

    def __len__(self) -> int:
        return len(self.ids)

    def within(self, variable: GridVariable, box: Box) -> tuple[Ints, Ints, Ints]:
        """The predictions that may have cells in a box."""
        bounds = dict(zip(variable.dims, box, strict=True))
        lead = self._grid.axes[self._lead]
        found = self._near(lead, *bounds[lead.dim])
        for number, axis in enumerate(self._grid.axes):
            if number != self._lead:
                found = found[_touches(axis, self._starts[found, number], *bounds[axis.dim])]
        found = found[np.argsort(self.ids[found])]
        return *self._places(self._rows[found]), self._starts[found]

    def _places(self, rows: Ints) -> tuple[Ints, Ints]:
        """The record of each row, and its number within the record."""
        numbers = np.searchsorted(self._begins, rows, side="right") - 1
        return numbers, rows - self._begins[numbers]

    def _check_twice(
        self, records: Sequence[Record], ids: Ints, order: Ints, is_new: NDArray[np.bool_]
    ) -> None:
        """Check that samples that were written twice have the same predictions both times."""
        shapes = [self._grid.row_shape(variable) for variable in self._grid.variables]
        with RecordReader(records, shapes) as reader:
            for again in np.flatnonzero(~is_new):
                numbers, rows = self._places(order[again - 1 : again + 1])
                pair = list(zip(numbers.tolist(), rows.tolist(), strict=True))
                is_same = len({records[number].dtype for number, _ in pair}) == 1 and all(
                    _is_same(reader, pair, variable, shape) for variable, shape in enumerate(shapes)
                )
                if not is_same:
                    paths = [str(records[number].path) for number, _ in pair]
                    raise MosaicError(
                        "a sample was written twice, with different predictions",
                        given=f"id {ids[order[again]]} in {paths[0]} and {paths[1]}",
                        allowed="each id once, or the same bits each time",
                        remedy="write(batch, prediction) leaves padding rows out; to go on, delete "
                        "one of these two files, write its samples again, and merge",
                    )

    def _near(self, axis: PlacedAxis, begin: int, end: int) -> Ints:
        """Numbers of the predictions that may touch ``[begin, end)`` along the sorted dimension."""
        starts = self._starts[:, self._lead]
        turns = (0, axis.size) if axis.wraps else (0,)
        spans = [
            np.searchsorted(starts, [begin + turn - axis.reach + 1, end + turn]) for turn in turns
        ]
        if len(spans) == 2 and spans[1][0] < spans[0][1]:
            spans = [np.array([min(spans[0][0], spans[1][0]), max(spans[0][1], spans[1][1])])]
        return np.concatenate([np.arange(lo, hi) for lo, hi in spans])


def _touches(axis: PlacedAxis, starts: Ints, begin: int, end: int) -> NDArray[np.bool_]:
    """Whether windows reach over some cells ``[begin, end)``."""
    is_near = (starts < end) & (starts + axis.reach > begin)
    if axis.wraps:
        is_near |= starts + axis.reach > begin + axis.size
    return is_near


def _is_same(
    reader: RecordReader, pair: list[tuple[int, int]], variable: int, shape: tuple[int, ...]
) -> bool:
    whole = tuple(slice(0, size) for size in shape)
    first, second = (reader.slabs(number, row, variable, whole) for number, row in pair)
    # Compared as bits, so that NaN equals NaN.
    return all(a.tobytes() == b.tobytes() for (_, a), (_, b) in zip(first, second, strict=True))
