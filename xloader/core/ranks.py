"""Rank and world size of this training process, and the only code that looks them up."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from xloader.core.option_checks import MOST, check_whole
from xloader.errors import OptionError


@dataclass(frozen=True)
class World:
    """Rank of this process, and number of processes that train together.

    Parameters
    ----------
    rank : int
        Number of this process, in ``[0, world_size)``.
    world_size : int
        Number of processes that share an epoch.

    Raises
    ------
    OptionError
        If ``world_size`` is below 1, or ``rank`` lies outside ``[0, world_size)``.

    Examples
    --------
    >>> World(rank=1, world_size=4)
    World(rank=1, world_size=4)
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        size = check_whole("world_size", self.world_size, 1, MOST)
        object.__setattr__(self, "world_size", size)
        object.__setattr__(self, "rank", check_whole("rank", self.rank, -MOST, MOST))
        if not 0 <= self.rank < self.world_size:
            raise OptionError(
                "the rank is out of range",
                given=self.rank,
                allowed=f"[0, {self.world_size})",
                remedy="count ranks from 0, and pass rank and world_size of the same launch",
            )


def resolve_world(given: World | None = None, *, environ: Mapping[str, str] | None = None) -> World:
    """Find the rank and the world size of this process.

    The first of these sources that gives a rank is used:

    1. the argument,
    2. ``torch.distributed``, if it is imported and initialised,
    3. the environment variables ``RANK`` and ``WORLD_SIZE``; if ``RANK`` is not set and
       ``NODE_RANK`` is 0, ``LOCAL_RANK`` instead of it,
    4. ``SLURM_PROCID`` and ``SLURM_STEP_NUM_TASKS``, which ``srun`` sets for its tasks.

    If there is none, the process trains alone: rank 0 of 1.
    """
    return find_world(given, environ=environ) or World()


def find_world(
    given: World | None = None, *, environ: Mapping[str, str] | None = None
) -> World | None:
    """Find the rank and the world size as `resolve_world` does, or None if no source has them."""
    if given is not None:
        return given
    # Not imported here: if the user has not imported it, no process group is initialised.
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        return World(distributed.get_rank(), distributed.get_world_size())
    environ = os.environ if environ is None else environ
    is_first_node = environ.get("NODE_RANK") == "0" and "LOCAL_RANK" in environ
    if "RANK" not in environ and "WORLD_SIZE" in environ and is_first_node:
        # Lightning sets these for the ranks that it starts; the process group sets RANK later.
        return World(_read(environ, "LOCAL_RANK"), _read(environ, "WORLD_SIZE"))
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return World(_read(environ, "RANK"), _read(environ, "WORLD_SIZE"))
    # Not SLURM_NTASKS: a batch script sees it too, though it runs once. Only srun sets these.
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        return World(_read(environ, "SLURM_PROCID"), _read(environ, "SLURM_STEP_NUM_TASKS"))
    return None


def _read(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    try:
        return int(text or "")
    except ValueError:
        raise OptionError(
            f"the environment variable {name} is not a whole number",
            given="nothing" if text is None else repr(text),
            allowed="RANK with WORLD_SIZE, or SLURM_PROCID with SLURM_STEP_NUM_TASKS",
            remedy=f"set {name}, unset the other one of the pair, or pass "
            "world=xloader.World(rank, world_size)",
        ) from None
