"""The tables of a run: what native threads know of its variables, blocks and fields beforehand.

All hold whole numbers, so that C reads them, and so does whoever prints them. `program.h` of
`xloader.compiled` names the columns::

    groups      variables whose chunks are needed together
    kinds       of these, the ones whose parts of a block lie side by side
    demands     variables: how chunks are stored, and where they go
    axes        the dimensions of each variable
    shardings   how chunks lie in shards
    routes      the ways in which fields take the variables of a group
    stacks      variables that are copied together
    numbers     lists that the others point into
    text        the beginnings of the names of files
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.compiled.library import ADDRESS, address_of, find_function
from xloader.core.axis import Axis, Ints
from xloader.core.footprint import Group
from xloader.engine.assembly import EngineParts, is_in_place
from xloader.engine.block_layout import Stored
from xloader.engine.buffers import Arrays
from xloader.sources.base import ChunkFiles, Source

MOST_DIMS: Final = 16
"""The most dimensions of a variable, and the most windowed ones; as in ``program.h``."""

NAMES: Final = (
    *("groups", "kinds", "demands", "axes", "shardings", "routes", "stacks"),
    *("numbers", "text", "functions"),
)

_NUM_FUNCTIONS: Final = 4


class TablesInC(ctypes.Structure):
    """`Tables` of ``program.h``."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("num_dims", "num_arrays", "array_nbytes", "is_resident")
        ),
        *((f"num_{name}", ctypes.c_int64) for name in ("groups", "kinds", "demands", "axes")),
        *((f"num_{name}", ctypes.c_int64) for name in ("shardings", "routes", "stacks")),
        *((f"num_{name}", ctypes.c_int64) for name in ("numbers", "text")),
        *((name, ctypes.c_void_p) for name in NAMES),
    )


class Tables:
    """The tables of the runs of one loader.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        The tables by name.
    variables : list of str
        The variable of each demand.
    lookups : list of (numpy.ndarray or None)
        Per stack, the table of values of its packed numbers.
    in_c : TablesInC
        The tables as C takes them. They live as long as this object.
    """

    def __init__(self, parts: EngineParts, source: Source, *, is_resident: bool) -> None:
        self._parts = parts
        self._source = source
        self._numbers: list[Any] = []
        self._num_numbers = 0
        self._known: dict[int, tuple[int, Any]] = {}
        self._stored_parts: dict[tuple[Axis, Any], tuple[Ints, Ints, Ints]] = {}
        self._text = bytearray()
        self._functions: tuple[int, ...] = (0,) * _NUM_FUNCTIONS
        self._rows: dict[str, list[tuple[int, ...]]] = {name: [] for name in NAMES[:7]}
        # Their addresses are in `stacks`.
        self.lookups: list[NDArray[Any] | None] = []
        self.variables: list[str] = []
        joints = parts.fields.take_joints()
        self._example = _Example(joints, parts.fields.named(joints, parts.fields.batch_size))
        array_nbytes = self._list([joint.nbytes for joint in joints])
        num_dims = len(parts.footprint.windows.dims)
        for number, group in enumerate(parts.footprint.groups):
            self._add_group(number, group, num_dims)
        # Its memory is for the batches of the run.
        del self._example
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.array(rows, np.int64) for name, rows in self._rows.items()
        }
        self.arrays["numbers"] = np.concatenate([np.zeros(1, np.int64), *self._numbers])
        self.arrays["text"] = np.frombuffer(bytes(self._text) + b"\0", np.uint8)
        self.arrays["functions"] = np.array(self._functions, np.int64)
        self.in_c = TablesInC(
            num_dims,
            len(joints),
            array_nbytes,
            is_resident,
            *(len(self.arrays[name]) for name in NAMES[:-1]),
            *(self.arrays[name].ctypes.data for name in NAMES),
        )

    @property
    def is_native(self) -> bool:
        """Whether native threads load all chunks."""
        return not self.is_fetched.any() and bool(self.arrays["demands"][:, 0].all())

    @property
    def is_fetched(self) -> NDArray[np.bool_]:
        """Of each group, whether Python fetches its chunks before blocks have memory."""
        # The last column of `Group` in ``program.h``.
        is_fetched: NDArray[np.bool_] = self.arrays["groups"][:, -1] != 0
        return is_fetched

    @property
    def decoded_variables(self) -> frozenset[str]:
        """The variables whose chunks native threads decode."""
        flags = self.arrays["demands"][:, 0].tolist()
        return frozenset(name for name, flag in zip(self.variables, flags, strict=True) if flag)

    def scratch_nbytes(self, num_threads: int) -> int:
        """Memory for chunks that are fetched ahead and not decompressed right into place.

        It is taken from that for bytes in flight.
        """
        if not self.is_fetched.any():
            return 0
        reader, max_chunk_nbytes = self._parts.reader, self._parts.footprint.max_chunk_nbytes
        if not all(is_in_place(reader.stored(name)) for name in self.decoded_variables):
            most_nbytes = max(self._parts.in_flight_nbytes // 4, max_chunk_nbytes)
            return min(num_threads * max_chunk_nbytes, most_nbytes)
        return max_chunk_nbytes if self._has_cut_chunks() else 0

    def _has_cut_chunks(self) -> bool:
        """Whether native threads decode chunks of which not all elements are taken."""
        numbers = self.arrays["numbers"]
        for is_native, _, _, first, num_axes, *_ in self.arrays["demands"].tolist():
            for _, num, edges, _, _, stored, _ in self.arrays["axes"][first : first + num_axes]:
                sizes = np.diff(numbers[edges : edges + num + 1])
                if is_native and not np.array_equal(sizes, numbers[stored : stored + num]):
                    return True
        return False

    @property
    def address(self) -> int:
        """The address of `in_c`."""
        return ctypes.addressof(self.in_c)

    def block_nbytes(self, group: int, block: int) -> int:
        """Decoded bytes of a block, given the numbers of its group and of the block there."""
        own = self._parts.footprint.groups[group]
        return self._parts.reader.layout(own, own.index_of(block)).nbytes

    def _list(self, values: Sequence[int] | Ints) -> int:
        """Keep a list of numbers, and return where it begins. The same array is kept once."""
        known = self._known.get(id(values))
        if known is not None:
            return known[0]
        # `numbers` begins with one number that belongs to no list.
        begin = 1 + self._num_numbers
        self._numbers.append(np.asarray(values, np.int64))
        self._num_numbers += len(values)
        # The object is kept too, so that no other gets its id.
        self._known[id(values)] = begin, values
        return begin

    def _add_group(self, number: int, group: Group, num_dims: int) -> None:
        parts, rows = self._parts, self._rows
        first_demand, first_kind = len(rows["demands"]), len(rows["kinds"])
        stored = [parts.reader.stored(demand.variable) for demand in group.demands]
        kinds: dict[Any, list[int]] = {}
        for at, own in enumerate(stored):
            kinds.setdefault(own.kind, []).append(at)
        # In the order of `block_layout`.
        order = sorted(kinds.values(), key=lambda own: -stored[own[0]].dtype.itemsize)
        places: dict[int, tuple[int, int]] = {}
        for kind, members in enumerate(order, first_kind):
            rows["kinds"].append((first_demand + members[0], len(members)))
            places.update((at, (kind, index)) for index, at in enumerate(members))
        targets = self._row_targets(number) if parts.places.is_direct(number) else {}
        # What is waited for is fetched ahead, with all that is chunked like it.
        is_waited_for = any(self._source.is_waiting(demand.variable) for demand in group.demands)
        for at, (demand, own) in enumerate(zip(group.demands, stored, strict=True)):
            files = self._files(demand.variable, own)
            if files is not None and files.prefix is None and not is_waited_for:
                files = None
            self._add_demand(demand.variable, own, files, places[at], targets)
        edges = [-1 if axis is None else self._list(axis.edges) for axis in group.axes]
        rows["groups"].append(
            (
                first_demand,
                len(group.demands),
                group.num_chunks_per_block,
                first_kind,
                len(order),
                self._list(group.shape),
                self._list(edges),
                not is_waited_for and any(row[0] for row in rows["demands"][first_demand:]),
                is_waited_for,
            )
        )
        self._add_routes(number, places)

    def _add_demand(
        self,
        name: str,
        stored: Stored,
        files: ChunkFiles | None,
        place: tuple[int, int],
        targets: Mapping[str, tuple[int, int, int, list[int]]],
    ) -> None:
        first_axis = len(self._rows["axes"])
        for at, (axis, dim) in enumerate(zip(stored.axes, stored.windowed, strict=True)):
            self._add_axis(axis, dim, None if files is None else files.sizes[at])
        prefix = separator = codec = 0
        shards = -1
        if files is not None:
            self._functions, codec = files.functions, files.codec
        if files is not None and files.prefix is not None:
            prefix, separator = len(self._text), ord(files.separator)
            self._text += os.fsencode(files.prefix) + b"\0"
            shards = self._add_sharding(files)
        target = targets.get(name)
        array, offset, step, steps = target or (0, 0, 0, [])
        num_parts = 1
        for axis, dim in zip(stored.axes, stored.windowed, strict=True):
            num_parts *= axis.num_blocks if dim is None else 1
        self.variables.append(name)
        self._rows["demands"].append(
            (
                *(files is not None, codec, stored.dtype.itemsize),
                *(first_axis, len(stored.axes), num_parts, *place, self._list(stored.order)),
                *(prefix, separator, shards, target is not None),
                *(array, offset, step, self._list(steps)),
            )
        )

    def _files(self, name: str, stored: Stored) -> ChunkFiles | None:
        """The files of a variable, if native threads read them."""
        is_sliced = all(isinstance(axis.selection, range) for axis in stored.axes)
        if not is_sliced or len(stored.axes) > MOST_DIMS:
            return None
        files = self._source.files_of(name)
        return None if files is None or len(files.separator) > 1 else files

    def _add_axis(self, axis: Axis, dim: int | None, sizes: int | tuple[int, ...] | None) -> None:
        numbers: tuple[int, ...] = (axis.num_blocks, self._list(axis.edges), 0, 0, 0, 1)
        if sizes is not None and isinstance(axis.selection, range):
            if (axis, sizes) not in self._stored_parts:
                self._stored_parts[axis, sizes] = axis.stored_parts(sizes)
            chunks, firsts, stored = self._stored_parts[axis, sizes]
            numbers = (
                *(axis.num_blocks, self._list(axis.edges)),
                *(self._list(chunks), self._list(firsts), self._list(stored), axis.selection.step),
            )
        self._rows["axes"].append((-1 if dim is None else dim, *numbers))

    def _add_sharding(self, files: ChunkFiles) -> int:
        shards = files.shards
        if shards is None:
            return -1
        self._rows["shardings"].append(
            (
                *(self._list(shards.counts), int(np.prod(shards.object_counts))),
                *(int(np.prod(shards.counts)), shards.index_nbytes, shards.is_at_start),
                *(shards.is_checked, shards.fewest_nbytes, self._list(shards.object_counts)),
            )
        )
        return len(self._rows["shardings"]) - 1

    def _add_routes(self, number: int, places: dict[int, tuple[int, int]]) -> None:
        for stacks in self._parts.places.stacks(number):
            self._rows["routes"].append((number, len(self._rows["stacks"]), len(stacks)))
            for stack, native in stacks:
                array = offset = layout = lookup = 0
                if native is not None:
                    array, offset = self._example.find(native.address_in(self._example.arrays))
                    layout = self._list(native.numbers)
                    lookup = 0 if native.table is None else address_of(native.table)
                self.lookups.append(None if native is None else native.table)
                kind, index = places[stack.first.column]
                self._rows["stacks"].append((layout, lookup, array, offset, kind, index))

    def _row_targets(self, number: int) -> dict[str, tuple[int, int, int, list[int]]]:
        """Per variable, where a block lies that is decoded into a row of a batch."""
        arrays = self._example.arrays
        (stacks,) = self._parts.places.stacks(number)
        steps = {
            target.part.variable: stack.view(arrays).strides[1]
            for stack, _ in stacks
            for target in stack.targets
        }
        targets = {}
        for name, slot in self._parts.places.rows_of(number, arrays, 0).items():
            array, offset = self._example.find(address_of(slot.values))
            targets[name] = array, offset, steps[name], list(slot.values.strides)
        return targets


class _Example:
    """An example batch, which shows how fields lie in memory."""

    def __init__(self, joints: Sequence[NDArray[Any]], arrays: Arrays) -> None:
        self.arrays = arrays
        self._joints = joints

    def find(self, address: int) -> tuple[int, int]:
        """The array of the batch that holds an address, and the bytes before that."""
        for number, joint in enumerate(self._joints):
            offset = address - address_of(joint)
            if 0 <= offset < max(joint.nbytes, 1):
                return number, offset
        raise AssertionError("a field lies in one of the arrays of its batch")


def can_run_natively(parts: EngineParts) -> bool:
    """Whether there is a native executor, and it can copy the samples."""
    axes = [parts.reader.stored(name).axes for name in parts.footprint.variables]
    num_dims = max(len(parts.footprint.windows.dims), *map(len, axes))
    return is_there() and parts.places.is_native and num_dims <= MOST_DIMS


def is_there() -> bool:
    """Whether there is a native executor."""
    return find_function("xloader_check_tables", (ADDRESS,)) is not None
