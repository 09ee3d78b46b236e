"""What a worker process is told when it starts, and the messages between it and the loader.

::

    loader to process     Begin, Grant, End, Stop
    process to process    Gathered
    process to loader     Finished, Failed, Warned, Ended

Batches themselves lie in shared memory: messages name their slots.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from xloader.core.axis import Ints
from xloader.core.nans import FieldNans
from xloader.core.options import LoaderOptions
from xloader.engine.tally import Tally
from xloader.errors import OptionError, XloaderError, XloaderWarning
from xloader.planning.plan import Plan
from xloader.recipe.recipe import Recipe
from xloader.transforms.packed_fields import PackedField


@dataclass(frozen=True)
class ProcessSetup:
    """What all processes of a loader need to know, apart from the shared memory.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    options : LoaderOptions
        The options, with the rank.
    plan : Plan
        The plan.
    hand_over : callable
        Converts an array into what ``collate_fn`` gets.
    packed_fields : tuple of PackedField
        Fields that are gathered as stored.
    """

    recipe: Recipe
    options: LoaderOptions
    plan: Plan
    hand_over: Callable[[Any], Any]
    packed_fields: tuple[PackedField, ...]

    def pickled(self) -> bytes:
        """The setup as bytes. Functions of a script or a notebook are part of them.

        Raises
        ------
        OptionError
            If something cannot be pickled. The error names it.
        """
        import cloudpickle

        try:
            return bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise OptionError(
                f"{self._culprit()} cannot be sent to worker processes ({error})",
                given=f"processes={self.options.processes}",
                allowed="functions and data that can be pickled",
                remedy="open files and make locks inside the function that uses them, or leave "
                "processes= out: threads share everything",
            ) from error

    def _culprit(self) -> str:
        import cloudpickle

        steps = {f"the transform {step.describe()}": step for step in self.recipe.steps}
        parts = {**steps, "the collate_fn": self.options.collate_fn, "the data": self.recipe.source}
        for name, part in parts.items():
            try:
                cloudpickle.dumps(part)
            except Exception:
                return name
        return "the samples"


class Begin(NamedTuple):
    """Begin a run: the steps of an epoch from one on."""

    run: int
    epoch: int
    first_step: int


class Grant(NamedTuple):
    """Gather the next batch of a run into this slot."""

    run: int
    slot: int


class End(NamedTuple):
    """End a run, finished or not."""

    run: int


class Stop(NamedTuple):
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
    num_regions : int or None
        Distinct regions of its samples.
    parcel : Parcel or None
        What transforms or ``collate_fn`` made of it; None if the slot has the fields in place.
    is_collated : bool
        Whether the parcel holds what ``collate_fn`` returned.
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
    num_regions: int | None
    parcel: Any
    is_collated: bool
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
