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
from xloader.core.count_text import show_count
from xloader.core.nbytes import parse_nbytes
from xloader.errors import MemoryBudgetError
from xloader.mosaic.blends import CELL_NBYTES, make_blend
from xloader.mosaic.record_index import RecordIndex
from xloader.mosaic.records import Record, RecordReader, Shape, Slices
from xloader.mosaic.target_grid import Box, GridVariable, TargetGrid

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


@dataclass(frozen=True, eq=False)
class MergeArrays:
    """The arrays that one variable is merged into."""

    values: Any
    coverage: Any


def merged_dtype(records: Sequence[Record]) -> np.dtype:
    """The dtype that holds the predictions of all records; float32 without any."""
    dtypes = {record.dtype for record in records}
    return np.result_type(*dtypes) if dtypes else np.dtype(np.float32)


def merge_boxes(
    grid: TargetGrid,
    records: Sequence[Record],
    arrays: Sequence[MergeArrays],
    memory: int | str,
) -> MosaicSummary:
    """Blend all records into arrays."""
    sizes = [_box_shape(variable, memory) for variable in grid.variables]
    index, dtype = RecordIndex(grid, records), merged_dtype(records)
    num_covered = most = 0
    with RecordReader(records, [grid.row_shape(own) for own in grid.variables]) as reader:
        for number, (variable, size, out) in enumerate(
            zip(grid.variables, sizes, arrays, strict=True)
        ):
            for box in _boxes(variable.shape, size):
                blended = _blend_box(grid, index, reader, number, box)
                if blended is None:
                    continue
                cells = tuple(slice(*own) for own in box)
                out.values[cells] = blended[0].astype(dtype)
                out.coverage[cells] = blended[1]
                num_covered += int(np.count_nonzero(blended[1]))
                most = max(most, int(blended[1].max()))
    num_cells = sum(variable.num_cells for variable in grid.variables)
    return MosaicSummary(grid.num_ids, len(index), num_cells, num_cells - num_covered, most)


def _box_shape(variable: GridVariable, memory: int | str) -> Shape:
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
        others = math.prod(shape) // shape[dim]
        num_chunks = max(allowed // (others * variable.chunks[dim]), 1)
        shape[dim] = min(num_chunks * variable.chunks[dim], variable.shape[dim])
    return tuple(shape)


def _boxes(shape: Shape, size: Shape) -> Iterator[Box]:
    """The boxes of a variable, in C order."""
    cuts = [
        [(begin, min(begin + step, end)) for begin in range(0, end, step)]
        for end, step in zip(shape, size, strict=True)
    ]
    yield from product(*cuts)


def _blend_box(
    grid: TargetGrid, index: RecordIndex, reader: RecordReader, number: int, box: Box
) -> tuple[NDArray[Any], NDArray[np.int32]] | None:
    """Values and coverage of the cells of a box; None if no window covers any."""
    variable = grid.variables[number]
    found = index.within(variable, box)
    if not len(found[0]):
        return None
    blend = make_blend(grid.blend, tuple(end - begin for begin, end in box))
    placed = [
        (dim, axis) for dim, axis in enumerate(map(grid.axis_of, variable.dims)) if axis is not None
    ]
    for record, row, starts in _rows(*found):
        for elements, cells in _pieces(grid, variable, starts, box):
            weights = [(dim, blend.weights(axis, elements[dim])) for dim, axis in placed]
            for part, values in reader.slabs(record, row, number, elements):
                own = [_along(weight[part[dim]], dim, len(box)) for dim, weight in weights]
                at = tuple(map(_cut, cells, part))
                blend.add(at, values, functools.reduce(blend.combine, own))
    return blend.values, blend.counts


def _rows(numbers: Ints, rows: Ints, starts: Ints) -> Iterator[tuple[int, int, list[int]]]:
    """The predictions one by one, as Python's numbers, which take far more memory than arrays."""
    for begin in range(0, len(rows), 4096):
        part = slice(begin, begin + 4096)
        columns = (numbers[part].tolist(), rows[part].tolist(), starts[part].tolist())
        yield from zip(*columns, strict=True)


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
        yield tuple(own for own, _ in pieces), tuple(own for _, own in pieces)


def _cut(cells: slice, part: slice) -> slice:
    """The cells of some elements, counted from the first of ``cells``."""
    step = cells.step
    first = cells.start + part.start * step
    return slice(first, first + (part.stop - part.start - 1) * step + 1, step)


def _along(weight: NDArray[Any], dim: int, num_dims: int) -> NDArray[Any]:
    shape = [1] * num_dims
    shape[dim] = len(weight)
    return weight.reshape(shape)
