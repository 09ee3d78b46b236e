"""Measures several loaders in turns, so that all meet the same drift in the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from xloader.errors import EmptySamplesError
from xloader.show.json_values import values_by_name

NUM_TURNS: Final = 3


class BatchSize(NamedTuple):
    """The size of one batch: its number of samples, and its bytes."""

    num_samples: int
    nbytes: int


Pass = Callable[[], Iterator[BatchSize]]
"""Starts an epoch. The epoch ends early when the iterator is closed."""


@dataclass(frozen=True)
class LoaderSpeed:
    """The batches that one loader delivered in all of its turns."""

    name: str
    num_batches: int
    num_samples: int
    nbytes: int
    seconds: float
    first_seconds: float

    @property
    def batches_per_second(self) -> float:
        """Batches a second."""
        return self.num_batches / self.seconds

    @property
    def samples_per_second(self) -> float:
        """Samples a second."""
        return self.num_samples / self.seconds

    @property
    def gb_per_second(self) -> float:
        """Delivered bytes a second, in units of 10^9 bytes."""
        return self.nbytes / self.seconds / 1e9

    def to_dict(self) -> dict[str, Any]:
        """The counts and the rates by name."""
        return values_by_name(self, "batches_per_second", "samples_per_second", "gb_per_second")


def measure_in_turns(
    passes: Mapping[str, Pass],
    seconds: float,
    *,
    must: str,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[LoaderSpeed], dict[str, str]]:
    """Measure loaders in turns.

    `clock`: gives the time in seconds.
    """
    first: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, start in passes.items():
        try:
            first[name] = _take(start, 0.0, clock).seconds
        # Other libraries, and their worker processes, fail in ways of their own.
        except Exception as error:
            if name == must:
                raise
            text = next(iter(reversed(str(error).strip().splitlines())), "")
            failed[name] = f"it fails ({type(error).__name__}: {text})"
    turns: dict[str, list[_Turn]] = {name: [] for name in first}
    for _ in range(NUM_TURNS):
        for name, done in turns.items():
            done.append(_take(passes[name], seconds / NUM_TURNS, clock))
    speeds = []
    for name, done in turns.items():
        batches, samples, nbytes, elapsed = map(sum, zip(*done, strict=True))
        speeds.append(LoaderSpeed(name, batches, samples, nbytes, max(elapsed, 1e-9), first[name]))
    return speeds, failed


class _Turn(NamedTuple):
    num_batches: int
    num_samples: int
    nbytes: int
    seconds: float


def _take(start: Pass, seconds: float, clock: Callable[[], float]) -> _Turn:
    """Take batches for some time, at least one; a new epoch follows the one that ends."""
    num_batches = num_samples = nbytes = 0
    begin = clock()
    while True:
        before = num_batches
        epoch = start()
        for batch in epoch:
            num_batches += 1
            num_samples += batch.num_samples
            nbytes += batch.nbytes
            elapsed = clock() - begin
            if elapsed >= seconds:
                # What works ahead must not work on in the turns of the others.
                if callable(close := getattr(epoch, "close", None)):
                    close()
                return _Turn(num_batches, num_samples, nbytes, elapsed)
        if num_batches == before:
            raise EmptySamplesError(
                "an epoch has no batch, with drop_last and fewer samples than batch_size",
                remedy="choose a smaller batch size, or keep the last batch",
            )
