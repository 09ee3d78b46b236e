"""The samples of an order between two places."""

from __future__ import annotations

import numpy as np

from xloader.core.axis import Ints
from xloader.order.protocol import AnyOrder

_PIECE_SIZE = 1 << 13
"""Most samples that are asked for in one call."""


def take_places(order: AnyOrder, begin: int, size: int) -> tuple[Ints, Ints]:
    """Entries and ranks of ``size`` samples of an order from a place on, fewer at its end."""
    entries, ranks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if size > 0:
        for some_entries, some_ranks in order.places(begin, min(size, _PIECE_SIZE)):
            entries.append(some_entries[:size])
            ranks.append(some_ranks[:size])
            size -= len(entries[-1])
            if not size:
                break
    return np.concatenate(entries), np.concatenate(ranks)
