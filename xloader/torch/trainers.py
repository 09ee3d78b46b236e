"""Whoever deals our batches out once more among ranks is told so, before it does harm."""

from __future__ import annotations

import sys

from xloader.errors import RanksError

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
