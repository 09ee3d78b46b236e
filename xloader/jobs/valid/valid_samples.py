"""Which samples are valid: checks the arguments, looks in the cache, and reads where it must."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.cluster.cluster_tasks import ClusterTasks, find_cluster
from xloader.core.cores import usable_cores
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_threads, is_number
from xloader.core.point_table import LabelColumn
from xloader.core.subset import Subset
from xloader.core.window_sets import WindowBits
from xloader.errors import OptionError
from xloader.jobs.valid.batch_sweep import BatchSweep
from xloader.jobs.valid.cache_files import Cache, CacheFile, cache_file
from xloader.jobs.valid.sample_mask import SampleMask
from xloader.jobs.valid.sweep_line import SampleCheck
from xloader.jobs.valid.window_counter import WindowCounter, count_valid
from xloader.jobs.wanted_elements import MaskArgument
from xloader.loader.batches.batch import Batch
from xloader.recipe.layout import FieldLayout, layout_of
from xloader.recipe.recipe import Field, Recipe, find


def find_valid(
    recipe: Recipe,
    fields: Sequence[str],
    *,
    at_least: float = 1.0,
    mask: str | xr.DataArray | None = None,
    memory: int | str = "2GiB",
    threads: int | None = None,
    cache: Cache = None,
    client: Any = None,
) -> SampleMask:
    """Find the samples that hold enough valid values; see `Samples.is_valid`."""
    begun = time.monotonic()
    recipe.require_windows()
    share = _check_share(at_least)
    num_threads = check_threads(threads)
    memory_nbytes = parse_nbytes(memory)
    # All ranks of a group must choose the same samples, so the whole of a slab counts.
    checked, gathered, columns = _of_fields(recipe.planned, fields)
    layouts = tuple(layout_of(checked, f) for f in checked.fields if f.name in gathered)
    argument = None if mask is None else MaskArgument(checked, mask)
    if argument is not None:
        _require_use(checked, layouts, argument)
    # Fields that are added later were not checked, so those that were have their names told.
    named = [field.name for field in recipe.fields]
    names = fields or (named and [*named, *(column.name for column in recipe.label_columns)])
    texts = [*map(repr, names), f"at_least={share:g}"]
    if argument is not None:
        texts.append(f"mask={mask!r}" if isinstance(mask, str) else "mask=...")
    check = f"is_valid({', '.join(texts)})"

    def masked(bits: WindowBits, num_reads: int = 0) -> SampleMask:
        chosen = _without_nan(bits, columns, share)
        return SampleMask(chosen, check, num_reads, time.monotonic() - begun)

    num_ids = checked.num_ids
    if not layouts:
        return masked(WindowBits.of_flags(np.ones(num_ids, np.bool_)))
    samples = SampleCheck(checked, layouts, share)
    file = _file_of(samples, argument, cache)
    data = None if file is None else file.load(WindowBits.words_nbytes(num_ids))
    if data is not None:
        return masked(WindowBits(num_ids, np.frombuffer(data, "<u8")))
    if set(checked.require_windows().ends) == {"stop"}:
        sent_nbytes = partial(_sent_nbytes, samples, argument)
        tasks = find_cluster(client, checked, beside_nbytes=sent_nbytes)
        cores = num_threads or usable_cores()
        bits, num_reads = count_valid(samples, argument, memory_nbytes, cores, tasks)
    elif argument is None:
        tasks = find_cluster(client, checked)
        bits, num_reads = _count_in_batches(samples, memory_nbytes, num_threads, tasks)
    else:
        raise OptionError(
            "a mask cannot be used where windows wrap or are padded",
            remedy="leave mask= out, and mask the data first: ds.where(mask).xloader",
        )
    if file is not None:
        file.save(bits.words.tobytes())
    return masked(bits, num_reads)


def _sent_nbytes(check: SampleCheck, argument: MaskArgument | None) -> int:
    """Bytes that tasks get beside the samples: the mask as bits, and counts that all need."""
    nbytes = WindowCounter(check).counts_nbytes()[0]
    if argument is None:
        return nbytes
    return nbytes + math.prod(check.recipe.dim_sizes[dim] for dim in argument.dims) // 8


def _count_in_batches(
    check: SampleCheck, memory_nbytes: int, threads: int | None, tasks: ClusterTasks | None
) -> tuple[WindowBits, int]:
    """The valid samples where windows wrap or are padded, from their values; and the reads."""
    recipe, num_reads = check.recipe, 0
    is_valid = np.ones(recipe.num_ids, np.bool_)
    names = {layout.name for layout in check.read_layouts}
    if names:
        fields = tuple(field for field in recipe.fields if field.name in names)
        function = partial(_are_valid, check.at_least)
        sweep = BatchSweep(replace(recipe, fields=fields), function, memory_nbytes)
        num_reads = sweep.fill(is_valid, threads, tasks)
    return WindowBits.of_flags(is_valid), num_reads


def _are_valid(at_least: float, batch: Batch) -> NDArray[np.bool_]:
    """Whether enough values of each field of each sample are valid."""
    is_valid = np.ones(len(batch.ids), np.bool_)
    for name in batch.names:
        values = batch[name].reshape(len(batch.ids), -1)
        num_valid = np.count_nonzero(~np.isnan(values), axis=1)
        is_valid &= num_valid / values.shape[1] >= at_least
    return is_valid


def _check_share(at_least: Any) -> float:
    if not is_number(at_least) or not 0 <= at_least <= 1:
        raise OptionError(
            "at_least is not a share of a sample's values",
            given=repr(at_least),
            remedy="pass a number from 0 to 1: 0.9 keeps samples with 90 % of valid values",
        )
    return float(at_least)


def _without_nan(bits: WindowBits, columns: Sequence[LabelColumn], at_least: float) -> WindowBits:
    """The samples of ``bits`` that have no NaN in the columns; all of them if NaN are allowed."""
    # Without columns, flags of all samples would take much memory for nothing.
    if not columns or at_least <= 0:
        return bits
    is_valid = np.ones(bits.size, np.bool_)
    for column in columns:
        if column.values.dtype.kind == "f":
            is_valid &= ~np.isnan(column.values)
    return bits & WindowBits.of_flags(is_valid)


def _of_fields(recipe: Recipe, names: Sequence[str]) -> tuple[Recipe, set[str], list[LabelColumn]]:
    """The recipe with what is checked as its fields, without transforms and each sample once.

    Names are those of fields or of their variables. Also the names of the fields to check, and
    those that are columns of a table of points.
    """
    gathered, columns = recipe.gathered_fields, recipe.label_columns
    known = [field.name for field in gathered] + [column.name for column in columns]
    variables = [name for field in gathered for name in field.variables]
    for name in names:
        find(name, list(dict.fromkeys(known + variables)), "field or variable of a field")
    wanted = set(names or known)
    parts = tuple(part for field in gathered for part in _wanted_parts(field, wanted))
    # Samples of weight 0 are checked, too: weights may change later.
    chosen = None if recipe.subset is None else recipe.subset.indices
    subset = None if chosen is None else Subset(len(recipe.require_windows()), chosen)
    # Fields that are not checked need not be laid out; without any, all would be gathered.
    changed = replace(recipe, fields=parts or gathered, steps=(), subset=subset)
    chosen_columns = [column for column in columns if column.name in wanted]
    return changed, {part.name for part in parts}, chosen_columns


def _wanted_parts(field: Field, wanted: set[str]) -> tuple[Field, ...]:
    """A field that is wanted itself, or with only one of its variables for each that is wanted."""
    if field.name in wanted:
        return (field,)
    return tuple(
        replace(field, name=f"{field.name}: {variable}", variables=(variable,))
        for variable in field.variables
        if variable in wanted
    )


def _require_use(recipe: Recipe, layouts: tuple[FieldLayout, ...], argument: MaskArgument) -> None:
    """Refuse a mask with dimensions that no variable of the fields has."""
    dims = {p.variable: recipe.dims_of(p.variable) for layout in layouts for p in layout.parts}
    if not any(set(argument.dims) <= set(variable_dims) for variable_dims in dims.values()):
        raise OptionError(
            "the mask has dimensions that no variable of the fields has together",
            given=f"a mask along {', '.join(argument.dims)}",
            allowed=f"dimensions of one of {dims}",
            remedy="pass a mask along fewer dimensions, or name other fields",
        )


def _file_of(check: SampleCheck, argument: MaskArgument | None, cache: Cache) -> CacheFile | None:
    """The file of the mask; None if it is not to be kept."""
    names = {part.variable for layout in check.read_layouts for part in layout.parts}
    if argument is not None and isinstance(argument.mask, str):
        names.add(argument.mask)
    key = (check.at_least, "" if argument is None else argument.key)
    return cache_file(check.recipe, "mask", cache, names, key)
