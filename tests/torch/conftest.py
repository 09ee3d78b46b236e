"""Settings of the tests of PyTorch's doors."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short_waits_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch waits for each worker of a loop that has failed, by default for five seconds."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 1.0)
