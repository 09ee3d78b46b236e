"""Checks for uses that other loaders allow and that would give wrong batches here."""

from __future__ import annotations

import sys
from typing import Any

from xloader.errors import OptionError, RanksError
from xloader.recipe.recipe import Recipe
from xloader.samples.describe import is_fetcher


def require_samples(samples: Any, door: str) -> None:
    """Check that an argument is `Samples`, and not a dataset of PyTorch or xarray, or a path."""
    if isinstance(getattr(samples, "recipe", None), Recipe):
        return
    from xloader.samples.interleave import Interleaved

    remedy = "pass xloader.open(...).window(...), or ds.xloader.window(...)"
    if hasattr(samples, "indices") and hasattr(samples, "dataset"):
        remedy = "pass samples.select(subset.indices)"
    elif isinstance(samples, Interleaved):
        remedy = "iterate over .loader(...) of the sets together, perhaps with processes="
    elif hasattr(samples, "samples"):
        remedy = "pass the dataset's samples, as in dataset.samples"
    raise OptionError(
        f"{door} takes xloader.Samples only",
        given=f"{type(samples).__module__}.{type(samples).__name__}",
        remedy=remedy,
    )


def check_fetcher(default: Any, collate: Any) -> None:
    """Refuse a ``DataLoader`` that makes batches of whole batches; replace its default collate.

    The default collate function turns a batch, which is a tuple, into a list, and its names and ids
    are lost, so ours takes its place in the ``DataLoader`` that asks a dataset for its iterator.
    """
    frame = sys._getframe(2)
    # A user's dataset around ours may yield values other than batches. Then the calling frame is
    # that dataset's and not the DataLoader's, and the default stays.
    if not is_fetcher(frame):
        return
    if frame.f_locals.get("auto_collation"):
        raise OptionError(
            "a DataLoader would make batches of batches",
            given="an IterableDataset of batches, and a DataLoader with a batch_size",
            remedy="pass batch_size=None to the DataLoader, or to the dataset for single samples",
        )
    fetcher = frame.f_locals.get("self")
    if fetcher is not None and getattr(fetcher, "collate_fn", None) is default:
        fetcher.collate_fn = collate


def refuse_state(door: str, name: str, remedy: str) -> AttributeError:
    """Make the error for an attribute that a dataset or sampler lacks, such as ``state_dict``.

    A dataset or sampler has no state, because it does not know how far the training loop is.
    """
    if name not in ("state_dict", "load_state_dict"):
        return AttributeError(f"{door!r} object has no attribute {name!r}")
    return AttributeError(
        f"{door} has no {name}: a DataLoader runs ahead of the training loop, so it does not know "
        f"which batches were trained on. To mend it: {remedy}, or use torchdata's "
        "StatefulDataLoader or samples.loader(), which count the batches"
    )


_DEALERS = ("BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher")


def refuse_dealing_twice(what: str) -> None:
    """Raise an error if accelerate is about to divide among ranks what is divided already.

    With several processes, accelerate gives each of them every n-th batch of any ``DataLoader``.
    Here the ``DataLoader`` holds only the batches of its own rank, so most samples would never be
    delivered.
    """
    state = sys.modules.get("accelerate.state")
    frame = sys._getframe(1) if state is not None else None
    while frame is not None:
        is_accelerate = frame.f_globals.get("__name__") == "accelerate.data_loader"
        if is_accelerate and frame.f_code.co_qualname.startswith(_DEALERS):
            raise RanksError(
                f"accelerate would divide the batches of {what} among ranks a second time",
                given=f"a DataLoader over {what}, passed to accelerator.prepare()",
                remedy="iterate over samples.loader(...), which divides samples among ranks "
                "itself, or leave the DataLoader out of prepare()",
            )
        frame = frame.f_back
