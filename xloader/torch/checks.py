"""Habits of other loaders that would go wrong here, told before they do."""

from __future__ import annotations

import sys
from typing import Any

from xloader.errors import OptionError
from xloader.nans import OnNan
from xloader.options import check_choice
from xloader.recipe import Recipe


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
    is_fetcher = frame.f_globals.get("__name__") == "torch.utils.data._utils.fetch"
    if is_fetcher and frame.f_locals.get("auto_collation"):
        raise OptionError(
            "a DataLoader would make batches of whole batches",
            given="an IterableDataset of batches, and a DataLoader with a batch_size",
            allowed="DataLoader(dataset, batch_size=None): the dataset makes the batches",
            remedy="pass batch_size=None to the DataLoader, or to the dataset for single samples",
        )


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
