"""Slots, staging memory, and the rules by which they are used again."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from tests.device.fake_hardware import FakeHardware
from xloader.device.copies import PinnedScratch, RunCopies, Staging, StagingPool, _release_here
from xloader.device.pinned_slots import SlotRing, _unpin
from xloader.engine.buffers import ArrayKind
from xloader.engine.slot_layout import SlotLayout, find_fields
from xloader.errors import ClosedError

KINDS = [ArrayKind((2, 5, 3), np.dtype("f4")), ArrayKind((1, 5), np.dtype("i8"))]


def make_copies(num_slots: int = 1) -> tuple[RunCopies, SlotRing, StagingPool]:
    hardware = FakeHardware()
    ring, pool = SlotRing(hardware, KINDS, num_slots), StagingPool(hardware)
    return RunCopies(hardware, ring, PinnedScratch(hardware), pool), ring, pool


def take(ring: SlotRing, value: int = 7) -> dict[str, np.ndarray]:
    joint, other = ring.take(KINDS)
    joint[...], other[...] = value, value
    return {"a": joint[0, :4], "b": joint[1, :4], "c": other[0, :4]}


def test_the_engine_is_woken_when_a_slot_is_free() -> None:
    copies, ring, _ = make_copies()
    rooms: list[bool] = []
    errors: list[BaseException] = []
    woken = threading.Event()

    def wake() -> None:
        rooms.append(bool(ring._free))
        woken.set()

    copies.start(wake, errors.append)
    sent = copies.send(take(ring))
    assert woken.wait(60)
    assert rooms == [True]
    sent.release()
    copies.close()
    assert copies.join(time.monotonic() + 60)


def test_staging_is_not_given_away_while_it_is_read() -> None:
    copies, ring, pool = make_copies()
    sent = copies.send(take(ring))
    taken = []

    def unpack(place: Any, stored: torch.Tensor) -> torch.Tensor:
        taken.append(pool.take(512))
        taken[-1].memory.fill_(0)
        return stored.view(torch.uint8).clone()

    tensors = sent.receive(unpack)
    own = {one.memory.data_ptr() for one in taken}
    assert all(tensor.any() for tensor in tensors)
    assert pool.take(512).memory.data_ptr() not in own
    copies.close()


def refuse(*args: Any) -> None:
    raise RuntimeError("device lost")


def test_a_run_that_is_closed_within_send_frees_its_slot() -> None:
    copies, ring, pool = make_copies()
    hardware = copies._hardware
    copy = hardware.copy

    def collect(source: torch.Tensor, target: torch.Tensor, mark: Any) -> Any:
        # As a garbage collection does that ends the iterator on this thread.
        copies.close()
        time.sleep(0.05)
        return copy(source, target, mark)

    hardware.copy = collect  # type: ignore[method-assign]
    copies.start(lambda: None, lambda error: None)
    sent = copies.send(take(ring))
    assert copies.join(time.monotonic() + 60)
    assert sent.is_over
    assert len(pool._free) == len(ring._free) == 1
    assert ring._num_copies == 0


def test_a_forked_child_does_not_touch_the_device() -> None:
    hardware = FakeHardware()
    buffer = np.zeros(16, np.uint8)
    hardware.pin(buffer)
    _unpin(hardware, buffer, os.getpid() + 1)
    assert (hardware.num_settled, len(hardware.pinned)) == (0, 1)
    hardware.settle = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="device lost"):
        _unpin(hardware, buffer, os.getpid())
    assert not hardware.pinned
    marks = []
    hardware.release = marks.append  # type: ignore[method-assign]
    free = deque([Staging(torch.zeros(1), "a mark")])
    _release_here(hardware, free, os.getpid() + 1)
    assert not marks
    _release_here(hardware, free, os.getpid())
    assert marks == ["a mark"]


def test_a_copy_comes_after_the_last_use_of_its_staging() -> None:
    copies, ring, _ = make_copies(4)
    hardware = copies._hardware
    after = []
    copy = hardware.copy

    def note(source: torch.Tensor, target: torch.Tensor, mark: Any) -> Any:
        after.append(mark)
        copy(source, target, mark)
        return f"copy {len(after)}"

    hardware.copy = note  # type: ignore[method-assign]
    hardware.mark = lambda: "reading"  # type: ignore[method-assign]
    copies.send(take(ring)).receive(lambda place, stored: stored.clone())
    copies.send(take(ring)).release()
    copies.send(take(ring)).release()
    # New memory, memory that was read, and memory that was copied into but not read.
    assert after == [None, "reading", "copy 2"]
    copies.close()


def test_fields_are_found_where_they_lie() -> None:
    layout = SlotLayout.of(KINDS)
    buffer = np.zeros(layout.nbytes, np.uint8)
    joint, other = layout.arrays(buffer)
    begin = buffer.ctypes.data
    found = find_fields({"b": joint[1, :2], "c": other[0]}, begin, begin + layout.nbytes)
    assert found is not None
    assert [(f.name, f.offset, f.kind.shape) for f in found] == [
        ("b", 60, (2, 3)),
        ("c", 256, (5,)),
    ]
    assert find_fields({"b": joint[1].copy()}, begin, begin + layout.nbytes) is None
    assert find_fields({"b": joint[1][:, ::2]}, begin, begin + layout.nbytes) is None
    assert find_fields({"c": other[0]}, begin, begin + 256) is None


def test_a_slot_comes_back_when_nothing_refers_to_it() -> None:
    _, ring, _ = make_copies()
    arrays = take(ring)
    assert ring.find(arrays) is not None
    other = take(ring)
    assert ring.num_outside == 1
    assert ring.find(other) is None
    del arrays
    assert ring.find(take(ring)) is not None
    assert ring.num_outside == 1


def test_staging_comes_back_once() -> None:
    copies, ring, pool = make_copies(2)
    sent = copies.send(take(ring))
    other = copies.send(take(ring))
    sent.release()
    sent.release()
    copies.close()
    copies.close()
    assert len(pool._free) == 2
    with pytest.raises(ClosedError):
        other.receive(lambda place, stored: stored)
    assert len(pool._free) == 2


def test_nothing_is_sent_after_the_end() -> None:
    copies, ring, pool = make_copies()
    copies.close()
    with pytest.raises(ClosedError):
        copies.send(take(ring))
    with pytest.raises(ClosedError):
        copies.send({"x": np.zeros(3)})
    assert ring.has_room()
    assert len(pool._free) == 1
