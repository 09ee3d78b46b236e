"""Notes on surprising properties of the samples, shown with the predicted cost of an epoch."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

from xloader.core.cores import find_cores, usable_cores
from xloader.core.machine_limits import usable_nbytes
from xloader.core.nbytes import show_nbytes
from xloader.core.options import LoaderOptions
from xloader.core.output_dtypes import OutputDtype, converted_dtype
from xloader.engine.field_places import gather_in_words
from xloader.loader.reports.advice import helpful_processes
from xloader.planning.explain import Explanation
from xloader.recipe.label_steps import irregular_steps
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe
from xloader.show.notes import gap_note, points_notes, step_notes, window_notes
from xloader.transforms.outputs import Output, make_outputs
from xloader.transforms.packed_fields import PackedField, stored_layouts
from xloader.transforms.steps import Map


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
    checks = recipe.subset.notes if recipe.subset is not None else ()
    sample_notes = gap_note(recipe), *window_notes(recipe), *points_notes(recipe)
    outputs = () if output_dtype else make_outputs(recipe, layouts)
    every = (*more, *recipe.source.notes, *checks, *sample_notes, *step_notes(recipe, outputs))
    notes = tuple(note for note in every if note)
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
    device: object,
    outputs: Sequence[Output],
    packed_fields: Sequence[PackedField],
    num_rows: int,
    output_dtype: OutputDtype | None = None,
) -> str:
    """Say what crosses to a device with each batch, and in which form."""
    packed = {field.name: field for field in packed_fields}
    nbytes = num_rows * sum(
        packed[out.name].sample_nbytes
        if out.name in packed
        else math.prod(out.shape) * converted_dtype(out.dtype, output_dtype).itemsize
        for out in outputs
    )
    listed = [f"{name} as stored ({field.stored_dtype})" for name, field in packed.items()]
    plain = [out.name for out in outputs if out.name not in packed]
    if plain:
        listed.append(f"{', '.join(plain)} as values")
    return f"{show_nbytes(nbytes)} a batch to {device}: {', '.join(listed)}"


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


def reads_often(expected: Explanation, options: LoaderOptions) -> bool:
    """Whether chunks are read more often than ``max_amplification`` allows."""
    return expected.read_amplification > options.plan.max_amplification
