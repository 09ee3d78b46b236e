"""Memory that several processes share. It has no name: nothing is left of it when all have ended.

It does not lie in ``/dev/shm``, which is small in containers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from xloader.core.nbytes import show_nbytes
from xloader.engine.buffers import Buffer
from xloader.errors import WorkersError


class SharedMemory:
    """A block of memory, reserved at once. It can be pickled for a process that is being started.

    Parameters
    ----------
    nbytes : int
        Its size.

    Attributes
    ----------
    buffer : numpy.ndarray
        The memory, uint8, shape ``(nbytes,)``.

    Raises
    ------
    WorkersError
        If there is not so much memory.
    """

    def __init__(self, nbytes: int) -> None:
        file = _open_file()
        try:
            _reserve(file, nbytes)
            self._hold(file)
        except OSError as error:
            os.close(file)
            raise WorkersError(
                f"there is no room for the memory that worker processes share ({error.strerror})",
                given=f"{nbytes} bytes ({show_nbytes(nbytes)})",
                allowed="as much as the system can give",
                remedy="pass a smaller batch_size or prefetch, or fewer processes",
            ) from error

    @property
    def file(self) -> int:
        """The file descriptor; -1 once it is closed."""
        return self._file

    @classmethod
    def of_process(cls, pid: int, file: int) -> SharedMemory:
        """Open the memory that another process has. Linux only.

        Parameters
        ----------
        pid, file : int
            The process, and its file descriptor.

        Raises
        ------
        WorkersError
            If it cannot be opened.
        """
        try:
            return cls._mapped(os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR))
        except OSError as error:
            raise WorkersError(
                f"the memory of another process cannot be opened ({error.strerror})",
                given=f"file descriptor {file} of process {pid}, in process {os.getpid()}",
                remedy="send a copy: array.copy() or tensor.clone()",
            ) from error

    @classmethod
    def _opened(cls, file: Any) -> SharedMemory:
        return cls._mapped(file.detach())

    @classmethod
    def _mapped(cls, file: int) -> SharedMemory:
        other = cls.__new__(cls)
        try:
            other._hold(file)
        except OSError:
            os.close(file)
            raise
        return other

    def __reduce__(self) -> tuple[object, ...]:
        return SharedMemory._opened, (DupFd(self._file),)

    def close(self) -> None:
        """Let go of the memory. It lives as long as any other array over it."""
        self._close()
        self._file, self.buffer = -1, np.empty(0, np.uint8)

    def _hold(self, file: int) -> None:
        self.buffer = _map(file)
        self._file = file
        # Also if nobody calls `close`.
        self._close: weakref.finalize[Any, Any] = weakref.finalize(self, os.close, file)
        self._close.atexit = False


def _open_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("xloader")
    file, name = tempfile.mkstemp()
    os.unlink(name)
    return file


def _reserve(file: int, nbytes: int) -> None:
    os.truncate(file, nbytes)
    # Otherwise a process would be killed at the first write for which there is no memory.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)


def _map(file: int) -> Buffer:
    return np.frombuffer(mmap.mmap(file, os.fstat(file).st_size), np.uint8)
