"""A worker process of a loader: it finishes the batches that the loader has gathered for it.

It waits for one batch after the other, transforms it in the slot that both share, and says what
became of it::

    loader to process     FinishBatch; None to end
    process to loader     None when it has started; FinishedBatch

Batches themselves lie in shared memory: messages name their slots.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import xloader.errors
from xloader.compiled.library import address_of
from xloader.core.axis import Ints
from xloader.core.messages import names_function
from xloader.core.nans import FieldNans
from xloader.engine.batches import BatchRows, OpenBatch
from xloader.engine.buffers import Arrays, BatchPool, Buffer, Fields
from xloader.engine.shared_slots import Parcel, SharedMemory, SharedSlots, pack
from xloader.engine.tally import WorkTime
from xloader.errors import OptionError, XloaderError, XloaderWarning
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.batches.row_list import Rows
from xloader.loader.ranks.finishing import Finishing
from xloader.sources.arrays.dask_cluster import compute_synchronously
from xloader.transforms.rng import Chance

_MOST_CAUSES: Final = 5


class FinishBatch(NamedTuple):
    """Finish the batch in a slot.

    `ids`: the sample of each row, also of those that fill the batch up.
    """

    epoch: int
    step: BatchRows
    slot: int
    ids: Ints
    is_padding: NDArray[np.bool_]


class FinishedBatch(NamedTuple):
    """A batch is ready in its slot, or could not be finished.

    `parcel`: the fields, unless they lie in the slot as they were gathered; or what ``collate_fn``
    returned, for fields of `collated_nbytes`.
    """

    nans: tuple[FieldNans, ...] = ()
    parcel: Parcel | None = None
    collated_nbytes: int | None = None
    error: SentError | None = None
    warnings: tuple[Warned, ...] = ()
    spent: WorkTime = WorkTime()
    where: str = ""


class Warned(NamedTuple):
    """A warning that the loader gives in place of the process."""

    message: str
    category: type[Warning]

    @classmethod
    def of(cls, message: Warning | str, category: type[Warning]) -> Warned:
        """The message for a warning of this process."""
        # Classes of a script cannot be looked up by another process.
        known = (xloader.errors.__name__, Warning.__module__)
        sent = next(kind for kind in category.__mro__ if kind.__module__ in known)
        return cls(str(message), sent)


class SentError(NamedTuple):
    """An error with its causes, each as bytes, or in words where it cannot be pickled.

    Parameters
    ----------
    chain : tuple of bytes
        The error and its causes, pickled.
    text : str
        The traceback of the first of them that is not xloader's own.
    """

    chain: tuple[bytes, ...]
    text: str = ""

    @classmethod
    def of(cls, error: BaseException) -> SentError:
        """Make it from an error that was raised in this process."""
        chain: list[bytes] = []
        text = ""
        one: BaseException | None = error
        while one is not None and len(chain) < _MOST_CAUSES:
            chain.append(_pickled(one))
            if not (text or isinstance(one, XloaderError)):
                text = "".join(traceback.format_exception(one))
            one = one.__cause__
        return cls(tuple(chain), text)

    def restored(self, where: str = "") -> BaseException:
        """The error, to be raised in the loader's process.

        Parameters
        ----------
        where : str
            The process that raised it, for a note.
        """
        errors = [_unpickled(one) for one in self.chain]
        for error, cause in itertools.pairwise(errors):
            error.__cause__ = cause
        for error in [e for e in errors if not isinstance(e, XloaderError)][:1]:
            error.add_note(f"raised in {where}:\n{self.text}")
        return errors[0]


def _pickled(error: BaseException) -> bytes:
    import cloudpickle

    notes = list(getattr(error, "__notes__", ()))
    try:
        data = bytes(cloudpickle.dumps((error, notes)))
        pickle.loads(data)
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
        return pickle.dumps((told, notes))
    return data


def _unpickled(data: bytes) -> BaseException:
    error: BaseException
    error, notes = pickle.loads(data)
    for note in notes[len(getattr(error, "__notes__", ())) :]:
        error.add_note(note)
    return error


def forward_warnings(send: Callable[[Warned], None]) -> None:
    """Send the warnings of this process to the loader, which shows or filters them.

    Parameters
    ----------
    send : callable
        Sends a message.
    """

    def forward(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        send(Warned.of(message, category))

    warnings.simplefilter("always", XloaderWarning)
    warnings.showwarning = forward


@dataclass(frozen=True)
class ProcessSetup:
    """How batches are finished, and how they lie in slots: the same for all processes.

    `num_rows`, `room_nbytes`: of a slot, as `Fields` has them.
    """

    finishing: Finishing
    num_rows: int
    room_nbytes: int

    def pickled(self) -> bytes:
        """The setup as bytes. Functions of a script or a notebook are part of them."""
        import cloudpickle

        try:
            return bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise OptionError(
                f"{self._culprit()} cannot be sent to worker processes ({error})",
                given=f"processes={self.finishing.options.processes}",
                remedy="open files inside the function that uses them, and use no locks, which "
                "processes cannot share; or leave processes= out, as threads share everything",
            ) from error

    def _culprit(self) -> str:
        import cloudpickle

        recipe, collate_fn = self.finishing.recipe, self.finishing.options.collate_fn
        steps = {f"the transform {step.describe()}": step for step in recipe.steps}
        parts = {**steps, "the collate_fn": collate_fn, "the data": recipe.source}
        for name, part in parts.items():
            try:
                cloudpickle.dumps(part)
            except Exception:
                return name
        return "the samples"


def run_process(loader: Connection, memory: SharedMemory, num_slots: int, setup: bytes) -> None:
    """Serve a loader, given a pickled `ProcessSetup`, until it says stop or ends."""
    import cloudpickle

    # Ctrl-C goes to all processes of a terminal, and a queue may signal all those of a job. The
    # loader's process decides what to do.
    for name in {"SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"} & set(dir(signal)):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    _seed_globally()
    # Functions of the user may compute with dask.
    compute_synchronously()
    threading.Thread(target=_end_with_loader, daemon=True).start()
    try:
        process = FinishingProcess(memory, num_slots, cloudpickle.loads(setup))
    except BaseException as error:
        loader.send(SentError.of(error))
        return
    try:
        loader.send(None)
        while (task := loader.recv()) is not None:
            loader.send(process.answer(task))
    except (EOFError, OSError):
        # The loader's process is gone: nobody takes what this one makes.
        os._exit(1)
    # Or else Python would warn of the locks of codecs, which multiprocessing has made here.
    multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
    # Threads of the user's functions may be stuck.
    os._exit(0)


def _seed_globally() -> None:
    """Give this process random numbers of its own: it begins as a copy of another one."""
    random.seed()
    np.random.seed()  # noqa: NPY002  (users may still use these)
    if torch := sys.modules.get("torch"):
        torch.seed()


def _end_with_loader() -> None:
    """End this process when the loader's has ended, also in the middle of a batch."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class FinishingProcess:
    """The work of one process."""

    def __init__(self, memory: SharedMemory, num_slots: int, setup: ProcessSetup) -> None:
        self._setup = setup
        self._finish_of = lru_cache(2)(setup.finishing.of_epoch)
        self._warnings: list[Warned] = []
        forward_warnings(self._warnings.append)
        layouts, room_nbytes = setup.finishing.layouts, setup.room_nbytes
        self._fields = Fields(layouts, setup.num_rows, 1, BatchPool, room_nbytes)
        self._slots = SharedSlots(memory.buffer, self._fields.kinds, num_slots)

    def answer(self, task: FinishBatch) -> FinishedBatch:
        """Finish a batch, and leave it in its slot."""
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        try:
            finished = self._finish(task)
        except BaseException as error:
            finished = FinishedBatch(error=SentError.of(error))
        spent = WorkTime(time.perf_counter() - begin, time.thread_time() - cpu_begin)
        finished = finished._replace(spent=spent, warnings=tuple(self._warnings))
        self._warnings.clear()
        return finished

    def _finish(self, task: FinishBatch) -> FinishedBatch:
        joints = self._slots.arrays(task.slot)
        gathered = self._fields.named(joints, len(task.ids))
        room = self._fields.room(joints)
        batch = OpenBatch(task.step, dict(gathered))
        self._finish_of(task.epoch).apply(batch, task.ids)
        options = self._setup.finishing.options
        nbytes = sum(array.nbytes for array in batch.arrays.values())
        if options.collates_in_processes:
            parcel = self._collated(batch.arrays, task, room)
            return FinishedBatch(batch.nans, parcel, nbytes)
        if not _fits(batch.arrays, gathered):
            parcel = pack(batch.arrays, room, self._setup.finishing.hand_over)
            return FinishedBatch(batch.nans, parcel)
        for name, array in batch.arrays.items():
            if not _is_same(array, gathered[name]):
                np.copyto(gathered[name], array)
        return FinishedBatch(batch.nans)

    def _collated(self, arrays: Arrays, task: FinishBatch, room: Buffer | None) -> Parcel:
        finishing, hand_over = self._setup.finishing, self._setup.finishing.hand_over
        recipe, seed = finishing.recipe, finishing.options.seed
        occurrences = task.step.occurrences_in(len(task.ids))
        origin = BatchOrigin.of(recipe, Chance(seed, task.epoch, occurrences))
        made = [hand_over(array) for array in arrays.values()]
        rows = Rows(Batch(made, arrays, task.ids, task.is_padding, origin))
        collate_fn = finishing.options.collate_fn
        assert collate_fn is not None
        with names_function(f"collate_fn on a batch of {len(task.ids)} samples"):
            return pack(collate_fn(rows), room, hand_over)


def _fits(arrays: Arrays, gathered: Arrays) -> bool:
    """Whether finished arrays can take the place of the gathered ones, one after the other."""
    return list(arrays) == list(gathered) and all(
        array.dtype == gathered[name].dtype
        and array.shape == gathered[name].shape
        # A function may return another field, or the same one turned round.
        and (
            _is_same(array, gathered[name])
            or not any(np.may_share_memory(array, other) for other in gathered.values())
        )
        for name, array in arrays.items()
    )


def _is_same(array: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    """Whether two arrays of one dtype and shape are views of the same memory."""
    return address_of(array) == address_of(other) and array.strides == other.strides
