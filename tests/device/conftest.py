"""Loaders that take ordinary memory for a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.device.fake_hardware import FakeHardware
from xloader.device import transfer


@pytest.fixture
def use_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeHardware], FakeHardware]:
    """Let ``device="cpu"`` stand for a device of its own from now on."""

    def use(hardware: FakeHardware) -> FakeHardware:
        monkeypatch.setattr(transfer, "is_elsewhere", lambda device: True)

        def make(device: torch.device) -> FakeHardware:
            hardware.device = device
            return hardware

        monkeypatch.setattr(transfer, "make_hardware", make)
        return hardware

    return use
