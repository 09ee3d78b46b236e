"""Where the variables of blocks go in the fields of a batch, and what happens to their numbers.

Variables that lie side by side, in the decoded blocks and in the batch, form a *stack*. A stack is
copied in one call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from xloader.compiled.library import address_of, load_library
from xloader.core.axis import Ints
from xloader.core.footprint import Access, Footprint
from xloader.core.packing import Packing
from xloader.engine.block_layout import BlockSlot, Stored
from xloader.engine.buffers import Arrays, Fields
from xloader.recipe.layout import FieldLayout, FieldPart

_SAME, _CONVERT, _LOOK_UP = range(3)
"""How native threads convert numbers: not at all, by the numbers of a list, or with a table of the
value of each; as in ``copy_box.h``."""

_NUMBERS: Final = tuple(np.dtype(code) for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"))
_FLOATS: Final = (np.dtype("f4"), np.dtype("f8"))
_TYPES: Final = (*_NUMBERS, *_FLOATS)
"""Types of numbers, in the order of ``copy_box.h``."""

_MOST_LOOPS: Final = 64
"""The most nested loops of a native copy."""


@dataclass(frozen=True)
class Target:
    """The place of one variable in one field.

    `column`: index of the variable in its group. `number`: index among those of the same
    `Stored.kind`. `dtype`: of the field.
    """

    field: str
    part: FieldPart
    stored: Stored
    column: int
    number: int
    dtype: np.dtype

    @property
    def is_direct(self) -> bool:
        """Whether decoded values can be written into the field unchanged.

        They are not packed, of the same dtype, and have all dimensions of the field.
        """
        is_plain = self.stored.packing is None and self.stored.dtype == self.dtype
        return is_plain and len(self.part.axes) == len(self.stored.axes)


@dataclass(frozen=True)
class Stack:
    """Targets that are copied in one call, in the order in which they lie in memory."""

    targets: tuple[Target, ...]

    @property
    def first(self) -> Target:
        """The first target."""
        return self.targets[0]

    @property
    def stored(self) -> Stored:
        """How the first variable is stored. The others have the same `Stored.kind`."""
        return self.first.stored

    def view(self, arrays: Arrays) -> NDArray[Any]:
        """A writable view of their places in a batch, shape ``(len(targets), n, ...)``."""
        views = [target.part.view(arrays[target.field]) for target in self.targets[:2]]
        if len(views) == 1:
            return views[0][None]
        hop = address_of(views[1]) - address_of(views[0])
        shape, strides = (len(self.targets), *views[0].shape), (hop, *views[0].strides)
        return as_strided(views[0], shape, strides)


@dataclass(frozen=True, eq=False)
class NativeCopy:
    """A stack in the form that native threads copy it.

    `numbers`: the conversion, sizes of a stored and of a delivered number in bytes, numbers of
    windowed dimensions, outer loops and axes, bytes between rows; for each outer loop its count and
    step in bytes; for each axis, in the order of the blocks' memory, its windowed dimension or -1,
    its step and size in elements, and its step in the batch in bytes. `table`: the value of each
    packed number, or the numbers of the conversion. `offset`: bytes from the beginning of the field
    of the first variable to its first number.
    """

    numbers: Ints
    table: NDArray[Any] | None
    field: str
    offset: int

    def address_in(self, arrays: Arrays) -> int:
        """The address of the first number of a batch."""
        return address_of(arrays[self.field]) + self.offset


class FieldPlaces:
    """The places of all variables in the fields of batches, group by group."""

    def __init__(
        self,
        footprint: Footprint,
        layouts: tuple[FieldLayout, ...],
        fields: Fields,
        stored: Mapping[str, Stored],
    ) -> None:
        parts = [(layout, part) for layout in layouts for part in layout.parts]
        example = fields.example()
        self._stacks: list[dict[Access, list[tuple[Stack, NativeCopy | None]]]] = []
        for group in footprint.groups:
            numbers: dict[Hashable, int] = {}
            targets: dict[Access, list[Target]] = {}
            for column, demand in enumerate(group.demands):
                variable = stored[demand.variable]
                number = numbers[variable.kind] = numbers.get(variable.kind, -1) + 1
                for layout, part in parts:
                    if part.variable == demand.variable:
                        target = Target(layout.name, part, variable, column, number, layout.dtype)
                        targets.setdefault(part.accesses, []).append(target)
            self._stacks.append(
                {
                    access: [(stack, _native(stack, access, example)) for stack in stacks]
                    for access, members in targets.items()
                    for stacks in [_stacked(members, example)]
                }
            )

    @cached_property
    def accesses(self) -> list[tuple[Access, ...]]:
        """Per group, the accesses with which fields take its variables."""
        return [tuple(stacks) for stacks in self._stacks]

    @cached_property
    def is_native(self) -> bool:
        """Whether native threads can copy all of them."""
        stacks = (pairs for group in self._stacks for pairs in group.values())
        return all(native is not None for pairs in stacks for _, native in pairs)

    def stacks(self, group: int) -> list[list[tuple[Stack, NativeCopy | None]]]:
        """Per access of a group, its stacks, each with its native copy if there can be one."""
        return list(self._stacks[group].values())

    def is_direct(self, group: int) -> bool:
        """Whether a block that is exactly one window may be decoded straight into its row."""
        stacks = self._stacks[group]
        targets = [t for pairs in stacks.values() for stack, _ in pairs for t in stack.targets]
        is_alone = len(stacks) == 1 and len({t.part.variable for t in targets}) == len(targets)
        return is_alone and all(target.is_direct for target in targets)

    def rows_of(self, group: int, arrays: Arrays, row: int) -> dict[str, BlockSlot]:
        """Per variable of a group, its place in a row that a block is decoded straight into."""
        (pairs,) = self._stacks[group].values()
        return {
            target.part.variable: BlockSlot(view[:, row], number)
            for stack, _ in pairs
            for view in [stack.view(arrays)]
            for number, target in enumerate(stack.targets)
        }


def gather_in_words(copied: Iterable[tuple[str, np.dtype, Packing | None, np.dtype]]) -> str:
    """Say how variables are copied into batches in this process, for `explain()`.

    Per variable its name, its stored dtype, its packing and the dtype of its field.
    """
    library, reason = load_library()
    if library is None:
        return f"by NumPy, which holds Python's lock: {reason}"
    others = sorted(
        {
            name
            for name, stored, packing, dtype in copied
            if _conversion(stored, packing, dtype) is None
        }
    )
    if not others:
        return "compiled, without Python's lock"
    return f"by NumPy, which holds Python's lock, to convert the numbers of {', '.join(others)}"


def _stacked(targets: Sequence[Target], example: Arrays) -> list[Stack]:
    """Join the targets of one access, where they follow each other in blocks and batches."""
    stacks: list[list[Target]] = []
    views = {id(t): t.part.view(example[t.field]) for t in targets}
    hop = 0
    for target in sorted(targets, key=lambda t: (str(t.stored.kind), t.number)):
        last = stacks[-1][-1] if stacks else None
        if last is not None and _follows(last, target):
            view, other = views[id(target)], views[id(last)]
            distance = address_of(view) - address_of(other)
            is_alike = view.strides == other.strides and view.dtype == other.dtype
            # Fields of separate allocations lie at other distances in the next batch: no common
            # base, no stack.
            is_alike &= view.shape == other.shape and view.base is other.base and distance > 0
            if is_alike and (len(stacks[-1]) == 1 or distance == hop):
                stacks[-1].append(target)
                hop = distance
                continue
        stacks.append([target])
    return [Stack(tuple(members)) for members in stacks]


def _follows(last: Target, target: Target) -> bool:
    is_plain = last.stored.packing is None and target.stored.packing is None
    is_next = target.stored.kind == last.stored.kind and target.number == last.number + 1
    return is_plain and is_next


def _native(stack: Stack, spans: Access, example: Arrays) -> NativeCopy | None:
    """The native copy of a stack; None if native threads cannot copy these numbers."""
    first, stored = stack.first, stack.stored
    view = stack.view(example)
    conversion = _conversion(stored.dtype, stored.packing, view.dtype)
    num_outer = view.ndim - len(stored.axes)
    lacks_access = any(dim is not None and spans[dim] is None for dim in stored.windowed)
    if conversion is None or lacks_access or view.ndim > _MOST_LOOPS:
        return None
    kind, table = conversion
    # The second axis is that of the rows.
    outer = [at for at in range(num_outer) if at != 1]
    numbers: list[int] = [
        *(kind, stored.dtype.itemsize, view.dtype.itemsize),
        *(len(spans), len(outer), len(stored.axes), view.strides[1]),
    ]
    for at in outer:
        numbers += [view.shape[at], view.strides[at]]
    for at in stored.order:
        dim = stored.windowed[at]
        span = None if dim is None else spans[dim]
        if dim is None or span is None:
            numbers += [-1, 1, stored.axes[at].size]
        else:
            numbers += [dim, span[1], 0]
        numbers.append(view.strides[num_outer + at])
    offset = address_of(view) - address_of(example[first.field])
    return NativeCopy(np.array(numbers, np.int64), table, first.field, offset)


def _conversion(
    stored: np.dtype, packing: Packing | None, dtype: np.dtype
) -> tuple[int, NDArray[Any] | None] | None:
    """How stored numbers become those of a field, with a table; None if only NumPy can do it."""
    if packing is None:
        if stored == dtype and not dtype.hasobject:
            return _SAME, None
        is_known = _seen(stored) in _TYPES and dtype in _TYPES
        if not is_known or (stored in _FLOATS and dtype not in _FLOATS):
            return None
        wide = dtype if dtype in _FLOATS else None
        return _CONVERT, _conversion_table(_seen(stored), wide, dtype, (), None, None)
    table, wide = packing.table, packing.wide_dtype
    if dtype not in _FLOATS or packing.dtype != dtype:
        return None
    if table is not None:
        return _LOOK_UP, table
    if packing.change is not None or wide not in _FLOATS or packing.seen_dtype not in _TYPES:
        return None
    try:
        return _CONVERT, _conversion_table(
            packing.seen_dtype, wide, dtype, packing.fills, packing.scale, packing.offset
        )
    except (TypeError, ValueError):
        return None


def _seen(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def _conversion_table(
    seen: np.dtype,
    wide: np.dtype | None,
    dtype: np.dtype,
    fills: Sequence[Any],
    scale: Any,
    offset: Any,
) -> Ints:
    """A conversion as `Conversion` of ``copy_box.h`` has it."""
    like = np.empty(1, wide)

    def is_double(number: Any) -> bool:
        """Whether NumPy does the arithmetic of a number and wide ones in double precision."""
        return number is not None and np.result_type(like, number) != np.float32

    whole = [
        *(_TYPES.index(seen), -1 if wide is None else _TYPES.index(wide), _TYPES.index(dtype)),
        *(len(fills), scale is not None, offset is not None, is_double(scale), is_double(offset)),
    ]
    floats = [
        *(0.0 if number is None else float(number) for number in (scale, offset)),
        *(float(np.asarray(fill).astype(np.result_type(like, fill))) for fill in fills),
    ]
    return np.concatenate([np.array(whole, np.int64), np.array(floats).view(np.int64)])
