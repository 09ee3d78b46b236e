"""The ways of the same batches to a device: the loader's ring, and PyTorch's own ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import xloader
from benchmarks.layouts import VARIABLES
from benchmarks.on_device.scale import Scale
from xloader import Batch, Samples
from xloader.torch import data_loader

RING: Final = "the ring: loader(device=)"


@dataclass(frozen=True)
class Feed:
    """One way of batches to a device.

    Parameters
    ----------
    loader : iterable of Batch
        The batches.
    move : callable
        Brings a batch to the device.
    closing : context manager
        Ends the loader.
    """

    loader: Iterable[Batch]
    move: Callable[[Batch], Batch]
    closing: AbstractContextManager[Any]

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of an epoch, on the device or on their way."""
        for batch in self.loader:
            yield self.move(batch)


@dataclass(frozen=True)
class FeedKind:
    """How to make a feed.

    Parameters
    ----------
    name : str
    make : callable
        Makes it from samples, a scale and a device.
    needs_cuda : bool
        Whether it pins memory, or is of interest on a GPU only.
    """

    name: str
    make: Callable[[Samples, Scale, torch.device], Feed]
    needs_cuda: bool = False


def open_samples(path: Path) -> Samples:
    """Return samples of one step and the next, normalised."""
    statistics = dict.fromkeys(VARIABLES, (0.0, 0.05))
    return _open(path).normalize(statistics)


def open_stored_samples(path: Path) -> Samples:
    """Return the same samples with the numbers as they are stored."""
    return _open(path)


def _open(path: Path) -> Samples:
    return (
        xloader.open(path)
        .window(time=2, stride={"time": 1})
        .inputs(*VARIABLES, time=0)
        .targets(*VARIABLES, time=1)
    )


def make_ring(samples: Samples, scale: Scale, device: torch.device, **more: Any) -> Feed:
    """Make a loader that brings batches to the device itself."""
    loader = samples.loader(**_options(scale), device=xloader.OnDevice(device, **more))
    return Feed(loader, lambda batch: batch, loader)


def _pinned_by_data_loader(num_workers: int) -> Callable[[Samples, Scale, torch.device], Feed]:
    def make(samples: Samples, scale: Scale, device: torch.device) -> Feed:
        pin = device.type == "cuda"
        loader = data_loader(samples, **_options(scale), num_workers=num_workers, pin_memory=pin)
        return Feed(loader, lambda batch: batch.to(device, non_blocking=True), nullcontext())

    return make


def _pinned_one_by_one(samples: Samples, scale: Scale, device: torch.device) -> Feed:
    loader = samples.loader(**_options(scale))
    return Feed(loader, lambda batch: batch.pin_memory().to(device, non_blocking=True), loader)


def _pageable(samples: Samples, scale: Scale, device: torch.device) -> Feed:
    loader = samples.loader(**_options(scale))
    return Feed(loader, lambda batch: batch.to(device), loader)


def _options(scale: Scale) -> dict[str, Any]:
    return {
        "batch_size": scale.batch_size,
        "memory": scale.memory_nbytes,
        "drop_last": True,
        "on_nan": "ignore",
    }


FEEDS: Final = (
    FeedKind(RING, make_ring),
    FeedKind("DataLoader(pin_memory=True), no workers", _pinned_by_data_loader(0)),
    FeedKind("DataLoader(pin_memory=True), 2 workers", _pinned_by_data_loader(2), needs_cuda=True),
    FeedKind(
        "batch.pin_memory().to(device, non_blocking=True)", _pinned_one_by_one, needs_cuda=True
    ),
    FeedKind("batch.to(device)", _pageable),
)
