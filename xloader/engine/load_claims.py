"""Records of loads: blocks that are loaded together, and the chunks that one thread decodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from xloader.engine.block_memory import BlockMemory
from xloader.engine.block_reader import Bundle
from xloader.engine.block_table import LoadedBlock
from xloader.engine.job import Job
from xloader.engine.open_trays import OpenTray
from xloader.engine.tally import Tally
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

    def add_to(self, tally: Tally, bundle: Bundle) -> None:
        """Count the reads of the bundle, its requests and the time that they took."""
        tally.add_reads([] if bundle.is_computed else bundle.reads)
        tally.num_missing += self.outcome.num_missing
        # If the source makes requests without `Attempts`, it counts them itself.
        tally.num_requests += bundle.num_requests or self.outcome.num_requests
        # If the bundle was not fetched ahead, the source gives the time that it waited.
        inside = 0.0 if bundle.is_waiting else self.outcome.fetch_seconds
        tally.fetch_seconds += inside
        tally.decode_seconds += self.seconds - inside
        if bundle.is_waiting:
            tally.num_ahead += 1
            tally.ahead_nbytes += bundle.nbytes
            tally.ahead_seconds += bundle.fetch_seconds


class Load:
    """Blocks of one group that are loaded together.

    The same row is the first to need them. Or each of them is a row, and takes no other memory. The
    bundles may be listed before the blocks have memory, or after.

    Parameters
    ----------
    blocks : list of LoadedBlock
        The blocks.
    tray : OpenTray
        The tray of the rows.

    Attributes
    ----------
    bundles : list of Bundle
        The chunks to read; empty until they are listed.
    has_memory : bool
        Whether the blocks have memory to be decoded into.
    """

    def __init__(self, blocks: list[LoadedBlock], tray: OpenTray) -> None:
        self.blocks = blocks
        self.tray = tray
        self.bundles: list[Bundle] = []
        self.has_memory = False

    def take_memory(self, job: Job, memory: BlockMemory) -> bool:
        """Give the blocks memory, from the pool or in the rows of the batch.

        Parameters
        ----------
        job : Job
            The work of the run, with the pool.
        memory : BlockMemory
            Says whether there is room.

        Returns
        -------
        bool
            Whether there was enough. Otherwise nothing was taken.
        """
        parts, places = job.parts, self.tray.places
        pooled = [block for block in self.blocks if not block.is_row]
        if len(pooled) < len(self.blocks) and not self.tray.is_open:
            return False
        group = parts.footprint.groups[self.blocks[0].begin.group]
        layouts = [parts.reader.layout(group, block.begin.block) for block in pooled]
        if not memory.has_room(sum(layout.nbytes for layout in layouts)):
            return False
        for block, layout in zip(pooled, layouts, strict=True):
            block.buffer = job.pool.take(layout.nbytes)
            block.places = layout.slots(block.buffer)
        for block in self.blocks:
            if block.is_row:
                block.places = parts.gatherer.rows_of(block.begin.group, places, block.begin.row)
        self.has_memory = True
        return True


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
