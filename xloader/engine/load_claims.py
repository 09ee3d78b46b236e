"""Records of loads: blocks that are loaded together, and the chunks that one thread decodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from xloader.engine.block_reader import Bundle
from xloader.engine.block_table import LoadedBlock
from xloader.engine.job import OpenBatch
from xloader.sources.base import Outcome
from xloader.sources.retries import Attempts

NOTHING = Outcome(num_missing=0, num_requests=0)
"""The outcome of a read that was not carried out."""


class Done(NamedTuple):
    """The result of decoding one bundle.

    Parameters
    ----------
    outcome : Outcome
        Counts of absent chunks and requests, as the source gives them.
    attempts : Attempts
        The attempts at the read.
    held_nbytes : int
        Bytes that were fetched ahead for the bundle and held until it was decoded.
    seconds : float
        Time that the thread spent on it.
    """

    outcome: Outcome
    attempts: Attempts
    held_nbytes: int = 0
    seconds: float = 0.0


class Load:
    """Blocks of one group that are loaded together.

    The same row is the first to need them. Or each of them is a row, and takes no other memory. The
    bundles may be listed before the blocks have memory, or after.

    Parameters
    ----------
    blocks : list of LoadedBlock
        The blocks.
    open_batch : OpenBatch
        The batch of the rows.

    Attributes
    ----------
    bundles : list of Bundle
        The chunks to read; empty until they are listed.
    has_memory : bool
        Whether the blocks have memory to be decoded into.
    """

    def __init__(self, blocks: list[LoadedBlock], open_batch: OpenBatch) -> None:
        self.blocks = blocks
        self.open_batch = open_batch
        self.bundles: list[Bundle] = []
        self.has_memory = False


@dataclass(eq=False)
class Claim:
    """Bundles that one thread decodes one after the other.

    Parameters
    ----------
    claimed : list of (Load, Bundle)
        The bundles, each with its load.
    flight_nbytes : int
        Bytes that are counted as in flight while the thread reads them.
    done : list of Done
        The results so far. The bundle at index ``len(done)`` is being decoded.
    """

    claimed: list[tuple[Load, Bundle]]
    flight_nbytes: int
    done: list[Done] = field(default_factory=list)
