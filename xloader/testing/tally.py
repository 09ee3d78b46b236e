"""Counting from many threads."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any


class Tally:
    """Counts from many threads; a pickled copy counts on by itself."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.lock = threading.Lock()

    def add(self, item: object) -> None:
        """Count one more of an item."""
        with self.lock:
            self.counts[item] += 1

    def snapshot(self) -> Counter[Any]:
        """A copy of the counts."""
        with self.lock:
            return self.counts.copy()

    def reset(self) -> None:
        """Start counting from zero."""
        with self.lock:
            self.counts.clear()

    def __getstate__(self) -> Counter[Any]:
        return self.snapshot()

    def __setstate__(self, counts: Counter[Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.counts.update(counts)
