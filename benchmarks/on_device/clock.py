"""Time on a device whose work goes on after a call has returned, and figures made of such times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

NOT_MEASURED: Final = "not measured"
"""Stands in a table for a figure that needs a GPU, where there is none."""


class DeviceClock:
    """A clock for one device.

    On a GPU by CUDA, a mark is an event in the current stream, so that marking does not hold up
    the program. On other devices a mark waits for the work before it.

    Parameters
    ----------
    device : torch.device
        The device, with its number.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU by CUDA."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait until all work on the device is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def mark(self) -> Any:
        """Return a mark after the work up to now."""
        if not self.is_cuda:
            self.wait()
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks that the device has reached."""
        if not self.is_cuda:
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds that a function takes, with its work on the device."""
        self.wait()
        begin = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - begin

    def medians(
        self, works: Mapping[str, Callable[[], object]], num_turns: int
    ) -> dict[str, float]:
        """Return the median seconds of each function.

        The functions take turns, so that all meet the same drift of the machine. One more turn
        before these warms up.
        """
        turns = [
            {name: self.seconds(work) for name, work in works.items()} for _ in range(1 + num_turns)
        ]
        return {name: statistics.median(turn[name] for turn in turns[1:]) for name in works}


@dataclass(frozen=True)
class StepTimes:
    """The times of one step of training.

    Parameters
    ----------
    wait_seconds : float
        From the end of the step before until the batch was on the device, unpacked.
    train_seconds : float
        From there until the end of the step.
    """

    wait_seconds: float
    train_seconds: float


def overlap(copy: float, step: float, both: float) -> float:
    """Return the share of the shorter of two activities that was hidden by the other.

    Parameters
    ----------
    copy, step : float
        Seconds for a batch if nothing else is done: to bring it to the device, and to train on it.
    both : float
        Seconds for a batch if both are done.

    Returns
    -------
    float
        1 if the shorter took no time of its own, 0 if one came after the other. Noise may take it
        beyond these.
    """
    return (copy + step - both) / min(copy, step)


def loader_share(steps: Iterable[StepTimes]) -> float:
    """Return the share of the steps' time in which the device waited for the loader."""
    steps = list(steps)
    waited = sum(step.wait_seconds for step in steps)
    return waited / (waited + sum(step.train_seconds for step in steps))
