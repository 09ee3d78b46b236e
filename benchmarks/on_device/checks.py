"""Whether batches arrive on the device unharmed, whatever the training loop does with them.

Each check compares sums of the bits of each sample with those of the same sample as NumPy gives it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.on_device.clock import NOT_MEASURED, DeviceClock
from benchmarks.on_device.feeds import make_ring, open_stored_samples
from benchmarks.on_device.scale import Scale
from benchmarks.table import make_table
from xloader import Batch

BROKEN: Final = "BROKEN"

NUM_CYCLES: Final = 20_000_000
"""How long the device sleeps before it reads a batch: some 10 ms."""

Sums = dict[int, tuple[int, ...]]
"""By sample id, the sum of the bits of each field."""

QueuedSums = tuple[NDArray[np.int64], list[torch.Tensor]]
"""The ids of a batch, and the sums of each field on the device, which may not be there yet."""


def show_checks(clock: DeviceClock, scale: Scale, path: Path) -> str:
    """Return a table of the checks, each held or broken."""
    expected = _expected(scale, path)
    rows = []
    for name, check in CHECKS.items():
        found = check(clock, scale, path)
        said = "held" if found == expected else BROKEN
        if name in NEEDS_CUDA and not clock.is_cuda:
            said = f"{said}; its stream or its sleep: {NOT_MEASURED}"
        rows.append([name, f"{len(found)}", said])
    return make_table(["check", "samples", "result"], rows)


def run_sanitized(arguments: list[str]) -> int:
    """Run the checks again under PyTorch's stream sanitizer, and return the exit status."""
    line = [sys.executable, "-m", "benchmarks.gpu", "--only", "checks", *arguments]
    return subprocess.run(line, env={**os.environ, "TORCH_CUDA_SANITIZER": "1"}).returncode


def _expected(scale: Scale, path: Path) -> Sums:
    with open_stored_samples(path).loader(
        batch_size=scale.batch_size, memory=scale.memory_nbytes, drop_last=True, output="numpy"
    ) as loader:
        return {
            int(number): tuple(_sum_bits(array[row]) for array in batch)
            for batch in loader
            for row, number in enumerate(batch.ids)
        }


def _sum_bits(array: NDArray[np.float32]) -> int:
    return int(array.view(np.int32).sum(dtype=np.int64))


def _queue_sums(batch: Batch) -> QueuedSums:
    """Queue the sums of the bits on the device."""
    bits = [tensor.view(torch.int32).flatten(1) for tensor in batch]
    return batch.ids, [own.sum(1, dtype=torch.int64) for own in bits]


def _read_sums(queued: Iterable[QueuedSums]) -> Sums:
    found: Sums = {}
    for ids, sums in queued:
        columns = [own.tolist() for own in sums]
        found.update(zip(ids.tolist(), zip(*columns, strict=True), strict=True))
    return found


def _batches(clock: DeviceClock, scale: Scale, path: Path) -> Iterator[Batch]:
    feed = make_ring(open_stored_samples(path), scale, clock.device)
    with feed.closing:
        yield from feed.batches()


def _late(clock: DeviceClock, scale: Scale, path: Path) -> Sums:
    """The device sleeps before it reads, while the loader goes on; batches are dropped at once."""
    queued = []
    for batch in _batches(clock, scale, path):
        _sleep(clock)
        queued.append(_queue_sums(batch))
        del batch
    return _read_sums(queued)


def _kept(clock: DeviceClock, scale: Scale, path: Path) -> Sums:
    """All batches of an epoch are kept, and read at its end."""
    batches = list(_batches(clock, scale, path))
    return _read_sums([_queue_sums(batch) for batch in batches])


def _own_stream(clock: DeviceClock, scale: Scale, path: Path) -> Sums:
    """The training loop runs on a stream of its own, which lags behind."""
    if not clock.is_cuda:
        return _late(clock, scale, path)
    stream = torch.cuda.Stream(clock.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        return _late(clock, scale, path)


def _begun_again(clock: DeviceClock, scale: Scale, path: Path) -> Sums:
    """An epoch is given up after two batches, and another one is begun."""
    feed = make_ring(open_stored_samples(path), scale, clock.device)
    with feed.closing:
        given_up = feed.batches()
        kept = [next(given_up), next(given_up)]
        _sleep(clock)
        given_up.close()  # type: ignore[attr-defined]
        found = _read_sums([_queue_sums(batch) for batch in feed.batches()])
    # The batches that were kept are as they were.
    for number, sums in _read_sums([_queue_sums(batch) for batch in kept]).items():
        if found.setdefault(number, sums) != sums:
            return {}
    return found


def _overwritten(clock: DeviceClock, scale: Scale, path: Path) -> Sums:
    """Each batch overwrites the same tensors, as CUDA graphs need it."""
    samples = open_stored_samples(path)
    tensors = [
        torch.zeros(scale.batch_size, *samples.shapes[name], device=clock.device)
        for name in samples.fields
    ]
    out = Batch(tensors, list(samples.fields), np.arange(scale.batch_size))
    feed = make_ring(samples, scale, clock.device, out=out)
    queued = []
    with feed.closing:
        for batch in feed.batches():
            assert all(own is tensor for own, tensor in zip(batch, tensors, strict=True))
            _sleep(clock)
            queued.append(_queue_sums(batch))
    return _read_sums(queued)


def _sleep(clock: DeviceClock) -> None:
    if clock.is_cuda:
        torch.cuda._sleep(NUM_CYCLES)  # type: ignore[no-untyped-call]


CHECKS: Final[dict[str, Callable[[DeviceClock, Scale, Path], Sums]]] = {
    "read late, dropped early": _late,
    "kept to the end of the epoch": _kept,
    "a stream of the training loop's own": _own_stream,
    "an epoch given up, and begun again": _begun_again,
    "out= overwritten by each batch": _overwritten,
}
NEEDS_CUDA: Final = frozenset(CHECKS) - {"kept to the end of the epoch"}
"""Checks that tell little without a GPU."""
