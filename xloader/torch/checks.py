"""Habits of other loaders that would go wrong here, told before they do."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from xloader.errors import OptionError, UnplannedWarning
from xloader.nans import OnNan
from xloader.option_checks import check_choice
from xloader.recipe import Recipe
from xloader.telling import warn_caller

_TORCH_DATA = "torch.utils.data."

_has_warned = False
"""Whether this process was told of samples without a plan."""


def require_samples(samples: Any, door: str) -> None:
    """Refuse what are no samples: datasets of PyTorch, of xarray, paths.

    Raises
    ------
    OptionError
        With how samples are made of what was given.
    """
    if isinstance(getattr(samples, "recipe", None), Recipe):
        return
    remedy = "pass xloader.open(...).window(...), or ds.xloader.window(...)"
    if hasattr(samples, "indices") and hasattr(samples, "dataset"):
        remedy = "pass samples.select(subset.indices)"
    elif hasattr(samples, "samples"):
        remedy = "pass the dataset's samples, as in dataset.samples"
    raise OptionError(
        f"{door} takes samples",
        given=f"{type(samples).__module__}.{type(samples).__name__}",
        allowed="xloader.Samples",
        remedy=remedy,
    )


def check_on_nan(on_nan: Any) -> OnNan:
    """What is to be done about NaN, where there is no report to count it in.

    Raises
    ------
    OptionError
        If it is none of the choices, or ``"count"``.

    Examples
    --------
    >>> check_on_nan("raise")
    'raise'
    """
    if on_nan == "count":
        raise OptionError(
            "there is no report here in which NaN could be counted",
            given='on_nan="count"',
            allowed='"warn", "raise" or "ignore"',
            remedy="use samples.loader(...), which has report().num_nan",
        )
    check_choice("on_nan", on_nan, ("warn", "raise", "ignore"))
    checked: OnNan = on_nan
    return checked


def refuse_batches_of_batches() -> None:
    """Raise where a ``DataLoader`` is about to make batches of whole batches.

    Raises
    ------
    OptionError
        With what to pass to the ``DataLoader``.
    """
    frame = sys._getframe(2)
    if _is_fetcher(frame) and frame.f_locals.get("auto_collation"):
        raise OptionError(
            "a DataLoader would make batches of whole batches",
            given="an IterableDataset of batches, and a DataLoader with a batch_size",
            allowed="DataLoader(dataset, batch_size=None): the dataset makes the batches",
            remedy="pass batch_size=None to the DataLoader, or to the dataset for single samples",
        )


def collate_by_default(default: Any, collate: Any) -> None:
    """Have a ``DataLoader`` that was given no ``collate_fn`` use another than PyTorch's own.

    With ``batch_size=None``, PyTorch's own takes a batch, which is a tuple, apart into a list:
    names and ids would be lost. Called where the ``DataLoader`` asks a dataset for its iterator.

    Parameters
    ----------
    default : callable
        PyTorch's own, ``default_convert``.
    collate : callable
        What takes its place.
    """
    frame = sys._getframe(2)
    # A dataset of the user's around ours may give other things than batches: its frame is none.
    fetcher = frame.f_locals.get("self") if _is_fetcher(frame) else None
    if fetcher is not None and getattr(fetcher, "collate_fn", None) is default:
        fetcher.collate_fn = collate


def warn_of_no_plan() -> None:
    """Say once that a ``DataLoader`` takes items of samples themselves, if one does.

    Called where samples are read one by one, and costs nothing beside that. PyTorch is not
    imported: its code is recognised on the call stack.
    """
    global _has_warned
    frame: FrameType | None = sys._getframe(2)
    # By way of a Subset as well; but an item that was only looked at is no epoch.
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_TORCH_DATA):
        if _is_fetcher(frame):
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


def _is_fetcher(frame: FrameType) -> bool:
    """Whether code runs there with which a ``DataLoader`` gets items of a dataset."""
    return frame.f_globals.get("__name__") == f"{_TORCH_DATA}_utils.fetch"


def refuse_state(kind: str, name: str, remedy: str) -> AttributeError:
    """What is raised for a state asked of what does not know how far the training loop is.

    Parameters
    ----------
    kind : str
        What was asked.
    name : str
        Attribute that was asked for.
    remedy : str
    """
    if name not in ("state_dict", "load_state_dict"):
        return AttributeError(f"{kind!r} object has no attribute {name!r}")
    return AttributeError(
        f"{kind} has no {name}: a DataLoader runs ahead of the training loop, so it does not know "
        f"which batches were trained on. To mend it: {remedy}, or use torchdata's "
        "StatefulDataLoader or samples.loader(), which count"
    )
