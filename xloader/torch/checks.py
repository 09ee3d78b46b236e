"""Habits of other loaders that would go wrong here, told before they do."""

from __future__ import annotations

import sys
from typing import Any

from xloader.errors import OptionError
from xloader.recipe.recipe import Recipe
from xloader.samples.unplanned import _is_fetcher


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
