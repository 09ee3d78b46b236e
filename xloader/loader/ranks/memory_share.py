"""The memory of loaders that are not given any: a share of what their rank may take.

::

    limit   of a machine: its physical memory, or what its control group or Slurm allow
    part    of a rank: the limit, divided by the ranks of the machine
    share   of a loader: half of the part for the first one, 1/4 for the second, 1/8 for the third
    taken   the share, down to a power of two; or what all data need, if that is less

None of these depends on what is free at a time, so the order of samples does not either.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from xloader.core.nbytes import MemoryShare
from xloader.core.options import LoaderOptions
from xloader.recipe.recipe import Recipe

_PLANNED: Final = attrgetter("batch_size", "shuffle", "drop_last", "prefetch", "plan", "world")

_taken: Final = weakref.WeakValueDictionary[int, MemoryShare]()
"""The shares of this process that live, by their `id`."""


def take_share(options: LoaderOptions, recipes: Sequence[Recipe]) -> LoaderOptions:
    """Copy of the options with the largest share that is left, where ``memory`` is left out.

    A loader of the same samples and plan has the same share: it is most often one made again.
    """
    if options.memory is not None:
        return options
    if _taken:
        # Which loaders are left must not depend on when Python last looked for cycles.
        gc.collect()
    maker, parts = (options, recipes), 2
    others = {str(s) for s in list(_taken.values()) if _key(s.maker) != _key(maker)}
    while f"1/{parts}" in others:
        parts *= 2
    share = MemoryShare(f"1/{parts}")
    share.maker = maker
    return replace(options, memory=share)


def hold_share(options: LoaderOptions) -> None:
    """Keep other loaders from these options' share, once it is known that they can be planned."""
    share = options.memory
    if isinstance(share, MemoryShare) and share.maker is not None:
        _taken[id(share)] = share


def give_back(options: LoaderOptions) -> None:
    """Leave the share of these options to other loaders."""
    _taken.pop(id(options.memory), None)


def _key(maker: tuple[LoaderOptions, Sequence[Recipe]]) -> tuple[object, ...]:
    """The samples of a loader, and the options that its plan depends on."""
    return _PLANNED(maker[0]), [(each.source.name, each.fingerprint) for each in maker[1]]
