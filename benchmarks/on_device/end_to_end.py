"""From a compressed store to a trained network: samples a second, of those with data on the device.

Each loader is new, so its first epoch holds all that a user waits for: the plan, the first reads,
and pinning of memory. The ideal is the same training on batches that are on the device already.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.layouts import VARIABLES
from benchmarks.on_device.clock import DeviceClock
from benchmarks.on_device.feeds import open_samples
from benchmarks.on_device.scale import Scale
from benchmarks.on_device.unet import Training
from benchmarks.table import make_table
from xloader import Batch

IDEAL: Final = "data on the device"
BY_ITSELF: Final = "a loader without a setting"
LITTLE: Final = "with memory for a third of the data"


def show_end_to_end(clock: DeviceClock, scale: Scale, path: Path) -> str:
    """Return a table of samples a second in two epochs, and of their shares of the ideal."""
    training = Training(len(VARIABLES), scale.width, clock.device)
    samples, least = open_samples(path), 16 * scale.batch_nbytes
    options: dict[str, Any] = {
        "batch_size": scale.batch_size,
        "device": clock.device,
        "drop_last": True,
    }
    with samples.loader(**options) as loader:
        whole = [batch.with_arrays([tensor.clone() for tensor in batch]) for batch in loader]
    # The first steps find out how to compute.
    _train(whole[:2], training, clock)
    speeds = {IDEAL: [_train(whole, training, clock) for _ in range(2)]}
    for name, memory in {BY_ITSELF: None, LITTLE: max(scale.store.nbytes // 3, least)}.items():
        with samples.loader(**options, memory=memory) as loader:
            speeds[name] = [_train(loader, training, clock) for _ in range(2)]
    ideal = max(speed for speed, _ in speeds[IDEAL])
    rows = [
        [name, *(f"{speed:.1f}, {speed / ideal:.2f}" for speed, _ in pair), f"{pair[0][1]:.2f}"]
        for name, pair in speeds.items()
    ]
    return make_table(["fed by", "epoch 0, samples/s", "epoch 1", "first batch, s"], rows)


def _train(batches: Iterable[Batch], training: Training, clock: DeviceClock) -> tuple[float, float]:
    """Train for an epoch; return samples a second, and seconds until the first batch."""
    num, first = 0, 0.0
    clock.wait()
    begin = time.perf_counter()
    for batch in batches:
        if not num:
            clock.wait()
            first = time.perf_counter() - begin
        training.step(batch)
        num += len(batch.ids)
    clock.wait()
    return num / (time.perf_counter() - begin), first
