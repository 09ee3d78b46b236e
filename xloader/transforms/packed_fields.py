"""Fields that are gathered as stored, because a later place unpacks them: the device.

A field of 16-bit integers is half as large as its values in float32, so it crosses to a device in
half the time. Unpacking, normalising and filling of its numbers are folded into one multiply-add::

    value = missing                              where the stored number is a fill value
          = stored * multiplier + offset         elsewhere

    multiplier = scale_factor / std              missing = NaN, or the number of .fillna(...)
    offset = (add_offset - mean) / std

`xloader.device.unpacking` does the arithmetic. This file finds the numbers, and which fields
qualify.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.packing import Packing
from xloader.recipe.layout import FieldLayout, FieldPart
from xloader.recipe.recipe import Recipe
from xloader.transforms.fillna import Fillna
from xloader.transforms.normalize import Normalize

_F4, _F8 = np.dtype(np.float32), np.dtype(np.float64)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PackedField:
    """How the stored numbers of one field become its values.

    The numbers of ``multipliers``, ``offsets``, ``missing`` and each row of ``fills`` are one for
    each channel; a single one where there are no channels, or where all of them have the same.
    """

    name: str
    shape: tuple[int, ...]
    stored_dtype: np.dtype
    seen_dtype: np.dtype
    multipliers: tuple[float, ...]
    offsets: tuple[float, ...]
    fills: tuple[tuple[float, ...], ...]
    missing: tuple[float, ...]
    dtype: np.dtype

    @property
    def wide_dtype(self) -> np.dtype:
        """The dtype to compute in: the smallest of float32 and float64 that loses nothing.

        float32 holds all integers and floats of 16 bits, but no integers beyond 2**24.
        """
        is_narrow = self.stored_dtype.itemsize <= 2 and self.dtype != _F8
        return _F4 if is_narrow else _F8

    @property
    def fills_nan(self) -> bool:
        """Whether a stored NaN becomes another value."""
        return self.seen_dtype.kind == "f" and not all(map(math.isnan, self.missing))

    @property
    def sample_nbytes(self) -> int:
        """Bytes of one sample, as gathered."""
        return math.prod(self.shape) * self.stored_dtype.itemsize

    @property
    def largest_value(self) -> float:
        """An upper bound of the size of all values, by what the stored dtype can hold."""
        seen = self.seen_dtype
        limits = np.iinfo(seen) if seen.kind in "iu" else np.finfo(seen)
        multipliers, offsets = np.array(self.multipliers), np.array(self.offsets)
        with np.errstate(over="ignore"):
            ends = [multipliers * float(end) + offsets for end in (limits.min, limits.max)]
        return float(np.nanmax(np.abs(np.concatenate([*ends, [0.0], self.missing]))))

    def along_channels(self, numbers: tuple[float, ...]) -> Floats:
        """Numbers of channels as an array that can be combined with a batch of the field.

        Of shape ``(1,)`` for a single number, else ``(num_channels, 1, ...)``.
        """
        values = np.array(numbers, np.float64)
        if len(numbers) == 1:
            return values
        return values.reshape(-1, *(1 for _ in self.shape[1:]))

    def count_nans(self, stored: NDArray[Any]) -> Ints:
        """Count the numbers of a gathered batch whose values are NaN."""
        stays_nan = np.isnan(self.along_channels(self.missing))
        if not stays_nan.any():
            return np.zeros(len(stored), np.int64)
        # Row by row: the masks are then as large as one sample, not as the batch.
        counts = [
            np.count_nonzero(self._is_missing(row.view(self.seen_dtype)) & stays_nan)
            for row in stored
        ]
        return np.array(counts, np.int64)

    def _is_missing(self, seen: NDArray[Any]) -> NDArray[np.bool_]:
        is_missing = np.isnan(seen) if seen.dtype.kind == "f" else np.zeros(seen.shape, np.bool_)
        for fills in self.fills:
            values = self.along_channels(fills)
            is_none = np.isnan(values)
            # In the stored dtype: in another one, NumPy would convert all numbers first.
            is_missing |= (seen == np.where(is_none, 0, values).astype(seen.dtype)) & ~is_none
        return is_missing


def packed_fields(
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    *,
    has_float64: bool = True,
    largest: float = math.inf,
) -> tuple[PackedField, ...]:
    """The fields that may be gathered as stored and unpacked later.

    A field qualifies if its values are floats that take more bytes than its stored numbers, if all
    its variables are stored in one dtype, and if the recipe has no transforms besides
    ``normalize`` with numbers that vary only along channels, and ``fillna``.
    """
    # A number that stands for elements outside has no stored form.
    if recipe.is_mapped or any(isinstance(pad, float) for pad in recipe.require_windows().pads):
        return ()
    fields = {layout.name: _packed_field(recipe, layout) for layout in layouts}
    kept = {
        name: field
        for name, field in fields.items()
        if field is not None
        and (has_float64 or field.wide_dtype == _F4)
        and field.largest_value <= largest
    }
    by_name = {layout.name: {part.variable for part in layout.parts} for layout in layouts}
    while True:
        unpacked = {v for name, variables in by_name.items() if name not in kept for v in variables}
        shared = [name for name in kept if by_name[name] & unpacked]
        if not shared:
            return tuple(kept.values())
        for name in shared:
            del kept[name]


def stored_layouts(
    layouts: tuple[FieldLayout, ...], packed: Collection[PackedField]
) -> tuple[FieldLayout, ...]:
    """The layouts in which fields are gathered if some of them stay as stored."""
    dtypes = {field.name: field.stored_dtype for field in packed}
    return tuple(replace(layout, dtype=dtypes.get(layout.name, layout.dtype)) for layout in layouts)


@dataclass(frozen=True)
class _Numbers:
    """The numbers of one variable of a field, one for each of its channels."""

    multipliers: Floats
    offsets: Floats
    missing: Floats
    fills: tuple[float, ...]


def _packed_field(recipe: Recipe, layout: FieldLayout) -> PackedField | None:
    """Describe a field that may be gathered as stored; None for another one."""
    variables = [recipe.variable(part.variable) for part in layout.parts]
    # The dtype of stored numbers, and the one as which they are read.
    stored = {(v.stored_dtype, v.packing.seen_dtype if v.packing else v.dtype) for v in variables}
    if layout.dtype.kind != "f" or len(stored) != 1:
        return None
    ((stored_dtype, seen_dtype),) = stored
    if stored_dtype.kind not in "iuf" or stored_dtype.itemsize >= layout.dtype.itemsize:
        return None
    # What xarray rounds in a narrower dtype, the arithmetic of the device would keep.
    packings = [v.packing for v in variables if v.packing and (v.packing.scale or v.packing.offset)]
    if any(packing.wide_dtype.itemsize < layout.dtype.itemsize for packing in packings):
        return None
    numbers = [n for part in layout.variables if (n := _numbers(recipe, part)) is not None]
    if len(numbers) < len(layout.variables):
        return None
    sizes = [part_numbers.missing.size for part_numbers in numbers]
    rows = zip_longest(*(part_numbers.fills for part_numbers in numbers), fillvalue=math.nan)
    return PackedField(
        layout.name,
        layout.shape,
        stored_dtype,
        seen_dtype,
        _joined([part_numbers.multipliers for part_numbers in numbers]),
        _joined([part_numbers.offsets for part_numbers in numbers]),
        tuple(_single(np.repeat(row, sizes).tolist()) for row in rows),
        _joined([part_numbers.missing for part_numbers in numbers]),
        layout.dtype,
    )


def _numbers(recipe: Recipe, part: FieldPart) -> _Numbers | None:
    """Fold a variable's packing and all transforms; None where that cannot be done."""
    packing = recipe.variable(part.variable).packing
    fills = () if packing is None else _stored_fills(packing)
    if fills is None:
        return None
    size = math.prod(part.flat_sizes)
    scale = 1.0 if packing is None or packing.scale is None else float(packing.scale)
    offset = 0.0 if packing is None or packing.offset is None else float(packing.offset)
    multipliers, offsets = np.full(size, scale), np.full(size, offset)
    missing = np.full(size, np.nan)
    for step in recipe.steps:
        if isinstance(step, Normalize):
            stats = _stats(recipe, part, step)
            if stats is None:
                return None
            mean, std = stats
            multipliers, offsets = multipliers / std, (offsets - mean) / std
            missing = (missing - mean) / std
        elif isinstance(step, Fillna):
            for name, value in step.values:
                if name is None or name == part.variable:
                    missing = np.where(np.isnan(missing), value, missing)
        else:
            return None
    return _Numbers(multipliers, offsets, missing, fills)


def _stats(recipe: Recipe, part: FieldPart, step: Normalize) -> tuple[Floats, Floats] | None:
    """Mean and standard deviation for each channel; None if they vary along anything else."""
    flat = recipe.channel_dims(part.variable) if part.channels is not None else ()
    for name, _, *tables in step.tables:
        if name != part.variable:
            continue
        if any(not set(table.dims) <= set(flat) for table in tables):
            return None
        mean, std = (
            np.broadcast_to(table.along(flat, _F8), part.flat_sizes).reshape(-1) for table in tables
        )
        return mean, std
    return np.zeros(1), np.ones(1)


def _stored_fills(packing: Packing) -> tuple[float, ...] | None:
    """The stored numbers that `Packing` takes for missing ones; None if there may be many.

    A `Packing` compares in its wide dtype, with fill values of any type.
    """
    seen, wide = packing.seen_dtype, packing.wide_dtype
    if not packing.fills:
        return ()
    if not np.can_cast(seen, wide, "safe"):
        # Several stored numbers may become equal to the same fill value.
        return None
    fills = []
    with np.errstate(all="ignore"):
        for fill in packing.fills:
            value = np.asarray(fill).astype(wide)
            if seen.kind in "iu":
                limits = np.iinfo(seen)
                if not limits.min <= value <= limits.max:
                    continue
            stored = value.astype(seen)
            if (np.full(1, stored).astype(wide) == fill).all():
                fills.append(float(stored))
    return tuple(sorted(set(fills)))


def _joined(numbers: list[Floats]) -> tuple[float, ...]:
    return _single(np.concatenate(numbers).tolist())


def _single(numbers: list[float]) -> tuple[float, ...]:
    """One number instead of many equal ones. NaN counts as equal to NaN."""
    first = numbers[0]
    is_alike = all(x == first or (math.isnan(x) and math.isnan(first)) for x in numbers)
    return (first,) if is_alike else tuple(numbers)


def normalized_packings(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> dict[str, Packing]:
    """The packings of the variables that can be normalised while they are unpacked."""
    first = recipe.steps[0] if recipe.steps else None
    # A number that stands for elements outside is normalised like those inside.
    has_numbers = any(isinstance(pad, float) for pad in recipe.require_windows().pads)
    if not isinstance(first, Normalize) or has_numbers:
        return {}
    dtypes = [(part.variable, layout.dtype) for layout in layouts for part in layout.parts]
    packings = {}
    for name in dict(dtypes):
        packing = recipe.variable(name).packing
        if packing is None or packing.table is None:
            continue
        # In another dtype, values would be rounded before they are normalised, and not afterwards.
        is_alike = all(dtype == packing.dtype for variable, dtype in dtypes if variable == name)
        change = first.change_of(name, packing.dtype)
        if is_alike and change is not None:
            packings[name] = replace(packing, change=change)
    return packings
