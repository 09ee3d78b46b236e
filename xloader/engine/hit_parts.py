"""The hits of open trays, in parts that are gathered together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xloader.engine.open_trays import OpenTray
from xloader.engine.overlaps import Chosen, Hits


@dataclass(frozen=True, eq=False, slots=True)
class WantedHits:
    """The hits of one tray, group and access, and where their blocks are.

    Parameters
    ----------
    tray : OpenTray
        The tray.
    group, access : int
        Indices of the group, and of the access within it.
    hits : Hits
        Which rows take which parts of blocks.
    slots : numpy.ndarray of int32, shape (n,)
        Per hit, the slot of its block.
    """

    tray: OpenTray
    group: int
    access: int
    hits: Hits
    slots: NDArray[np.int32]


@dataclass(frozen=True, eq=False, slots=True)
class HitPart:
    """Some of these hits, which are gathered together.

    Parameters
    ----------
    wanted : WantedHits
        The hits.
    chosen : slice or numpy.ndarray of int64
        Which of them.
    size : int
        Their number.
    """

    wanted: WantedHits
    chosen: Chosen
    size: int


def join_parts(parts: list[HitPart]) -> list[HitPart]:
    """Make one part of those that follow each other and belong to the same hits."""
    joined: list[HitPart] = []
    for wanted, group in itertools.groupby(parts, key=lambda part: part.wanted):
        own = list(group)
        if len(own) == 1 or isinstance(own[0].chosen, slice):
            joined.extend(own)
            continue
        chosen = np.concatenate([part.chosen for part in own if not isinstance(part.chosen, slice)])
        joined.append(HitPart(wanted, chosen, len(chosen)))
    return joined
