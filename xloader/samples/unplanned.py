"""Warns where a PyTorch DataLoader reads samples one by one, without a plan."""

from __future__ import annotations

import sys
from types import FrameType

from xloader.core.messages import warn_caller
from xloader.errors import UnplannedWarning

_TORCH_DATA = "torch.utils.data."


_has_warned = False
"""Whether this process was told of samples without a plan."""


def warn_of_no_plan() -> None:
    """Say once that a ``DataLoader`` takes items of samples themselves, if one does.

    Called where samples are read one by one, and costs nothing beside that. PyTorch is not
    imported: its code is recognised on the call stack.
    """
    global _has_warned
    frame: FrameType | None = sys._getframe(2)
    # By way of a Subset as well; but an item that was only looked at is no epoch.
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_TORCH_DATA):
        if is_fetcher(frame):
            break
        frame = frame.f_back
    else:
        return
    if _has_warned:
        return
    _has_warned = True
    worker = sys.modules["torch.utils.data"].get_worker_info()
    if worker is None or worker.id == 0:
        warn_caller(
            "a DataLoader takes these samples one by one, and each of them reads its chunks anew: "
            "iterate over samples.loader(...), or over xloader.torch.data_loader(samples, ...) "
            "where a DataLoader is needed; with a sampler of your own, pass "
            "xloader.torch.MapDataset(samples)",
            UnplannedWarning,
        )


def is_fetcher(frame: FrameType) -> bool:
    """Whether code runs there with which a ``DataLoader`` gets items of a dataset."""
    return frame.f_globals.get("__name__") == f"{_TORCH_DATA}_utils.fetch"
