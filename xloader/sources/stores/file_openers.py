"""Files that xarray opens, and the rule that keeps netCDF's library whole."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import xarray as xr
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK
from xarray.backends.plugins import guess_engine


class Gate:
    """Many threads may read files, or one may open one; who came first goes first.

    netCDF's library is not made for threads. xarray holds a lock while it reads values and none
    while it opens a file, and a file that is opened beside another crashes the interpreter.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Without a queue, a thread that opens file after file would let nobody else in.
        self._queue: deque[object] = deque()
        self._num_reading = 0
        self._is_opening = False

    @classmethod
    def of_process(cls) -> Gate:
        """The gate of this process, as its libraries are."""
        # A forked child starts anew: a lock that was held at the fork is never released there.
        return _GATES.setdefault(os.getpid(), cls())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep files from being opened meanwhile. What is read must not pass a gate itself."""
        with self._changed:
            self._wait(lambda: not self._is_opening)
            self._num_reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_reading -= 1
                self._changed.notify_all()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep files from being read or opened by others meanwhile. Nor may this be nested."""
        with self._changed:
            self._wait(lambda: not self._is_opening and not self._num_reading)
            self._is_opening = True
        try:
            yield
        finally:
            with self._changed:
                self._is_opening = False
                self._changed.notify_all()

    def _wait(self, is_free: Callable[[], bool]) -> None:
        """Wait in the queue until the gate is free for its first one."""
        step_tag = object()
        self._queue.append(step_tag)
        try:
            self._changed.wait_for(lambda: self._queue[0] is step_tag and is_free())
        finally:
            # Ctrl-C ends a wait too, and must not leave the others behind one who has gone.
            self._queue.remove(step_tag)
            self._changed.notify_all()


_GATES: Final[dict[int, Gate]] = {}
"""By process id."""


class FileLock:
    """xarray's own lock of netCDF's libraries, which a thread may take again while it has it.

    So it can be held while a file is opened, where xarray takes it for some steps and not for
    others. That keeps out the reads that pass no gate: of labels, of dask tasks, of the user.
    """

    def __init__(self) -> None:
        self._own = threading.RLock()
        self._depth = 0

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock; False where it is not to be had at once and need not be waited for."""
        if not self._own.acquire(blocking):
            return False
        if not self._depth and not NETCDF4_PYTHON_LOCK.acquire(blocking):
            self._own.release()
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        """Give the lock back, once for each time it was taken."""
        self._depth -= 1
        if not self._depth:
            NETCDF4_PYTHON_LOCK.release()
        self._own.release()

    def locked(self) -> bool:
        """Whether any thread has it."""
        return self._depth > 0

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> str:
        return "FILE_LOCK"


FILE_LOCK: Final = FileLock()
"""The one of this process, as xarray's is."""


@dataclass(frozen=True)
class FileOpener:
    """Opens one file through xarray; pickles with the source."""

    path: str
    kwargs: Mapping[str, Any] = field(repr=False)

    def __call__(self) -> xr.Dataset:
        """Open the file, lazily."""
        kwargs = {"chunks": None, "cache": False, **self.kwargs}
        engine = kwargs.get("engine") or guess_engine(self.path)
        with Gate.of_process().opening(), _no_chunk_cache(engine):
            if engine not in ("netcdf4", "h5netcdf") or "lock" in kwargs:
                return xr.open_dataset(self.path, **kwargs)
            with FILE_LOCK:
                return xr.open_dataset(self.path, lock=FILE_LOCK, **kwargs)

    def groups(self) -> list[str]:
        """Paths of the groups further down that hold variables, where the engine can tell."""
        # Not under the lock of files: xarray takes its own here, whichever it is given.
        with Gate.of_process().opening():
            try:
                groups = xr.open_groups(self.path, engine=self.kwargs.get("engine"))
            except (NotImplementedError, OSError, ValueError):
                return []
            found = [path.strip("/") for path, group in groups.items() if group.data_vars]
            for group in groups.values():
                group.close()
        return sorted(path for path in found if path)


@contextmanager
def _no_chunk_cache(engine: object) -> Iterator[None]:
    """Open netCDF files without a cache of decoded chunks: each is read once, as it is needed.

    The library keeps up to 64 MiB for every variable of every file, which no budget would know.
    """
    is_there = importlib.util.find_spec("netCDF4") is not None
    if not is_there or engine != "netcdf4":
        yield
        return
    import netCDF4

    before = netCDF4.get_chunk_cache()
    netCDF4.set_chunk_cache(0, *before[1:])
    try:
        yield
    finally:
        netCDF4.set_chunk_cache(*before)
