"""Which of several chunks to propose: those that are clearly better than today's in something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xloader.jobs.advice.chunk_advice import ChunkProposal
from xloader.planning.chunk_shapes import MEDIUM_NBYTES

_CLEARLY_FASTER = 1.15
"""Writing terabytes anew pays only for a clear gain. Speeds are estimates, good to about this."""

_CLEARLY_MIXED = 0.1
"""Gain of the share of a full shuffle's mixing that counts as clear."""

_FEWER_OBJECTS = 10
_MANY_OBJECTS = 10_000
"""Ten times fewer objects count as a gain where there are more than this."""

_CLEARLY_FEWER_BYTES = 0.85
"""Share of today's decoded bytes of an epoch from which on a saving counts as clear."""


@dataclass(frozen=True)
class _Gain:
    """Whether a proposal is clearly better than today's chunks in something, and worse in none."""

    current: ChunkProposal

    def is_clear(self, proposal: ChunkProposal) -> bool:
        now = self.current
        if now.explanation is None:
            return True
        if now.is_resident:
            # Only the first epoch reads, so better chunks would save little.
            return self._has_fewer(proposal)
        faster = _speed(proposal) / max(_speed(now), 1e-9)
        mixed = share_of(proposal) - share_of(now)
        is_worse = faster < 0.95 or mixed < -0.02
        return not is_worse and (
            faster >= _CLEARLY_FASTER
            or mixed >= _CLEARLY_MIXED
            or _read_nbytes(proposal) <= _CLEARLY_FEWER_BYTES * _read_nbytes(now)
            or self._has_fewer(proposal)
        )

    def _has_fewer(self, proposal: ChunkProposal) -> bool:
        """Whether there are far fewer stored objects, where there are many today."""
        now, then = self.current.num_objects, proposal.num_objects
        return (
            now is not None and then is not None and now > max(_MANY_OBJECTS, _FEWER_OBJECTS * then)
        )


def choose(current: ChunkProposal, tried: Sequence[ChunkProposal]) -> list[ChunkProposal]:
    """Up to three proposals, each better than the first one in something."""
    return kinds_of([proposal for proposal in tried if _Gain(current).is_clear(proposal)])


def kinds_of(good: Sequence[ChunkProposal]) -> list[ChunkProposal]:
    """The best proposal, and up to two that are better in something."""
    if not good:
        return []
    best = max(good, key=value_of)
    # Of those that are as good within the estimate, chunks of a medium size suit most other uses.
    alike = [
        proposal
        for proposal in good
        if value_of(proposal) >= 0.97 * value_of(best)
        and share_of(proposal) >= share_of(best) - 0.02
    ]
    best = min(alike, key=lambda p: abs(math.log(p.chunk_nbytes / MEDIUM_NBYTES)))
    chosen = [replace(best, kind="best")]
    mixer = max(good, key=lambda p: (round(share_of(p), 2), _speed(p)))
    if share_of(mixer) > share_of(best) + 0.02:
        chosen.append(replace(mixer, kind="mixes best"))
    reader = min(good, key=lambda p: (_read_nbytes(p), -value_of(p)))
    if _read_nbytes(reader) < 0.98 * _read_nbytes(best):
        chosen.append(replace(reader, kind="reads least"))
    enough = [p for p in good if value_of(p) >= 0.8 * value_of(best)]
    fewest = min(enough, key=lambda p: (_num_reads(p), -value_of(p)))
    if _num_reads(fewest) <= _num_reads(best) / 2:
        chosen.append(replace(fewest, kind="fewest chunks"))
    distinct = {tuple(p.chunks.values()): p for p in reversed(chosen)}
    return sorted(distinct.values(), key=chosen.index)[:3]


def value_of(proposal: ChunkProposal) -> float:
    """Speed and mixing together: a batch from half as many places teaches less."""
    return _speed(proposal) * share_of(proposal)


def _speed(proposal: ChunkProposal) -> float:
    return proposal.gb_per_s or 0.0


def share_of(proposal: ChunkProposal) -> float:
    """The mixing as a share of a full shuffle's; 1 where ids ascend."""
    return 1.0 if proposal.mixing_share is None else proposal.mixing_share


def amplification_of(proposal: ChunkProposal) -> float:
    """Reads for each distinct chunk needed; 1 if nothing is read."""
    return proposal.read_amplification or 1.0


def _num_reads(proposal: ChunkProposal) -> int:
    return 0 if proposal.explanation is None else proposal.explanation.num_reads


def _read_nbytes(proposal: ChunkProposal) -> int:
    return 0 if proposal.explanation is None else proposal.explanation.read_nbytes
