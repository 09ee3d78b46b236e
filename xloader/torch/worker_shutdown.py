"""Ends workers of a ``DataLoader`` with the training process, and with their ``DataLoader``."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from torch.utils.data import get_worker_info

_NAME = "xloader-orphans"

_NAME_OF_SHUTDOWN = "xloader-shutdown"

_GRACE = 0.5
"""Seconds in which a read may still finish after the ``DataLoader`` ends."""


def end_in_time() -> None:
    """Make this worker of a ``DataLoader`` end when it is no longer needed.

    There are two cases. First, the training process is gone: PyTorch's workers watch the process
    that forked them, but under ``forkserver`` that is the server, which waits for its workers.
    """
    if get_worker_info() is None:
        return
    _end_with_training()
    names = {thread.name for thread in threading.enumerate()}
    done = _done_flag()
    if done is None or _NAME_OF_SHUTDOWN in names:
        return

    def wait() -> None:
        """End the process once the ``DataLoader`` has ended and the main thread waits in a read."""
        # The semaphore is polled. The event's own methods take its lock, and a worker that ends
        # with that lock would block the training process for ever.
        while not done.get_value():
            time.sleep(_GRACE)
        time.sleep(_GRACE)
        # The user's own code is left to finish, as PyTorch does.
        while not _is_reading(threading.main_thread()):
            time.sleep(_GRACE)
        # With any other exit code, PyTorch would report that a worker failed.
        os._exit(0)

    threading.Thread(target=wait, name=_NAME_OF_SHUTDOWN, daemon=True).start()


def variables_of_worker() -> Mapping[str, Any]:
    """The variables of PyTorch's loop of a worker, found on the stack; none elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.worker":
            return frame.f_locals
        frame = frame.f_back
    return {}


def _done_flag() -> Any:
    """The flag that a ``DataLoader`` sets as it ends; None in other processes.

    It is the semaphore within an event of ``multiprocessing``. macOS cannot read its value, so
    this works on Linux only.
    """
    flag = getattr(variables_of_worker().get("done_event"), "_flag", None)
    return flag if sys.platform == "linux" else None


def _is_reading(thread: threading.Thread) -> bool:
    """Whether a thread waits within xloader's own code."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_globals.get("__name__") == "threading":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("xloader.")


def _end_with_training() -> None:
    """End this worker once the training process is gone, where PyTorch does not do so.

    Under ``fork`` and ``spawn``, PyTorch does.
    """
    training = multiprocessing.parent_process()
    if training is None:
        return
    # If the training process forked this one, PyTorch watches it, and lets a batch finish.
    is_forker = os.getppid() == training.pid
    if is_forker or any(thread.name == _NAME for thread in threading.enumerate()):
        return

    def wait() -> None:
        """End the process once the training process has ended."""
        # This waits on a pipe whose other end the training process keeps open as long as it
        # lives, whichever of its threads has started the worker.
        training.join()
        # The main thread waits for requests of that process, so no exception would reach it.
        os._exit(1)

    threading.Thread(target=wait, name=_NAME, daemon=True).start()
