"""Notes on surprising properties of the samples, shown with the predicted cost of an epoch."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xloader.core.cores import find_cores, usable_cores, usable_nbytes
from xloader.core.footprint import Footprint
from xloader.core.nbytes import parse_nbytes, show_nbytes
from xloader.core.options import LoaderOptions
from xloader.core.output_dtypes import OutputDtype, converted_dtype
from xloader.engine.field_places import gather_in_words
from xloader.errors import PlanWarning, XloaderWarning, show_memory
from xloader.loader.reports.advice import helpful_processes, show_given_memory
from xloader.planning.explain import Explanation
from xloader.planning.mixing import REGION_CHUNKS
from xloader.planning.plan import Plan
from xloader.recipe.label_steps import irregular_steps
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe
from xloader.show.notes import gap_note, points_notes, step_notes, window_notes
from xloader.transforms.outputs import make_outputs
from xloader.transforms.packed_fields import PackedField, stored_layouts
from xloader.transforms.steps import Map

_MIXED_SHARE = 0.65
"""Mixing to aim at, as a share of that of a full shuffle. Below a half, batches mix poorly."""
_WITHIN_REACH = 8
"""Most times the given memory that is named."""
_ONCE = 1.005
"""Reads of a chunk below which text says once."""


def with_notes(
    expected: Explanation,
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    output_dtype: OutputDtype | None,
    *more: str,
    packed_fields: Sequence[PackedField] = (),
) -> Explanation:
    """Add notes on the samples to a prediction: irregular labels, windows without overlap.

    Only the labels of windowed dimensions are read, once for each source.
    """
    checks = () if recipe.subset is None else (*recipe.subset.notes, recipe.subset.shortage)
    sample_notes = gap_note(recipe), *window_notes(recipe), *points_notes(recipe)
    outputs = () if output_dtype else make_outputs(recipe, layouts)
    every = (*more, *expected.notes, *recipe.source.notes, *checks, *sample_notes)
    notes = tuple(note for note in (*every, *step_notes(recipe, outputs)) if note)
    as_stored = {field.name for field in packed_fields}
    copied = [
        (
            piece.variable,
            variable.stored_dtype,
            None if layout.name in as_stored else variable.packing,
            layout.dtype,
        )
        for layout in stored_layouts(layouts, packed_fields)
        for piece in layout.parts
        for variable in [recipe.variable(piece.variable)]
    ]
    gather, steps = gather_in_words(copied), irregular_steps(recipe)
    return replace(expected, gather=gather, irregular_steps=steps, notes=notes)


def threads_in_words(options: LoaderOptions) -> str:
    """How many threads a rank has; by default its share of the cores, and how that is found."""
    text = str(find_cores()) if options.threads is None else str(options.threads)
    return f"{text}, and {options.processes} processes" if options.processes else text


def transfer_in_words(
    options: LoaderOptions,
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    packed_fields: Sequence[PackedField],
    num_rows: int,
    refusal: str,
) -> str:
    """Say what crosses to a device with each batch, and how; empty if nothing crosses."""
    device = options.on_device.device
    # On the processor itself nothing crosses.
    if device is None or not (packed_fields or str(device) != "cpu"):
        return ""
    outputs = make_outputs(recipe, layouts)
    packed = {field.name: field for field in packed_fields}
    nbytes = num_rows * sum(
        packed[out.name].sample_nbytes
        if out.name in packed
        else math.prod(out.shape) * converted_dtype(out.dtype, options.on_device.dtype).itemsize
        for out in outputs
    )
    listed = [f"{name} as stored ({field.stored_dtype})" for name, field in packed.items()]
    plain = [out.name for out in outputs if out.name not in packed]
    if plain:
        listed.append(f"{', '.join(plain)} as values")
    way = pinning_in_words(options.processes, recipe.is_mapped, refusal)
    transfer = f"{show_nbytes(nbytes)} per batch to {device}: {', '.join(listed)}"
    return f"{transfer}, {way}" if way else transfer


def pinning_in_words(processes: int, is_mapped: bool, refusal: str = "") -> str:
    """Say how batches come into memory that the device reads by itself."""
    cause = f", which could not be pinned ({refusal})" if refusal else ""
    if processes and refusal:
        return f"copied into pinned memory from that of the processes{cause}"
    if processes:
        return "straight from the memory of the processes, which is pinned when they start"
    if is_mapped:
        return "copied into pinned memory after the transforms"
    return f"from memory of this process{cause}" if refusal else ""


def memory_note(options: LoaderOptions) -> str:
    """Say that the memory asked for is more than there is; empty if it is not, or nobody knows."""
    most = usable_nbytes()
    if most is None or options.memory_nbytes <= most:
        return ""
    there = f"this machine, or its control group, has: {show_nbytes(most)}"
    return f"memory={options.memory!r} is more than {there}"


def processes_note(recipe: Recipe, options: LoaderOptions) -> str:
    """Say how many worker processes would help functions of the user that hold Python's lock.

    Nothing is measured. `advise` says it after an epoch, from measurements.
    """
    num_cores = usable_cores()
    functions = ["map(fn)"] if any(isinstance(step, Map) for step in recipe.steps) else []
    # With a device, collate_fn gets tensors there, and runs in this process in any case.
    if options.collate_fn is not None and options.on_device.device is None:
        functions.append("collate_fn")
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    if options.processes or not functions or num_cores < 2 or not is_locked:
        return ""
    num = helpful_processes(num_cores)
    # No more of them work at a time than batches are made ahead, beside the one that is awaited.
    ahead = f" and prefetch={num - 1}" if num - 1 > options.prefetch else ""
    are = "runs" if len(functions) == 1 else "run"
    return (
        f"{' and '.join(functions)} {are} under Python's lock, on one thread at a time: "
        f"processes={num}{ahead} would run {num} at a time, assuming that this is mostly Python "
        f"code, takes most of the time, and has {num_cores} cores to itself (report() measures it)"
    )


def rank_note(options: LoaderOptions, scope: str) -> str:
    """Whose figures these are; empty if there is one rank."""
    world = options.ranks
    if world.world_size == 1:
        return ""
    if scope == "world":
        return f"all figures are those of {world.world_size} ranks together"
    return (
        f"samples, reads and memory are those of rank {world.rank} of {world.world_size}, mixing "
        'is that of the global batch; explain(scope="world") counts all ranks'
    )


def mixes_poorly(expected: Explanation) -> bool:
    """Whether batches mix less than half as many regions as those of a full shuffle."""
    return expected.mixing < expected.full_mixing / 2


@dataclass
class MemoryAdvice:
    """Notes and warnings on a shuffle whose memory is too small for it.

    At most one more plan is made, for a memory that follows from the shortfall: regions in memory
    grow with the pool, and fewer reads leave less mixing. Where it is not enough, or where tiles
    may have many shapes, so that a plan takes long to find, the memory for the whole selection is
    named, if it is within reach.

    `plan_for`: makes a plan for another memory, in bytes, without the user's spread, and predicts
    its cost.
    """

    plan: Plan
    footprint: Footprint
    options: LoaderOptions
    plan_for: Callable[[int], tuple[Plan, Explanation]]
    _enough: tuple[int, str] | None = None

    def note(self, expected: Explanation) -> str:
        """Say that batches mix poorly or chunks are read often, why, and what would do."""
        is_poor, is_costly = self._shortfalls(expected)
        # A spread that the user chose may be the cause, whatever the memory and the chunks.
        if self.options.plan.spread is not None or not (is_poor or is_costly):
            return ""
        memory = show_given_memory(self.options.memory_nbytes)
        reasons = []
        if is_costly:
            reads = f"reads every chunk {expected.read_amplification:.1f} times"
            reasons.append(f"{self._windows_in_words()} with {memory} {reads}")
        if is_poor:
            mixed = f"{expected.mixing:.1f} of {expected.full_mixing:.1f} places"
            reasons.append(f"batches mix {mixed}" + ("" if is_costly else f" with {memory}"))
        _, words = self._find_enough(expected)
        remedy = words and f"{words}; "
        return f"{', and '.join(reasons)}: {remedy}samples.advise(...) looks for better chunks"

    def one_region_note(self, expected: Explanation) -> str:
        """Say that mixing cannot be seen where all samples begin in one region; empty elsewhere."""
        is_one = round(expected.full_mixing, 6) <= 1
        if not self._is_free or self.options.global_batch == 1 or not is_one:
            return ""
        return (
            f"mixing tells nothing here: all samples begin in {REGION_CHUNKS} neighbouring chunks "
            "or fewer, which count as one place, so the samples of a batch may come from one "
            "chunk (smaller chunks or more memory mix more)"
        )

    def warnings(self, expected: Explanation) -> list[tuple[str, type[XloaderWarning]]]:
        """The warnings about the same, each with its category."""
        is_poor, is_costly = self._shortfalls(expected)
        if not is_poor and not is_costly:
            return []
        options, (nbytes, _) = self.options, self._find_enough(expected)
        memory = show_memory(nbytes) if nbytes else "more memory"
        spread = "leave out spread, and " if options.plan.spread is not None else ""
        remedy = f"{spread}pass {memory}, or see samples.advise() on chunks"
        if options.plan.lanes is not None and options.plan.lanes > 1:
            lanes = f"lanes={options.plan.lanes} must all fit in the memory of one rank"
            remedy += f"; fewer lanes mix better too: {lanes}"
        warnings: list[tuple[str, type[XloaderWarning]]] = []
        if is_poor:
            mixed = f"batches mix {expected.mixing:.1f} places, those of a full shuffle"
            warnings.append((f"{mixed} {expected.full_mixing:.1f}: {remedy}", PlanWarning))
        if is_costly:
            often = f"each chunk will be read {expected.read_amplification:.2f} times, more than"
            most = f"max_amplification={options.plan.max_amplification}"
            warnings.append((f"{often} {most}: {remedy}", PlanWarning))
        return warnings

    @property
    def _is_free(self) -> bool:
        """Whether mixing and reads depend on the memory."""
        return self.options.shuffle and not self.plan.is_resident

    def _shortfalls(self, expected: Explanation) -> tuple[bool, bool]:
        """Whether batches mix poorly, and whether chunks are read more often than allowed."""
        return self._is_free and mixes_poorly(expected), self._is_free and self._is_costly(expected)

    def _is_costly(self, expected: Explanation) -> bool:
        most, steps = self.options.plan.max_amplification, self.options.steps
        if steps is not None:
            # Each of the passes that an epoch goes through reads chunks anew.
            most *= 1 - -steps * self.options.global_batch // self.footprint.num_samples
        return expected.read_amplification > most

    def _find_enough(self, expected: Explanation) -> tuple[int, str]:
        """A memory that would do and what it would give, in words; 0 if none is known."""
        if self._enough is None:
            axes = self.footprint.leading_axes
            num_growing = sum(axis is not None and axis.num_blocks > 1 for axis in axes)
            enough = self._try(self._likely_nbytes(expected)) if num_growing < 2 else (0, "")
            self._enough = enough if enough[0] else self._whole(expected)
        return self._enough

    def _try(self, nbytes: int) -> tuple[int, str]:
        plan, cost = self.plan_for(nbytes)
        if plan.is_resident and not (plan.workers > 1 and mixes_poorly(cost)):
            return nbytes, _resident_in_words(nbytes, cost.read_amplification, plan.workers)
        if mixes_poorly(cost) or self._is_costly(cost):
            return 0, ""
        is_once = cost.read_amplification < _ONCE
        reads = "once" if is_once else f"{cost.read_amplification:.2f} times"
        return (
            nbytes,
            f"{show_memory(nbytes)} would mix {cost.mixing:.1f} and read each chunk {reads}",
        )

    def _likely_nbytes(self, expected: Explanation) -> int:
        budget = self.plan.budget
        growth = max(_MIXED_SHARE * expected.full_mixing / max(expected.mixing, 1e-9), 1.5)
        if self._shortfalls(expected)[1]:
            growth *= 2 * expected.read_amplification
        pool_nbytes = int(growth * max(budget.lane_nbytes, 1))
        return _rounded(self.plan.workers * budget.minimum_nbytes(pool_nbytes))

    def _whole(self, expected: Explanation) -> tuple[int, str]:
        """The memory in which all chunks would stay; 0 if it is far more than the given one."""
        budget, workers = self.plan.budget, self.plan.workers
        nbytes = _rounded(workers * budget.enough_nbytes(self.footprint.total_nbytes))
        # Each worker makes whole batches of its own part, however much memory there is.
        is_no_help = workers > 1 and self._shortfalls(expected)[0]
        if is_no_help or nbytes > _WITHIN_REACH * self.options.memory_nbytes:
            return 0, ""
        # Each worker process would read a chunk that it shares once.
        num_chunks = sum(cost.num_chunks for cost in expected.variables.values())
        reads = 1 + expected.num_shared_reads / max(num_chunks, 1)
        return nbytes, _resident_in_words(nbytes, reads, workers)

    def _windows_in_words(self) -> str:
        windows, dim = self.footprint.windows, self.plan.pace.run_dim
        axis, name = self.footprint.leading_axes[dim], windows.dims[dim]
        chunks = "" if axis is None else f" on chunks of {axis.max_read_size}"
        window = f"a window of {windows.spans[dim]} at stride {windows.strides[dim]}"
        return f"{window}{chunks} along {name}"


def _resident_in_words(nbytes: int, reads: float, workers: int) -> str:
    mixing = ", and mix as a full shuffle does" if workers == 1 else ""
    shared = "" if reads < _ONCE else ", but read those that processes share in each of them"
    return f"{show_memory(nbytes)} would hold all chunks{mixing}{shared}"


def _rounded(nbytes: int) -> int:
    """The memory that `show_memory` names, so that what is tried is what is named."""
    return parse_nbytes(show_memory(nbytes).removeprefix('memory="').removesuffix('"'))
