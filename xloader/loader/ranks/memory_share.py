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
import json
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from xloader.core.cores import MemoryLimit, find_memory_limit
from xloader.core.nbytes import MemoryShare
from xloader.core.options import LoaderOptions
from xloader.core.ranks import World, resolve_world
from xloader.errors import OptionError, RanksError
from xloader.loader.ranks.rank_plan import describe_samples
from xloader.recipe.recipe import Recipe

_REMEDY: Final = 'pass memory= in bytes, such as memory="8GiB", on all ranks'

_Maker = tuple[LoaderOptions, Sequence[Recipe]]

_taken: Final = weakref.WeakValueDictionary[int, MemoryShare]()
"""The shares of this process that live, by their `id`."""


def take_share(options: LoaderOptions, recipes: Sequence[Recipe]) -> LoaderOptions:
    """Copy of the options with the largest share that is left, where ``memory`` is left out.

    A loader of the same samples and plan has the same share: it is most often one made again.
    """
    if options.memory is not None:
        return options
    maker = options, recipes
    if _others(maker):
        # Which loaders are left must not depend on when Python last looked for cycles.
        gc.collect()
    others, parts = _others(maker), 2
    while f"1/{parts}" in others:
        parts *= 2
    share = MemoryShare(f"1/{parts}")
    share.maker = maker
    _taken[id(share)] = share
    return replace(options, memory=share)


def give_back(options: LoaderOptions) -> None:
    """Leave the share of these options to other loaders."""
    if isinstance(options.memory, MemoryShare):
        _taken.pop(id(options.memory), None)


def _others(maker: _Maker) -> set[str]:
    """The shares of loaders of other samples, or with another plan."""
    return {str(share) for share in list(_taken.values()) if not _are_alike(maker, share.maker)}


def _are_alike(maker: _Maker, other: _Maker) -> bool:
    """Whether two loaders have the same samples, and the same options that a plan depends on."""
    names = "batch_size", "shuffle", "drop_last", "prefetch", "plan", "world"
    (options, recipes), (others, other_recipes) = maker, other
    return all(getattr(options, name) == getattr(others, name) for name in names) and (
        [describe_samples(recipe) for recipe in recipes]
        == [describe_samples(recipe) for recipe in other_recipes]
    )


def memory_limit(
    options: LoaderOptions, world: World, store: Any, *, waits: bool = True
) -> MemoryLimit | None:
    """The limit of which the memory is a share; None if the options say the bytes.

    Ranks with a process group agree on the one that leaves a rank least, through its `store`. Each
    rank writes its own down when it makes a loader, so that few of them wait when they use it.
    """
    if options.memory_nbytes:
        return None
    try:
        num_processes = resolve_world().world_size
    except OptionError:
        num_processes = 1
    limit = find_memory_limit(max(num_processes, world.world_size))
    if world.world_size == 1:
        return replace(limit, is_common=True)
    if store is None or options.world is not None:
        return limit
    keys = [f"xloader/memory/{rank}" for rank in range(world.world_size)]
    try:
        store.set(keys[world.rank], json.dumps(asdict(limit)))
    except RuntimeError:
        # Some stores keep no values, such as that of a dry run: there is no other rank.
        return replace(limit, is_common=True)
    if not waits:
        return limit
    try:
        store.wait(keys)
    except RuntimeError as error:
        raise RanksError(
            "the other ranks have not said how much memory they have: without memory=, all ranks "
            "make the same loaders",
            given=f"rank {world.rank} of {world.world_size}, {error}",
            remedy=f"{_REMEDY}; pass world=xloader.World() to a loader that only one rank uses",
        ) from error
    limits = [MemoryLimit(**json.loads(text)) for text in store.multi_get(keys)]
    return replace(min(limits, key=lambda each: each.part_nbytes), is_common=True)


def with_memory(options: LoaderOptions) -> LoaderOptions:
    """Copy of the options with the bytes that this machine says, for what no other rank takes."""
    return options.with_memory(memory_limit(options, options.ranks, None, waits=False))


def require_common(limit: MemoryLimit | None, world: World, *, is_capped: bool) -> None:
    """Refuse memory that other ranks may have less or more of, if the order depends on it."""
    if limit is None or limit.is_common or is_capped:
        return
    raise RanksError(
        "memory= is needed: these ranks may be on several machines, with more or less memory, and "
        "there is no process group through which they could agree",
        given=f"rank {world.rank} of {world.world_size}, and data that do not all fit",
        remedy=f"{_REMEDY}, or begin with torch.distributed.init_process_group",
    )
