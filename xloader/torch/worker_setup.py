"""Makes a worker of a ``DataLoader`` send each batch, or an error in its place, and end in time.

PyTorch moves the tensors of workers into ``/dev/shm``. Where that is full, as it soon is in a
container, a batch would be lost and the training loop would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import get_spawning_popen
from multiprocessing.queues import Queue
from multiprocessing.reduction import DupFd, ForkingPickler
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing.reductions import rebuild_storage_fd, reduce_storage
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from xloader.engine.shared_slots import SharedMemory
from xloader.sources.arrays.dask_cluster import compute_synchronously


class Process(NamedTuple):
    """The process that iterates: the training process, or a worker of a ``DataLoader``."""

    number: int = 0
    iteration: int = -1
    num_workers: int = 0

    @classmethod
    def here(cls) -> Process:
        """The process that asks."""
        # PyTorch draws a seed for each iterator and adds the worker's number to it. Without the
        # number, the seed identifies the iterator.
        info = get_worker_info()
        return cls() if info is None else cls(info.id, info.seed - info.id, info.num_workers)


@contextmanager
def sendable_errors() -> Iterator[None]:
    """Replace, in a worker, an error whose class the main process cannot be sent.

    A ``DataLoader`` sends the class of an error to the main process. Functions of a script or
    notebook are sent to a worker together with the error classes that they define. Such classes
    cannot be pickled in the worker, and the main process would wait for the error for ever.
    """
    try:
        yield
    except Exception as error:
        if get_worker_info() is None or _is_sendable(type(error)):
            raise
        sendable = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            sendable.add_note(note)
        raise sendable from error


def _is_sendable(error_class: type[Exception]) -> bool:
    try:
        pickle.dumps(error_class)
    except Exception:
        return False
    return True


def preload_for_workers() -> None:
    """Have a server of forks, if it is about to start, import what workers of a dataset need."""
    if getattr(get_spawning_popen(), "method", None) != "forkserver":
        return
    server = getattr(forkserver, "_forkserver", None)
    # A server that runs imports nothing more. The user's modules stay.
    if server is None or getattr(server, "_forkserver_pid", None) is not None:
        return
    chosen = getattr(server, "_preload_modules", [])
    loaded = sorted(n for n in sys.modules if n.startswith(("xloader.sources.", "xloader.torch.")))
    needed = ["torch.utils.data", "xloader.samples.samples", "xloader.tensors.convert", *loaded]
    server.set_forkserver_preload(list(dict.fromkeys([*chosen, *needed])))


_NAME = "xloader-orphans"


def variables_of_worker() -> Mapping[str, Any]:
    """The variables of PyTorch's loop of a worker, found on the stack; none elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.worker":
            return frame.f_locals
        frame = frame.f_back
    return {}


def end_with_training() -> None:
    """End this worker once the training process is gone, where PyTorch does not do so.

    PyTorch's workers watch the process that forked them. Under ``forkserver`` that is the server,
    which waits for its workers.
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


def set_up_worker() -> None:
    """Make this worker send each of its batches, or an error in its place, and end in time.

    Half of ``/dev/shm`` is left free for others. Beyond that, tensors are sent in memory that has
    no name. What cannot be sent at all is an error of the training loop. In a process that is no
    worker this does nothing. It can be called more than once.
    """
    info = get_worker_info()
    if info is None:
        return
    end_with_training()
    # Functions of the user may compute with dask.
    compute_synchronously()
    ForkingPickler.register(torch.UntypedStorage, _reduce)
    default_collate_fn_map[torch.Tensor] = _stack
    queue = variables_of_worker().get("data_queue")
    if queue is not None:
        # The queue takes it along when it sends the first batch.
        queue._on_queue_feeder_error = partial(_send_error, queue, info.id)


def _has_room(nbytes: int, folder: str = "/dev/shm") -> bool:
    """Whether more than half of the folder stays free, or the system has no such folder."""
    if not hasattr(os, "memfd_create"):
        # Only Linux has that folder.
        return True
    try:
        sizes = os.statvfs(folder)
    except OSError:
        return False
    return sizes.f_bavail * sizes.f_frsize - nbytes >= sizes.f_blocks * sizes.f_frsize / 2


def _reduce(storage: torch.UntypedStorage) -> Any:
    """Reduce the memory of a tensor as PyTorch does, but not always in ``/dev/shm``."""
    # Where PyTorch fails, it leaves a file behind, so the room is looked at before.
    with contextlib.suppress(RuntimeError):
        if storage.is_shared() or not storage.nbytes() or _has_room(storage.nbytes()):
            return reduce_storage(storage)  # type: ignore[no-untyped-call]
    memory = SharedMemory(storage.nbytes())
    torch.from_numpy(memory.buffer).copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
    return rebuild_storage_fd, (type(storage), DupFd(memory.file), storage.nbytes())


def _stack(batch: list[torch.Tensor], **options: Any) -> torch.Tensor:
    """Stack tensors as PyTorch's ``default_collate`` does, but not always in ``/dev/shm``."""
    if batch[0].layout != torch.strided:
        return collate_tensor_fn(batch, **options)  # type: ignore[no-any-return]
    # Another process may take the room meanwhile.
    with contextlib.suppress(RuntimeError):
        if _has_room(sum(tensor.nbytes for tensor in batch)):
            return collate_tensor_fn(batch, **options)  # type: ignore[no-any-return]
    return torch.stack(batch)


def _send_error(queue: Any, worker: int, error: Exception, value: Any) -> None:
    """Send an error in place of a value that cannot be sent."""
    if not isinstance(value, tuple) or isinstance(value[1], ExceptionWrapper):
        Queue._on_queue_feeder_error(error, value)  # type: ignore[attr-defined]
        return
    try:
        with sendable_errors():
            raise error
    except Exception:
        where = f"in DataLoader worker process {worker}"
        queue.put((value[0], ExceptionWrapper(where=where)))  # type: ignore[no-untyped-call]
