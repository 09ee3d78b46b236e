"""Workers of a ``DataLoader`` that end where the training process is killed."""

from __future__ import annotations

import multiprocessing
import os
import threading

from torch.utils.data import get_worker_info

_NAME = "xloader-orphans"


def end_with_training() -> None:
    """See to it that this worker of a ``DataLoader`` ends once the training process is gone.

    PyTorch's workers look out for the process that forked them. Under ``forkserver`` that is the
    server, which waits for its workers: where the training process is killed, none of them would
    ever end. Under ``fork`` and ``spawn``, in a process that is no worker, and where it has been
    called before, this does nothing.

    Examples
    --------
    >>> end_with_training()
    >>> any(thread.name == "xloader-orphans" for thread in threading.enumerate())
    False
    """
    training = multiprocessing.parent_process()
    if get_worker_info() is None or training is None:
        return
    # Where the two are one, PyTorch looks out for it, and lets a batch be finished.
    is_forker = os.getppid() == training.pid
    if is_forker or any(thread.name == _NAME for thread in threading.enumerate()):
        return

    def wait() -> None:
        # On a pipe whose other end the training process keeps open as long as it lives, whichever
        # of its threads made the worker.
        training.join()
        # The worker waits for what that process asks of it, and would not hear of an exception.
        os._exit(1)

    threading.Thread(target=wait, name=_NAME, daemon=True).start()
