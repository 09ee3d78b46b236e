"""Merges parts into a Zarr store, which appears under its name only when it is whole."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr

from xloader.core.messages import warn_caller
from xloader.errors import MosaicError, MosaicWarning, SourceNotFoundError
from xloader.mosaic.merged_boxes import MergeArrays, MosaicSummary, merge_boxes, merged_dtype
from xloader.mosaic.parts import GRID_FILE, LABELS, FolderParts, differences, parts_folder
from xloader.mosaic.records import Record
from xloader.mosaic.stored_groups import group_of, groups_of, name_within
from xloader.mosaic.target_grid import COVERAGE, TargetGrid
from xloader.sources.stores.write_places import check_replaceable

_ATTRIBUTE: Final = "xloader_mosaic"


def merge_store(
    target: str | os.PathLike[str],
    *,
    memory: int | str = "256MiB",
    overwrite: bool = False,
) -> MosaicSummary:
    """Merge the parts of all ranks into the target; see `xloader.merge`.

    Parameters
    ----------
    target : path
        The target.
    memory : int or str
        Bytes that merging may take.
    overwrite : bool
        Whether the target may replace a store that is there.

    Returns
    -------
    MosaicSummary
        The counts.

    Raises
    ------
    SourceNotFoundError
        If the target has no parts.
    MosaicError
        If something else lies at the target, or a sample was written twice.
    MemoryBudgetError
        If the memory is too small for a chunk.
    """
    path = Path(target)
    folder = parts_folder(path)
    if not (folder / GRID_FILE).is_file():
        has_target = path.exists()
        raise SourceNotFoundError(
            f"{path} has no predictions or partial statistics to merge",
            given=f"nothing in {folder}" + " (the target is there)" * has_target,
            allowed="the target of samples.mosaic(target) or samples.stats(path=target, part=...), "
            "some of which is written",
            remedy="it may be merged already: open it with xarray"
            if has_target
            else "check the path",
        )
    parts = FolderParts(folder)
    if overwrite:
        check_replaceable(path)
    else:
        check_target(path, parts.grid)
    damaged = parts.damaged()
    if damaged:
        warn_caller(
            f"{len(damaged)} files of predictions are damaged, and are left out; the first is "
            f"{damaged[0]}. Write the mosaic once more: its samples count as not written",
            MosaicWarning,
        )
    partial = path.with_name(path.name + ".merging")
    shutil.rmtree(partial, ignore_errors=True)
    summary = _write(parts, partial, memory)
    _replace(partial, path)
    if summary.is_complete:
        # Renamed first: another rank that closes now finds either all parts or none.
        removed = folder.with_name(folder.name + ".removed")
        shutil.rmtree(removed, ignore_errors=True)
        os.rename(folder, removed)
        shutil.rmtree(removed)
    return summary


def check_target(target: Path, grid: TargetGrid) -> None:
    """Check that nothing lies at the target but an earlier merge of the same mosaic.

    Raises
    ------
    MosaicError
        If something else does.
    """
    if not target.exists():
        return
    found = known_mosaic(target)
    if found is None or differences(found, grid.fingerprint):
        raise MosaicError(
            f"something else lies at {target} already",
            given="a mosaic of other samples" if found is not None else "no mosaic",
            allowed="a path where nothing lies, or the same mosaic with samples left to write",
            remedy="choose another target, remove what is there, or pass overwrite=True",
        )


def known_mosaic(target: Path) -> dict[str, str] | None:
    """The fingerprint of the mosaic that lies at a target; None if it is no mosaic."""
    try:
        group = zarr.open_group(str(target / COVERAGE), mode="r")
        found = group.attrs[_ATTRIBUTE]
    except (OSError, ValueError, KeyError):
        return None
    return {str(key): str(own) for key, own in found.items()} if isinstance(found, dict) else None


def _write(parts: FolderParts, path: Path, memory: int | str) -> MosaicSummary:
    grid, records = parts.grid, parts.records()
    shutil.copytree(parts.folder / LABELS, path)
    arrays = _make_arrays(path, grid, records)
    summary = merge_boxes(grid, records, arrays, memory)
    zarr.open_group(str(path / COVERAGE), mode="r+").attrs.update(
        {
            _ATTRIBUTE: dict(grid.fingerprint),
            "blend": grid.blend,
            "num_ids": summary.num_ids,
            "num_windows": summary.num_windows,
            "num_uncovered": summary.num_uncovered,
        }
    )
    with warnings.catch_warnings():
        # zarr says that consolidated metadata are no part of the format yet. xarray looks for them.
        warnings.simplefilter("ignore")
        groups = {"", COVERAGE, *groups_of(grid), *(f"{COVERAGE}/{own}" for own in groups_of(grid))}
        # The groups within come first, because a group also lists what lies below it.
        for group in sorted((own.strip("/") for own in groups), key=len, reverse=True):
            zarr.consolidate_metadata(str(path), path=group or None)
    return summary


def _make_arrays(path: Path, grid: TargetGrid, records: list[Record]) -> list[MergeArrays]:
    """Make the arrays of all variables, which are NaN, and of their coverage, which is 0."""
    dtype = merged_dtype(records)
    made: dict[str, MergeArrays] = {}
    zarr.create_group(str(path / COVERAGE), zarr_format=3)
    for group, variables in groups_of(grid).items():
        with xr.open_zarr(path, group=group or None, consolidated=False) as labels:
            indexes = xr.Dataset(coords={dim: labels[dim].variable for dim in labels.xindexes})
            indexes = indexes.load().drop_encoding()
        counted = path / COVERAGE / group
        indexes.to_zarr(counted, mode="a", zarr_format=3, consolidated=False)
        values = zarr.open_group(str(path / group), mode="r+")
        counts = zarr.open_group(str(counted), mode="r+")
        for variable in variables:
            shared: dict[str, Any] = {
                "name": name_within(group, variable.name),
                "shape": variable.shape,
                "chunks": variable.chunks,
                "dimension_names": [name_within(group, dim) for dim in variable.dims],
            }
            attrs: dict[str, Any] = {"long_name": f"number of windows that cover {variable.name}"}
            own = dict(variable.attrs)
            made[variable.name] = MergeArrays(
                values.create_array(dtype=dtype, fill_value=np.nan, attributes=own, **shared),
                counts.create_array(dtype=np.int32, fill_value=0, attributes=attrs, **shared),
            )
    return [made[variable.name] for variable in grid.variables]


def open_merged(target: Path, grid: TargetGrid, labels: xr.Dataset, group: str = "") -> xr.Dataset:
    """The merged store as one Dataset, opened lazily, in which everything has its own name.

    Parameters
    ----------
    target : pathlib.Path
        The store.
    grid : TargetGrid
        The grid.
    labels : xarray.Dataset
        The coordinates, for their names.
    group : str
        The group that holds it: the root, or `COVERAGE`.
    """
    parts = []
    for own, variables in groups_of(grid).items():
        opened = xr.open_zarr(target, group=f"{group}/{own}".strip("/") or None)
        names = {name for variable in variables for name in (variable.name, *variable.dims)}
        names |= set(map(str, labels.variables))
        here = {*opened.variables, *opened.dims}
        within = {name_within(own, name): name for name in names if own and group_of(name) == own}
        parts.append(opened.rename({new: old for new, old in within.items() if new in here}))
    merged: xr.Dataset = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part, compat="no_conflicts", join="exact")
    return merged


def _replace(made: Path, target: Path) -> None:
    """Move a store to the target, in place of what is there."""
    old = target.with_name(target.name + ".replaced")
    _remove(old)
    if target.exists():
        os.rename(target, old)
    os.rename(made, target)
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a folder or a file, if there is one."""
    if path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)
