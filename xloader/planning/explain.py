"""Predicts the cost of an epoch before any data is read, by counting reads on its schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from xloader.core.footprint import Footprint
from xloader.core.messages import require_matplotlib, show_count
from xloader.errors import OptionError
from xloader.order.cohorts import tile_edges
from xloader.order.protocol import AnyOrder
from xloader.planning.epoch import Epoch, Lane, Remainder
from xloader.planning.mixing import batch_regions, full_mixing, measure_mixing
from xloader.planning.residence_times import TimesMaker, stay_parts
from xloader.recipe.label_steps import irregular_note
from xloader.show.cost_figures import (
    Figures,
    GroupReads,
    TitledTable,
    count_reads,
    find_set,
    num_needed,
    variables_table,
)
from xloader.show.drawings import ResidenceTimes

if TYPE_CHECKING:
    from xloader.show.canvas import Picture
    from xloader.show.cards import CardPart

_MOST_NAMED = 8

_CLEARLY_LESS = 0.95
"""Share of a full shuffle's mixing below which the first batches are told of."""


@dataclass(frozen=True, kw_only=True)
class Explanation(Figures):
    """The predicted cost of an epoch.

    Attributes
    ----------
    paths : dict of str to str
        How each variable is read, in words.
    gather : str
        How rows are copied into batches: by compiled code, or by NumPy and why.
    threads : str
        How many threads read and gather.
    transfer : str
        What crosses to the device with each batch; empty without one.
    num_shared_reads : int
        Extra reads because several ranks or workers need the same chunk.
    shared_chunks : tuple of (str, tuple of int)
        The chunks that several ranks read: variable and index.
    irregular_steps : dict of str to str
        By dimension, the number of irregular steps that windows run across, and the place of the
        first.
    notes : tuple of str
        Other facts that may surprise, each a sentence.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    gather: str = ""
    threads: str = ""
    transfer: str = ""
    num_shared_reads: int = 0
    shared_chunks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    irregular_steps: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _budget: str = field(default="", compare=False, repr=False)
    _times: Callable[[], ResidenceTimes] | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # The times of residences can be found only where the plan is.
        return {**self.__dict__, "_times": None}

    def plot(self, name: str | None = None) -> Picture:
        """Draw which chunk is in memory when, and how many places each batch draws from.

        Each bar is the stay of a chunk in memory, from the step that first needs it to the last. If
        there are too many to see, those of every second, third, ... chunk are drawn.

        Parameters
        ----------
        name : str, optional
            Of several sets of samples, the set.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        OptionError
            If the plan is not in this process, or there is none, because the order is the user's
            own; if there are several sets and none is named.
        UnknownNameError
            If there is no such set.
        MissingDependencyError
            If matplotlib is not installed.
        """
        if self.sets:
            picture: Picture = find_set(self.sets, name, "explain().plot").plot()
            return picture
        require_matplotlib()
        if self._times is None:
            raise OptionError(
                "the plan of this explanation is not known here",
                given="an explanation that was pickled, or of an order= of your own",
                remedy="call loader.explain().plot() in the process where the loader is",
            )
        from xloader.show.epoch_plots import draw_residences

        return draw_residences(self._times(), self.mixing, self.full_mixing)

    def _drawings(self) -> list[CardPart]:
        # Chunks that are in memory from the begin have no stays that begin and end.
        return stay_parts(self._times) if self.num_reads and not self.sets else []

    def _sections(self) -> list[TitledTable]:
        return [] if self.sets else variables_table(self.variables)

    def _title(self) -> str:
        several = " of several sets" if self.sets else ""
        return f"Explanation{several}: a prediction, made without reading data"

    def _rows(self) -> list[tuple[str, str]]:
        by_path: dict[str, list[str]] = {}
        for name, path in self.paths.items():
            by_path.setdefault(path, []).append(name)
        read = [("read", f"{', '.join(names)}: {path}") for path, names in by_path.items()]
        parts = [("budget", self._budget), ("threads", self.threads)]
        parts.append(("transfer", self.transfer))
        read += [(name, text) for name, text in parts if text]
        if self.num_shared_reads:
            extra = show_count(self.num_shared_reads, "extra read")
            read.append(("shared", f"{extra} of chunks that ranks or workers share"))
        if self.shared_chunks:
            named = [f"{name} {list(index)}" for name, index in self.shared_chunks[:_MOST_NAMED]]
            more = len(self.shared_chunks) - len(named)
            read.append(("", "; ".join(named) + (f" and {more:,} more" if more else "")))
        for dim, steps in self.irregular_steps.items():
            read.append(("note", irregular_note(dim, steps)))
        read += [("note", note) for note in self.notes]
        if not self.is_exact:
            read.append(("note", "these numbers come from the first part of the order only"))
        return [*super()._rows(), *read]

    def _details(self) -> list[tuple[str, str]]:
        return [*super()._details(), *[("gather", self.gather)] * bool(self.gather)]


Cached = set[tuple[int, int]] | frozenset[tuple[int, int]]
"""Blocks in memory from earlier epochs, as (group, block)."""


def explain_epoch(
    epoch: Epoch | Remainder,
    processes: Sequence[Sequence[int]],
    paths: Mapping[str, str],
    cached: Sequence[Cached] = (),
    batch_nbytes: int | None = None,
    num_more: int = 0,
    num_padding: int = 0,
) -> Explanation:
    """Predict the reads and the memory of some processes in one epoch.

    It counts the reads of batches that are made again for a remainder, but not their samples.
    """
    if batch_nbytes is None:
        batch_nbytes = epoch.plan.budget.batch_nbytes
    owned = [epoch.lanes(numbers) for numbers in processes]
    known = cached or [frozenset[tuple[int, int]]()] * len(owned)
    counted = [_count_reads(epoch, lanes, had) for lanes, had in zip(owned, known, strict=True)]
    groups = epoch.footprint.groups
    distinct = counted[0].groups
    if len(owned) > 1:
        distinct = _count_reads(epoch, list(chain(*owned)), frozenset()).groups
    group_reads = [
        GroupReads(
            all_blocks.num_needed,
            sum(blocks.num_loads for blocks in column),
            sum(blocks.num_elements for blocks in column),
        )
        for all_blocks, *column in zip(distinct, *(reads.groups for reads in counted), strict=True)
    ]
    num_in_all = sum(num_needed(groups, reads.groups) for reads in counted)
    return Explanation(
        num_samples=sum(_num_delivered(epoch, numbers) for numbers in processes),
        num_padding=num_padding if epoch.num_steps else 0,
        num_steps=epoch.num_steps,
        peak_nbytes=sum(
            _peak_nbytes(epoch, numbers, reads, batch_nbytes, num_more)
            for numbers, reads in zip(processes, counted, strict=True)
        ),
        paths=paths,
        num_shared_reads=num_in_all - num_needed(groups, distinct),
        _times=TimesMaker.of(epoch, processes),
        **count_reads(groups, group_reads),
        **plan_figures(epoch),
    )


@dataclass(frozen=True)
class _Reads:
    """The reads of one process."""

    groups: tuple[GroupReads, ...]
    most_nbytes: int
    loaded_nbytes: int


def _count_reads(epoch: Epoch | Remainder, lanes: list[Lane], cached: Cached) -> _Reads:
    most_nbytes = loaded_nbytes = 0
    groups = []
    for index, group in enumerate(epoch.footprint.groups):
        is_touched = np.zeros(group.num_blocks, np.bool_)
        for lane in lanes:
            is_touched[lane.schedule.stays[index].block] = True
        blocks = np.flatnonzero(is_touched)
        num_blocks = len(blocks)
        if epoch.plan.is_resident:
            is_new = [(index, block) not in cached for block in blocks.tolist()]
            blocks = blocks[np.array(is_new, np.bool_)]
            num_loads, num_elements = len(blocks), int(group.read_elements(blocks).sum())
            most_nbytes += len(blocks) * group.most_read_nbytes
            kept = np.array([block for number, block in cached if number == index], np.int64)
            loaded_nbytes += int(group.block_nbytes(np.concatenate([blocks, kept])).sum())
        else:
            lane_reads = [lane.schedule.group_reads[index] for lane in lanes]
            num_loads = sum(reads.num_loads for reads in lane_reads)
            num_elements = sum(reads.num_elements for reads in lane_reads)
        groups.append(GroupReads(num_blocks, num_loads, num_elements))
    if not epoch.plan.is_resident:
        schedules = [lane.schedule for lane in lanes]
        most_nbytes = sum(schedule.most_read_nbytes for schedule in schedules)
        loaded_nbytes = sum(schedule.loaded_nbytes for schedule in schedules)
    return _Reads(tuple(groups), most_nbytes, loaded_nbytes)


def touched_blocks(epoch: Epoch | Remainder, numbers: Sequence[int]) -> set[tuple[int, int]]:
    """Blocks that some sub-lanes of an epoch need, as (group, block)."""
    lanes = epoch.lanes(numbers)
    return {
        (index, block)
        for index in range(len(epoch.footprint.groups))
        for lane in lanes
        for block in np.unique(lane.schedule.residences[index].block).tolist()
    }


def shared_blocks(
    epoch: Epoch | Remainder, processes: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """Blocks that several processes need, as (group, block), in order."""
    counts = Counter(block for numbers in processes for block in touched_blocks(epoch, numbers))
    return sorted(block for block, count in counts.items() if count > 1)


def _num_delivered(epoch: Epoch | Remainder, numbers: Sequence[int]) -> int:
    sublanes = epoch.sublanes
    lanes = zip(numbers, epoch.lanes(numbers), strict=True)
    return sum(
        min(lane.order.num_samples, sublanes.most_samples(n))
        for n, lane in lanes
        # A step that is made again is not delivered, and only padding follows it.
        if not sublanes.num_again_of(n)
    )


def _peak_nbytes(
    epoch: Epoch | Remainder,
    numbers: Sequence[int],
    reads: _Reads,
    batch_nbytes: int,
    num_more: int,
) -> int:
    """The most bytes that a process may have in memory at a time, given its sub-lanes."""
    plan = epoch.plan
    num_steps = epoch.sublanes.num_steps_of(numbers[0])
    needed = plan.budget.needed_nbytes(num_steps, batch_nbytes, reads.most_nbytes, num_more)
    return needed + min(plan.pool_nbytes(len(numbers)), reads.loaded_nbytes)


def plan_figures(epoch: Epoch | Remainder) -> dict[str, Any]:
    """The figures of an epoch that are the same for every rank, such as the mixing."""
    # Batches of the rest mix like those of the whole epoch.
    plan, footprint = epoch.plan, epoch.whole.footprint
    full = full_mixing(footprint, plan.global_batch)
    batches, counts = batch_regions(footprint, _orders_of_batches(epoch.whole), plan.lane_share)
    is_growing, note = plan.pace.is_growing and not epoch.whole.epoch, ""
    if (
        is_growing
        and (begun := counts[batches <= batches.max() // 10].mean()) < _CLEARLY_LESS * full
    ):
        note = (
            "the first epoch begins with few chunks and reads while it delivers: its first tenth "
            f"of batches mixes {begun:.1f} places, later epochs mix as a full shuffle does"
        )
    return {
        "mixing": float(counts.mean()) if len(counts) else 0.0,
        "notes": (note,) if note else (),
        "full_mixing": full,
        "num_dropped_windows": footprint.windows.num_dropped,
        "dropped_windows": footprint.windows.dropped,
        "is_exact": True,
        "tile": tile_sizes(footprint, plan.pace.tiling),
        "run": plan.pace.run,
        "streams": plan.pace.streams,
        "spread": plan.pace.spread,
        "lanes": plan.pace.lanes,
        "visits": plan.pace.visits,
    }


def mixing_on(epoch: Epoch, footprint: Footprint) -> float:
    """Mean number of distinct regions in a global batch of an epoch."""
    return measure_mixing(footprint, _orders_of_batches(epoch), epoch.plan.lane_share)


def _orders_of_batches(epoch: Epoch) -> list[AnyOrder]:
    """The orders that a batch takes samples from."""
    # These are the sub-lanes of one worker, and all workers mix alike.
    return [lane.order for lane in epoch.lanes(epoch.sublanes.of_one_batch)]


def tile_sizes(footprint: Footprint, tiling: tuple[int, ...]) -> dict[str, int]:
    """Number of elements of the longest tile of a tiling along each windowed dimension."""
    return {
        name: int(np.diff(tile_edges(footprint, dim, tiling[dim])).max())
        for dim, name in enumerate(footprint.windows.dims)
    }
