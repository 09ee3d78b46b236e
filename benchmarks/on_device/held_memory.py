"""Pinned and resident memory over many epochs of each way to the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import MIB, resident_nbytes
from benchmarks.on_device.clock import NOT_MEASURED, DeviceClock
from benchmarks.on_device.feeds import FEEDS, Feed, FeedKind, open_samples
from benchmarks.on_device.scale import Scale
from benchmarks.table import make_table


@dataclass(frozen=True)
class Held:
    """Memory that is held at the end of an epoch.

    Parameters
    ----------
    torch_nbytes : int
        Bytes that PyTorch has pinned, used or kept for later.
    ring_nbytes : int
        Bytes that the loader's ring has pinned; PyTorch does not count them.
    resident_nbytes : int
        Bytes of the process in memory.
    """

    torch_nbytes: int
    ring_nbytes: int
    resident_nbytes: int


def show_memory(clock: DeviceClock, scale: Scale, path: Path) -> str:
    """Return a table of memory after the second and after the last epoch, one row for each way."""
    heads = [
        "way",
        "epochs",
        "pinned by PyTorch, MiB",
        "pinned by the ring, MiB",
        "resident, MiB",
    ]
    return make_table(heads, [_row(kind, clock, scale, path) for kind in FEEDS])


def _row(kind: FeedKind, clock: DeviceClock, scale: Scale, path: Path) -> list[str]:
    if kind.needs_cuda and not clock.is_cuda:
        return [kind.name, *[NOT_MEASURED] * 4]
    feed = kind.make(open_samples(path), scale, clock.device)
    with feed.closing:
        held = [_hold(feed, clock) for _ in range(scale.num_epochs)]
    early, late = held[1], held[-1]
    pinned = [
        f"{early.torch_nbytes / MIB:.0f} to {late.torch_nbytes / MIB:.0f}",
        f"{early.ring_nbytes / MIB:.0f} to {late.ring_nbytes / MIB:.0f}",
    ]
    if not clock.is_cuda:
        pinned = [NOT_MEASURED] * 2
    resident = f"{early.resident_nbytes / MIB:.0f} to {late.resident_nbytes / MIB:.0f}"
    return [kind.name, f"2 to {scale.num_epochs}", *pinned, resident]


def _hold(feed: Feed, clock: DeviceClock) -> Held:
    for _ in feed.batches():
        pass
    clock.wait()
    stats: dict[str, Any] = torch.cuda.host_memory_stats() if clock.is_cuda else {}
    ring = getattr(getattr(feed.loader, "device_path", None), "ring", None)
    return Held(
        stats.get("allocated_bytes.current", 0),
        0 if ring is None else ring.nbytes,
        resident_nbytes(),
    )
