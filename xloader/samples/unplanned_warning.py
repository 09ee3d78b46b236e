"""A warning where a PyTorch DataLoader reads samples one by one, without a plan."""

from __future__ import annotations

import sys
from types import FrameType

from xloader.core.messages import warn_caller
from xloader.errors import UnplannedWarning

_TORCH_DATA = "torch.utils.data."


_has_warned = False
"""Whether this process has given the warning already."""


def warn_of_no_plan() -> None:
    """Warn once in a process if a ``DataLoader`` reads samples one by one.

    It is called at each read of ``samples[...]``, and takes little time beside the read. PyTorch
    is not imported: its code is recognised by the module names on the call stack.
    """
    global _has_warned
    frame: FrameType | None = sys._getframe(2)
    # torch's Subset may lie between; a Subset that is indexed by hand gives no warning.
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
            "a DataLoader reads these samples one by one, and each sample reads its chunks again: "
            "iterate over samples.loader(...); if you need a DataLoader, use "
            "xloader.torch.data_loader(samples, ...); if you use your own sampler, pass "
            "xloader.torch.MapDataset(samples) to the DataLoader",
            UnplannedWarning,
        )


def is_fetcher(frame: FrameType) -> bool:
    """Whether a frame runs the code with which a ``DataLoader`` gets items of a dataset."""
    return frame.f_globals.get("__name__") == f"{_TORCH_DATA}_utils.fetch"
