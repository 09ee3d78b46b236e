"""What a run is given, what it counts, and what it has under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.engine.blocks import BlockReader
from xloader.engine.gather import Gatherer, Views
from xloader.engine.pool import BatchPool, BlockPool, Buffer
from xloader.engine.steps import Key, Need, Step
from xloader.grid import Ints

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class FieldShape:
    """The array of one field, as gathered."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Job:
    """What a run carries out.

    Parameters
    ----------
    steps : iterator of Step
    num_steps : int
        How many steps that gives.
    fields : tuple of FieldShape
    reader : BlockReader
    gatherer : Gatherer
    finish : callable
        Takes gathered arrays and ids, gives what is delivered. Runs on the workers.
    batch_size : int
        Rows of a full batch.
    is_padded : bool
        Whether short batches are filled up with their last row.
    prefetch : int
        Batches that are filled or wait for delivery while the consumer is busy.
    num_threads, num_gatherers : int
        Threads, and how many of them may gather at a time.
    pool : BlockPool
    batches : BatchPool
    kept : dict
        Blocks that stay from run to run; used only where the pool holds the whole selection.
    is_resident : bool
    fixed_nbytes : int
        Bytes beside the pool: batches and reads in flight.
    """

    steps: Iterator[Step]
    num_steps: int
    fields: tuple[FieldShape, ...]
    reader: BlockReader
    gatherer: Gatherer
    finish: Callable[[Arrays, Ints], Arrays]
    batch_size: int
    is_padded: bool
    prefetch: int
    num_threads: int
    num_gatherers: int
    pool: BlockPool
    batches: BatchPool
    kept: dict[Key, Block]
    is_resident: bool
    fixed_nbytes: int


@dataclass
class Tally:
    """What a run has done so far."""

    num_reads: int = 0
    read_nbytes: int = 0
    num_missing: int = 0
    num_requests: int = 0
    load_seconds: float = 0.0
    gather_seconds: float = 0.0
    finish_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Delivery:
    """A batch as the engine hands it over."""

    index: int
    arrays: Arrays
    ids: Ints
    is_padding: NDArray[np.bool_]


@dataclass(eq=False)
class Block:
    """A residence under way: its memory, and who waits for it."""

    need: Need
    num_left: int
    buffer: Buffer | None = None
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    num_reads_left: int = -1
    error: BaseException | None = None
    waiting: list[tuple[Filling, Ints]] = field(default_factory=list)

    @property
    def is_loaded(self) -> bool:
        """Whether its rows can be gathered."""
        return self.num_reads_left == 0


@dataclass(eq=False)
class Filling:
    """A batch under way, and what it waits for."""

    step: Step
    num_missing: int
    arrays: Arrays | None = None
    views: Views = field(default_factory=dict)
    pending: list[tuple[Block, Ints]] = field(default_factory=list)
    is_final: bool = False
    is_finishing: bool = False
    error: BaseException | None = None
