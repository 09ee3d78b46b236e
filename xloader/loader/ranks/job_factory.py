"""The jobs of one process: which part of an epoch it carries out, with which memory and readers.

The memory is kept from job to job, and with it the chunks that stay loaded between epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from xloader.engine.assembly import EngineParts, count_threads, stored_variables
from xloader.engine.block_reader import BlockReader
from xloader.engine.buffers import BatchPool, Fields, MakeMemory
from xloader.engine.fetches_ahead import MOST_REQUESTS
from xloader.engine.finishes import BatchFinish, Finisher
from xloader.engine.native_executor import BlockMemory
from xloader.engine.program import Program
from xloader.engine.run import Job, Run, make_blocks
from xloader.engine.tables import Tables
from xloader.errors import MemoryBudgetError
from xloader.loader.batches.device_path import DevicePath
from xloader.loader.ranks.finishing import Finishing
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.planning.epoch import Epoch, Remainder
from xloader.planning.mixing import Regions

if TYPE_CHECKING:
    from xloader.planning.explain import Explanation

MakeFinisher = Callable[[BatchFinish, int], Finisher]
"""Makes the finisher of the batches of an epoch, from what this process would do and its number."""


def name_chunks(
    rank_plan: RankPlan, blocks: Sequence[tuple[int, int]]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The chunks of some blocks, by variable and index."""
    footprint, recipe = rank_plan.footprint, rank_plan.recipe
    reader = BlockReader(recipe.source, stored_variables(recipe, footprint), 1)
    chunks = []
    for number, group in enumerate(footprint.groups):
        group_blocks = [block for index, block in blocks if index == number]
        indices = np.unravel_index(np.array(group_blocks, np.int64), group.shape)
        places = zip(*(along.tolist() for along in indices), strict=True)
        for bundle in reader.bundles(group, list(places)):
            if not bundle.is_computed:
                chunks += [(read.variable, read.chunk) for read in bundle.reads]
    return tuple(sorted(chunks))


def explain_ranks(rank_plan: RankPlan, left: Epoch | Remainder) -> Explanation:
    """Predict what all ranks together will read, with the chunks that several of them read."""
    from xloader.planning.explain import shared_blocks

    expected = rank_plan.explain(left, "world")
    blocks = shared_blocks(left, rank_plan.processes("world"))
    return replace(expected, shared_chunks=name_chunks(rank_plan, blocks))


class JobFactory:
    """Maker of the jobs of one process, which use the same memory one after the other."""

    # `Engine` overrides `loaded` and `clear`, which also look after its processes: `run`, for which
    # the engine has prepared them, must call neither.

    def __init__(
        self,
        rank_plan: RankPlan,
        finishing: Finishing,
        num_ready: int,
        num_cores: int,
        *,
        device_path: DevicePath | None = None,
        make_memory: MakeMemory | None = None,
    ) -> None:
        self.rank_plan = rank_plan
        self._finishing = finishing
        self._num_ready = num_ready
        self._num_cores = num_cores
        self._device_path = device_path
        self._given_memory = make_memory
        self._make_finisher: MakeFinisher | None = None
        # Threads may read some variables while others are fetched ahead: each way gets half.
        in_flight_nbytes = rank_plan.plan.budget.in_flight_nbytes
        self._in_flight_nbytes = in_flight_nbytes // len(rank_plan.ways)
        self.renew()

    @property
    def is_foreign(self) -> bool:
        """Whether the process was forked since: blocks that were being loaded never arrive."""
        return os.getpid() != self._pid

    def loaded(self) -> set[tuple[int, int]]:
        """Set of the blocks in memory from earlier epochs, as (group, block)."""
        if self.is_spoilt:
            self.renew()
        return set() if self._blocks is None else set(self._blocks.kept)

    def renew(self) -> None:
        """Start with new memory, none of it in use."""
        self._pid = os.getpid()
        self._fields: Fields | None = None
        self._blocks: BlockMemory | None = None

    def use(self, make_memory: MakeMemory | None, make_finisher: MakeFinisher | None) -> None:
        """Have others finish the batches, in memory that they share; None for this process."""
        self._given_memory, self._make_finisher = make_memory, make_finisher
        self.renew()

    @property
    def is_spoilt(self) -> bool:
        """Whether a thread of an ended run may still write to the memory."""
        return self._blocks is not None and self._blocks.is_spoilt

    def clear(self) -> None:
        """Release all memory. Reports of earlier epochs still count it."""
        if self._blocks is not None:
            self._blocks.drop()
        self.renew()

    @cached_property
    def _tables(self) -> Tables:
        # Any memory shows how fields lie in a batch; that of a device would be pinned for it.
        parts = self._parts(self._fields_in(BatchPool, 2))
        plan, source = self.rank_plan.plan, self.rank_plan.recipe.source
        return Tables(parts, source, is_resident=plan.is_resident)

    def run(self, epoch: Epoch | Remainder, numbers: Sequence[int]) -> Run:
        """Make the run of this process's part of an epoch."""
        if self.is_spoilt:
            self.renew()
        rank_plan, tables, most = self.rank_plan, self._tables, self._in_flight_nbytes
        plan, options, lanes = rank_plan.plan, rank_plan.options, epoch.lanes(numbers)
        pool_nbytes = plan.pool_nbytes(len(rank_plan.sublanes()))
        # The most bytes of blocks at a time.
        peak = sum(lane.schedule.peak_nbytes for lane in lanes)
        if peak > pool_nbytes and not plan.is_resident:
            # Plans prevent this. If one did not, the run would wait for room forever.
            raise MemoryBudgetError(
                f"epoch {epoch.epoch} needs more chunks at a time than its plan has room for",
                given=f"{peak} bytes of chunks",
                minimum_nbytes=plan.budget.minimum_nbytes(peak),
            )
        num_threads = count_threads(rank_plan.footprint, most, self._num_cores)
        num_spare = 0
        # The maker of the memory of batches; None for ordinary memory.
        make_memory = self._given_memory
        if make_memory is None and self._device_path is not None and not rank_plan.recipe.is_mapped:
            make_memory = self._device_path.make_memory(rank_plan.num_steps)
        # If an epoch loads less than may be in flight, its plan counts only what it loads.
        # And what Python reads may take all of it.
        is_spare = peak >= most and tables.is_native and not plan.is_resident
        if is_spare and self._num_ready and make_memory is None:
            spare_nbytes = most - num_threads * rank_plan.footprint.max_chunk_nbytes
            num_spare = min(spare_nbytes // plan.budget.batch_nbytes, 2 * num_threads)
        num_ahead = self._num_ready + num_spare
        if self._fields is None or self._fields.num_batches != num_ahead + 2:
            # Beside those under way, the user holds one.
            self._fields = self._fields_in(make_memory or BatchPool, num_ahead + 2)
        fields = self._fields
        parts = self._parts(fields)
        num_known = 2 * (MOST_REQUESTS if parts.reader.is_waiting else num_threads)
        if self._blocks is None:
            self._blocks = make_blocks(parts, tables, pool_nbytes)
        blocks = self._blocks
        outbox = None if self._device_path is None else self._device_path.outbox()
        program = Program(
            parts,
            tables,
            lanes,
            plan.lane_share,
            epoch.sublanes.num_steps_of(numbers[0]),
            is_resident=plan.is_resident,
            # With visits, the other blocks of one would never be freed. And blocks that are fetched
            # together may belong to batches that are not open at the same time.
            may_use_rows=plan.pace.visits == 1 and not parts.reader.is_waiting,
            regions=None if options.ranks.world_size > 1 else Regions(rank_plan.footprint),
            kept=blocks.kept,
        )
        finish = self._finishing.of_epoch(epoch.epoch)
        is_native = blocks.is_native and tables.is_native and finish.is_plain
        num_hands = num_threads
        if is_native and not parts.borders and outbox is None:
            num_hands = 1
        finisher: Finisher = finish
        if self._make_finisher is not None:
            # Some wait for a process, while others make segments and read.
            num_hands += num_ahead + 1
            finisher = self._make_finisher(finish, epoch.epoch)
        job = Job(
            program=program,
            parts=parts,
            tables=tables,
            finisher=finisher,
            blocks=blocks,
            num_cores=self._num_cores,
            num_hands=num_hands,
            last_size=rank_plan.last_size if rank_plan.num_padding() else 0,
            num_ahead=num_ahead,
            spare_nbytes=num_spare * plan.budget.batch_nbytes,
            # Of a ring of slots, all memory counts, used or not.
            batch_nbytes=fields.memory.nbytes_of(1) - fields.memory.nbytes_of(0),
            num_held=1,
            num_known=num_known,
            on_error=options.on_error,
            outbox=outbox,
        )
        return Run(job)

    def _parts(self, fields: Fields) -> EngineParts:
        """The parts that read and copy, for batches in some memory."""
        recipe = self.rank_plan.recipe
        return EngineParts.of(
            recipe,
            self._finishing.layouts,
            self.rank_plan.footprint,
            fields,
            self._in_flight_nbytes,
            self._num_cores,
            recipe.retry_policy,
            self._finishing.packings,
        )

    def _fields_in(self, make_memory: MakeMemory, num_batches: int) -> Fields:
        """The fields of so many batches."""
        rank_plan = self.rank_plan
        num_rows, room_nbytes = rank_plan.slot_rows, rank_plan.room_nbytes
        return Fields(self._finishing.layouts, num_rows, num_batches, make_memory, room_nbytes)
