"""Unpacks fields that crossed to a device as stored, into the values that training takes.

`PackedField` describes a field, and says where its numbers come from::

    fresh = stored numbers, in float32 or float64
    is_missing = fresh equals a fill value
    fresh = fresh * multiplier + offset        one multiply-add
    fresh = missing                            where is_missing

The stored memory is only read, so that it may be used again as soon as the result is computed.

Of plain PyTorch operations, a field takes four or five. A compiled kernel would need one, and has
not been tried: there was no GPU to measure it on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xloader.transforms.packed_fields import PackedField

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class TensorUnpacker:
    """Unpacks one field with PyTorch, on one device.

    It holds the numbers of the field on the device, so that none cross with each batch.
    """

    field: PackedField
    multipliers: torch.Tensor
    offsets: torch.Tensor
    missing: torch.Tensor
    fills: tuple[torch.Tensor, ...]
    dtype: torch.dtype

    @classmethod
    def of(
        cls, field: PackedField, device: torch.device, output_dtype: str | None = None
    ) -> TensorUnpacker:
        """Put the numbers of a field on a device."""
        import torch

        wide = getattr(torch, field.wide_dtype.name)

        def on_device(numbers: tuple[float, ...]) -> torch.Tensor:
            values = field.along_channels(numbers).astype(field.wide_dtype)
            return torch.from_numpy(values).to(device, wide)

        return cls(
            field,
            on_device(field.multipliers),
            on_device(field.offsets),
            on_device(field.missing),
            tuple(on_device(fills) for fills in field.fills),
            getattr(torch, output_dtype or field.dtype.name),
        )

    def unpack(self, packed: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Unpack the rows of a batch. On a GPU, nothing waits for the result.

        The values, of shape ``(n, *field.shape)``; ``out`` if it was given.
        """
        import torch

        values = self._seen(packed).view(-1, *self.field.shape)
        is_missing = torch.isnan(values) if self.field.fills_nan else None
        for fills in self.fills:
            is_fill = values == fills
            is_missing = is_fill if is_missing is None else is_missing.logical_or_(is_fill)
        torch.addcmul(self.offsets, values, self.multipliers, out=values)
        if is_missing is not None:
            torch.where(is_missing, self.missing, values, out=values)
        if out is None:
            return values.to(self.dtype)
        return out.copy_(values)

    def _seen(self, packed: torch.Tensor) -> torch.Tensor:
        """The stored numbers as a new tensor of the dtype to compute in."""
        import torch

        seen, wide = self.field.seen_dtype, self.multipliers.dtype
        if seen.kind == "u" and seen.itemsize > 1:
            # PyTorch has few operations for unsigned integers of more than one byte.
            signed = packed.view(getattr(torch, f"int{8 * seen.itemsize}"))
            larger = torch.int32 if seen.itemsize == 2 else torch.int64
            return signed.to(larger).bitwise_and_(2 ** (8 * seen.itemsize) - 1).to(wide)
        # Also a copy where the dtypes are equal: the result must not be the memory of the slot.
        return packed.view(getattr(torch, seen.name)).to(wide, copy=True)
