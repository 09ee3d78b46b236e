"""The messages between a loader and its worker processes.

::

    loader to process     BeginRun, GrantSlot, EndRun, StopProcess
    process to process    Gathered
    process to loader     Ready, Finished, Failed, Warned, Ended

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
from xloader.engine.parcels import Parcel
from xloader.engine.tally import Tally
from xloader.errors import XloaderError, XloaderWarning

_MOST_CAUSES: Final = 5


class BeginRun(NamedTuple):
    """Begin a run: the steps of an epoch from one on."""

    run: int
    epoch: int
    first_step: int


class GrantSlot(NamedTuple):
    """Gather the next batch of a run into this slot."""

    run: int
    slot: int


class EndRun(NamedTuple):
    """End a run, finished or not."""

    run: int


class StopProcess(NamedTuple):
    """End the process."""


class Ready(NamedTuple):
    """The process has started."""


class Gathered(NamedTuple):
    """A process has gathered its rows of a step."""

    run: int
    step: int


class FinishedRows(NamedTuple):
    """A finished batch.

    Parameters
    ----------
    num_rows, num_own : int
        Rows, and those of them that do not fill the batch up.
    ids, is_padding, occurrences : numpy.ndarray or None
        Of the rows. None: as in the slot.
    nans : tuple of FieldNans
        The NaN values found.
    parcel : Parcel or None
        The result of transforms or ``collate_fn``; None if the slot has the fields in place.
    is_collated : bool
        Whether the parcel holds the result of ``collate_fn``.
    nbytes : int
        Bytes of the finished fields.
    first_error : SentError or None
        The first error of rows that were skipped.
    """

    num_rows: int
    num_own: int
    ids: Ints | None
    is_padding: NDArray[np.bool_] | None
    occurrences: Ints | None
    nans: tuple[FieldNans, ...]
    parcel: Parcel | None
    is_collated: bool
    nbytes: int
    first_error: SentError | None


class Finished(NamedTuple):
    """A batch is ready in its slot.

    Parameters
    ----------
    run, step, slot : int
        The run, the number of the step in it, and the slot.
    rows : FinishedRows
        The batch.
    num_regions : int or None
        Distinct regions of its samples.
    tally : Tally
        Counters of the process that sends this.
    """

    run: int
    step: int
    slot: int
    rows: FinishedRows
    num_regions: int | None
    tally: Tally


class Failed(NamedTuple):
    """A batch could not be made; all batches before it may still come."""

    run: int
    step: int
    error: SentError


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


class Ended(NamedTuple):
    """A run is over in this process: it touches no slot any more.

    Parameters
    ----------
    run : int
        The run.
    tally : Tally
        Its counters.
    loaded : frozenset of (int, int)
        Blocks that stay in memory, as (group, block).
    """

    run: int
    tally: Tally
    loaded: frozenset[tuple[int, int]]


class SentError(NamedTuple):
    """An error with its causes, each as bytes, or in words where it cannot be pickled.

    Parameters
    ----------
    chain : tuple of bytes
        The error and its causes, pickled.
    text : str
        The traceback, for errors that are not xloader's own.
    """

    chain: tuple[bytes, ...]
    text: str = ""

    @classmethod
    def of(cls, error: BaseException) -> SentError:
        """Make it from an error that was raised in this process."""
        chain: list[bytes] = []
        one: BaseException | None = error
        while one is not None and len(chain) < _MOST_CAUSES:
            chain.append(_pickled(one))
            one = one.__cause__
        is_ours = isinstance(error, XloaderError)
        return cls(tuple(chain), "" if is_ours else "".join(traceback.format_exception(error)))

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
        if self.text:
            errors[0].add_note(f"raised in {where}:\n{self.text}")
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
