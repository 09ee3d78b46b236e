"""The messages between a loader and its worker processes.

::

    loader to process     FinishBatch; None to end
    process to loader     None when it has started; FinishedBatch

Batches themselves lie in shared memory: messages name their slots.
"""

from __future__ import annotations

import itertools
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import xloader.errors
from xloader.core.axis import Ints
from xloader.core.nans import FieldNans
from xloader.engine.batches import BatchRows
from xloader.engine.shared_slots import Parcel
from xloader.engine.tally import WorkTime
from xloader.errors import XloaderError, XloaderWarning

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
