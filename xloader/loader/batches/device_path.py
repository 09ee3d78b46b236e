"""The interface between a loader and the code that brings its batches to a device.

The device's code knows PyTorch, so it stands above this room and is handed down: see
`xloader.device.transfer`.
"""

from __future__ import annotations

from typing import Protocol

from xloader.engine.buffers import Buffer, MakeMemory
from xloader.engine.job import Delivery, Outbox
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.transforms.outputs import Output
from xloader.transforms.rng import Chance


class DevicePath(Protocol):
    """The way of a loader's batches to a device, and what is done to them there."""

    def check_outputs(self, outputs: tuple[Output, ...], num_rows: int) -> None:
        """Check what the loader will deliver, before anything is read.

        Parameters
        ----------
        outputs : tuple of Output
            The fields after all transforms of the samples.
        num_rows : int
            Rows of a batch.

        Raises
        ------
        OptionError
            If they cannot be delivered as asked for.
        """
        ...

    def check(self, batch_size: int, last_size: int) -> None:
        """Check, before an epoch begins, that this process may use the device.

        Parameters
        ----------
        batch_size : int
            Rows of a full batch.
        last_size : int
            Rows of the last batch, padding included.

        Raises
        ------
        ForkError
            If this process was forked from one that uses the device.
        OptionError
            If the batches do not fit what the user has given to hold them.
        """
        ...

    def make_memory(self, num_steps: int) -> MakeMemory | None:
        """The maker of the memory that batches are gathered into; None for ordinary memory.

        Parameters
        ----------
        num_steps : int
            Number of batches of an epoch: no more are in memory at a time.
        """
        ...

    @property
    def copies_batches(self) -> bool:
        """Whether batches are copied to a device, so that the user holds none of the gathered."""
        ...

    def pin_slots(self, memory: Buffer, num_slots: int) -> None:
        """Let the device read the memory that worker processes share by itself.

        If the system refuses, a warning says so, and batches are copied into other memory first.

        Parameters
        ----------
        memory : numpy.ndarray
            The memory, uint8. It begins with a page.
        num_slots : int
            Number of slots, of equal size, into which it is divided.
        """
        ...

    def unpin_slots(self) -> None:
        """Undo `pin_slots`, once no copy is under way. May be repeated."""
        ...

    @property
    def refusal(self) -> str:
        """Why the system refused to pin the memory of batches; empty if it did not."""
        ...

    @property
    def has_lost_slots(self) -> bool:
        """Whether slots of worker processes can never be used again, because a copy failed."""
        ...

    def outbox(self) -> Outbox | None:
        """Sends the batches of one run; None if they are only handed over."""
        ...

    def deliver(self, delivery: Delivery, chance: Chance, origin: BatchOrigin) -> Batch:
        """Make the batch that the user gets.

        Parameters
        ----------
        delivery : Delivery
            The batch as the engine delivers it.
        chance : Chance
            What the random numbers of the batch are derived from.
        origin : BatchOrigin
            The samples that the batch is of.
        """
        ...

    def close(self) -> None:
        """Release all memory, of the device too. May be repeated."""
        ...


def refusal_of(device_path: DevicePath | None) -> str:
    """Why the system refused to pin the memory of batches; empty if it did not.

    Parameters
    ----------
    device_path : DevicePath or None
        The way of batches to a device, if they go to one.
    """
    return "" if device_path is None else device_path.refusal
