"""Announcing bundles: a cluster computes them before there is room to fetch them.

A block that a cluster computes takes memory here only once it is fetched. So far more blocks can be
asked for than may be fetched at a time, and the workers always have something to do. Many blocks
that are asked for together also cost dask less than one by one::

    waiting     to be fetched, in the order of need
    announced   the first of these, some at a time whenever half of the announced ones are fetched
    fetched     as the bytes in flight allow, announced or not
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable

from xloader.engine.block_reader import BlockReader, Bundle
from xloader.engine.threads import Deadlines
from xloader.sources.retries import Abandoned, Attempts


class Announcements:
    """The bundles of a run that are announced and not fetched yet. The run's lock guards it.

    Parameters
    ----------
    reader : BlockReader
        Announces bundles.
    deadlines : Deadlines
        Gives up a thread that waits too long.
    lock : threading.RLock
        The lock of the run.
    on_failed : callable
        Called with an unexpected error. The lock is held.
    on_done : callable
        Called when bundles were announced. The lock is held.
    on_stuck : callable
        Called with a thread that was given up. The lock is held.
    """

    def __init__(
        self,
        reader: BlockReader,
        deadlines: Deadlines,
        lock: threading.RLock,
        *,
        on_failed: Callable[[BaseException], None],
        on_done: Callable[[], None],
        on_stuck: Callable[[threading.Thread], None],
    ) -> None:
        self._reader = reader
        self._deadlines = deadlines
        self._lock = lock
        self._on_failed = on_failed
        self._on_done = on_done
        self._on_stuck = on_stuck
        self._announced: set[Bundle] = set()
        self._under_way: list[Bundle] = []
        # The first announcement says how many there may be.
        self._most = 1 if reader.announced_variables else 0

    @property
    def is_under_way(self) -> bool:
        """Whether a thread is announcing bundles."""
        return bool(self._under_way)

    def lacks(self, num_waiting: int) -> bool:
        """Whether more bundles should wait to be fetched, so that they can be announced.

        Parameters
        ----------
        num_waiting : int
            Number of bundles that wait.
        """
        return num_waiting < self._most

    def choose(self, waiting: Iterable[Bundle]) -> list[Bundle]:
        """Choose bundles to announce now.

        Parameters
        ----------
        waiting : iterable of Bundle
            The bundles that wait to be fetched, in order.

        Returns
        -------
        list of Bundle
            To be handed to `announce` on another thread, unless there are none.
        """
        if self._under_way or len(self._announced) > self._most // 2:
            return []
        new = (b for b in waiting if b not in self._announced and self.concerns(b))
        self._under_way = list(itertools.islice(new, self._most - len(self._announced)))
        self._announced.update(self._under_way)
        return self._under_way

    def concerns(self, bundle: Bundle) -> bool:
        """Whether a bundle is worth announcing."""
        return bundle.reads[0].variable in self._reader.announced_variables

    def may_fetch(self, bundle: Bundle) -> bool:
        """Whether a bundle can be fetched, as it is not being announced at this moment."""
        return bundle not in self._under_way

    def begin_fetch(self, bundle: Bundle) -> None:
        """Note that a bundle is being fetched, and no longer to be announced."""
        self._announced.discard(bundle)

    def announce(self, bundles: list[Bundle]) -> None:
        """Announce bundles. Called without the lock, on a thread that may wait."""
        announced = None
        attempts = self._deadlines.begin(
            [read for bundle in bundles for read in bundle.reads], 0, self._on_left
        )
        try:
            with attempts:
                announced = self._reader.announce(bundles)
        except Abandoned:
            raise
        except Exception:
            # Fetching the bundles raises it again, for those that it concerns.
            announced = None
        self._deadlines.end(attempts)
        with self._lock:
            if announced is not None:
                self._most = announced.most_bundles
            for bundle in bundles:
                bundle.announced = announced
            self._end()

    def clear(self) -> None:
        """Forget all bundles."""
        self._announced.clear()
        self._under_way = []

    def _on_left(self, attempts: Attempts) -> None:
        """Go on after a thread was given up. Called by the thread of `Deadlines`."""
        with self._lock:
            self._on_stuck(attempts.thread)
            self._end()

    def _end(self) -> None:
        # Those that could not be announced are fetched as they are.
        for bundle in self._under_way:
            bundle.is_announced = True
        self._under_way = []
        try:
            self._on_done()
        except BaseException as problem:
            self._on_failed(problem)
