"""Merges partial statistics into the result, and writes it."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import xarray as xr

from xloader.errors import OptionError, SourceNotFoundError, StateError, TargetError
from xloader.jobs.statistics.moments import LabelledMoments
from xloader.jobs.statistics.stats_parts import (
    FORM_FILE,
    MergeTree,
    Node,
    PartialStats,
    StatsParts,
    StoredNode,
    stats_folder,
)
from xloader.jobs.statistics.stats_template import JOB, StatsResult, StatsTemplate
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import (
    check_replaceable,
    remove_folder,
    remove_partial,
    replace_folder,
    writing,
)

_LEAST_FREE: Final = 1 << 20
"""Bytes for what a file holds beside its values."""

Nodes = Mapping[Node, LabelledMoments | StoredNode]


def target_path(path: str | os.PathLike[str]) -> Path:
    """Check the path of a result."""
    is_path = isinstance(path, str | os.PathLike)
    target = Path(local_path(path)).expanduser() if is_path else Path()
    if not is_path or "://" in local_path(path) or target.suffix not in (".nc", ".zarr"):
        raise OptionError(
            "the path of statistics is not a local path of a netCDF file or a Zarr store",
            given=repr(path),
            remedy='pass path="stats.nc" or "stats.zarr", or leave it out and write the result',
        )
    return target


def finished_stats(target: Path, key: str | None) -> xr.Dataset | None:
    """The result of the same job, if it lies at a target already; None where nothing lies.

    `key`: the key of the job; None for that of the partial statistics beside the target, if any.
    """
    if not target.exists():
        return None
    result = _stored_stats(target)
    folder = stats_folder(target)
    key_of_parts = StatsParts(folder).template.key if _has_parts(target) else None
    if key is None:
        key = key_of_parts
    if result is None or key not in (None, result.attrs[JOB]):
        raise TargetError(
            f"something lies at {target} already",
            given=(
                "something else than statistics"
                if result is None
                else "statistics of other data, samples or options"
            ),
            remedy="open it with xarray, choose another path, or pass overwrite=True",
        )
    if key_of_parts == key or not folder.exists():
        # The job was killed after its result was whole.
        remove_folder(folder)
    return result


def _stored_stats(target: Path) -> xr.Dataset | None:
    """Statistics in a file, as they were before they were written; None if it holds others."""
    options: dict[str, Any] = (
        {"engine": "zarr", "consolidated": False} if target.suffix == ".zarr" else {}
    )
    try:
        with xr.open_dataset(target, decode_timedelta=True, **options) as stored:
            return stored.load().drop_encoding() if JOB in stored.attrs else None
    except (OSError, ValueError, KeyError):
        return None


def has_stats(path: str | os.PathLike[str]) -> bool:
    """Whether statistics lie at a path, or partial ones beside it."""
    target = Path(local_path(path)).expanduser()
    # The root of a file system has no name, and no folder beside it.
    if target.name and _has_parts(target):
        return True
    return target.suffix in (".nc", ".zarr") and _stored_stats(target) is not None


def _has_parts(target: Path) -> bool:
    """Whether partial statistics lie beside a target."""
    return (stats_folder(target) / FORM_FILE).is_file()


def merge_stats(target: str | os.PathLike[str], *, overwrite: bool = False) -> xr.Dataset:
    """Merge the partial statistics beside a target, and write the target.

    If that was done before, the result is read.
    """
    path = target_path(target)
    if not overwrite and (finished := finished_stats(path, None)) is not None:
        return finished
    if not _has_parts(path):
        raise SourceNotFoundError(
            f"{path} has no partial statistics to merge",
            given=f"nothing in {stats_folder(path)}",
            remedy="pass the path that was passed to stats(path=..., part=...)",
        )
    try:
        return write_target(path, merge_stored(path), overwrite=overwrite)
    except (StateError, OSError):
        if overwrite or not path.exists():
            raise
        # Another process was faster, and has removed the parts.
        return merge_stats(path)


def merge_stored(target: Path) -> xr.Dataset:
    """The result of the partial statistics beside a target."""
    parts = StatsParts(stats_folder(target))
    trees: dict[tuple[int, int], dict[Node, LabelledMoments | StoredNode]] = {}
    for node in parts.nodes():
        trees.setdefault(node.tree, {})[node.node] = node
    damaged = parts.damaged()
    note = f"{len(damaged)} files are damaged, such as {damaged[0].name}" if damaged else ""
    return _merge(parts.template, trees, note)


def merge_parts(parts: Sequence[PartialStats]) -> xr.Dataset:
    """The result of parts in memory."""
    first = parts[0]
    if any(part.path for part in parts):
        raise StateError(
            "these parts were written to files",
            given=", ".join(sorted({part.path for part in parts if part.path})),
            remedy="pass the path instead: xloader.merge(path)",
        )
    for part in parts:
        differing = first.template.differing(part.template)
        if differing or part.part[1] != first.part[1]:
            raise StateError(
                "the parts are of different jobs",
                given=(
                    f"parts with other {', '.join(differing)}"
                    if differing
                    else f"parts of {first.part[1]} and of {part.part[1]}"
                ),
                remedy="run all parts with the same samples and options",
            )
    numbers = [part.part[0] for part in parts]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    missing = sorted(set(range(first.part[1])) - set(numbers))
    if twice or missing:
        raise StateError(
            "parts are missing" if missing else "a part comes twice",
            given=f"parts {sorted(numbers)} of {first.part[1]}",
            remedy=f"run the parts {missing}" if missing else f"pass the parts {twice} once",
        )
    trees: dict[tuple[int, int], dict[Node, LabelledMoments | StoredNode]] = {}
    for part in parts:
        for tree, nodes in part.nodes.items():
            trees.setdefault(tree, {}).update(nodes)
    return _merge(first.template, trees)


def _merge(
    template: StatsTemplate, trees: Mapping[tuple[int, int], Nodes], note: str = ""
) -> xr.Dataset:
    """Merge trees one by one, so that only the nodes of one are in memory."""
    result = StatsResult(template)
    num_missing = 0
    for variable, form in enumerate(template.variables):
        for number, num_leaves in enumerate(form.leaves):
            tree = MergeTree(num_leaves, LabelledMoments.merge)
            for node, value in sorted(trees.get((variable, number), {}).items()):
                tree.add_node(node, value.load() if isinstance(value, StoredNode) else value)
            missing = tree.missing()
            num_missing += sum(end - begin for begin, end in missing)
            if not missing:
                result.put(variable, number, tree.result())
    if num_missing:
        raise StateError(
            "statistics of some chunks are missing",
            given=f"{num_missing} of {template.num_leaves} missing" + f"; {note}" * bool(note),
            remedy="run the parts that were not run or were killed, and merge again",
        )
    return result.dataset()


def write_target(target: Path, result: xr.Dataset, *, overwrite: bool) -> xr.Dataset:
    """Write a result at one stroke, and remove its partial statistics."""
    # In the folder that is removed afterwards, so that a killed process leaves nothing else. The
    # suffix tells xarray which format it is.
    partial = stats_folder(target) / f"{uuid.uuid4().hex[:8]}.partial{target.suffix}"
    with writing(target.parent):
        try:
            if target.suffix == ".nc":
                result.to_netcdf(partial)
            else:
                with warnings.catch_warnings():
                    # zarr says that the dtype of the labels, and metadata in one place, are not in
                    # the format.
                    warnings.simplefilter("ignore")
                    result.to_zarr(partial, zarr_format=3, consolidated=True)
            if overwrite and target.is_dir():
                check_replaceable(target)
                # Another process may have removed it meanwhile, and zarr makes folders anew.
                os.stat(stats_folder(target) / FORM_FILE)
                replace_folder(partial, target)
            else:
                os.replace(partial, target)
        except (OSError, RuntimeError) as error:
            remove_partial(partial)
            if isinstance(error, OSError):
                raise
            # The netCDF library does not tell a full disk from other failures.
            is_full = shutil.disk_usage(target.parent).free < result.nbytes + _LEAST_FREE
            raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from error
    remove_folder(stats_folder(target))
    return result
