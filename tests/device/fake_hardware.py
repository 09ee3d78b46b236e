"""Devices of ordinary memory whose copies are late, and come in another order than they began.

The loader runs through the same code as for a GPU.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from xloader.device.hardware import Hardware


@dataclass(eq=False)
class Copy:
    """A copy that may not be done yet. It is its own mark."""

    source: torch.Tensor
    target: torch.Tensor
    after: Any
    is_done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        if isinstance(self.after, Copy) and not self.after.is_done.is_set():
            self.after.run()
        self.target.copy_(self.source)
        self.is_done.set()


class FakeHardware(Hardware):
    """Counts what a loader asks for."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.num_copies = self.num_bytes = 0
        self.pinned: list[Any] = []
        self.num_settled = 0
        self.staged: list[torch.Tensor] = []

    def pin(self, block: Any) -> None:
        self.pinned.append(block)

    def unpin(self, block: Any) -> None:
        self.pinned = [own for own in self.pinned if own is not block]

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.staged.append(super().allocate(nbytes))
        return self.staged[-1]

    def settle(self) -> None:
        self.num_settled += 1

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Any) -> Any:
        self.count(source)
        return super().copy(source, target, after)

    def count(self, source: torch.Tensor) -> None:
        self.num_copies += 1
        self.num_bytes += source.numel()


class BusHardware(FakeHardware):
    """A thread copies, in random order and after random delays."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._waiting: list[Copy] = []
        self._changed = threading.Condition()
        self.num_reordered = 0
        threading.Thread(target=self._run, daemon=True, name="bus").start()

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Any) -> Copy:
        copy = Copy(source, target, after)
        with self._changed:
            self.count(source)
            self._waiting.append(copy)
            self._changed.notify()
        return copy

    def follow(self, copied: Copy) -> None:
        copied.is_done.wait()

    wait = follow

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
            # Others may come meanwhile and overtake it.
            time.sleep(self._random.random() / 2000)
            with self._changed:
                free = [
                    number
                    for number, copy in enumerate(self._waiting)
                    if not isinstance(copy.after, Copy) or copy.after.is_done.is_set()
                ]
                number = self._random.choice(free)
                self.num_reordered += number > 0
                copy = self._waiting.pop(number)
            copy.run()
            # The thread never ends, and would keep the memory of the last copy.
            del copy


class LateHardware(FakeHardware):
    """A copy is done when somebody waits for it: as late as may be.

    The consumer waits until the engine has gone as far ahead as it may.
    """

    def __init__(self, num_batches: int, prefetch: int) -> None:
        super().__init__()
        self._num_batches, self._prefetch = num_batches, prefetch
        self._num_followed = 0
        self._changed = threading.Condition()

    def copy(self, source: torch.Tensor, target: torch.Tensor, after: Any) -> Copy:
        with self._changed:
            self.count(source)
            self._changed.notify_all()
        return Copy(source, target, after)

    def follow(self, copied: Copy) -> None:
        with self._changed:
            self._num_followed += 1
            enough = min(self._num_followed + self._prefetch, self._num_batches)
            self._changed.wait_for(lambda: self.num_copies >= enough)
            if not copied.is_done.is_set():
                copied.run()

    def wait(self, copied: Copy) -> None:
        with self._changed:
            if not copied.is_done.is_set():
                copied.run()


class HastyHardware(LateHardware):
    """Broken on purpose: nothing waits for a copy before its slot is used again."""

    def wait(self, copied: Copy) -> None:
        pass
