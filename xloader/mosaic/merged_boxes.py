"""Merges the records of a mosaic, box by box: blended in ascending order of ids, in bounded memory.

A box is one or more whole chunks of a variable. Its cells are blended in float64 and stored; then
comes the next box. So memory holds one box, whatever the size of the target.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import show_count
from xloader.core.nbytes import parse_nbytes
from xloader.errors import MemoryBudgetError, TargetError
from xloader.mosaic.parts import Record, RecordReader, Slices, done_ids
from xloader.mosaic.target_grid import Box, GridVariable, PlacedAxis, TargetGrid
from xloader.sources.chunk_sizes import boxes_of

CELL_NBYTES: Final = 20
"""Bytes of a cell while its box is blended: a value, a weight or a distance, a count."""

_FAR: Final = np.iinfo(np.int64).max


class MeanBlend:
    """The weighted mean of all windows of a cell, in float64.

    It is kept as a mean, ``mean += (value - mean) * weight / weight_so_far``, and not as a sum:
    then windows that agree on a value give exactly this value.
    """

    combine: Final = np.multiply
    """Gives the weights of two dimensions together."""

    def __init__(self, shape: tuple[int, ...], is_linear: bool) -> None:
        self.values = np.full(shape, np.nan)
        self.counts = np.zeros(shape, np.int32)
        self._totals = np.zeros(shape)
        self._is_linear = is_linear

    def weights(self, axis: PlacedAxis, elements: slice) -> NDArray[Any]:
        """The weights of some elements of a window along a dimension, 1-d."""
        if not self._is_linear:
            return np.ones(elements.stop - elements.start)
        numbers = np.arange(elements.start, elements.stop, dtype=np.float64)
        return np.asarray(np.minimum(numbers + 1, axis.count - numbers))

    def add(self, cells: Slices, values: NDArray[Any], weight: NDArray[Any]) -> None:
        """Add values of one window, with weights of a shape that broadcasts to theirs."""
        means, counts, totals = self.values[cells], self.counts[cells], self._totals[cells]
        totals += weight
        is_first = counts == 0
        counts += 1
        if is_first.all():
            means[...] = values
            return
        values = values.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            mixed = means + (values - means) * (weight / totals)
        # Equal values are kept, and so is the sign of a zero. Infinity outweighs all numbers.
        is_kept = (values == means) | (np.isinf(means) & np.isfinite(values))
        np.copyto(mixed, means, where=is_kept & ~is_first)
        np.copyto(mixed, values, where=is_first)
        means[...] = mixed


class CropBlend:
    """The value of the window whose centre is nearest; of several, that with the lowest id."""

    combine: Final = np.add
    """Gives the squared distances along two dimensions together."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.values = np.full(shape, np.nan)
        self.counts = np.zeros(shape, np.int32)
        self._distances = np.full(shape, _FAR)

    def weights(self, axis: PlacedAxis, elements: slice) -> NDArray[Any]:
        """The squared distances of some elements from the window's centre, in half cells, 1-d."""
        numbers = np.arange(elements.start, elements.stop, dtype=np.int64)
        squared: NDArray[Any] = ((2 * numbers - (axis.count - 1)) * axis.step) ** 2
        return squared

    def add(self, cells: Slices, values: NDArray[Any], weight: NDArray[Any]) -> None:
        """Add values of one window, with squared distances of a shape that broadcasts to theirs."""
        nearest, distances = self.values[cells], self._distances[cells]
        self.counts[cells] += 1
        is_nearer = weight < distances
        np.copyto(nearest, values, where=is_nearer)
        np.copyto(distances, weight, where=is_nearer)


class RecordIndex:
    """Finds the predictions of a box of cells. Takes about 100 bytes for each sample.

    `numbers` and `rows` say in which record, and in which of its rows, each prediction is.
    """

    def __init__(self, grid: TargetGrid, records: Sequence[Record]) -> None:
        self._grid = grid
        # Concatenated with an empty array, because there may be no record.
        ids = done_ids(records)
        starts = np.concatenate(
            [np.zeros((0, len(grid.axes)), np.int64), *(record.starts for record in records)]
        )
        num_rows = [len(record.ids) for record in records]
        numbers = np.repeat(np.arange(len(records)), num_rows)
        rows = np.arange(len(ids)) - np.repeat(np.cumsum(num_rows) - num_rows, num_rows)
        # Equal ids stay in the order of the records.
        order = np.argsort(ids, kind="stable")
        is_new = np.diff(ids[order], prepend=-1) > 0
        with RecordReader(grid, records) as reader:
            for again in np.flatnonzero(~is_new):
                first, second = order[again - 1 : again + 1].tolist()
                pair = [(int(numbers[number]), int(rows[number])) for number in (first, second)]
                if not reader.is_same(*pair):
                    paths = [records[number].path for number, _ in pair]
                    raise TargetError(
                        "a sample was written twice, with different predictions",
                        given=f"id {ids[first]} in {paths[0]} and {paths[1]}",
                        remedy="delete one of these two files, write its samples again, and merge",
                    )
        order = order[is_new]
        # By place along the dimension with the most cells, because most boxes are cut there.
        self._lead = int(np.argmax([0 if axis.wraps else axis.size for axis in grid.axes]))
        order = order[np.argsort(starts[order, self._lead], kind="stable")]
        self._ids, self.starts = ids[order], starts[order]
        self.numbers, self.rows = numbers[order], rows[order]

    def __len__(self) -> int:
        return len(self._ids)

    def within(self, variable: GridVariable, box: Box) -> Ints:
        """Places here of the predictions that may have cells in a box, in the order of ids."""
        bounds = dict(zip(variable.dims, box, strict=True))
        lead, first, last = self._grid.axes[self._lead], 0, len(self)
        if not lead.wraps:
            begin, end = bounds[lead.dim]
            ends = begin - lead.reach + 1, end
            first, last = np.searchsorted(self.starts[:, self._lead], ends).tolist()
        hits = np.arange(first, last)
        for number, axis in enumerate(self._grid.axes):
            starts, (begin, end) = self.starts[hits, number], bounds[axis.dim]
            is_near = (starts < end) & (starts + axis.reach > begin)
            if axis.wraps:
                is_near |= starts + axis.reach > begin + axis.size
            hits = hits[is_near]
        return hits[np.argsort(self._ids[hits])]


_FIXED_NBYTES: Final = 12 << 20
"""Bytes for one slab of a prediction and the temporary arrays that blend it."""

_BOX_NBYTES: Final = CELL_NBYTES + 12
"""Bytes of a cell of a box: what the blend keeps, and what the store copies of it."""


@dataclass(frozen=True)
class MosaicSummary:
    """Counts of a merged mosaic.

    Parameters
    ----------
    num_ids : int
        Number of samples.
    num_windows : int
        Number of samples with a prediction.
    num_cells : int
        Number of cells of all variables.
    num_uncovered : int
        Number of cells that no window covers. They are NaN.
    max_coverage : int
        The largest number of windows of a cell; 0 if it is not known, because an earlier release
        of xloader has merged the mosaic.

    Examples
    --------
    >>> print(MosaicSummary(4, num_windows=3, num_cells=100, num_uncovered=20, max_coverage=2))
    3 of 4 windows; 80 of 100 cells covered, by up to 2 windows; 20 uncovered cells are NaN
    """

    num_ids: int
    num_windows: int
    num_cells: int
    num_uncovered: int
    max_coverage: int

    @property
    def is_complete(self) -> bool:
        """Whether every sample has a prediction."""
        return self.num_windows == self.num_ids

    def __str__(self) -> str:
        covered = self.num_cells - self.num_uncovered
        most = f", by up to {show_count(self.max_coverage, 'window')}" * (self.max_coverage > 0)
        text = (
            f"{self.num_windows:,} of {self.num_ids:,} windows; {covered:,} of "
            f"{self.num_cells:,} cells covered{most}"
        )
        return text + f"; {self.num_uncovered:,} uncovered cells are NaN" * (self.num_uncovered > 0)


MergeArrays = tuple[Any, Any]
"""The arrays that a variable is merged into: its values, and its coverage."""


def merged_dtype(records: Sequence[Record]) -> np.dtype:
    """The dtype that holds the predictions of all records; float32 without any."""
    dtypes = {record.dtype for record in records}
    return np.result_type(*dtypes) if dtypes else np.dtype(np.float32)


def merge_boxes(
    grid: TargetGrid, records: Sequence[Record], arrays: Sequence[MergeArrays], memory: int | str
) -> MosaicSummary:
    """Blend all records into arrays."""
    sizes = [_box_shape(variable, memory) for variable in grid.variables]
    index, dtype = RecordIndex(grid, records), merged_dtype(records)
    num_covered = most = 0
    with RecordReader(grid, records) as reader:
        for number, variable in enumerate(grid.variables):
            values, coverage = arrays[number]
            for box in boxes_of(variable.shape, sizes[number]):
                blended = _blend_box(grid, index, reader, number, box)
                if blended is None:
                    continue
                cells = tuple(slice(*span) for span in box)
                values[cells] = blended[0].astype(dtype)
                coverage[cells] = blended[1]
                num_covered += int(np.count_nonzero(blended[1]))
                most = max(most, int(blended[1].max()))
    num_cells = sum(variable.num_cells for variable in grid.variables)
    return MosaicSummary(grid.num_ids, len(index), num_cells, num_cells - num_covered, most)


def _box_shape(variable: GridVariable, memory: int | str) -> tuple[int, ...]:
    """The shape of the boxes: as many whole chunks as fit in memory, the last dimensions first."""
    allowed = (parse_nbytes(memory) - _FIXED_NBYTES) // _BOX_NBYTES
    shape = list(variable.chunks)
    if math.prod(shape) > allowed:
        raise MemoryBudgetError(
            f"the memory is too small to merge a chunk of {variable.name!r}, which has the shape "
            f"{variable.chunks}",
            given=memory,
            minimum_nbytes=_FIXED_NBYTES + _BOX_NBYTES * math.prod(shape),
            remedy="begin the mosaic with smaller chunks=",
        )
    for dim in reversed(range(len(shape))):
        num_across = math.prod(shape) // shape[dim]
        num_chunks = max(allowed // (num_across * variable.chunks[dim]), 1)
        shape[dim] = min(num_chunks * variable.chunks[dim], variable.shape[dim])
    return tuple(shape)


def _blend_box(
    grid: TargetGrid, index: RecordIndex, reader: RecordReader, number: int, box: Box
) -> tuple[NDArray[Any], NDArray[np.int32]] | None:
    """Values and coverage of the cells of a box; None if no window covers any."""
    variable = grid.variables[number]
    hits = index.within(variable, box)
    if not len(hits):
        return None
    shape = tuple(end - begin for begin, end in box)
    blend = CropBlend(shape) if grid.blend == "crop" else MeanBlend(shape, grid.blend == "linear")
    placed = [
        (dim, axis) for dim, axis in enumerate(map(grid.axis_of, variable.dims)) if axis is not None
    ]
    # One by one, because Python's numbers take far more memory than arrays.
    for hit in map(int, hits):
        record, row = int(index.numbers[hit]), int(index.rows[hit])
        for elements, cells in _pieces(grid, variable, index.starts[hit].tolist(), box):
            weights = [(dim, blend.weights(axis, elements[dim])) for dim, axis in placed]
            for part, values in reader.slabs(record, row, number, elements):
                factors = [_along(weight[part[dim]], dim, len(box)) for dim, weight in weights]
                at = tuple(map(_cut, cells, part))
                blend.add(at, values, functools.reduce(blend.combine, factors))
    return blend.values, blend.counts


def _pieces(
    grid: TargetGrid, variable: GridVariable, starts: list[int], box: Box
) -> Iterator[tuple[Slices, Slices]]:
    """The elements of a prediction that lie in a box, and their cells, counted within the box."""
    choices: list[list[tuple[slice, slice]]] = []
    for dim, (begin, end) in zip(variable.dims, box, strict=True):
        place = grid.axis_numbers.get(dim)
        if place is None:
            choices.append([(slice(begin, end), slice(0, end - begin, 1))])
        else:
            choices.append(list(grid.axes[place].pieces(starts[place], begin, end)))
    for pieces in product(*choices):
        yield tuple(span for span, _ in pieces), tuple(span for _, span in pieces)


def _cut(cells: slice, part: slice) -> slice:
    """The cells of some elements, counted from the first of ``cells``."""
    step = cells.step
    first = cells.start + part.start * step
    return slice(first, first + (part.stop - part.start - 1) * step + 1, step)


def _along(weight: NDArray[Any], dim: int, num_dims: int) -> NDArray[Any]:
    return weight.reshape([-1 if axis == dim else 1 for axis in range(num_dims)])
