"""The messages between a loader and its worker processes.

::

    loader to process     BeginRun, GrantSlot, EndRun, StopProcess
    process to process    Gathered
    process to loader     Finished, Failed, Warned, Ended

Batches themselves lie in shared memory: messages name their slots.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from xloader.core.axis import Ints
from xloader.core.nans import FieldNans
from xloader.engine.parcels import Parcel
from xloader.engine.tally import Tally
from xloader.errors import XloaderError, XloaderWarning


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


class Gathered(NamedTuple):
    """A process has gathered its rows of a step."""

    run: int
    step: int


class Finished(NamedTuple):
    """A batch is ready in its slot.

    Parameters
    ----------
    run, step, slot : int
        The run, the number of the step in it, and the slot.
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
    num_regions : int or None
        Distinct regions of its samples.
    tally : Tally
        Counters of the process that sends this.
    """

    run: int
    step: int
    slot: int
    num_rows: int
    num_own: int
    ids: Ints | None
    is_padding: Any
    occurrences: Ints | None
    nans: tuple[FieldNans, ...]
    parcel: Parcel | None
    is_collated: bool
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
    """An error with its causes, as bytes and in words.

    Parameters
    ----------
    pickled : bytes
        The error and its causes; empty if they cannot be pickled.
    name, text : str
        Class and traceback, for an error that cannot be.
    """

    pickled: bytes
    name: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> SentError:
        """Make it from an error that was raised in this process."""
        import cloudpickle

        chain, cause = [error], error.__cause__
        while cause is not None and len(chain) < 5:
            chain.append(cause)
            cause = cause.__cause__
        text = "".join(traceback.format_exception(error))
        try:
            pickled = bytes(
                cloudpickle.dumps([(one, getattr(one, "__notes__", [])) for one in chain])
            )
            cloudpickle.loads(pickled)
        except Exception:
            pickled = b""
        return cls(pickled, type(error).__name__, text)

    def restored(self, where: str) -> BaseException:
        """The error, to be raised in the loader's process.

        Parameters
        ----------
        where : str
            The process that raised it, for a note.
        """
        import cloudpickle

        if not self.pickled:
            return RuntimeError(f"{self.name} in {where}:\n{self.text}")
        first: BaseException | None = None
        last: BaseException | None = None
        for error, notes in cloudpickle.loads(self.pickled):
            error.__notes__ = list(notes)
            if last is None:
                first = error
            else:
                last.__cause__ = error
            last = error
        assert first is not None
        if not isinstance(first, XloaderError):
            first.add_note(f"raised in {where}:\n{self.text}")
        return first


def forward_warnings(send: Callable[[Warned], None]) -> None:
    """Send the warnings of this process to the loader, which shows or filters them.

    Parameters
    ----------
    send : callable
        Sends a message.
    """

    def forward(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        send(Warned(str(message), category))

    warnings.simplefilter("always", XloaderWarning)
    warnings.showwarning = forward
