"""The stays of blocks: the stretches of an epoch in which some entry of an order needs a block.

::

    entry needs block 7    |----|   |-----|            |---|
                                |------|
    stays of block 7       |--------------|            |---|

Every pair of an entry and a block that it needs becomes one number, which holds the block and the
entry's slots. Sorted, these numbers are the pairs block by block and in the order of time. They are
made a few thousand entries at a time and nothing else is kept of a pair, because an epoch may have
millions of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints, int_dtype
from xloader.core.footprint import Footprint, Group
from xloader.core.sorting import sort_integers
from xloader.order.protocol import Entries

_PIECE_SIZE: Final = 1 << 15
"""Number of entries whose needs are found in one call: the arrays for them fit a core's cache."""

_MOST_BITS: Final = 63
"""Bits of a number that holds a block and two slots. One more is the sign."""


@dataclass(frozen=True)
class BlockUses:
    """The entries of an order that need blocks of one group, and when.

    `needed`: the entries that hand out any sample, ascending; by default all of them.
    """

    footprint: Footprint
    group: Group
    entries: Entries
    first_slot: NDArray[np.int32]
    needed: Ints | None = None

    def pieces(self) -> Iterator[tuple[slice | Ints, Ints, Ints]]:
        """Yield some entries, and the pairs (index among them, block that it needs), sorted."""
        num_entries = len(self.first_slot if self.needed is None else self.needed)
        for begin in range(0, num_entries, _PIECE_SIZE):
            piece = slice(begin, min(begin + _PIECE_SIZE, num_entries))
            some = piece if self.needed is None else self.needed[piece]
            yield some, *self.footprint.needs(self.group, self.entries.boxes_of(some))


@dataclass(frozen=True)
class Stays:
    """The stays of one group's blocks, by block and then slot."""

    uses: BlockUses
    block: Ints
    first: NDArray[np.int32]
    last: NDArray[np.int32]

    @property
    def group(self) -> Group:
        """The variables whose chunks form the blocks."""
        return self.uses.group

    @property
    def nbytes(self) -> Ints:
        """Decoded bytes of the block of each stay, cut down to the selection; int64."""
        return self.group.block_nbytes(self.block)


def find_stays(uses: BlockUses, last_slot: NDArray[np.int32]) -> Stays:
    """Find the stays of a group's blocks."""
    num_slots = int(last_slot.max(initial=-1)) + 1
    # One more slot than there are: places of different blocks must not follow each other.
    slot_bits = num_slots.bit_length()
    # The block is the upper part of a place, so that one running maximum serves all blocks.
    reached = -2
    none = np.zeros(0, np.int64)
    parts = [(none, none)]
    for begins, ends in _sorted_places(uses, last_slot, slot_bits):
        np.maximum.accumulate(ends, out=ends)
        before = np.concatenate([[reached], ends[:-1]])
        np.maximum(before, reached, out=before)
        is_new = begins > before + 1
        parts.append((begins[is_new], before[is_new]))
        reached = max(reached, int(ends[-1]))
    firsts, preceding = (np.concatenate(column) for column in zip(*parts, strict=True))
    lasts = np.concatenate([preceding[1:], [reached]])[: len(firsts)]
    in_block = (1 << slot_bits) - 1
    block = (firsts >> slot_bits).astype(int_dtype(uses.group.num_blocks))
    first, last = ((places & in_block).astype(np.int32) for places in (firsts, lasts))
    return Stays(uses, block, first, last)


def _sorted_places(
    uses: BlockUses, last_slot: NDArray[np.int32], slot_bits: int
) -> Iterator[tuple[Ints, Ints]]:
    """Yield the first and the last place of each pair (entry, block), sorted by the first one.

    A place is a block and a slot as one number, block first.
    """
    length_bits = int((last_slot - uses.first_slot).max(initial=0)).bit_length()
    num_bits = uses.group.num_blocks.bit_length() + slot_bits + length_bits
    is_short = num_bits <= _MOST_BITS
    # With its length as the lowest part, a pair is sorted without being moved.
    shift = length_bits if is_short else 0
    parts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for some, rows, blocks in uses.pieces():
        length = last_slot[some] - uses.first_slot[some]
        lowest = uses.first_slot[some].astype(np.int64) << shift
        if is_short:
            lowest |= length
        else:
            lengths.append(length[rows])
        parts.append((blocks << (slot_bits + shift)) + lowest[rows])
    pairs = np.concatenate(parts)
    del parts
    if is_short:
        sort_integers(pairs, num_bits)
    else:
        line = np.argsort(pairs, kind="stable")
        pairs, all_lengths = pairs[line], np.concatenate(lengths)[line]
    for begin in range(0, len(pairs), _PIECE_SIZE):
        piece = slice(begin, begin + _PIECE_SIZE)
        begins = pairs[piece] >> shift
        own = pairs[piece] & ((1 << shift) - 1) if is_short else all_lengths[piece]
        yield begins, begins + own
