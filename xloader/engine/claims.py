"""What loads are made of: blocks that begin together, and what one thread decodes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from xloader.engine.block_reader import Bundle
from xloader.engine.block_table import LoadedBlock
from xloader.engine.job import OpenBatch
from xloader.sources.attempts import Attempts
from xloader.sources.base import Outcome

NOTHING = Outcome(num_missing=0, num_requests=0)


class Done(NamedTuple):
    """What came of a bundle, the bytes that were held for it, and how long it took."""

    outcome: Outcome
    attempts: Attempts
    held_nbytes: int = 0
    seconds: float = 0.0


class Load:
    """Blocks that begin together: their memory and their bundles, whichever come first."""

    def __init__(self, blocks: list[LoadedBlock], open_batch: OpenBatch) -> None:
        self.blocks = blocks
        self.open_batch = open_batch
        self.bundles: list[Bundle] = []
        self.has_memory = False


@dataclass(eq=False)
class Claim:
    """Chunks that one thread decodes, and what has come of those before the present one."""

    claimed: list[tuple[Load, Bundle]]
    flight_nbytes: int
    done: list[Done] = field(default_factory=list)
