"""Makes a worker of a ``DataLoader`` send each batch, or an error in its place, and end in time.

PyTorch moves the tensors of workers into ``/dev/shm``. Where that is full, as it soon is in a
container, a batch would be lost and the training loop would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing.reductions import rebuild_storage_fd, reduce_storage
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from xloader.engine.shared_memory import SharedMemory
from xloader.torch.worker_errors import sendable_errors
from xloader.torch.worker_shutdown import end_in_time, variables_of_worker


def set_up_worker() -> None:
    """Make this worker send each of its batches, or an error in its place, and end in time.

    Half of ``/dev/shm`` is left free for others. Beyond that, tensors are sent in memory that has
    no name. What cannot be sent at all is an error of the training loop. In a process that is no
    worker this does nothing. It can be called more than once.
    """
    info = get_worker_info()
    if info is None:
        return
    end_in_time()
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
