"""The memory of worker processes is pinned once, read by the device, and unpinned in time."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import xarray as xr

import xloader
from tests.device.fake_hardware import FakeHardware, HastyHardware, LateHardware
from xloader.compiled.library import address_of
from xloader.errors import ClosedError, EnvironmentWarning, TransformError, WorkersError
from xloader.testing import write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which memory is mapped"),
]

UseDevice = Callable[[FakeHardware], FakeHardware]

GUARD = 60.0
"""Seconds after which waiting for another thread fails."""


class RegisterHardware(FakeHardware):
    """Notes each registered block, and whether it is mapped when it is unregistered."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: list[tuple[int, int]] = []
        self.was_mapped: list[bool] = []
        self.sources: set[int] = set()

    def pin(self, block: Any) -> None:
        super().pin(block)
        self.registered.append((address_of(block), block.nbytes))

    def unpin(self, block: Any) -> None:
        super().unpin(block)
        self.was_mapped.append(is_shared(address_of(block)))

    def copy(self, source: Any, target: Any, after: Any) -> Any:
        self.sources.add(source.data_ptr())
        return super().copy(source, target, after)


class RefusingHardware(FakeHardware):
    """Refuses shared memory, as a low limit on locked memory does, and pins all other."""

    def __init__(self) -> None:
        super().__init__()
        self.num_refused = 0

    def pin(self, block: Any) -> None:
        if is_shared(address_of(block)):
            self.num_refused += 1
            raise RuntimeError("cudaHostRegister refused 4096 bytes: error 2\nmore")
        super().pin(block)


def is_shared(address: int) -> bool:
    """Whether memory that processes share is mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(text, 16) for text in line.split()[0].split("-"))
        if begin <= address < end:
            return "memfd:xloader" in line
    return False


def make_loader(num: int = 200, **options: Any) -> xloader.Loader:
    ids = np.arange(num)
    values = ids[:, None].repeat(16, 1)
    packed = ("time", (-2 * ids).astype("i2"), {"scale_factor": 0.5})
    ds = xr.Dataset({"t": (("time", "x"), values.astype("f4")), "k": packed})
    samples = xloader.open(write_store(ds, {"t": (8, 16), "k": (8,)})).window(time=1)
    both = samples.field("t", "t").field("k", "k")
    change = options.pop("change", lambda samples: samples)
    return change(both).loader(**{"batch_size": 4, "device": "cpu", "processes": 2, **options})


def is_right(batch: xloader.Batch) -> bool:
    return all(
        (batch[name].cpu().numpy().reshape(len(batch.ids), -1) == values[:, None]).all()
        for name, values in {"t": batch.ids, "k": -batch.ids}.items()
    )


def pids_of(loader: xloader.Loader) -> list[int]:
    return list(loader._carried.pids)  # type: ignore[union-attr]


def slot_nbytes_of(loader: xloader.Loader) -> int:
    """Bytes of each of the slots that processes share."""
    slots: Any = loader._carried._fields.memory  # type: ignore[union-attr]
    return int(slots._layout.nbytes)


def assert_given_back(hardware: RegisterHardware, num_blocks: int = 1) -> None:
    """All that was registered was unregistered while it was mapped, and is mapped no more."""
    assert hardware.pinned == []
    assert len(hardware.registered) == num_blocks
    assert hardware.was_mapped == [True] * num_blocks
    gc.collect()
    assert not any(is_shared(address) for address, _ in hardware.registered)


def test_the_block_is_registered_once(use_device: UseDevice) -> None:
    hardware = RegisterHardware()
    use_device(hardware)
    with make_loader(prefetch=2) as loader:
        expected = loader.explain()
        assert hardware.registered == []
        for _ in range(3):
            assert all(map(is_right, loader))
        ((address, nbytes),) = hardware.registered
        assert nbytes == 3 * slot_nbytes_of(loader)
        assert address % os.sysconf("SC_PAGESIZE") == 0
        # All batches crossed from there, and not from other pinned memory.
        assert all(address <= source < address + nbytes for source in hardware.sources)
        assert nbytes <= loader.report().peak_nbytes <= expected.peak_nbytes
        assert loader.report().pinning_refusal == ""
    assert_given_back(hardware)


def double(ds: xr.Dataset) -> xr.Dataset:
    return ds * 2


def widen(ds: xr.Dataset) -> xr.Dataset:
    return ds.astype("f8")


@pytest.mark.parametrize("change", [double, widen])
def test_results_of_functions_cross_from_there_too(change: Any, use_device: UseDevice) -> None:
    hardware = RegisterHardware()
    use_device(hardware)
    with make_loader(change=lambda samples: samples.map(change)) as loader:
        for batch in loader:
            factor = 2 if change is double else 1
            assert (batch["k"].numpy().ravel() == -batch.ids * factor).all()
        assert len(hardware.registered) == 1
        # A slot has room for what functions return; only the fields need memory of the device.
        assert max(one.numel() for one in hardware.staged) < slot_nbytes_of(loader) / 2
    assert_given_back(hardware)


def fail(ds: xr.Dataset) -> xr.Dataset:
    if ds.sizes["sample"] > 1:
        raise ZeroDivisionError
    return ds


def test_errors_that_are_kept_keep_no_slot(use_device: UseDevice) -> None:
    use_device(RegisterHardware())
    with make_loader(change=lambda samples: samples.map(fail)) as loader:
        kept = []
        for _ in range(6):
            with pytest.raises(TransformError) as raised:
                next(iter(loader))
            kept.append(raised)


def leave(loader: xloader.Loader, act: Callable[[], Any]) -> None:
    """Act in the middle of a loop, which ends the loop by an exception."""
    with loader:
        for _ in loader:
            act()


def leave_by_an_exception(loader: xloader.Loader) -> None:
    with pytest.raises(StopIteration):
        leave(loader, lambda: next(iter(())))


def leave_by_an_interrupt(loader: xloader.Loader) -> None:
    with pytest.raises(KeyboardInterrupt):
        leave(loader, lambda: signal.raise_signal(signal.SIGINT))


def leave_by_a_killed_process(loader: xloader.Loader) -> None:
    def kill() -> None:
        # Batches that were finished before it died still come.
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pids_of(loader)[0]).kill()

    with pytest.raises(WorkersError, match="SIGKILL"):
        leave(loader, kill)


def drop(loader: xloader.Loader) -> None:
    iterator = iter(loader)
    next(iterator)


def close_with_an_iterator(loader: xloader.Loader) -> None:
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert not loader.device_path._hardware().pinned  # type: ignore[union-attr]
    with pytest.raises(ClosedError):
        next(iterator)


@pytest.mark.parametrize(
    "end",
    [
        leave_by_an_exception,
        leave_by_an_interrupt,
        leave_by_a_killed_process,
        drop,
        close_with_an_iterator,
    ],
)
def test_it_is_unregistered_however_a_loop_ends(end: Any, use_device: UseDevice) -> None:
    hardware = RegisterHardware()
    use_device(hardware)
    end(make_loader(2000))
    gc.collect()
    assert_given_back(hardware)


def test_new_processes_have_their_memory_registered(use_device: UseDevice) -> None:
    hardware = RegisterHardware()
    use_device(hardware)
    with make_loader() as loader:
        iterator = iter(loader)
        next(iterator)
        (pid, _) = pids_of(loader)
        process = psutil.Process(pid)
        process.kill()
        psutil.wait_procs([process], GUARD)
        with pytest.raises(WorkersError):
            list(iterator)
        assert all(map(is_right, loader))
        assert len(hardware.pinned) == 1
    assert_given_back(hardware, 2)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_latest_copies_are_whole(prefetch: int, use_device: UseDevice) -> None:
    """A slot is free when its copy is done, and not before."""
    use_device(LateHardware(50, prefetch))
    with make_loader(prefetch=prefetch) as loader:
        assert all(map(is_right, loader))


def test_a_slot_that_is_used_again_too_early_is_noticed(use_device: UseDevice) -> None:
    """The same check fails if nothing waits for a copy before its slot is granted again."""

    def is_noticed() -> bool:
        use_device(HastyHardware(50, 2))
        with make_loader(prefetch=2) as loader:
            return not all(map(is_right, loader))

    # A worker process may write into a slot later than the late copy reads it.
    assert any(is_noticed() for _ in range(20))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_wait_for_the_consumer(prefetch: int, use_device: UseDevice) -> None:
    """However slow it is, no more than ``prefetch + 1`` batches are made ahead."""
    hardware = use_device(FakeHardware())
    with make_loader(prefetch=prefetch) as loader:
        for number, _ in enumerate(loader, 1):
            enough = min(number + prefetch, len(loader))
            until = time.monotonic() + GUARD
            while hardware.num_copies < enough and time.monotonic() < until:
                time.sleep(0.001)
            assert enough <= hardware.num_copies <= number + prefetch + 1
    assert len(hardware.staged) <= prefetch + 2


def test_memory_that_is_refused_is_staged(use_device: UseDevice) -> None:
    hardware = RefusingHardware()
    use_device(hardware)
    with make_loader() as loader:
        told_before = loader.explain().transfer
        assert told_before.endswith(
            "from the memory of the processes, which is pinned when they start"
        )
        with pytest.warns(EnvironmentWarning, match=r"error 2\). The memory is that of") as told:
            assert all(map(is_right, loader))
        assert len([one for one in told if one.category is EnvironmentWarning]) == 1
        # Neither asked nor told again.
        assert all(map(is_right, loader))
        assert hardware.num_refused == 1
        told_after = loader.explain().transfer
        assert told_after.endswith(
            "which could not be pinned (cudaHostRegister refused 4096 bytes: error 2)"
        )
        # One batch at a time passes through other memory.
        assert len(hardware.pinned) == 1
        assert hardware.pinned[0].nbytes <= slot_nbytes_of(loader)
    report = loader.report()
    assert report.pinning_refusal == "cudaHostRegister refused 4096 bytes: error 2"
    assert str(report).count("error 2") == 1
    assert hardware.pinned == []


@pytest.mark.filterwarnings("error::xloader.errors.EnvironmentWarning")
def test_a_refusal_that_is_an_error(use_device: UseDevice) -> None:
    hardware = use_device(RefusingHardware())
    with make_loader() as loader:
        for _ in range(2):
            with pytest.raises(EnvironmentWarning):
                next(iter(loader))
            assert pids_of(loader) == []
    assert hardware.pinned == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_reads_the_memory_of_processes() -> None:
    with make_loader(device="cuda") as loader:
        for _ in range(2):
            kept = list(loader)
            assert all(map(is_right, kept))
        assert loader.report().pinning_refusal == ""
