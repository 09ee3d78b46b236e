"""Which blocks no row needs any more, by the rows that have been gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.core.axis import Ints
from xloader.engine.group_needs import GroupNeeds
from xloader.engine.overlaps import Chosen, Hits

_ARGUMENTS: Final = (ADDRESS, NUMBER, ADDRESS, NUMBER, NUMBER, *(ADDRESS,) * 7)


class Uses:
    """Counts of the rows and entries to come, which show when a residence can be dropped.

    Parameters
    ----------
    needs : GroupNeeds
        The entries and residences of one group.
    entry_counts : numpy.ndarray of int64, shape (num_entries,)
        Rows of each entry in the whole epoch.
    """

    def __init__(self, needs: GroupNeeds, entry_counts: Ints) -> None:
        self._needs = needs
        self._rows_left = np.array(entry_counts, np.int64)
        self._entries_left = needs.num_entries()
        # The function takes int32, as nearly all offsets are. NumPy counts with longer ones.
        self._function = (
            find_function("xloader_count_rows", _ARGUMENTS, keeps_lock=True)
            if needs.offsets.dtype == np.int32
            else None
        )
        self._most_per_entry = int(np.diff(needs.offsets).max(initial=0))
        self._over = np.zeros(0, np.int64)
        self._counted = (self._rows_left, needs.offsets, needs.members, self._entries_left)
        self._addresses = [address_of(array) for array in self._counted]

    def count_down(self, entries: Ints, hits: Hits, chosen: Chosen, left: Ints | None) -> list[int]:
        """Count hits that are gathered, and return the residences that no row needs any more.

        Parameters
        ----------
        entries : numpy.ndarray of int64, shape (num_rows,)
            The entry of each row of the batch.
        hits : Hits
            The hits of one access.
        chosen : slice or numpy.ndarray of int64
            Those that are gathered.
        left : numpy.ndarray of int64, shape (num_rows,), optional
            Per row, the hits of all accesses that are not gathered yet, from `count_hits`. It is
            changed. By default the rows are complete now.
        """
        if self._function is None:
            return self._count_with_numpy(entries, _done_rows(len(entries), hits, chosen, left))
        entries = np.ascontiguousarray(entries, np.int64)
        if left is None:
            line, first, size = None, 0, len(entries)
        elif isinstance(chosen, slice):
            line, (first, end, _) = None, chosen.indices(len(hits))
            size = end - first
        else:
            line, first, size = address_of(chosen), 0, len(chosen)
        most = min(size * self._most_per_entry, len(self._entries_left))
        if len(self._over) < most:
            self._over = np.zeros(most, np.int64)
        num_over = self._function(
            address_of(hits.table),
            hits.shift,
            line,
            first,
            size,
            None if left is None else address_of(left),
            address_of(entries),
            *self._addresses,
            address_of(self._over),
        )
        return self._over[:num_over].tolist() if num_over else []

    def _count_with_numpy(self, entries: Ints, rows: Ints) -> list[int]:
        entries = entries[rows]
        np.subtract.at(self._rows_left, entries, 1)
        done = entries[self._rows_left[entries] == 0]
        if not len(done):
            return []
        _, residences = self._needs.members_of(np.unique(done))
        np.subtract.at(self._entries_left, residences, 1)
        over = residences[self._entries_left[residences] == 0]
        return list(dict.fromkeys(over.tolist()))


def count_hits(accesses: Sequence[Hits], num_rows: int) -> Ints:
    """Number of hits of each row of a batch, over all accesses of a group; int64."""
    counts = (np.bincount(hits.rows, minlength=num_rows) for hits in accesses)
    return sum(counts, np.zeros(num_rows, np.int64))


def _done_rows(num_rows: int, hits: Hits, chosen: Chosen, left: Ints | None) -> Ints:
    """The rows for which all hits are gathered, now that some more are."""
    if left is None:
        return np.arange(num_rows)
    rows = hits.rows[chosen]
    left -= np.bincount(rows, minlength=num_rows)
    return np.unique(rows[left[rows] == 0])
