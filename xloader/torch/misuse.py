"""Habits of other loaders that would go wrong here, told before they do."""

from __future__ import annotations

import sys
from typing import Any

from xloader.errors import OptionError, RanksError
from xloader.recipe.recipe import Recipe
from xloader.samples.unplanned import is_fetcher


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
    if is_fetcher(frame) and frame.f_locals.get("auto_collation"):
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
    fetcher = frame.f_locals.get("self") if is_fetcher(frame) else None
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


_DEALERS = ("BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher")


def refuse_dealing_twice(what: str) -> None:
    """Raise where accelerate deals out what is dealt out already.

    accelerate gives each of several processes every so-manieth batch of any ``DataLoader``, which
    here holds the share of its own rank: most samples would never come. Batches of a stream it
    hands out from its first process, also where that is the only one, and takes them apart for it.

    Parameters
    ----------
    what : str
        What is iterated over.

    Raises
    ------
    RanksError
        If what deals out batches in accelerate asks for it.
    """
    state = sys.modules.get("accelerate.state")
    frame = sys._getframe(1) if state is not None else None
    while frame is not None:
        is_accelerate = frame.f_globals.get("__name__") == "accelerate.data_loader"
        if is_accelerate and frame.f_code.co_qualname.startswith(_DEALERS):
            raise RanksError(
                f"accelerate would deal out the batches of {what} once more",
                given=f"a DataLoader over {what}, passed to accelerator.prepare()",
                allowed="what is no DataLoader: accelerate leaves it as it is",
                remedy="iterate over samples.loader(...), which deals by ranks itself, "
                "or leave the DataLoader out of prepare()",
            )
        frame = frame.f_back
