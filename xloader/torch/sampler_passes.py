"""The iterations of a `ChunkSampler`, batch by batch or id by id, and their positions.

The first id of each batch carries a step tag, which tells a worker the step, epoch and plan that
the batch belongs to. The list carries none: a ``DataLoader`` puts ids into lists of its own.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import length_hint
from typing import Any, Literal

import numpy as np

from xloader.core.options import LoaderOptions
from xloader.loader.ranks.cursor import Cursor, Position
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.ranks.rank_resolver import RankResolver
from xloader.order.step_dealer import deal_ids
from xloader.planning.epoch import Epoch, Remainder
from xloader.planning.explain import Cached, Explanation, touched_blocks
from xloader.planning.plan import Plan
from xloader.torch.lent_slots import MORE_SLOTS


@dataclass(frozen=True)
class PlanTag:
    """Plan and options that a sampler and the workers of its rank must have in common."""

    options: LoaderOptions
    plan: Plan
    fingerprint: str


@dataclass(frozen=True)
class StepTag:
    """Identification of one step of one pass over an epoch."""

    plan_tag: PlanTag
    epoch: int
    step: int
    pass_number: int
    num_rows: int
    checksum: int

    def is_of(self, ids: Sequence[int]) -> bool:
        """Whether a list holds exactly the ids of the step, in their order."""
        return len(ids) == self.num_rows and _checksum(ids) == self.checksum


class FirstId(int):
    """The first sample id of a step: an int that carries the step tag into any list of ids."""

    step_tag: StepTag


def step_tag_of(ids: Sequence[int]) -> StepTag | None:
    """The step tag that the first of some ids carries; None if there is none.

    `StepTag.is_of` tells whether the list is the one that the tag was made for.
    """
    return getattr(ids[0], "step_tag", None) if ids else None


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(np.asarray(ids, np.int64).tobytes())


class Passes:
    """The passes of one sampler, one iteration each."""

    def __init__(self, resolver: RankResolver, num_workers: int, *, is_lasting: bool) -> None:
        self.resolver = resolver
        self.cursor = Cursor(resolver.options.shuffle)
        self._num_workers = num_workers
        self._is_lasting = is_lasting
        # The plan's worker whose step the last pass began with. If a pass begins with another's,
        # a worker's steps go to another process, which lacks the chunks kept for them.
        self._shift = 0
        self._kept: list[set[tuple[int, int]]] = []
        self._forget()

    def adopt(self, state: Mapping[str, Any]) -> Position:
        """Take over the plan and the seed of a state, and return its position."""
        rank_plan = self.resolver.rank_plan
        position = self.resolver.load(state, is_within_batch=True)
        if self.resolver.rank_plan is not rank_plan or self._num_workers:
            # A DataLoader that loads a state starts new workers, which keep no chunks.
            self._forget()
        self.cursor.load(position, self.resolver.rank_plan.num_steps)
        return position

    def explain(self, scope: Literal["rank", "world"]) -> Explanation:
        """Predict what the next pass costs."""
        self.resolver.settle()
        start = self.cursor.start
        expected = self._explain(start, scope, self._shift_of(start))
        return self.resolver.rank_plan.with_notes(expected)

    def begin(self, start: Position | None) -> Iterator[list[int]]:
        """Begin a pass: an iterator over lists of ids, one for each batch, with its step tag."""
        # A DataLoader that loads a state continues with the worker whose turn it is.
        shift = 0 if start is not None else self._shift_of(self.cursor.start)
        start = start or self.cursor.start
        expected = self._explain(start, "rank", shift)
        self.resolver.rank_plan.warn(expected)
        self.resolver.begin(expected, start)
        if shift != self._shift:
            self._forget()
            self._shift = shift
        self.cursor.repeats.begin(start, self._num_workers * self.resolver.options.prefetch)
        number = self.cursor.begin()
        self.cursor.restart()
        self.cursor.count(start, self.resolver.rank_plan.num_steps)
        return self._deal(start, number)

    def _deal(self, start: Position, pass_number: int) -> Iterator[list[int]]:
        rank_plan = self.resolver.rank_plan
        workers = rank_plan.plan.workers
        plan_tag = PlanTag(rank_plan.options, rank_plan.plan, rank_plan.recipe.fingerprint)
        remainder = rank_plan.remainder(start.epoch, start.step)
        dealt = [_batches(rank_plan, remainder, worker) for worker in range(workers)]
        last_step = start.step + remainder.num_steps - 1
        for step in range(start.step, last_step + 1):
            ids = next(dealt[step % workers])
            self.cursor.repeats.count()
            if step == last_step:
                # Now, because the loop may not ask for another batch after the last one.
                self._keep(remainder)
                self.cursor.count(Position(start.epoch, step + 1), rank_plan.num_steps)
            # A pass that begins within a batch lacks this id: the rest of the batch is no step of
            # the plan, and is read by a cache.
            first, checksum = FirstId(ids[0]), _checksum(ids)
            first.step_tag = StepTag(plan_tag, start.epoch, step, pass_number, len(ids), checksum)
            yield [first, *ids[1:]]

    def _keep(self, remainder: Epoch | Remainder) -> None:
        """Note the chunks that workers keep once they have carried out a part of an epoch."""
        rank_plan = self.resolver.rank_plan
        if self._is_lasting and rank_plan.plan.is_resident:
            for worker, kept in enumerate(self._kept):
                kept |= touched_blocks(remainder, rank_plan.sublanes(worker))

    def _explain(self, start: Position, scope: Literal["rank", "world"], shift: int) -> Explanation:
        rank_plan = self.resolver.rank_plan
        remainder = rank_plan.remainder(start.epoch, start.step)
        kept: list[Cached] = [*self._kept] if shift == self._shift else []
        num_more = MORE_SLOTS if self._num_workers else 0
        return rank_plan.explain(remainder, scope, kept, num_more=num_more)

    def _shift_of(self, start: Position) -> int:
        return start.step % self.resolver.rank_plan.plan.workers

    def _forget(self) -> None:
        self._kept = [set() for _ in range(max(self._num_workers, 1))]


@dataclass(eq=False)
class StepPass(Iterator[Any]):
    """Iterator over one epoch, step by step or row by row, whose position can be saved."""

    is_single: bool
    _start: Position | None = field(default=None, init=False)
    _position: Position | None = field(default=None, init=False)
    _steps: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)
    _rows: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)
    _num_rows: int = field(default=0, init=False)

    @abstractmethod
    def _first(self) -> Position:
        """Where the iteration begins, unless a state was loaded."""

    @abstractmethod
    def _open(self, position: Position) -> Iterator[Any]:
        """Begin the iteration: the rows of each step from a position's on."""

    @abstractmethod
    def _after(self, position: Position) -> Position:
        """The position after a step that was given."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> Position:
        """Check a state, and find its position."""

    @property
    def position(self) -> Position:
        """The position after the batches or rows that were taken."""
        position = self._position or self._start or self._first()
        num_left = length_hint(self._rows)
        return replace(position, row=self._num_rows - num_left) if num_left else position

    def __next__(self) -> Any:
        for row in self._rows:
            if not length_hint(self._rows):
                self._position = self._after(self.position)
            return row
        if self._position is None:
            # Only at the first batch: trainers ask for an iterator before they set the epoch.
            self._position = self.position
            self._steps = self._open(self._position)
        position, rows = self._position, next(self._steps)
        if self.is_single:
            self._rows, self._num_rows = iter(rows[position.row :]), len(rows)
            return next(self)
        self._position = self._after(position)
        return rows[position.row :] if position.row else rows

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of a saved state. Nothing is read."""
        self._start, self._position = self._load(state), None
        self._steps, self._rows = iter(()), iter(())


@dataclass(eq=False)
class BatchPass(StepPass):
    """One iteration of a sampler: over lists of ids, one for each batch, or id by id."""

    passes: Passes

    def state_dict(self) -> dict[str, Any]:
        """The position and the plan, as plain JSON values under 2 KB."""
        return self.passes.resolver.save(self.position)

    def _first(self) -> Position:
        return self.passes.cursor.start

    def _open(self, position: Position) -> Iterator[list[int]]:
        return self.passes.begin(self._start)

    def _after(self, position: Position) -> Position:
        return Position(position.epoch, position.step + 1)

    def _load(self, state: Mapping[str, Any]) -> Position:
        return self.passes.adopt(state)


def _batches(rank_plan: RankPlan, remainder: Epoch | Remainder, worker: int) -> Iterator[list[int]]:
    """The ids of one worker's batches. On several ranks, the last one may be filled up."""
    numbers, last_size = rank_plan.sublanes(worker), rank_plan.last_size
    orders = [lane.order for lane in remainder.lanes(numbers)]
    num_steps = remainder.sublanes.num_steps_of(numbers[0])
    last: list[int] = []
    for index, step_ids in enumerate(deal_ids(orders, rank_plan.plan.lane_share, num_steps)):
        ids = step_ids.tolist()
        ids += (ids[-1:] or last) * (last_size - len(ids))
        last = ids[-1:]
        if index >= remainder.sublanes.num_again_of(numbers[0]):
            yield ids
