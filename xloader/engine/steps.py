"""The steps of an epoch, and what each row of them needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from xloader.footprint import Footprint, Group, expand_ranges
from xloader.grid import Ints
from xloader.plan import Lane


@dataclass(frozen=True)
class Key:
    """Names one residence: of a lane, or of the whole run where blocks stay for good."""

    lane: int
    group: int
    number: int


@dataclass(frozen=True)
class Need:
    """One residence that a step needs, and the rows that need it.

    Parameters
    ----------
    key : Key
    group : Group
    block : tuple of int
        Index of the block along each windowed dimension.
    read_nbytes : int
        Decoded bytes of its chunks.
    num_samples : int
        Rows that will need this residence in the whole epoch.
    rows : numpy.ndarray of int64
        Rows of this step, ascending.
    """

    key: Key
    group: Group
    block: tuple[int, ...]
    read_nbytes: int
    num_samples: int
    rows: Ints


@dataclass(frozen=True)
class Step:
    """The rows of one batch of one rank, lane by lane.

    Parameters
    ----------
    index : int
    ids : numpy.ndarray of int64, shape (n,)
    positions : numpy.ndarray of int64, shape (n, num_dims)
    needs : tuple of Need
        In the order of the first row that needs each.
    """

    index: int
    ids: Ints
    positions: Ints
    needs: tuple[Need, ...]


def walk(
    footprint: Footprint,
    lanes: Sequence[Lane],
    share: int,
    num_steps: int,
    first_step: int = 0,
    *,
    is_resident: bool = False,
) -> Iterator[Step]:
    """The steps of an epoch in order.

    Parameters
    ----------
    footprint : Footprint
    lanes : sequence of Lane
        The lanes of this rank.
    share : int
        Rows that each lane gives to a step.
    num_steps, first_step : int
        Where the epoch ends, and where to begin.
    is_resident : bool
        Whether lanes share blocks, which stay for good.
    """
    hands = [_Hand(lane, share, first_step * share) for lane in lanes]
    for index in range(first_step, num_steps):
        ids, needs, num_rows = [], [], 0
        for number, hand in enumerate(hands):
            taken, entries = hand.take()
            ids.append(taken)
            needs += _needs(lanes[number], number, entries, num_rows, is_resident)
            num_rows += len(taken)
        all_ids = np.concatenate(ids)
        if is_resident:
            needs = _merged(needs)
        needs.sort(key=lambda need: int(need.rows[0]))
        yield Step(index, all_ids, footprint.positions_of(all_ids), tuple(needs))


class _Hand:
    """Deals one lane's samples, a share at a time."""

    def __init__(self, lane: Lane, share: int, begin: int) -> None:
        self._segments = lane.order.segments(begin)
        self._share = share
        self._ids = self._entries = np.zeros(0, np.int64)

    def take(self) -> tuple[Ints, Ints]:
        """The next ids and their entries; fewer than a share, or none, at the lane's end."""
        parts = [(self._ids, self._entries)]
        num_left = self._share - len(self._ids)
        while num_left > 0 and (segment := next(self._segments, None)) is not None:
            parts.append(segment)
            num_left -= len(segment[0])
        ids, entries = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._ids, self._entries = ids[self._share :], entries[self._share :]
        return ids[: self._share], entries[: self._share]


def _needs(lane: Lane, number: int, entries: Ints, shift: int, is_resident: bool) -> list[Need]:
    needs = []
    for index, residences in enumerate(lane.schedule.residences):
        offsets = residences.offsets
        rows, slots = expand_ranges(offsets[entries], offsets[entries + 1])
        members = residences.members[slots]
        by_member = np.argsort(members, kind="stable")
        members, rows = members[by_member], rows[by_member] + shift
        begins = np.flatnonzero(np.diff(members, prepend=-1))
        found = members[begins]
        blocks = residences.block[found]
        nbytes = residences.group.read_nbytes(blocks)
        for member, block, read_nbytes, own in zip(
            found.tolist(),
            blocks.tolist(),
            nbytes.tolist(),
            np.split(rows, begins[1:])[: len(found)],
            strict=True,
        ):
            key = Key(-1, index, block) if is_resident else Key(number, index, member)
            needs.append(
                Need(
                    key=key,
                    group=residences.group,
                    block=_unravel(block, residences.group.shape),
                    read_nbytes=read_nbytes,
                    num_samples=int(residences.num_samples[member]),
                    rows=own,
                )
            )
    return needs


def _merged(needs: list[Need]) -> list[Need]:
    """Needs of several lanes for one block, as one."""
    merged: dict[Key, Need] = {}
    for need in needs:
        other = merged.get(need.key)
        rows = need.rows if other is None else np.concatenate([other.rows, need.rows])
        merged[need.key] = dataclasses.replace(need, rows=rows)
    return list(merged.values())


def _unravel(block: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        block, rest = divmod(block, size)
        index.append(rest)
    return tuple(reversed(index))
