"""Openers of files that xarray reads, such as netCDF, and the locks that they need.

The netCDF library is not made for threads: opening a file while another is in use can crash the
interpreter. `Gate` and `FileLock` prevent that, and `FileOpener` opens a file under them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.util import get_temp_dir
from typing import Any, Final

import xarray as xr
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK
from xarray.backends.plugins import guess_engine

_GATES: Final[dict[int, Gate]] = {}
"""The gates, by process id."""


class Gate:
    """A lock under which many threads may read files, or one thread may open a file.

    Threads enter in the order in which they came. The netCDF library is not made for threads.
    xarray holds a lock while it reads values, but none while it opens a file. A file that is
    opened while another is in use crashes the interpreter.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Without a queue, a thread that opens file after file would keep all others waiting.
        self._queue: deque[object] = deque()
        # Threads that read, or -1 while one opens a file.
        self._readers_less_openers = 0

    @classmethod
    def of_process(cls) -> Gate:
        """The gate of this process. There is one, because all files share one library."""
        # A forked child gets a gate of its own: a lock held at the fork is never released there.
        return _GATES.setdefault(os.getpid(), cls())

    def reading(self) -> AbstractContextManager[None]:
        """Keep other threads from opening files while the ``with`` block runs.

        The block must not enter a gate itself.
        """
        return self._held(1, lambda: self._readers_less_openers >= 0)

    def opening(self) -> AbstractContextManager[None]:
        """Keep other threads from reading or opening files while the ``with`` block runs.

        The block must not enter a gate itself.
        """
        return self._held(-1, lambda: not self._readers_less_openers)

    @contextmanager
    def _held(self, number: int, is_free: Callable[[], bool]) -> Iterator[None]:
        with self._changed:
            self._wait(is_free)
            self._readers_less_openers += number
        try:
            yield
        finally:
            with self._changed:
                self._readers_less_openers -= number
                self._changed.notify_all()

    def _wait(self, is_free: Callable[[], bool]) -> None:
        """Wait in the queue until this thread is the first and the gate is free for it."""
        ticket = object()
        self._queue.append(ticket)
        try:
            self._changed.wait_for(lambda: self._queue[0] is ticket and is_free())
        finally:
            # Ctrl-C also ends a wait, and the others must not wait for a thread that is gone.
            self._queue.remove(ticket)
            self._changed.notify_all()


class FileLock:
    """xarray's lock of the netCDF libraries, which the thread that holds it may take again.

    xarray takes its lock for some steps of opening a file and not for others. This lock can be
    held during all of them. That keeps out reads that pass no gate: of labels, of dask tasks, of
    the user.
    """

    def __init__(self) -> None:
        self._own = threading.RLock()
        self._depth = 0

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock, as `threading.Lock.acquire` does."""
        if not self._own.acquire(blocking):
            return False
        if not self._depth and not NETCDF4_PYTHON_LOCK.acquire(blocking):
            self._own.release()
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        """Release the lock. Call it once for each `acquire`."""
        self._depth -= 1
        if not self._depth:
            NETCDF4_PYTHON_LOCK.release()
        self._own.release()

    def locked(self) -> bool:
        """Whether any thread holds the lock."""
        return self._depth > 0

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> str:
        return "FILE_LOCK"


FILE_LOCK: Final = FileLock()
"""The lock of this process. xarray's own lock is also one for the process."""


@dataclass(frozen=True)
class FileOpener:
    """Opens one file through xarray. It pickles with the source that reads the file."""

    path: str
    kwargs: Mapping[str, Any] = field(repr=False)

    def __call__(self) -> xr.Dataset:
        """Open the file, lazily."""
        kwargs = {"chunks": None, "cache": False, **self.kwargs}
        engine = kwargs.get("engine") or guess_engine(self.path)
        given = {**kwargs, **(kwargs.get("backend_kwargs") or {})}
        if engine == "cfgrib" and "indexpath" not in given:
            # cfgrib's index holds the path as it was given, so one beside the file would be of no
            # use to others, who may give it differently. This folder goes with the main process,
            # and children started by multiprocessing share it.
            digest = hashlib.sha256(self.path.encode()).hexdigest()
            kwargs["indexpath"] = f"{get_temp_dir()}/{digest}.{{short_hash}}.idx"
        with Gate.of_process().opening(), _no_chunk_cache(engine):
            if engine not in ("netcdf4", "h5netcdf") or "lock" in kwargs:
                return xr.open_dataset(self.path, **kwargs)
            with FILE_LOCK:
                return xr.open_dataset(self.path, lock=FILE_LOCK, **kwargs)

    def groups(self) -> list[str]:
        """Paths of the groups below the root that hold data variables, sorted."""
        # Not under FILE_LOCK: here xarray takes its own lock, whichever lock it is given.
        with Gate.of_process().opening():
            try:
                groups = xr.open_groups(self.path, engine=self.kwargs.get("engine"))
            except (NotImplementedError, OSError, ValueError):
                return []
            paths = [path.strip("/") for path, group in groups.items() if group.data_vars]
            for group in groups.values():
                group.close()
        return sorted(path for path in paths if path)


@contextmanager
def _no_chunk_cache(engine: object) -> Iterator[None]:
    """Switch off netCDF's cache of decoded chunks for files opened in the ``with`` block.

    Each chunk is read once, so a cache saves nothing. The library would keep up to 64 MiB for
    every variable of every file, and no memory budget counts that.
    """
    if engine != "netcdf4" or importlib.util.find_spec("netCDF4") is None:
        yield
        return
    import netCDF4

    before = netCDF4.get_chunk_cache()
    netCDF4.set_chunk_cache(0, *before[1:])
    try:
        yield
    finally:
        netCDF4.set_chunk_cache(*before)
