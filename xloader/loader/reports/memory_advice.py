"""How much memory would do where a plan mixes poorly or reads chunks several times, in words.

One more plan is made at most, for an amount of memory that follows from the shortfall::

    mixes m of f regions       the pool grows by 0.65 f / m, at least by half: regions in memory
                               grow with the pool
    reads a chunk r times      the pool grows by 2 r more, as fewer reads leave less mixing

The figures of that plan are the advice. Where it is not enough either, or where tiles may have many
shapes, so that a plan takes long to find, the memory for the whole selection is named, if it is
within reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xloader.core.footprint import Footprint
from xloader.core.nbytes import parse_nbytes
from xloader.core.options import LoaderOptions
from xloader.errors import AmplificationWarning, MixingWarning, XloaderWarning, show_memory
from xloader.loader.reports.advice import show_given_memory
from xloader.loader.reports.explain_notes import mixes_poorly, reads_often
from xloader.planning.explain import Explanation
from xloader.planning.mixing import REGION_CHUNKS
from xloader.planning.plan import Plan

_MIXED_SHARE = 0.65
"""Mixing to aim at, as a share of that of a full shuffle. Below a half, batches mix poorly."""

_WITHIN_REACH = 8
"""Most times the given memory that is named."""


@dataclass(frozen=True)
class EnoughMemory:
    """An amount of memory that would do, and the figures of its plan."""

    memory_nbytes: int
    mixing: float
    read_amplification: float
    is_resident: bool

    @property
    def in_words(self) -> str:
        """The memory, and the figures that it would give."""
        memory, reads = show_memory(self.memory_nbytes), f"{self.read_amplification:.2f} times"
        is_once = self.read_amplification < 1.005
        if self.is_resident:
            shared = "" if is_once else ", but read those that processes share in each of them"
            return f"{memory} would hold all chunks, and mix as a full shuffle does{shared}"
        once = "once" if is_once else reads
        return f"{memory} would mix {self.mixing:.1f} and read each chunk {once}"


class MemoryAdvice:
    """Notes and warnings on a shuffle whose memory is too small for it.

    `try_memory`: makes a plan for another memory, in bytes, and returns its figures; None if it
    mixes poorly or reads too often as well.
    """

    def __init__(
        self,
        plan: Plan,
        footprint: Footprint,
        options: LoaderOptions,
        try_memory: Callable[[int], EnoughMemory | None],
    ) -> None:
        self._plan = plan
        self._footprint = footprint
        self._options = options
        self._try_memory = try_memory
        self._found: list[EnoughMemory | None] = []

    def note(self, expected: Explanation) -> str:
        """Say that batches mix poorly or chunks are read often, why, and what would do."""
        is_poor, is_costly = self._is_poor(expected), self._is_costly(expected)
        # A spread that the user chose may be the cause, whatever the memory and the chunks.
        if self._options.plan.spread is not None or not (is_poor or is_costly):
            return ""
        memory = show_given_memory(self._options.memory_nbytes)
        reasons = []
        if is_costly:
            reads = f"reads every chunk {expected.read_amplification:.1f} times"
            reasons.append(f"{self._windows_in_words()} with {memory} {reads}")
        if is_poor:
            mixed = f"{expected.mixing:.1f} of {expected.full_mixing:.1f} regions"
            reasons.append(f"batches mix {mixed}" + ("" if is_costly else f" with {memory}"))
        enough = self._enough(expected)
        remedy = "" if enough is None else f"{enough.in_words}; "
        return f"{', and '.join(reasons)}: {remedy}samples.advise(...) looks for better chunks"

    def one_region_note(self, expected: Explanation) -> str:
        """Say that mixing cannot be seen where all samples begin in one region; empty elsewhere."""
        is_one = round(expected.full_mixing, 6) <= 1
        if not self._is_free or self._options.global_batch == 1 or not is_one:
            return ""
        return (
            f"mixing tells nothing here: all samples begin in {REGION_CHUNKS} neighbouring chunks "
            "or fewer, which count as one region, so the samples of a batch may come from one "
            "chunk (smaller chunks or more memory mix more)"
        )

    def warnings(self, expected: Explanation) -> list[tuple[str, type[XloaderWarning]]]:
        """The warnings about the same, each with its category."""
        is_poor, is_costly = self._is_poor(expected), self._is_costly(expected)
        if not is_poor and not is_costly:
            return []
        options, known = self._options, self._enough(expected)
        nbytes = self._doubled_nbytes() if known is None else known.memory_nbytes
        remedy = f"pass {show_memory(nbytes)}, or see samples.advise() on chunks"
        if options.plan.spread is not None:
            remedy = f"leave out spread, and {remedy}"
        if options.plan.lanes is not None and options.plan.lanes > 1:
            lanes = f"lanes={options.plan.lanes} must all fit in the memory of one rank"
            remedy += f"; fewer lanes mix better too: {lanes}"
        warnings: list[tuple[str, type[XloaderWarning]]] = []
        if is_poor:
            mixed = f"batches mix {expected.mixing:.1f} regions, those of a full shuffle"
            warnings.append((f"{mixed} {expected.full_mixing:.1f}: {remedy}", MixingWarning))
        if is_costly:
            often = f"each chunk will be read {expected.read_amplification:.2f} times, more than"
            most = f"max_amplification={options.plan.max_amplification}"
            warnings.append((f"{often} {most}: {remedy}", AmplificationWarning))
        return warnings

    @property
    def _is_free(self) -> bool:
        """Whether mixing and reads depend on the memory."""
        return self._options.shuffle and not self._plan.is_resident

    def _is_poor(self, expected: Explanation) -> bool:
        return self._is_free and mixes_poorly(expected)

    def _is_costly(self, expected: Explanation) -> bool:
        return self._is_free and reads_often(expected, self._options)

    def _enough(self, expected: Explanation) -> EnoughMemory | None:
        """A memory that would do, found with one plan at most; None if that does not find one."""
        if not self._found:
            enough = None
            if self._options.plan.spread is None and self._is_quickly_planned:
                enough = self._try_memory(self._likely_nbytes(expected))
            self._found.append(enough or self._whole(expected))
        return self._found[0]

    def _doubled_nbytes(self) -> int:
        """The memory in bytes, doubled until a plan gives no reason for a warning."""
        nbytes = 2 * self._options.memory_nbytes
        while self._try_memory(nbytes) is None:
            nbytes *= 2
        return nbytes

    @property
    def _is_quickly_planned(self) -> bool:
        """Whether tiles can grow along one dimension only, so that few plans have to be tried."""
        axes = self._footprint.leading_axes
        return sum(axis is not None and axis.num_blocks > 1 for axis in axes) < 2

    def _likely_nbytes(self, expected: Explanation) -> int:
        budget = self._plan.budget
        growth = max(_MIXED_SHARE * expected.full_mixing / max(expected.mixing, 1e-9), 1.5)
        if self._is_costly(expected):
            growth *= 2 * expected.read_amplification
        pool_nbytes = int(growth * max(budget.lane_nbytes, 1))
        return _rounded(self._plan.workers * budget.minimum_nbytes(pool_nbytes))

    def _whole(self, expected: Explanation) -> EnoughMemory | None:
        """The memory in which all chunks would stay; None if it is far more than the given one."""
        if self._options.plan.spread is not None:
            return None
        budget, workers = self._plan.budget, self._plan.workers
        nbytes = _rounded(workers * budget.enough_nbytes(self._footprint.total_nbytes))
        if nbytes > _WITHIN_REACH * self._options.memory_nbytes:
            return None
        # Each worker process would read a chunk that it shares once.
        num_chunks = sum(cost.num_chunks for cost in expected.variables.values())
        reads = 1 + expected.num_shared_reads / max(num_chunks, 1)
        return EnoughMemory(nbytes, expected.full_mixing, reads, is_resident=True)

    def _windows_in_words(self) -> str:
        windows, dim = self._footprint.windows, self._plan.pace.run_dim
        axis, name = self._footprint.leading_axes[dim], windows.dims[dim]
        chunks = "" if axis is None else f" on chunks of {axis.max_read_size}"
        window = f"a window of {windows.spans[dim]} at stride {windows.strides[dim]}"
        return f"{window}{chunks} along {name}"


def _rounded(nbytes: int) -> int:
    """The memory that `show_memory` names, so that what is tried is what is named."""
    return parse_nbytes(show_memory(nbytes).removeprefix('memory="').removesuffix('"'))
