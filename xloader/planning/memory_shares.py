"""The division of a loader's memory among several sets of samples."""

from __future__ import annotations

from collections.abc import Sequence


def share_memory(
    nbytes: int, needs: Sequence[int], enough: Sequence[int], weights: Sequence[int]
) -> list[int]:
    """Divide memory among sets by weight, within what each of them needs and can use."""

    def shares(level: int) -> list[int]:
        """The memory of each set, if `level` bytes stand for the sum of all weights."""
        total = sum(weights)
        return [
            max(least, min(level * weight // total, most))
            for least, most, weight in zip(needs, enough, weights, strict=True)
        ]

    low, high = 0, nbytes * sum(weights)
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if sum(shares(level)) <= nbytes else (low, level - 1)
    return shares(low)
