"""Operations of a device: memory that it reads by itself, and copies beside the training step.

On a GPU by CUDA, work is queued in *streams*. A *mark* is a place in a stream (a CUDA event):
another stream, or this computer, can wait until the work before it is done. Other devices, such as
Apple's, have neither: their copies are done when the call returns, and their marks are None.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import torch

from xloader.compiled.library import address_of
from xloader.engine.buffers import Buffer

Mark = Any
"""A place in a stream; None if the work before it is done already."""


class Hardware:
    """The operations of one device that a transfer needs. This one is without streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pin(self, block: Buffer) -> None:
        """Let the device read this memory by itself, where that needs anything."""

    def unpin(self, block: Buffer) -> None:
        """Undo `pin`, once no copy from the memory is under way."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Uninitialised memory of the device for copies, uint8, shape ``(nbytes,)``."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Mark) -> Mark:
        """Copy to the device, or queue it. It begins after a mark. Return the mark of its end."""
        target.copy_(source)

    def follow(self, copied: Mark) -> None:
        """Let the calling thread's current stream wait for a mark. The thread does not wait."""

    def mark(self) -> Mark:
        """Mark the end of the work that was queued in the calling thread's current stream."""

    def wait(self, copied: Mark) -> None:
        """Wait on the calling thread until a mark is reached."""

    def release(self, read: Mark) -> None:
        """Let memory from `allocate` be used for something else, but only after a mark."""

    def settle(self) -> None:
        """Wait on the calling thread until all copies are done."""


class CudaHardware(Hardware):
    """A GPU, by CUDA or ROCm. All copies of a process go through one stream of its own.

    PyTorch keeps freed memory of the device for the stream that it was allocated in. A new stream
    for each loader or epoch would strand some each time.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pin(self, block: Buffer) -> None:
        """Pin ordinary memory where it is; see `Hardware.pin`."""
        # PyTorch's own pinned memory is rounded up to a power of two, and kept after its release.
        with torch.cuda.device(self.device):
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            error = int(runtime.cudaHostRegister(address_of(block), block.nbytes, 0))
            if error:
                self._forget_error()
                raise RuntimeError(f"cudaHostRegister refused {block.nbytes} bytes: error {error}")

    def unpin(self, block: Buffer) -> None:
        """Undo `pin`. Without it, CUDA would refuse other memory at the same address later."""
        with torch.cuda.device(self.device):
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostUnregister(address_of(block))):
                self._forget_error()

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Uninitialised memory of the device, which belongs to the stream of the copies."""
        self._choose()
        with torch.cuda.stream(self._stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Mark) -> Mark:
        """Queue a copy in the stream; see `Hardware.copy`."""
        self._choose()
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            target.copy_(source, non_blocking=True)
            # The thread that waits for it must sleep, and not keep a core busy.
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return copied

    def follow(self, copied: Mark) -> None:
        """Let the consumer's stream wait for a copy."""
        torch.cuda.current_stream(self.device).wait_event(copied)

    def mark(self) -> Mark:
        """Mark the end of the work in the consumer's stream."""
        # The consumer's current device may be another one.
        with torch.cuda.device(self.device):
            read = torch.cuda.Event()  # type: ignore[no-untyped-call]
            read.record(torch.cuda.current_stream(self.device))
        return read

    def wait(self, copied: Mark) -> None:
        """Wait until a copy is done. Other threads run meanwhile."""
        self._choose()
        copied.synchronize()

    def release(self, read: Mark) -> None:
        """Let the stream's later allocations come after a mark."""
        if read is not None:
            self._stream.wait_event(read)

    def settle(self) -> None:
        """Wait until all copies are done."""
        self._stream.synchronize()

    def _choose(self) -> None:
        """Make the GPU the current device of a thread of the loader's own.

        A thread begins with GPU 0 as its device, and may otherwise come to occupy memory there.
        """
        torch.cuda.set_device(self.device)

    def _forget_error(self) -> None:
        """Clear the error that CUDA keeps, or the next operation of this thread would raise it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.device)


def is_elsewhere(device: torch.device) -> bool:
    """Whether batches must be copied to a device. Not to the processor itself."""
    return device.type != "cpu"


def make_hardware(device: torch.device) -> Hardware:
    """The operations of a device."""
    if device.type != "cuda":
        return Hardware(device)
    return _cuda(device, os.getpid())


@functools.cache
def _cuda(device: torch.device, pid: int) -> CudaHardware:
    """The GPU as one process uses it, for all loaders."""
    return CudaHardware(device)
