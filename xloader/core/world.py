"""Which of how many training processes this is: a value, and the one place that looks it up."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from xloader.errors import OptionError


@dataclass(frozen=True)
class World:
    """One rank among ``world_size``.

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
        if self.world_size < 1:
            raise OptionError(
                "the world size is too small",
                given=self.world_size,
                allowed="a whole number >= 1",
                remedy="pass the number of processes that train together",
            )
        if not 0 <= self.rank < self.world_size:
            raise OptionError(
                "the rank is out of range",
                given=self.rank,
                allowed=f"[0, {self.world_size})",
                remedy="ranks count from 0; pass rank and world_size of one and the same launch",
            )


def resolve_world(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> World:
    """Find this process's rank: told, or from ``torch.distributed``, or from the environment.

    The first of these that speaks is believed: the arguments; ``torch.distributed`` where it is
    imported and initialised; ``RANK`` and ``WORLD_SIZE``, or on the first node ``LOCAL_RANK``
    in the place of ``RANK``; a task of an ``srun`` step, by ``SLURM_PROCID`` and
    ``SLURM_STEP_NUM_TASKS``; else one process alone.

    Parameters
    ----------
    rank, world_size : int, optional
        Given together or not at all.
    environ : mapping of str to str, optional
        Environment to look into, ``os.environ`` by default.

    Returns
    -------
    World
        The rank and the world size.

    Raises
    ------
    OptionError
        If one of two values that belong together is missing or out of range.

    Examples
    --------
    >>> resolve_world(environ={"RANK": "2", "WORLD_SIZE": "8"})
    World(rank=2, world_size=8)
    """
    return find_world(rank, world_size, environ=environ) or World()


def find_world(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> World | None:
    """As `resolve_world`, but None where nobody says that there are several processes.

    Raises
    ------
    OptionError
        As `resolve_world` does.

    Examples
    --------
    >>> find_world(environ={}), find_world(0, 1)
    (None, World(rank=0, world_size=1))
    """
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise OptionError(
                "rank and world_size belong together",
                given=f"rank={rank}, world_size={world_size}",
                allowed="both or neither",
                remedy="pass the missing one",
            )
        return World(rank, world_size)
    found = _from_torch()
    if found is not None:
        return found
    environ = os.environ if environ is None else environ
    is_first_node = environ.get("NODE_RANK") == "0" and "LOCAL_RANK" in environ
    if "RANK" not in environ and "WORLD_SIZE" in environ and is_first_node:
        # Lightning starts the ranks of a node so, and leaves RANK to the process group.
        return World(_read(environ, "LOCAL_RANK"), _read(environ, "WORLD_SIZE"))
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return World(_read(environ, "RANK"), _read(environ, "WORLD_SIZE"))
    # A batch script sees SLURM_NTASKS as well, though it runs once: only srun sets the step's.
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        return World(_read(environ, "SLURM_PROCID"), _read(environ, "SLURM_STEP_NUM_TASKS"))
    return None


def _from_torch() -> World | None:
    # Looked up and never imported: a process group cannot be initialised before the import.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return World(distributed.get_rank(), distributed.get_world_size())


def _read(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    try:
        return int(text or "")
    except ValueError:
        raise OptionError(
            f"the environment variable {name} is not a whole number",
            given="nothing" if text is None else repr(text),
            allowed="RANK with WORLD_SIZE, or SLURM_PROCID with SLURM_STEP_NUM_TASKS",
            remedy=f"set {name}, unset its partner, or pass rank= and world_size=",
        ) from None
