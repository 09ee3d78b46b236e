"""Merges parts into a Zarr store, which appears under its name only when it is whole."""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import shutil
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import xarray as xr
import zarr

from xloader.core.messages import warn_caller
from xloader.errors import SourceAccessError, SourceNotFoundError, TargetError, TargetWarning
from xloader.jobs.kept_result import KeptResult
from xloader.mosaic.merged_boxes import MergeArrays, MosaicSummary, merge_boxes, merged_dtype
from xloader.mosaic.parts import FolderParts, Record
from xloader.mosaic.target_grid import COVERAGE, TargetGrid, group_of, groups_of, name_within
from xloader.sources.stores.write_places import (
    check_replaceable,
    remove_folder,
    remove_partial,
    writing,
)

_LOG: Final = logging.getLogger("xloader")


def open_target(
    kept: KeptResult[TargetGrid], grid: TargetGrid, *, overwrite: bool
) -> FolderParts | MosaicSummary:
    """Go on with the parts of a target, or begin them."""
    if overwrite:
        remove_folder(kept.folder)
    # In this order, because the store is there before its parts are removed.
    has_begun = kept.has_begun()
    summary = None if overwrite else merged_summary(kept, grid)
    if summary is not None and not has_begun:
        if not summary.is_complete:
            raise TargetError(
                f"the mosaic at {kept.target} lacks samples, and its folder of parts is gone",
                given=str(summary),
                remedy="choose another target, or pass overwrite=True to begin anew",
            )
        if not kept.folder.exists():
            # A process may have been killed while it removed it.
            remove_folder(kept.folder)
        return summary
    try:
        return kept.open_parts(grid, FolderParts)
    except SourceAccessError:
        if overwrite or not kept.target.exists():
            raise
        # Another process has merged them at this moment.
        return open_target(kept, grid, overwrite=False)


def merge_store(
    target: str | os.PathLike[str], *, memory: int | str = "256MiB", overwrite: bool = False
) -> MosaicSummary:
    """Merge the parts of all ranks into the target; see `xloader.merge`."""
    kept = KeptResult.at(target, TargetGrid)
    path, folder = kept.target, kept.folder
    if not kept.has_begun():
        has_target = path.exists()
        raise SourceNotFoundError(
            f"{path} has no predictions or partial statistics to merge",
            given=f"no parts in {folder}" + " (the target is there)" * has_target,
            remedy=(
                "it may be merged already: open it with xarray"
                if has_target
                else "pass the target= of a mosaic, or the path= of parts of statistics"
            ),
        )
    parts = FolderParts(kept)
    if overwrite:
        check_replaceable(path)
    else:
        kept.lying(parts.form.stamp)
    try:
        with writing(path.parent), open(folder / "merging.lock", "ab") as lock:
            with suppress(OSError):
                _take_turn(lock, kept)
            return _merge(parts, memory)
    except SourceAccessError:
        summary = None if kept.has_begun() else merged_summary(kept, parts.form)
        if summary is None:
            raise
        # Another process was faster, and has removed the parts.
        return summary


def merged_summary(kept: KeptResult[TargetGrid], grid: TargetGrid) -> MosaicSummary | None:
    """The counts of an earlier merge of a mosaic into its target; None if nothing lies there."""
    attrs = kept.lying(grid.stamp)
    if attrs is None:
        return None
    num_cells = sum(variable.num_cells for variable in grid.variables)
    counts = attrs["num_windows"], num_cells, attrs["num_uncovered"]
    return MosaicSummary(grid.num_ids, *counts, attrs.get("max_coverage", 0))


def _take_turn(lock: IO[bytes], kept: KeptResult[TargetGrid]) -> None:
    """Wait until no other process merges a mosaic, and remove what killed ones have left.

    The system frees the lock of a process that ends, however it does. Where there are no locks,
    two may merge at once: each makes a store of its own, and both are the same.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _LOG.warning("another process is merging %s: this one waits for it", kept.target)
        fcntl.flock(lock, fcntl.LOCK_EX)
    replaced = kept.target.parent.glob(f"{glob.escape(kept.target.name)}.*.replaced")
    for left in (*replaced, *kept.folder.glob("*.merging*")):
        remove_partial(left)


def _merge(parts: FolderParts, memory: int | str) -> MosaicSummary:
    damaged = [path for path, record in parts.files().items() if record is None]
    if damaged:
        warn_caller(
            f"{len(damaged)} files of predictions are damaged, and are left out; the first is "
            f"{damaged[0]}. Write the mosaic once more: its samples count as not written",
            TargetWarning,
        )
    summary = parts.kept.replace(partial(_write, parts, memory), replaces=True)
    if summary.is_complete:
        remove_folder(parts.kept.folder)
    return summary


def _write(parts: FolderParts, memory: int | str, path: Path) -> MosaicSummary:
    grid, records = parts.form, parts.records()
    shutil.copytree(parts.kept.form_path.with_name("labels.zarr"), path)
    arrays = _make_arrays(path, grid, records)
    summary = merge_boxes(grid, records, arrays, memory)
    names = ("num_ids", "num_windows", "num_uncovered", "max_coverage")
    counts = {name: getattr(summary, name) for name in names}
    attrs = {grid.mark: grid.stamp, "blend": grid.blend, **counts}
    zarr.open_group(str(path / COVERAGE), mode="r+").attrs.update(attrs)
    with warnings.catch_warnings():
        # zarr says that consolidated metadata are no part of the format yet. xarray looks for them.
        warnings.simplefilter("ignore")
        inner = groups_of(grid)
        groups = {"", COVERAGE, *inner, *(f"{COVERAGE}/{group}" for group in inner)}
        # The groups within come first, because a group also lists what lies below it.
        for group in sorted((name.strip("/") for name in groups), key=len, reverse=True):
            zarr.consolidate_metadata(str(path), path=group or None)
    return summary


def _make_arrays(path: Path, grid: TargetGrid, records: list[Record]) -> list[MergeArrays]:
    """Make the arrays of all variables, which are NaN, and of their coverage, which is 0."""
    dtype, made = merged_dtype(records), []
    for variable in grid.variables:
        group = group_of(variable.name)
        shared: dict[str, Any] = {
            "name": variable.name,
            "shape": variable.shape,
            "chunks": variable.chunks,
            "dimension_names": [name_within(group, dim) for dim in variable.dims],
        }
        attrs: dict[str, Any] = {"long_name": f"number of windows that cover {variable.name}"}
        source_attrs = dict(variable.attrs)
        values = zarr.create_array(
            str(path), dtype=dtype, fill_value=np.nan, attributes=source_attrs, **shared
        )
        counts = zarr.create_array(
            str(path / COVERAGE), dtype=np.int32, fill_value=0, attributes=attrs, **shared
        )
        made.append((values, counts))
    return made


def open_merged(target: Path, grid: TargetGrid, labels: xr.Dataset, group: str = "") -> xr.Dataset:
    """The merged store as one Dataset, opened lazily, in which everything has its own name."""
    parts = []
    for inner, variables in groups_of(grid).items():
        opened = xr.open_zarr(target, group=f"{group}/{inner}".strip("/") or None)
        names = {name for variable in variables for name in (variable.name, *variable.dims)}
        names |= set(map(str, labels.variables))
        here = {*opened.variables, *opened.dims}
        within = {
            name_within(inner, name): name for name in names if inner and group_of(name) == inner
        }
        parts.append(opened.rename({new: old for new, old in within.items() if new in here}))
    merged: xr.Dataset = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part, compat="no_conflicts", join="exact")
    return merged
