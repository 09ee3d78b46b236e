"""The calls to CUDA, and their order. A stand-in notes it, as there may be no GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

from xloader.compiled.library import address_of
from xloader.device import hardware
from xloader.device.hardware import CudaHardware, Hardware, make_hardware

GPU = torch.device("cuda", 1)


class StandIn:
    """Notes the calls that reach CUDA, in order."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[Any] = []
        self.error = error

    def note(self, *call: Any) -> None:
        self.calls.append(call)

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.note("register", address, nbytes, flags)
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        self.note("unregister", address)
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()

    class Stream:
        def __init__(self, name: Any = "current") -> None:
            self.name = name

        def wait_event(self, event: Any) -> None:
            stand_in.note("wait", self.name, event)

        def synchronize(self) -> None:
            stand_in.note("synchronize", self.name)

    class Event:
        def __init__(self, blocking: bool = False) -> None:
            self.blocking = blocking

        def record(self, stream: Stream) -> None:
            stand_in.note("record", stream.name, self)

        def synchronize(self) -> None:
            stand_in.note("synchronize event", self)

    @contextlib.contextmanager
    def stream(own: Stream) -> Any:
        stand_in.note("enter", own.name)
        yield
        stand_in.note("leave", own.name)

    @contextlib.contextmanager
    def device(own: Any) -> Any:
        yield stand_in.note("device", own)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "set_device", lambda own: stand_in.note("set", own))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda own: Stream("consumer"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: stand_in)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda n, device: stand_in.note("clear") or zeros(n))
    return stand_in


def test_a_copy_waits_for_the_last_reading_and_is_marked(cuda: StandIn) -> None:
    gpu = CudaHardware(GPU)
    source, target = torch.arange(4).to(torch.uint8), torch.zeros(4, device="cpu")
    cuda.calls.clear()
    copied = gpu.copy(source, target, "last reading")
    assert target.tolist() == [0, 1, 2, 3]
    assert cuda.calls == [
        ("set", GPU),
        ("enter", GPU),
        ("wait", GPU, "last reading"),
        ("record", GPU, copied),
        ("leave", GPU),
    ]
    assert copied.blocking


def test_the_consumer_waits_on_its_own_stream_only(cuda: StandIn) -> None:
    gpu = CudaHardware(GPU)
    gpu.follow("a copy")
    read = gpu.mark()
    assert cuda.calls == [
        ("wait", "consumer", "a copy"),
        ("device", GPU),
        ("record", "consumer", read),
    ]
    cuda.calls.clear()
    gpu.wait(read)
    gpu.release(read)
    gpu.release(None)
    gpu.settle()
    assert cuda.calls == [
        # A thread begins with GPU 0, and would come to occupy memory there.
        ("set", GPU),
        ("synchronize event", read),
        ("wait", GPU, read),
        ("synchronize", GPU),
    ]


@pytest.mark.parametrize("error", [0, 2])
def test_memory_is_pinned_or_refused(cuda: StandIn, error: int) -> None:
    cuda.error = error
    block = np.zeros(10000, np.uint8)
    begin, gpu = address_of(block), CudaHardware(GPU)
    if error:
        with pytest.raises(RuntimeError, match="cudaHostRegister refused 10000 bytes: error 2"):
            gpu.pin(block)
        # CUDA would raise its error at the next operation, whichever that is.
        last = ("clear",)
    else:
        gpu.pin(block)
        gpu.unpin(block)
        last = ("unregister", begin)
    assert [call for call in cuda.calls if call[0] != "device"] == [
        ("register", begin, 10000, 0),
        last,
    ]


def test_each_device_has_its_operations(cuda: StandIn) -> None:
    hardware._cuda.cache_clear()
    try:
        gpu = make_hardware(GPU)
        assert isinstance(gpu, CudaHardware)
        # One stream for all loaders of a process.
        assert make_hardware(GPU) is gpu
    finally:
        hardware._cuda.cache_clear()
    plain = make_hardware(torch.device("mps"))
    assert isinstance(plain, Hardware)
    assert not isinstance(plain, CudaHardware)
    assert hardware.is_elsewhere(GPU)
    assert hardware.is_elsewhere(plain.device)
    assert not hardware.is_elsewhere(torch.device("cpu"))


def test_a_device_without_streams_copies_at_once() -> None:
    plain = Hardware(torch.device("cpu"))
    block = np.arange(4, dtype=np.uint8)
    target = plain.allocate(4)
    plain.pin(block)
    assert plain.copy(torch.from_numpy(block), target, None) is None
    assert target.tolist() == [0, 1, 2, 3]
    assert plain.mark() is None
    for call in (plain.follow, plain.wait, plain.release):
        call(None)
    plain.settle()
    plain.unpin(block)
