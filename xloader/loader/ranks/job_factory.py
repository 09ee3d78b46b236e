"""The jobs of one process: which part of an epoch it carries out, with which memory and readers.

The memory is kept from job to job, and with it the chunks that stay loaded between epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.output_dtypes import convert_floats
from xloader.core.packing import Packing
from xloader.engine.assembly import EngineParts, count_callers, count_threads, stored_variables
from xloader.engine.batch_finish import BatchFinish, unconverted, untransformed
from xloader.engine.block_reader import BlockReader
from xloader.engine.block_table import BlockTable
from xloader.engine.buffers import Arrays, BatchPool, BlockPool, Fields, MakeMemory
from xloader.engine.executor import Executor
from xloader.engine.fetches_ahead import MOST_REQUESTS
from xloader.engine.job import Job
from xloader.engine.native_executor import NativeBlocks, NativeExecutor
from xloader.engine.plain_executor import PlainBlocks, PlainExecutor
from xloader.engine.program import Program
from xloader.engine.program_run import ProgramJob, ProgramRun
from xloader.engine.run import Run
from xloader.engine.step_needs import Walker
from xloader.engine.tables import Tables, fits_tables, is_there
from xloader.errors import MemoryBudgetError
from xloader.loader.batches.device_path import DevicePath
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.order.step_dealer import LOOK_SIZE
from xloader.planning.epoch import Epoch, Lane
from xloader.planning.mixing import Regions
from xloader.planning.remainder import Remainder
from xloader.transforms.apply_steps import finish
from xloader.transforms.packed_fields import PackedField, normalized_packings, stored_layouts
from xloader.transforms.rng import Chance

if TYPE_CHECKING:
    from xloader.planning.explain import Explanation

_MOST_TRAY_NBYTES = 4 << 20
"""Batches are gathered together as long as they take no more than this."""

_FEWEST_NBYTES = 512
"""Samples of fewer bytes, such as series of single pixels, are made without a program: from memory,
the program took 1.2 times as long."""

_MOST_ANNOUNCED = 512
"""Blocks that are known before they are loaded, where a cluster computes them."""

_MOST_IN_TRAY = 4
"""Most batches that are gathered together. More cost hardly less Python for each of them."""


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


def explain_ranks(
    rank_plan: RankPlan, left: Epoch | Remainder, scope: Literal["world"]
) -> Explanation:
    """Predict what all ranks together will read, with the chunks that several of them read."""
    from xloader.planning.explain import shared_blocks

    expected = rank_plan.explain(left, scope)
    blocks = shared_blocks(left, rank_plan.processes(scope))
    return replace(expected, shared_chunks=name_chunks(rank_plan, blocks))


@dataclass(frozen=True)
class Share:
    """The part of a rank's work that one process does."""

    num_lanes: int
    num_rows: int
    num_processes: int = 1
    make_memory: MakeMemory | None = None

    @classmethod
    def whole(cls, rank_plan: RankPlan) -> Share:
        """All the work of a rank, or of one of the workers that make its batches in turn."""
        return cls(len(rank_plan.sublanes()), rank_plan.batch_size)


class JobFactory:
    """Maker of the jobs of one process, which use the same memory one after the other."""

    def __init__(
        self,
        rank_plan: RankPlan,
        *,
        num_ready: int,
        num_cores: int,
        packed_fields: Sequence[PackedField] = (),
        device_path: DevicePath | None = None,
        share: Share | None = None,
        sample_names: SampleNames | None = None,
    ) -> None:
        self.rank_plan = rank_plan
        self._sample_names = sample_names
        self._share = share or Share.whole(rank_plan)
        self._num_ready = num_ready
        self._num_cores = num_cores
        self._device_path = device_path
        self._layouts = stored_layouts(rank_plan.layouts, packed_fields)
        as_stored = {field.name for field in packed_fields}
        self._unpacked_layouts = tuple(x for x in rank_plan.layouts if x.name not in as_stored)
        self._nan_counts = {field.name: field.count_nans for field in packed_fields}
        output_dtype = rank_plan.options.output_dtype
        self._convert: Callable[[Arrays], Arrays] = partial(
            convert_floats,
            output_dtype=output_dtype,
            # Arrays of the user's functions may still be in use.
            is_own=not rank_plan.recipe.is_mapped,
            left_out=as_stored,
        )
        if output_dtype is None:
            self._convert = unconverted
        self._normalized = normalized_packings(rank_plan.recipe, self._unpacked_layouts)
        self._packings: dict[str, Packing | None] = {
            **self._normalized,
            **{
                piece.variable: None
                for layout in rank_plan.layouts
                if layout.name in as_stored
                for piece in layout.parts
            },
        }
        ways = rank_plan.ways
        in_flight = rank_plan.plan.budget.in_flight_nbytes
        # Threads may read some variables while others are fetched ahead: each way gets half.
        self._in_flight_nbytes = in_flight // self._share.num_processes // len(ways)
        self._num_callers = num_cores
        if self._convert is unconverted:
            self._num_callers = count_callers(rank_plan.recipe, rank_plan.footprint, num_cores)
        self._num_threads = count_threads(
            rank_plan.footprint, self._in_flight_nbytes, self._num_callers
        )
        self._num_spare = 0 if any(ways) else self._count_spare()
        self._block_table: BlockTable | None = None
        self.pool: BlockPool
        self.renew()

    @property
    def is_foreign(self) -> bool:
        """Whether the process was forked since: blocks that were being loaded never arrive."""
        return os.getpid() != self._pid

    def loaded(self) -> set[tuple[int, int]]:
        """Set of the blocks in memory from earlier epochs, as (group, block)."""
        if self._is_spoilt:
            self.renew()
        if self._blocks is not None:
            return set(self._blocks.kept)
        # The set is a copy, as a run under way may load more blocks meanwhile.
        return set() if self._block_table is None else self._block_table.loaded()

    def renew(self) -> None:
        """Start with new memory, none of it in use."""
        self._pid = os.getpid()
        self._block_table = None
        rank_plan = self.rank_plan
        self.pool = BlockPool(rank_plan.plan.pool_nbytes(self._share.num_lanes))
        self._make_memory = self._share.make_memory
        if self._device_path is not None and not rank_plan.recipe.is_mapped:
            self._make_memory = self._device_path.make_memory(rank_plan.num_steps)
        self._fields: Fields | None = None
        self._blocks: NativeBlocks | PlainBlocks | None = None

    @property
    def _is_spoilt(self) -> bool:
        """Whether a thread of an ended run may still write to the memory."""
        return self.pool.is_spoilt or (self._blocks is not None and self._blocks.is_spoilt)

    def clear(self) -> None:
        """Release all memory. Reports of earlier epochs still count it."""
        self.pool.clear()
        if self._blocks is not None:
            self._blocks.drop()
        self.renew()

    def run(self, epoch: Epoch | Remainder, numbers: Sequence[int]) -> Run | ProgramRun:
        """Make the run of this process's part of an epoch."""
        if self._tables is not None:
            return ProgramRun(self._program_job(epoch, numbers, self._tables))
        return Run(self.job(epoch, numbers))

    def _lanes(self, epoch: Epoch | Remainder, numbers: Sequence[int]) -> tuple[list[Lane], int]:
        """The lanes of a part of an epoch, and the most bytes of their blocks at a time."""
        if self._is_spoilt:
            self.renew()
        plan, lanes = self.rank_plan.plan, epoch.lanes(numbers)
        peak = sum(lane.schedule.peak_nbytes for lane in lanes)
        if peak > self.pool.capacity and not plan.is_resident:
            # Plans prevent this. If one did not, the run would wait for room forever.
            raise MemoryBudgetError(
                f"epoch {epoch.epoch} needs more chunks at a time than its plan has room for",
                given=f"{peak} bytes of chunks",
                minimum_nbytes=plan.budget.minimum_nbytes(peak),
            )
        return lanes, peak

    def job(self, epoch: Epoch | Remainder, numbers: Sequence[int]) -> Job:
        """Make the job for this process's part of an epoch, for the engine without programs."""
        lanes, peak = self._lanes(epoch, numbers)
        rank_plan = self.rank_plan
        options, plan, footprint = rank_plan.options, rank_plan.plan, rank_plan.footprint
        # If an epoch loads less than may be in flight, its plan counts only what it loads.
        num_spare = self._num_spare if peak >= self._in_flight_nbytes else 0
        tray_size, num_ahead = self._tray_counts(num_spare)
        fields = self._fields_of(tray_size, num_ahead + 2)
        # At most ``num_spare``.
        num_lent = (num_ahead + 2) * tray_size - (self._num_ready + 2)
        engine_parts = self._parts(
            fields,
            self._num_callers,
            num_lent * plan.budget.batch_nbytes,
            self._num_cores - self._num_callers,
        )
        walker = Walker(
            footprint,
            engine_parts.gatherer.accesses,
            lanes,
            plan.lane_share,
            epoch.sublanes.num_steps_of(numbers[0]),
            is_resident=plan.is_resident,
            # With several ranks, no process sees a whole global batch.
            regions=None if options.world.world_size > 1 else Regions(footprint),
            tray_size=tray_size,
        )
        block_table = self._block_table or BlockTable(
            footprint.groups, [len(n.blocks) for n in walker.groups]
        )
        if plan.is_resident:
            self._block_table = block_table
        return Job(
            walker=walker,
            parts=engine_parts,
            finish=self._finish(epoch.epoch),
            last_size=rank_plan.rows.last_size if rank_plan.rows.num_padding() else 0,
            num_trays_ahead=num_ahead,
            pool=self.pool,
            block_table=block_table,
            is_resident=plan.is_resident,
            on_error=options.on_error,
            outbox=None if self._device_path is None else self._device_path.outbox(),
            has_visits=plan.pace.visits > 1,
        )

    @cached_property
    def _tables(self) -> Tables | None:
        """The tables of programs; None where the earlier engine makes the batches."""
        rank_plan = self.rank_plan
        if self._share.make_memory is not None or not self._share.num_rows:
            return None
        if not self._suits_programs():
            return None
        # Any memory shows how fields lie in a batch; that of a device would be pinned for it.
        parts = self._parts(Fields(self._layouts, self._share.num_rows, 2), 1)
        if not fits_tables(rank_plan.footprint, parts):
            return None
        source = rank_plan.recipe.source
        return Tables(parts, source, is_resident=rank_plan.plan.is_resident)

    def _suits_programs(self) -> bool:
        """Whether programs are the faster way: they are with large rows."""
        least_nbytes = _FEWEST_NBYTES * self._share.num_rows
        return is_there() and self.rank_plan.plan.budget.batch_nbytes >= least_nbytes

    def _program_job(
        self, epoch: Epoch | Remainder, numbers: Sequence[int], tables: Tables
    ) -> ProgramJob:
        """Make the job for this process's part of an epoch, as a program."""
        lanes, peak = self._lanes(epoch, numbers)
        rank_plan, most = self.rank_plan, self._in_flight_nbytes
        plan, options = rank_plan.plan, rank_plan.options
        num_threads = count_threads(rank_plan.footprint, most, self._num_cores)
        chunk_nbytes = rank_plan.footprint.max_chunk_nbytes
        num_spare = 0
        # If an epoch loads less than may be in flight, its plan counts only what it loads.
        # And what Python reads may take all of it.
        is_spare = peak >= most and tables.is_native and not plan.is_resident
        if is_spare and self._num_ready and self._make_memory is None:
            spare_nbytes = most - num_threads * chunk_nbytes
            num_spare = min(spare_nbytes // plan.budget.batch_nbytes, 2 * num_threads)
        num_ahead = self._num_ready + num_spare
        fields = self._fields_of(1, num_ahead + 2)
        parts = self._parts(fields, self._num_cores)
        num_known = 2 * num_threads
        if parts.reader.is_waiting:
            num_known = _MOST_ANNOUNCED if parts.reader.announced_variables else 2 * MOST_REQUESTS
        if self._blocks is None:
            make_blocks = NativeBlocks if is_there() else PlainBlocks
            self._blocks = make_blocks(plan.pool_nbytes(self._share.num_lanes), tables)
        blocks = self._blocks
        scratch_nbytes = tables.scratch_nbytes(chunk_nbytes, self._num_cores)
        outbox = None if self._device_path is None else self._device_path.outbox()
        # Of a ring of slots, all memory counts, used or not.
        batch_nbytes = fields.nbytes_of(1) - fields.nbytes_of(0)

        def make_executor(slots: dict[int, list[NDArray[Any]]]) -> Executor:
            """Make the executor of the run that has these slots."""
            if isinstance(blocks, PlainBlocks):
                return PlainExecutor(
                    blocks,
                    parts,
                    batch_nbytes=batch_nbytes,
                    num_threads=num_threads,
                    num_known=num_known,
                    slots=slots,
                )
            return NativeExecutor(
                blocks,
                batch_nbytes=batch_nbytes,
                in_flight_nbytes=most - num_spare * plan.budget.batch_nbytes,
                most_chunk_nbytes=chunk_nbytes,
                num_threads=self._num_cores,
                num_held=1,
                num_known=num_known,
                most_scratch=max(1, scratch_nbytes // chunk_nbytes),
            )

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
            regions=None if options.world.world_size > 1 else Regions(rank_plan.footprint),
            kept=blocks.kept,
        )
        finish = self._finish(epoch.epoch)
        is_changed = finish.transform is not untransformed or finish.convert is not unconverted
        is_busy = is_changed or bool(parts.borders) or not tables.is_native or outbox is not None
        num_hands = num_threads if isinstance(blocks, PlainBlocks) or is_busy else 1
        return ProgramJob(
            program=program,
            parts=parts,
            tables=tables,
            finish=finish,
            last_size=rank_plan.rows.last_size if rank_plan.rows.num_padding() else 0,
            num_ahead=num_ahead,
            blocks=blocks,
            make_executor=make_executor,
            num_threads=num_threads,
            num_hands=num_hands,
            on_error=options.on_error,
            outbox=outbox,
            most_fetched_nbytes=most - scratch_nbytes,
        )

    def _parts(
        self, fields: Fields, num_cores: int, lent_nbytes: int = 0, num_helpers: int = 0
    ) -> EngineParts:
        """The parts that read and copy, for batches in some memory."""
        recipe, options = self.rank_plan.recipe, self.rank_plan.options
        return EngineParts.of(
            recipe,
            self._layouts,
            self.rank_plan.footprint,
            fields,
            self._in_flight_nbytes,
            num_cores,
            recipe.retry_policy.but(options.read_timeout, options.max_retries),
            self._packings,
            lent_nbytes,
            num_helpers,
        )

    def _fields_of(self, tray_size: int, num_trays: int) -> Fields:
        """The memory of batches, for trays of this size and as many as are in memory at a time.

        Beside those under way, the user holds one. The memory of other trays is released, unless
        an earlier iterator still uses it.
        """
        fields = self._fields
        if fields is None or (fields.tray_size, fields.num_trays) != (tray_size, num_trays):
            rows, make_memory = self._share.num_rows, self._make_memory or BatchPool
            fields = self._fields = Fields(self._layouts, rows, num_trays, make_memory, tray_size)
        return fields

    def _tray_counts(self, num_spare: int) -> tuple[int, int]:
        """How many small batches are gathered together, and how many such trays are made ahead.

        A tray costs little more Python than a batch. And with more batches to gather, threads wait
        less for each other. But no more than twice as many trays are made ahead as batches were
        asked for. And the more threads there are, the more of the memory they need for blocks.
        """
        num_planned = self._num_ready + 2
        num_batches = num_planned + 2 * num_spare // self._num_threads
        sizes = (
            _MOST_IN_TRAY,
            num_batches // (num_planned + 1),
            _MOST_TRAY_NBYTES // max(self.rank_plan.plan.budget.batch_nbytes, 1),
            LOOK_SIZE // max(self._share.num_rows, 1),
        )
        size = min(sizes)
        if size < 2 or not self._num_ready:
            return 1, self._num_ready + min(self._num_ready, num_spare)
        return size, self._num_ready + min(self._num_ready, num_batches // size - num_planned)

    def _count_spare(self) -> int:
        """Number of batches that fit in memory for bytes in flight that nothing uses.

        All memory together stays what the plan says.
        """
        plan, most = self.rank_plan.plan, self._in_flight_nbytes
        is_plain = self._share.make_memory is None and self._device_path is None
        if not is_plain or plan.is_resident or self._num_threads < 2:
            return 0
        spare_nbytes = most - self._num_threads * self.rank_plan.footprint.max_chunk_nbytes
        return spare_nbytes // 2 // plan.budget.batch_nbytes

    def _finish(self, epoch: int) -> BatchFinish:
        """The steps between a gathered batch of an epoch and a delivered one."""
        recipe, options = self.rank_plan.recipe, self.rank_plan.options
        names = self._sample_names
        if names is not None:
            recipe = names.recipe

        def transform(arrays: Arrays, ids: Ints, occurrences: Ints | None = None, /) -> Arrays:
            """Run the transforms of the recipe."""
            chance, normalized = Chance(options.seed, epoch, occurrences), self._normalized.keys()
            if names is not None:
                ids = names.of(ids)
            return finish(recipe, self._unpacked_layouts, arrays, ids, chance, normalized)

        is_plain = not (recipe.steps or recipe.label_columns)
        return BatchFinish(
            untransformed if is_plain else transform,
            self._convert,
            options.on_nan,
            self._nan_counts,
        )
