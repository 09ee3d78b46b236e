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
from xloader.jobs.parts_folder import PartsFolder
from xloader.mosaic.merged_boxes import MergeArrays, MosaicSummary, merge_boxes, merged_dtype
from xloader.mosaic.parts import (
    FolderParts,
    Record,
    group_of,
    groups_of,
    mosaic_folder,
    name_within,
    open_parts,
)
from xloader.mosaic.target_grid import COVERAGE, TargetGrid
from xloader.sources.stores.write_places import check_replaceable, remove_partial, writing

_LOG: Final = logging.getLogger("xloader")

_ATTRIBUTE: Final = "xloader_mosaic"


def open_target(
    target: Path, grid: TargetGrid, labels: xr.Dataset, *, overwrite: bool
) -> FolderParts | MosaicSummary:
    """Go on with the parts of a target, or begin them."""
    folder = mosaic_folder(target)
    if overwrite:
        folder.remove()
    # In this order, because the store is there before its parts are removed.
    has_begun = folder.has_begun()
    summary = None if overwrite else merged_summary(target, grid)
    if summary is not None and not has_begun:
        if not summary.is_complete:
            raise TargetError(
                f"the mosaic at {target} lacks samples, and its folder of parts is gone",
                given=str(summary),
                remedy="choose another target, or pass overwrite=True to begin anew",
            )
        if not folder.path.exists():
            # A process may have been killed while it removed it.
            folder.remove()
        return summary
    try:
        return open_parts(target, grid, labels)
    except SourceAccessError:
        if overwrite or not target.exists():
            raise
        # Another process has merged them at this moment.
        return open_target(target, grid, labels, overwrite=False)


def merge_store(
    target: str | os.PathLike[str], *, memory: int | str = "256MiB", overwrite: bool = False
) -> MosaicSummary:
    """Merge the parts of all ranks into the target; see `xloader.merge`."""
    path = Path(target).expanduser()
    folder = mosaic_folder(path)
    if not folder.has_begun():
        has_target = path.exists()
        raise SourceNotFoundError(
            f"{path} has no predictions or partial statistics to merge",
            given=f"no parts in {folder.path}" + " (the target is there)" * has_target,
            remedy=(
                "it may be merged already: open it with xarray"
                if has_target
                else "pass the target= of a mosaic, or the path= of parts of statistics"
            ),
        )
    parts = FolderParts(folder)
    if overwrite:
        check_replaceable(path)
    else:
        merged_summary(path, parts.grid)
    try:
        with writing(path.parent), open(folder.path / "merging.lock", "ab") as lock:
            with suppress(OSError):
                _take_turn(lock, folder)
            return _merge(parts, memory)
    except SourceAccessError:
        summary = None if folder.has_begun() else merged_summary(path, parts.grid)
        if summary is None:
            raise
        # Another process was faster, and has removed the parts.
        return summary


def merged_summary(target: Path, grid: TargetGrid) -> MosaicSummary | None:
    """The counts of an earlier merge of a mosaic into its target; None if nothing lies there."""
    if not target.exists():
        return None
    try:
        attrs: dict[str, Any] = zarr.open_group(str(target / COVERAGE), mode="r").attrs.asdict()
    except (OSError, ValueError):
        attrs = {}
    fingerprint = attrs.get(_ATTRIBUTE)
    if fingerprint != dict(grid.fingerprint):
        raise TargetError(
            f"something else lies at {target} already",
            given="no mosaic" if fingerprint is None else "a mosaic of other samples",
            remedy="choose another target, remove what is there, or pass overwrite=True",
        )
    num_cells = sum(variable.num_cells for variable in grid.variables)
    counts = attrs["num_windows"], num_cells, attrs["num_uncovered"]
    return MosaicSummary(grid.num_ids, *counts, attrs.get("max_coverage", 0))


def _take_turn(lock: IO[bytes], folder: PartsFolder) -> None:
    """Wait until no other process merges a mosaic, and remove what killed ones have left.

    The system frees the lock of a process that ends, however it does. Where there are no locks,
    two may merge at once: each makes a store of its own, and both are the same.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _LOG.warning("another process is merging %s: this one waits for it", folder.target)
        fcntl.flock(lock, fcntl.LOCK_EX)
    replaced = folder.target.parent.glob(f"{glob.escape(folder.target.name)}.*.replaced")
    for left in (*replaced, *folder.path.glob("*.merging*")):
        remove_partial(left)


def _merge(parts: FolderParts, memory: int | str) -> MosaicSummary:
    damaged = [path for path, record in parts.files().items() if record is None]
    if damaged:
        warn_caller(
            f"{len(damaged)} files of predictions are damaged, and are left out; the first is "
            f"{damaged[0]}. Write the mosaic once more: its samples count as not written",
            TargetWarning,
        )
    summary = parts.folder.write_target(partial(_write, parts, memory), replaces=True)
    if summary.is_complete:
        parts.folder.remove()
    return summary


def _write(parts: FolderParts, memory: int | str, path: Path) -> MosaicSummary:
    grid, records = parts.grid, parts.records()
    shutil.copytree(parts.folder.labels, path)
    arrays = _make_arrays(path, grid, records)
    summary = merge_boxes(grid, records, arrays, memory)
    zarr.open_group(str(path / COVERAGE), mode="r+").attrs.update(
        {
            _ATTRIBUTE: dict(grid.fingerprint),
            "blend": grid.blend,
            "num_ids": summary.num_ids,
            "num_windows": summary.num_windows,
            "num_uncovered": summary.num_uncovered,
            "max_coverage": summary.max_coverage,
        }
    )
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
