"""Where an iteration under PyTorch's doors stands, and the state that is saved of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from xloader.errors import OptionError, StateError
from xloader.itinerary import Itinerary
from xloader.options import check_epoch
from xloader.state import Position, make_state, read_state


@dataclass(frozen=True)
class Place:
    """What comes next.

    Parameters
    ----------
    epoch, step : int
        The batch; a step behind the last one is the end of the epoch.
    row : int
        Its rows that have come already, where samples are taken one by one.
    """

    epoch: int
    step: int = 0
    row: int = 0

    @classmethod
    def checked(cls, epoch: Any, step: Any, num_steps: int) -> Place:
        """The place that a caller names.

        Raises
        ------
        OptionError
            If there is none such.

        Examples
        --------
        >>> Place.checked(3, 7, num_steps=10)
        Place(epoch=3, step=7, row=0)
        """
        is_number = isinstance(step, Integral) and not isinstance(step, bool)
        if not is_number or not 0 <= step <= num_steps:
            raise OptionError(
                "there is no such step to go on from",
                given=repr(step),
                allowed=f"0 to {num_steps}, the steps of an epoch on each rank",
            )
        return cls(check_epoch(epoch), int(step))


class Saver:
    """Makes the states of places in one itinerary: what is the same in all of them, once.

    Parameters
    ----------
    itinerary : Itinerary
    """

    def __init__(self, itinerary: Itinerary) -> None:
        self._itinerary = itinerary
        self._state: dict[str, Any] | None = None

    def save(self, place: Place) -> dict[str, Any]:
        """A place as plain JSON values, under 2 KB."""
        if self._state is None:
            self._state = make_state(self._itinerary, 0, 0)
        own = {"epoch": place.epoch, "step": place.step, "row": place.row}
        return {**copy.deepcopy(self._state), **own}


def read_place(state: object, itinerary: Itinerary) -> tuple[Position, Place]:
    """The place that a state means, with the plan and the seed by which it was come to.

    Parameters
    ----------
    state : dict
        What `Saver.save` gave, perhaps by way of JSON.
    itinerary : Itinerary
        Of what is to go on from there.

    Raises
    ------
    StateError
        If it is no state, is damaged, or is of other samples or another global batch.
    LanesError
        If the ranks do not divide its lanes.
    MemoryBudgetError
        If its plan needs more memory than there is.
    """
    if not isinstance(state, Mapping):
        read_state(state, itinerary)
    assert isinstance(state, Mapping)
    position = read_state({key: state[key] for key in state if key != "row"}, itinerary)
    row = state.get("row")
    num_rows = _num_rows(itinerary, position.step)
    if type(row) is not int or not 0 <= row < max(num_rows, 1):
        raise StateError(
            "the state cannot be used: its row is none of its batch",
            given=repr(row),
            allowed=f"whole numbers from 0 on, below {max(num_rows, 1)}",
            remedy="take another checkpoint",
        )
    return position, Place(position.epoch, position.step, row)


def refuse_state(kind: str, name: str, remedy: str) -> AttributeError:
    """What is raised for a state asked of what does not know how far the training loop is.

    Parameters
    ----------
    kind : str
        What was asked.
    name : str
        Attribute that was asked for.
    remedy : str
    """
    if name not in ("state_dict", "load_state_dict"):
        return AttributeError(f"{kind!r} object has no attribute {name!r}")
    return AttributeError(
        f"{kind} has no {name}: a DataLoader runs ahead of the training loop, so it does not know "
        f"which batches were trained on. To mend it: {remedy}, or use torchdata's "
        "StatefulDataLoader or samples.loader(), which count"
    )


def _num_rows(itinerary: Itinerary, step: int) -> int:
    """Rows of a batch of a rank; 0 behind the last one."""
    options, num_samples = itinerary.options, itinerary.footprint.num_samples
    if step >= itinerary.num_steps:
        return 0
    if options.world.world_size > 1:
        return options.batch_size
    return min(options.batch_size, num_samples - step * options.batch_size)
