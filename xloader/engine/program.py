"""The program of an epoch: blocks to load, copies to make, batches to deliver, in their order.

A program is made in segments of thousands of rows, ahead of the run that carries it out::

    loads     blocks, in the order of the first row that needs each
    copies    of a part of a block into a row of a batch, in the order of the batches
    batches   how many copies each is made of
    ends      blocks that no later segment needs

Terms: an *entry* is a cohort, or the part of one that a lane owns. A *residence* is one stay of a
block in memory, from its load until it is dropped. Each residence is one load.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import ADDRESS, Function, address_of, find_function
from xloader.core.axis import Ints
from xloader.core.footprint import Footprint, Group
from xloader.engine.assembly import EngineParts
from xloader.engine.batches import BatchRows
from xloader.engine.buffers import LeasedPool
from xloader.engine.overlaps import NUM_COLUMNS, finders_of
from xloader.engine.tables import MOST_DIMS, Tables
from xloader.order.step_dealer import LOOK_SIZE, Dealer
from xloader.planning.epoch import Lane
from xloader.planning.mixing import Regions
from xloader.planning.schedule import Residences

LOAD_COLUMNS: Final = (
    *("group", "block", "nbytes", "batch", "row", "address", "read_nbytes"),
    "first_row",
)
"""Columns of `Segment.loads`."""

COPY_COLUMNS: Final = ("load", "route", "batch", "row")
"""The first columns of `Segment.copies`. Then, along each windowed dimension, the first element of
the window, the number of elements, and the first element of the block."""

_PIECE_SIZE: Final = 1 << 16
"""Number of members that are counted in one call."""

_FIRST_ROWS: Final = 256
"""Rows of the second segment, made while the first batch is read, which is the first segment."""

Kept = Mapping[tuple[int, int], int]
"""Blocks in memory from earlier runs: the address of each, by group and block."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Successive batches of a program.

    Parameters
    ----------
    first_load : int
        Number of the first load.
    batches : list of BatchRows
        The rows of each batch.
    loads : numpy.ndarray of int64, shape (num_loads, 8)
        Per block its group, its number there and its bytes; the batch of the segment and the row
        that it is decoded into, or -1 and 0 for memory of its own; where it lies already, or 0; the
        decoded bytes of its chunks, not cut down to the selection; and the row of the segment that
        is the first to need it, or -1.
    copies : numpy.ndarray of int32, shape (num_copies, 4 + 3 * num_dims)
        See `COPY_COLUMNS`.
    copy_ends : numpy.ndarray of int64, shape (num_batches,)
        The end of the copies of each batch.
    is_finished : numpy.ndarray of int64, shape (num_batches,)
        Whether Python finishes the batch.
    ends : numpy.ndarray of int64, shape (num_ends,)
        Numbers of the loads that no later segment needs.
    """

    first_load: int
    batches: list[BatchRows]
    loads: NDArray[np.int64]
    copies: NDArray[np.int32]
    copy_ends: Ints
    is_finished: Ints
    ends: Ints

    def tables(self) -> dict[str, NDArray[Any]]:
        """The tables by name, as a program is saved."""
        names = "loads", "copies", "copy_ends", "is_finished", "ends"
        return {name: getattr(self, name) for name in names}


class Segments(Protocol):
    """Makes the segments of a run, one after the other. One thread at a time takes the next."""

    @property
    def num_steps(self) -> int:
        """Number of batches."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether no thread of the run is to make another segment."""
        ...

    def next_segment(self, is_finished: Callable[[int], bool]) -> Segment:
        """Make the next segment, given which batches Python finishes."""
        ...


class Program:
    """The segments of an epoch in order. One thread at a time takes the next."""

    def __init__(
        self,
        parts: EngineParts,
        tables: Tables,
        lanes: Sequence[Lane],
        share: int,
        num_steps: int,
        *,
        is_resident: bool,
        may_use_rows: bool,
        regions: Regions | None,
        kept: Kept,
    ) -> None:
        self.num_steps = num_steps
        self._footprint: Footprint = parts.footprint
        self._tables = tables
        self._regions = regions
        self._dealer = Dealer([lane.order for lane in lanes], share)
        accesses = parts.places.accesses
        self._finders = finders_of(self._footprint.groups, accesses)
        self._table_pool = LeasedPool(max(4, sum(map(len, accesses))))
        self._next_step = self._next_load = self._last_occurrence = 0
        groups = self._footprint.groups
        self._needs = [
            _Needs(
                group,
                [lane.schedule.residences[number] for lane in lanes],
                {block: address for (at, block), address in kept.items() if at == number},
                is_resident=is_resident,
                may_use_rows=may_use_rows and parts.places.is_direct(number),
            )
            for number, group in enumerate(groups)
        ]
        counts = _joined([lane.order.count for lane in lanes])
        self._rows_left = np.array(counts, np.int64)
        self._is_begun = np.zeros(len(counts), np.uint8)
        make, free = _functions()
        self._make_tables: Callable[[Tables, _Rows], _Made] = _make_in_python
        if make and free and tables.in_c.num_dims <= MOST_DIMS:
            self._make_tables = partial(_make_in_c, make, free)

    @property
    def is_over(self) -> bool:
        """Whether all segments are made."""
        return self._next_step >= self.num_steps

    def next_segment(self, is_finished: Callable[[int], bool]) -> Segment:
        """Make the next segment."""
        first, per_look = self._next_step, self._dealer.steps_at_once
        if first < 2:
            per_look = max(1, first * per_look * _FIRST_ROWS // LOOK_SIZE)
        num_steps = min(per_look, self.num_steps - first)
        dealt = self._dealer.take(num_steps)
        positions = self._footprint.positions_of(dealt.ids)
        firsts = self._footprint.windows.firsts_of(positions)
        hits = [
            finder.find(firsts, self._table_pool) for finders in self._finders for finder in finders
        ]
        num_regions: list[int | None] = [None] * num_steps
        if self._regions is not None:
            num_regions = self._regions.count(positions, dealt.edges).tolist()
        cuts = dealt.edges.tolist()
        batches = []
        for step in range(num_steps):
            rows = slice(cuts[step], cuts[step + 1])
            times = None if dealt.occurrences is None else dealt.occurrences[rows]
            if times is not None and len(times):
                self._last_occurrence = int(times[-1])
            batches.append(
                BatchRows(
                    first + step, dealt.ids[rows], num_regions[step], times, self._last_occurrence
                )
            )
        entries = np.ascontiguousarray(dealt.entries, np.int64)
        edges = np.ascontiguousarray(dealt.edges, np.int64)
        first_load, begun, rows_left = self._next_load, self._is_begun, self._rows_left
        made = self._make_tables(
            self._tables, _Rows(self._needs, hits, entries, edges, first_load, begun, rows_left)
        )
        for number, group in enumerate(self._footprint.groups):
            members = np.flatnonzero(made.loads[:, 0] == number)
            made.loads[members, 6] = group.read_nbytes(made.loads[members, 1])
        flags = np.array([is_finished(batch.index) for batch in batches], np.int64)
        segment = Segment(
            first_load, batches, made.loads, made.copies, made.copy_ends, flags, made.ends
        )
        self._next_step += num_steps
        self._next_load += len(segment.loads)
        return segment


class _Needs:
    """The residences of one group, and how far the program has come with them.

    They are numbered one lane after the other; where blocks stay in memory, each is one residence.
    Entry `e` needs `members[offsets[e]:offsets[e + 1]]`.
    """

    def __init__(
        self,
        group: Group,
        lanes: Sequence[Residences],
        kept: Mapping[int, int],
        *,
        is_resident: bool,
        may_use_rows: bool,
    ) -> None:
        ends = np.cumsum([0, *(len(lane.members) for lane in lanes)])
        offsets = lanes[0].offsets
        if len(lanes) > 1:
            offsets = np.append(_joined([lane.offsets[:-1] for lane in lanes], ends), ends[-1])
        self.offsets = _shortened(offsets)
        self.num_samples = self.addresses = None
        if is_resident:
            members = _joined([lane.block[lane.members] for lane in lanes])
            blocks: Ints = np.arange(group.num_blocks)
            self.addresses = np.zeros(len(blocks), np.int64)
            for block, address in kept.items():
                self.addresses[block] = address
        else:
            shifts = np.cumsum([0, *(len(lane.block) for lane in lanes)])
            members = _joined([lane.members for lane in lanes], shifts)
            blocks = _joined([lane.block for lane in lanes])
            if may_use_rows:
                num_samples = _joined([lane.num_samples for lane in lanes])
                self.num_samples = np.ascontiguousarray(num_samples, np.int64)
        self.members, self.blocks = _shortened(members), np.ascontiguousarray(blocks)
        self.load_of = np.full(len(blocks), -1, np.int32)
        self.entries_left = np.zeros(len(blocks), np.int32)
        # In pieces: there may be millions of members, and NumPy copies what it counts.
        for begin in range(0, len(members), _PIECE_SIZE):
            np.add.at(self.entries_left, self.members[begin : begin + _PIECE_SIZE], np.int32(1))

    def residences_of(self, entry: int) -> list[int]:
        """The residences that an entry needs."""
        residences: list[int] = self.members[self.offsets[entry] : self.offsets[entry + 1]].tolist()
        return residences

    def find(self, entry: int, block: int, *, is_resident: bool) -> int:
        """The residence in which an entry finds a block."""
        if is_resident:
            return block
        # Sorted by block; the last one before or at it.
        return [r for r in self.residences_of(entry) if self.blocks[r] <= block][-1]

    def row(self) -> tuple[int, ...]:
        """The numbers that `Needs` of ``segments.c`` has."""
        is_short = self.blocks.dtype == np.int32
        return (
            address_of(self.offsets),
            address_of(self.members),
            address_of(self.blocks) if is_short else 0,
            0 if is_short else address_of(self.blocks),
            address_of(self.load_of),
            address_of(self.entries_left),
            0 if self.num_samples is None else address_of(self.num_samples),
            0 if self.addresses is None else address_of(self.addresses),
        )


def _joined(parts: Sequence[Ints], shifts: Ints | None = None) -> Ints:
    """One array of all parts, each shifted by its number of `shifts` if there are any."""
    if len(parts) == 1:
        return parts[0]
    if shifts is None:
        return np.concatenate(parts)
    return np.concatenate([part + shift for part, shift in zip(parts, shifts, strict=False)])


def _shortened(numbers: Ints) -> NDArray[np.int32]:
    """The numbers as int32, in which C takes them."""
    if numbers.dtype != np.int32 and int(numbers.max(initial=0)) >= 1 << 31:
        raise OverflowError("the entries of an epoch need more than 2**31 blocks in all")
    return np.ascontiguousarray(numbers, np.int32)


class _Rows(NamedTuple):
    """The rows of a segment: their hits by route, their entries, and where batches begin.

    The needs of groups, and the counts of entries and of their rows to come, are changed.
    """

    needs: Sequence[_Needs]
    hits: Sequence[Ints]
    entries: Ints
    edges: Ints
    first_load: int
    is_begun: NDArray[np.uint8]
    rows_left: Ints


class _Made(NamedTuple):
    """The tables of a segment, as `Segment` has them."""

    loads: NDArray[np.int64]
    copies: NDArray[np.int32]
    copy_ends: Ints
    ends: Ints


class _MakingInC(ctypes.Structure):
    """`Making` of ``segments.c``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tables", "needs", "hits", "entries", "edges")),
        *((name, ctypes.c_int64) for name in ("num_batches", "first_load")),
        *((name, ctypes.c_void_p) for name in ("is_begun", "rows_left", "copy_ends", "made")),
    )


class _MadeInC(ctypes.Structure):
    """`Made` of ``segments.c``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("loads", "copies", "ends")),
        *((f"num_{name}", ctypes.c_int64) for name in ("loads", "copies", "ends")),
        *((f"room_{name}", ctypes.c_int64) for name in ("loads", "copies", "ends")),
    )


def _make_in_c(make: Function, free: Function, tables: Tables, rows: _Rows) -> _Made:
    """The tables of a segment, by the functions of the compiled library."""
    needs_in_c = np.array([own.row() for own in rows.needs], np.int64)
    hits_in_c = np.array(
        [(address_of(own), own.strides[0] // 8, own.shape[1]) for own in rows.hits], np.int64
    )
    copy_ends, made = np.zeros(len(rows.edges) - 1, np.int64), _MadeInC()
    making = _MakingInC(
        tables.address,
        *(own.ctypes.data for own in (needs_in_c, hits_in_c, rows.entries, rows.edges)),
        len(rows.edges) - 1,
        rows.first_load,
        *(own.ctypes.data for own in (rows.is_begun, rows.rows_left, copy_ends)),
        ctypes.addressof(made),
    )
    try:
        if not make(ctypes.addressof(making)):
            raise MemoryError
        width = len(COPY_COLUMNS) + 3 * tables.in_c.num_dims
        return _Made(
            _copied(made.loads, (made.num_loads, len(LOAD_COLUMNS)), np.int64),
            _copied(made.copies, (made.num_copies, width), np.int32),
            copy_ends,
            _copied(made.ends, (made.num_ends,), np.int64),
        )
    finally:
        free(ctypes.addressof(made))


def _functions() -> tuple[Function | None, Function | None]:
    """The functions that make the tables of a segment, and free them."""
    names = "xloader_make_segment", "xloader_free_made"
    make, free = (find_function(name, (ADDRESS,)) for name in names)
    return make, free


def _make_in_python(tables: Tables, rows: _Rows) -> _Made:
    """The tables of a segment, as ``segments.c`` makes them."""
    is_resident = bool(tables.in_c.is_resident)
    groups = tables.arrays["routes"][:, 0].tolist()
    needs, hits, entries, edges, first_load, is_begun, rows_left = rows
    loads: list[list[int]] = []
    copies: list[list[int]] = []
    ends: list[int] = []
    for entry in entries.tolist():
        if is_begun[entry]:
            continue
        is_begun[entry] = 1
        for number, own in enumerate(needs):
            for residence in own.residences_of(entry):
                if own.load_of[residence] < 0:
                    own.load_of[residence] = first_load + len(loads)
                    block = int(own.blocks[residence])
                    address = 0 if own.addresses is None else int(own.addresses[residence])
                    nbytes = tables.block_nbytes(number, block)
                    loads.append([number, block, nbytes, -1, 0, address, 0, -1])
    copy_ends = np.zeros(len(edges) - 1, np.int64)
    columns = [own[: NUM_COLUMNS + 3 * tables.in_c.num_dims].T.tolist() for own in hits]
    places = [0] * len(hits)
    for batch, (begin, end) in enumerate(itertools.pairwise(edges.tolist())):
        for route, taken in enumerate(columns):
            own = needs[groups[route]]
            while places[route] < len(taken) and taken[places[route]][0] < end:
                row, block, is_whole, *box = taken[places[route]]
                places[route] += 1
                residence = own.find(int(entries[row]), block, is_resident=is_resident)
                load = int(own.load_of[residence])
                if load >= first_load and loads[load - first_load][7] < 0:
                    loads[load - first_load][7] = row
                is_only = own.num_samples is not None and own.num_samples[residence] == 1
                if is_whole and is_only and load >= first_load:
                    loads[load - first_load][3:5] = batch, row - begin
                else:
                    copies.append([load, route, batch, row - begin, *box])
        copy_ends[batch] = len(copies)
    for entry in entries.tolist():
        rows_left[entry] -= 1
        if rows_left[entry] or is_resident:
            continue
        for own in needs:
            for residence in own.residences_of(entry):
                own.entries_left[residence] -= 1
                if not own.entries_left[residence]:
                    ends.append(int(own.load_of[residence]))
    width = len(COPY_COLUMNS) + 3 * tables.in_c.num_dims
    return _Made(
        np.array(loads, np.int64).reshape(-1, len(LOAD_COLUMNS)),
        np.array(copies, np.int32).reshape(-1, width),
        copy_ends,
        np.array(ends, np.int64),
    )


def _copied(address: int | None, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A copy of a table that C has made."""
    table = np.empty(shape, dtype)
    if table.nbytes:
        assert address is not None
        ctypes.memmove(table.ctypes.data, address, table.nbytes)
    return table
