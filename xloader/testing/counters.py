"""Counters that many threads, or many processes, can use together."""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from typing import Any


class KeyCounter:
    """A counter of items for many threads. A pickled copy counts separately."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.lock = threading.Lock()

    def add(self, key: object) -> None:
        """Count an item once."""
        with self.lock:
            self.counts[key] += 1

    def snapshot(self) -> Counter[Any]:
        """A copy of the counts."""
        with self.lock:
            return self.counts.copy()

    def reset(self) -> None:
        """Set all counts to zero."""
        with self.lock:
            self.counts.clear()

    def __getstate__(self) -> Counter[Any]:
        return self.snapshot()

    def __setstate__(self, counts: Counter[Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.counts.update(counts)


class SharedTally:
    """A counter for many processes, which all append lines to one file."""

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "ab"):
            pass

    def add(self, key: object) -> None:
        """Count an item once."""
        line = pickle.dumps((os.getpid(), key)).hex().encode() + b"\n"
        # Processes may write at once. A line that is appended in one call is not mixed with others.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def snapshot(self) -> Counter[Any]:
        """The counts of all processes together."""
        return Counter(key for _, key in self.lines())

    def lines(self) -> list[tuple[int, Any]]:
        """Every counted item, with the id of the process that counted it."""
        with open(self._path, "rb") as file:
            return [pickle.loads(bytes.fromhex(line.decode())) for line in file.read().split()]

    def reset(self) -> None:
        """Set all counts to zero."""
        os.truncate(self._path, 0)
