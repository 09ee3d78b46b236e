"""When a residence is over: counted down as rows are gathered."""

from __future__ import annotations

import numpy as np

from xloader.engine.steps import GroupNeeds
from xloader.grid import Ints


class Uses:
    """How many rows of each entry are to come, and how many entries need each residence.

    Parameters
    ----------
    needs : GroupNeeds
    entry_counts : numpy.ndarray of int64
        Rows of each entry in the whole epoch.
    """

    def __init__(self, needs: GroupNeeds, entry_counts: Ints) -> None:
        self._needs = needs
        self._rows_left = entry_counts.copy()
        self._entries_left = needs.num_entries()

    def count_down(self, entries: Ints) -> list[int]:
        """The residences that nothing needs any more, now that rows of some entries are done."""
        np.subtract.at(self._rows_left, entries, 1)
        done = entries[self._rows_left[entries] == 0]
        if not len(done):
            return []
        _, residences = self._needs.members_of(np.unique(done))
        np.subtract.at(self._entries_left, residences, 1)
        over = residences[self._entries_left[residences] == 0]
        return list(dict.fromkeys(over.tolist()))
