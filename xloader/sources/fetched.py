"""Implementations of `Fetched` that several sources share, and fetching from several sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.sources.base import Fetched, Outcome, Read, Source
from xloader.sources.retries import current


class Deferred:
    """Chunks that a function decodes, which also reads them where the store has no waiting times.

    `nbytes`: bytes that the function holds.
    """

    stored = None

    def __init__(self, read: Callable[[Sequence[NDArray[Any]]], Outcome], nbytes: int = 0) -> None:
        self._read = read
        self.nbytes = nbytes

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Read the chunks, and drop what the function holds; see `Fetched.decode`."""
        outcome = self._read(outs)
        del self._read
        self.nbytes = 0
        return outcome


def held_values(values: Sequence[NDArray[Any]], outcome: Outcome) -> Deferred:
    """Chunks whose decoded values are held in memory, because the store gave values."""

    def copy(outs: Sequence[NDArray[Any]]) -> Outcome:
        for out, chunk in zip(outs, values, strict=True):
            np.copyto(out, chunk, casting="same_kind")
        return outcome

    return Deferred(copy, sum(chunk.nbytes for chunk in values))


class Several:
    """Chunks fetched from several sources, as one `Fetched`."""

    stored = None

    def __init__(self, parts: Sequence[tuple[Fetched, list[int]]]) -> None:
        self._parts = parts

    @property
    def nbytes(self) -> int:
        """Memory that the parts hold, in bytes."""
        return sum(fetched.nbytes for fetched, _ in self._parts)

    def decode(self, outs: Sequence[NDArray[Any]]) -> Outcome:
        """Decode one part after the other; see `Fetched.decode`."""
        attempts, outcomes = current(), []
        reads = attempts.reads
        for fetched, numbers in self._parts:
            if len(reads) == len(outs):
                attempts.reads = [reads[number] for number in numbers]
            outcomes.append(fetched.decode([outs[number] for number in numbers]))
        scratch = [o.scratch_nbytes for o in outcomes if o.scratch_nbytes is not None]
        return Outcome(
            num_missing=sum(outcome.num_missing for outcome in outcomes),
            num_requests=sum(outcome.num_requests for outcome in outcomes),
            fetch_seconds=sum(outcome.fetch_seconds for outcome in outcomes),
            scratch_nbytes=max(scratch) if len(scratch) == len(outcomes) else None,
        )


def fetch_from(owned: Sequence[tuple[Source, Read]]) -> Fetched:
    """Fetch chunks from several sources, the chunks of one source together."""
    sources = list({id(source): source for source, _ in owned}.values())
    if len(sources) == 1:
        return sources[0].fetch([read for _, read in owned])
    parts = []
    for source in sources:
        numbers = [number for number, (owner, _) in enumerate(owned) if owner is source]
        parts.append((source.fetch([owned[number][1] for number in numbers]), numbers))
    return Several(parts)
