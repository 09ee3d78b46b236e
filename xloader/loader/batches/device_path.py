"""The interface between a loader and the code that brings its batches to a device.

The device's code knows PyTorch, so it stands above this room and is handed down: see
`xloader.device.transfer`.
"""

from __future__ import annotations

from typing import Protocol

from xloader.engine.batches import Delivery, Outbox
from xloader.engine.buffers import Buffer, MakeMemory
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.transforms.outputs import Output
from xloader.transforms.rng import Chance


class DevicePath(Protocol):
    """The way of a loader's batches to a device, and what is done to them there."""

    def check_outputs(self, outputs: tuple[Output, ...], num_rows: int) -> None:
        """Check what the loader will deliver, before anything is read."""

    def check(self, batch_size: int, last_size: int) -> None:
        """Check, before an epoch begins, that this process may use the device."""

    def make_memory(self, num_steps: int) -> MakeMemory | None:
        """The maker of the memory that batches are gathered into; None for ordinary memory."""

    @property
    def copies_batches(self) -> bool:
        """Whether batches are copied to a device, so that the user holds none of the gathered."""

    def pin_slots(self, memory: Buffer, num_slots: int) -> None:
        """Let the device read the memory that worker processes share by itself.

        If the system refuses, a warning says so, and batches are copied into other memory first.
        """

    def unpin_slots(self) -> None:
        """Undo `pin_slots`, once no copy is under way. May be repeated."""

    @property
    def refusal(self) -> str:
        """Why the system refused to pin the memory of batches; empty if it did not."""

    def outbox(self) -> Outbox | None:
        """Sends the batches of one run; None if they are only handed over."""

    def deliver(self, delivery: Delivery, chance: Chance, origin: BatchOrigin) -> Batch:
        """Make the batch that the user gets."""

    def close(self) -> None:
        """Release all memory, of the device too. May be repeated."""
