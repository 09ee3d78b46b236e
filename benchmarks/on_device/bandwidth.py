"""Copies to the device: from pinned and from pageable memory, and of several dtypes.

The *ladder* asks how fast values of float32 become usable on the device, if they cross in another
dtype and are widened there: packed integers as the loader does it, others by a cast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.on_device.clock import NOT_MEASURED, DeviceClock
from benchmarks.on_device.scale import Scale
from benchmarks.table import make_table
from xloader.device.hardware import make_hardware
from xloader.device.pinned_slots import PinnedBlock, page_aligned
from xloader.device.unpacking import TensorUnpacker
from xloader.transforms.packed_fields import PackedField

SCALE_FACTOR: Final = 0.01
ADD_OFFSET: Final = 280.0
FILL: Final = -32768


def show_bandwidth(clock: DeviceClock, scale: Scale) -> str:
    """Return a table of GB/s to the device, one row for each size of a copy."""
    heads = [
        "a copy of",
        "pageable, GB/s",
        "pinned by PyTorch, GB/s",
        "pinned as the ring does it, GB/s",
        "ring's of pageable",
    ]
    rows = []
    for nbytes in scale.copy_nbytes:
        seconds = clock.medians(_copies(clock, nbytes), scale.num_turns)
        speeds = {name: nbytes / taken / 1e9 for name, taken in seconds.items()}
        names = ("pageable", "pinned", "in place")
        cells = [f"{speeds[name]:.2f}" if name in speeds else NOT_MEASURED for name in names]
        ratio = speeds["in place"] / speeds["pageable"] if "in place" in speeds else None
        cells.append(NOT_MEASURED if ratio is None else f"{ratio:.2f}")
        rows.append([f"{nbytes >> 20} MiB", *cells])
    return make_table(heads, rows)


def _copies(clock: DeviceClock, nbytes: int) -> dict[str, Callable[[], object]]:
    target = torch.empty(nbytes, dtype=torch.uint8, device=clock.device)
    pageable = torch.ones(nbytes, dtype=torch.uint8)
    sources = {"pageable": pageable}
    if clock.is_cuda:
        sources["pinned"] = pageable.pin_memory()
        # The function keeps the block, which would be unpinned with its last reference.
        block = PinnedBlock(make_hardware(clock.device), page_aligned(nbytes))
        block.tensor.fill_(1)
        sources["in place"] = block.tensor
        return {
            name: lambda own=own, block=block: target.copy_(own, non_blocking=True)  # type: ignore[misc]
            for name, own in sources.items()
        }
    return {"pageable": lambda: target.copy_(pageable)}


@dataclass(frozen=True)
class Rung:
    """One dtype in which values of float32 may cross.

    Parameters
    ----------
    name : str
    pack : callable
        Makes the tensor that crosses from values of float32.
    widen : callable
        Makes float32 again, on the device.
    tolerance : float
        How far the result may be from the values, relative to the largest.
    """

    name: str
    pack: Callable[[Tensor], Tensor]
    widen: Callable[[Tensor], Tensor]
    tolerance: float


def show_ladder(clock: DeviceClock, scale: Scale) -> str:
    """Return a table of GB/s of usable float32, one row for each dtype."""
    values = _values(scale.num_values)
    crossing = {rung.name: _crossing(rung, values, clock) for rung in RUNGS}
    for rung in RUNGS:
        error = (crossing[rung.name]().cpu() - values).abs().max() / values.abs().max()
        assert error <= rung.tolerance, f"{rung.name}: an error of {error:.2g}"
    seconds = clock.medians(crossing, scale.num_turns)
    rows = []
    for rung in RUNGS:
        nbytes = rung.pack(values[:1]).element_size()
        speed = values.nbytes / seconds[rung.name] / 1e9
        ratio = seconds["float32"] / seconds[rung.name]
        rows.append([rung.name, f"{nbytes}", f"{speed:.2f}", f"{ratio:.2f}"])
    heads = ["crosses as", "bytes a value", "float32 on the device, GB/s", "of float32's"]
    return make_table(heads, rows)


def _crossing(rung: Rung, values: Tensor, clock: DeviceClock) -> Callable[[], Tensor]:
    packed = rung.pack(values)
    source = packed.pin_memory() if clock.is_cuda else packed
    target = torch.empty_like(packed, device=clock.device)
    return lambda: rung.widen(target.copy_(source, non_blocking=clock.is_cuda))


def _values(num: int) -> Tensor:
    # Multiples of the scale, so that packing loses nothing.
    numbers = np.random.default_rng(0).integers(-9000, 9000, num)
    return torch.from_numpy((ADD_OFFSET + SCALE_FACTOR * numbers).astype(np.float32))


def _pack(values: Tensor) -> Tensor:
    return ((values.double() - ADD_OFFSET) / SCALE_FACTOR).round().to(torch.int16)


def _unpack(stored: Tensor) -> Tensor:
    return _unpacker(stored.device).unpack(stored.view(torch.uint8))


@cache
def _unpacker(device: torch.device) -> TensorUnpacker:
    i2, f4 = np.dtype("i2"), np.dtype("f4")
    fills, missing = ((float(FILL),),), (float("nan"),)
    field = PackedField("t", (), i2, i2, (SCALE_FACTOR,), (ADD_OFFSET,), fills, missing, f4)
    return TensorUnpacker.of(field, device)


def _swap(stored: Tensor) -> Tensor:
    """Reverse the bytes of each number."""
    size = stored.element_size()
    swapped = stored.view(torch.uint8).view(-1, size).flip(-1)
    return swapped.view(-1).view(stored.dtype)


def _cast(dtype: torch.dtype) -> Any:
    return lambda values: values.to(dtype)


_to_float32 = _cast(torch.float32)

RUNGS: Final = (
    Rung("int16, packed", _pack, _unpack, 1e-6),
    Rung(
        "int16, packed, big-endian",
        lambda values: _swap(_pack(values)),
        lambda stored: _unpack(_swap(stored)),
        1e-6,
    ),
    Rung("float16", _cast(torch.float16), _to_float32, 1e-3),
    Rung("bfloat16", _cast(torch.bfloat16), _to_float32, 8e-3),
    Rung("float32", _to_float32, torch.clone, 0.0),
    Rung("float32, big-endian", _swap, _swap, 0.0),
    Rung("float64", _cast(torch.float64), _to_float32, 0.0),
)
"""The dtypes. float32 is copied once more on the device, as the loader does to free its memory."""
