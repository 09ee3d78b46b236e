r"""The form of statistics, and partial ones in memory and in files, merged in a fixed order.

A file of parts is a zip file with the statistics of some chunks, which are partly merged.

What is merged are numbered leaves of a binary tree, and each node merges its two children. The tree
depends on the number of leaves alone. So the bits of the result depend neither on the order, nor on
the number of threads, nor on how the leaves are divided among processes::

    level 2                     0
                        /                \
    level 1         0                       1
                 /     \                /     \
    leaves      0       1               2       3       4        (the last goes up alone)

Two siblings are merged as soon as both are there. What is kept is few complete subtrees.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from zipfile import ZipFile, ZipInfo

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import show_count
from xloader.errors import OptionError, SourceNotFoundError, StateError, TargetError
from xloader.jobs.parts_folder import PartsFolder
from xloader.jobs.statistics.moments import STATISTICS, LabelledMoments, moments_table
from xloader.jobs.statistics.quantile_sketch import quantile_label
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import writing

T = TypeVar("T")

Node = tuple[int, int]
"""Level and index: a node covers the leaves ``index << level`` to ``(index + 1) << level``."""

Tree = tuple[int, int]
"""Number of a variable, and of one of its trees."""

Nodes = Mapping[Tree, Mapping[Node, LabelledMoments]]
"""The statistics of complete subtrees."""

JOB: Final = "xloader_job"
"""Attribute of statistics: the key of the job, by which the same job knows its result again."""

_VERSION: Final = 3


@dataclass(frozen=True)
class VariableForm:
    """The form of the statistics of one variable: kept dimensions, and the leaves of each tree."""

    name: str
    dims: tuple[str, ...]
    edges: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    leaves: tuple[int, ...]
    has_clock: bool
    has_leads: bool
    attrs: Mapping[str, str]

    def box(self, tree: int) -> tuple[slice, ...]:
        """The kept elements of a tree."""
        grid = tuple(len(edges) - 1 for edges in self.edges)
        index = np.unravel_index(self.places[tree], grid) if grid else ()
        pairs = zip(self.edges, map(int, index), strict=True)
        return tuple(slice(edges[at], edges[at + 1]) for edges, at in pairs)


@dataclass(frozen=True)
class StatsTemplate:
    """The form of a result of statistics. It holds no values, and can be written as JSON."""

    variables: tuple[VariableForm, ...]
    clock: str
    num_rows: int
    num_leads: int
    quantiles: tuple[float, ...]
    attrs: Mapping[str, str]
    fingerprint: Mapping[str, str]
    labels: xr.Dataset = field(compare=False, repr=False, default_factory=xr.Dataset)

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the statistics, as labels of the dimension ``stat``."""
        return (*STATISTICS, *map(quantile_label, self.quantiles))

    @property
    def num_leaves(self) -> int:
        """Number of pieces of all variables."""
        return sum(sum(form.leaves) for form in self.variables)

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(8 * math.prod(self.sizes_of(form).values()) for form in self.variables)

    def sizes_of(self, form: VariableForm) -> dict[str, int]:
        """Dimensions of the statistics of a variable, with their sizes."""
        sizes = {"stat": len(self.stats)}
        if form.has_clock:
            sizes[self.clock] = self.num_rows
        if form.has_leads:
            sizes["lead"] = self.num_leads
        return sizes | {dim: edges[-1] for dim, edges in zip(form.dims, form.edges, strict=True)}

    def pieces_without(self, nodes: Iterable[tuple[Tree, Node]]) -> list[NDArray[np.bool_]]:
        """Per variable, the pieces that lie in none of some subtrees."""
        edges = [np.cumsum([0, *form.leaves]).tolist() for form in self.variables]
        pieces = [np.ones(along[-1], np.bool_) for along in edges]
        for (variable, tree), (level, index) in nodes:
            begin, end = edges[variable][tree : tree + 2]
            last = min(begin + ((index + 1) << level), end)
            pieces[variable][begin + (index << level) : last] = False
        return pieces

    def to_json(self) -> str:
        """All but the coordinates, as JSON."""
        return json.dumps({"version": _VERSION, **vars(self), "labels": None}, default=vars)

    @classmethod
    def from_json(cls, text: str, labels: xr.Dataset) -> StatsTemplate:
        """The template that `to_json` wrote."""
        facts = json.loads(text, object_hook=_with_tuples)
        if facts.pop("version") != _VERSION:
            raise ValueError("it was written by another version")
        forms = tuple(VariableForm(**form) for form in facts.pop("variables"))
        return cls(forms, **{**facts, "labels": labels})

    def differing(self, other: StatsTemplate) -> list[str]:
        """In what another job differs: its data, samples or options."""
        theirs = other.fingerprint
        return [name for name, digest in self.fingerprint.items() if theirs.get(name) != digest]

    @property
    def key(self) -> str:
        """Text that differs for other data, samples or options."""
        return hashlib.sha256(json.dumps(dict(self.fingerprint)).encode()).hexdigest()[:16]


def _with_tuples(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: _as_tuple(value) for key, value in facts.items()}


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


class StatsResult:
    """The arrays of a result, into which the statistics of trees are put."""

    def __init__(self, template: StatsTemplate) -> None:
        self._template = template
        self._arrays = []
        for form in template.variables:
            values = np.full(tuple(template.sizes_of(form).values()), np.nan)
            values[0] = 0.0
            self._arrays.append(values)

    def put(self, variable: int, tree: int, value: LabelledMoments) -> None:
        """Put the statistics of a tree, of the variable of that number, in their place."""
        form, quantiles = self._template.variables[variable], self._template.quantiles
        table = moments_table(value.moments)
        if value.sketches is not None:
            rows = [sketch.quantile(np.array(quantiles)) for sketch in value.sketches.flat]
            estimates = np.array(rows).reshape(*value.sketches.shape, len(quantiles))
            table = np.concatenate([table, np.moveaxis(estimates, -1, 0)])
        place: tuple[Any, ...] = (..., *form.box(tree))
        view = self._arrays[variable][place]
        if form.has_clock:
            view[:, value.rows] = table
        else:
            view[...] = table[:, 0]

    def dataset(self) -> xr.Dataset:
        """The result."""
        template = self._template
        values = {
            form.name: (tuple(template.sizes_of(form)), array, dict(form.attrs))
            for form, array in zip(template.variables, self._arrays, strict=True)
        }
        coords = {"stat": np.array(template.stats, object), **template.labels.coords}
        return xr.Dataset(values, coords, {**template.attrs, JOB: template.key})


class MergeTree(Generic[T]):
    """A tree that merges numbered leaves, each of which comes once, on any thread."""

    def __init__(self, num_leaves: int, merge: Callable[[T, T], T]) -> None:
        assert num_leaves > 0
        self.num_leaves = num_leaves
        self._merge = merge
        self._lock = threading.Lock()
        self.nodes: dict[Node, T] = {}

    def add(self, leaf: int, value: T) -> bool:
        """Add the value of a leaf, as `add_node`."""
        return self.add_node((0, leaf), value)

    def add_node(self, node: Node, value: T) -> bool:
        """Add the value of a complete subtree; whether it was the last one that was missing."""
        level, index = node
        while True:
            with self._lock:
                sibling = None
                while 1 << level < self.num_leaves:
                    if (index ^ 1) << level < self.num_leaves:
                        sibling = self.nodes.pop((level, index ^ 1), None)
                        break
                    level, index = level + 1, index >> 1
                if sibling is None:
                    self.nodes[level, index] = value
                    return 1 << level >= self.num_leaves
            # Without the lock: moments of many cells take a while.
            pair = (sibling, value) if index & 1 else (value, sibling)
            value = self._merge(*pair)
            level, index = level + 1, index >> 1

    def result(self) -> T:
        """The merger of all leaves."""
        (value,) = self.nodes.values()
        return value


def stats_folder(target: Path) -> PartsFolder:
    """The folder of the partial statistics of a target."""
    return PartsFolder(target, "stats")


class StatsParts:
    """The partial statistics of a target."""

    def __init__(self, folder: PartsFolder) -> None:
        self._folder = folder
        try:
            text = folder.form.read_text("utf-8")
            with xr.open_zarr(folder.labels, consolidated=False) as labels:
                self.template = StatsTemplate.from_json(text, labels.load())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{folder.path} holds no partial statistics that this version of xloader can read",
                given=str(error),
                remedy="remove it, or pass overwrite=True to begin anew",
            ) from error
        self._mark = json.dumps({"key": self.template.key}).encode()

    def add(self, nodes: dict[Tree, dict[Node, LabelledMoments]]) -> None:
        """Write the statistics of some subtrees as a file, and empty the dicts."""
        if not any(nodes.values()):
            return
        with self._folder.new_file() as file, ZipFile(file, "w") as archive:
            archive.comment = self._mark
            for tree in sorted(nodes):
                for node in sorted(nodes[tree]):
                    name = "-".join(map(str, (*tree, *node)))
                    # Taken out, so that they are not in memory twice.
                    archive.writestr(ZipInfo(name), nodes[tree].pop(node).to_bytes())

    def nodes(self) -> tuple[dict[tuple[Tree, Node], Path], list[Path]]:
        """The file of each subtree, each leaf in one of them only; and the damaged files.

        A subtree that lies in a larger one was computed by two runs at a time, with the same bits;
        it is left out.
        """
        paths: dict[tuple[Tree, Node], Path] = {}
        damaged = []
        for path in self._folder.files():
            try:
                with ZipFile(path) as archive:
                    if archive.comment != self._mark or archive.testzip():
                        raise ValueError(path.name)
                    for name in archive.namelist():
                        variable, tree, level, index = map(int, name.split("-"))
                        paths.setdefault(((variable, tree), (level, index)), path)
            except MemoryError:
                raise
            except Exception:
                # Damaged bytes can make a reader of zip files raise nearly anything.
                damaged.append(path)
        kept = {key: path for key, path in sorted(paths.items()) if not _is_within(*key, paths)}
        return kept, damaged

    def merged(self) -> xr.Dataset:
        """The result of all files."""
        nodes, damaged = self.nodes()
        note = f"; {len(damaged)} files are damaged, such as {damaged[0].name}" if damaged else ""
        files: dict[Path, list[tuple[Tree, Node]]] = {}
        for key, path in nodes.items():
            files.setdefault(path, []).append(key)

        def values() -> Iterable[tuple[Tree, Node, LabelledMoments]]:
            for path, keys in files.items():
                # An equal job that was faster may have removed it.
                with writing(path.parent), ZipFile(path) as archive:
                    for tree, node in keys:
                        data = archive.read("-".join(map(str, (*tree, *node))))
                        yield tree, node, LabelledMoments.from_bytes(data)

        return _merge(self.template, nodes, values(), note)


def _is_within(tree: Tree, node: Node, nodes: Mapping[tuple[Tree, Node], Path]) -> bool:
    level, index = node
    return any((tree, (level + up, index >> up)) in nodes for up in range(1, 64 - level))


def open_stats_parts(target: Path, template: StatsTemplate, *, overwrite: bool) -> StatsParts:
    """Open the partial statistics of a target, which are begun if there are none."""
    folder = stats_folder(target)
    if not folder.has_begun():
        if not overwrite:
            folder.check_is_ours()
        _begin(folder, template)
    try:
        parts = StatsParts(folder)
        if differing := template.differing(parts.template):
            raise StateError(
                f"{folder.path} holds statistics of another job",
                given=f"a job with other {', '.join(differing)}",
                remedy="call it as before, choose another path, or begin anew with overwrite=True",
            )
        return parts
    except StateError:
        if not overwrite:
            raise
    folder.remove()
    _begin(folder, template)
    return StatsParts(folder)


def _begin(folder: PartsFolder, template: StatsTemplate) -> None:
    def write_labels(path: Path) -> None:
        template.labels.to_zarr(path, zarr_format=3, consolidated=False)

    folder.begin(template.to_json(), write_labels)


@dataclass(frozen=True, eq=False)
class PartialStats:
    """Statistics of a part of the chunks, as :meth:`Samples.stats` with ``part`` returns them.

    :func:`xloader.merge` makes the whole of all parts. They can be pickled and sent.

    Attributes
    ----------
    part : (int, int)
        The number of this part, from 0 on, and the number of parts.
    num_reads : int
        Number of chunks that were read for it.
    template : StatsTemplate
        The form of the whole.
    nodes : mapping
        The statistics; none if they lie in files.
    path : str
        The target beside which the files lie; empty without files.
    """

    part: tuple[int, int]
    num_reads: int
    template: StatsTemplate = field(repr=False)
    nodes: Mapping[tuple[int, int], Mapping[Node, LabelledMoments]] = field(repr=False)
    path: str = ""

    def __str__(self) -> str:
        number, count = self.part
        where = f"; its files lie beside {self.path}" if self.path else ""
        chunks = show_count(self.num_reads, "chunk")
        return f"statistics of part {number} of {count}: {chunks} read{where}"


_FLUSH_SECONDS: Final = 10.0
"""Statistics are written after so much time, or when they take too many bytes."""


class StatsTrees:
    """The trees of all variables. Any thread may add to them.

    `finished`: takes the statistics of each tree that is complete; None to keep them.
    """

    def __init__(
        self,
        forms: tuple[VariableForm, ...],
        finished: Callable[[int, int, LabelledMoments], None] | None = None,
        parts: StatsParts | None = None,
        flush_nbytes: int = 0,
    ) -> None:
        self._forms = forms
        self._finished = finished
        self._parts = parts
        self._flush_nbytes = flush_nbytes
        self._flushed = time.monotonic()
        self._lock = threading.Lock()
        self._trees: dict[Tree, MergeTree[LabelledMoments]] = {}

    def add(self, key: Tree, node: Node, value: LabelledMoments) -> None:
        """Add the statistics of a subtree of a tree."""
        with self._lock:
            tree = self._trees.get(key)
            if tree is None:
                num_leaves = self._forms[key[0]].leaves[key[1]]
                tree = self._trees[key] = MergeTree(num_leaves, LabelledMoments.merge)
        if tree.add_node(node, value) and self._finished is not None:
            self._finished(*key, tree.result())
            with self._lock:
                del self._trees[key]

    def drain(self) -> dict[Tree, dict[Node, LabelledMoments]]:
        """The subtrees that were made since the last call, which are forgotten here."""
        with self._lock:
            nodes = {tree: dict(merged.nodes) for tree, merged in self._trees.items()}
            self._trees.clear()
        return nodes

    def flush(self, *, is_last: bool = False) -> None:
        """Write the subtrees, if they go to files, and it is time. No thread may be at work."""
        if self._parts is None:
            return
        with self._lock:
            values = [v for tree in self._trees.values() for v in list(tree.nodes.values())]
        nbytes = sum(value.nbytes for value in values)
        is_late = time.monotonic() - self._flushed > _FLUSH_SECONDS
        if is_late or is_last or nbytes > self._flush_nbytes:
            self._parts.add(self.drain())
            self._flushed = time.monotonic()


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
        differing = ", ".join(first.template.differing(part.template))
        given = f"parts with other {differing}" if differing else ""
        if not given and part.part[1] != first.part[1]:
            given = f"parts of {first.part[1]} and of {part.part[1]}"
        if given:
            raise StateError(
                "the parts are of different jobs", given=given, remedy="run all with equal options"
            )
    count, numbers = first.part[1], sorted(part.part[0] for part in parts)
    if numbers != list(range(count)):
        is_missing = set(range(count)) - set(numbers)
        raise StateError(
            "parts are missing" if is_missing else "a part comes twice",
            given=f"parts {numbers} of {count}",
            remedy="run all parts, and pass each of them once",
        )
    nodes = [
        (tree, node, value)
        for part in parts
        for tree, values in part.nodes.items()
        for node, value in values.items()
    ]
    return _merge(first.template, [(tree, node) for tree, node, _ in nodes], nodes)


def _merge(
    template: StatsTemplate,
    nodes: Iterable[tuple[Tree, Node]],
    values: Iterable[tuple[Tree, Node, LabelledMoments]],
    note: str = "",
) -> xr.Dataset:
    """The result of some subtrees, one value after the other."""
    num_missing = sum(int(pieces.sum()) for pieces in template.pieces_without(nodes))
    if num_missing:
        raise StateError(
            "statistics of some chunks are missing",
            given=f"{num_missing} of {template.num_leaves} missing{note}",
            remedy="run the parts that were not run or were killed, and merge again",
        )
    result = StatsResult(template)
    trees = StatsTrees(template.variables, result.put)
    for tree, node, value in values:
        trees.add(tree, node, value)
    return result.dataset()


_LEAST_FREE: Final = 1 << 20
"""Bytes for what a file holds beside its values."""


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
    try:
        key_of_parts = StatsParts(folder).template.key if folder.has_begun() else None
    except StateError:
        # Parts of another version do not matter to a job that is done.
        if result is None or key != result.attrs[JOB]:
            raise
        key_of_parts = None
    if key is None:
        key = key_of_parts
    if result is None or key not in (None, result.attrs[JOB]):
        others = "statistics of other data, samples or options"
        raise TargetError(
            f"something lies at {target} already",
            given="something else than statistics" if result is None else others,
            remedy="open it with xarray, choose another path, or pass overwrite=True",
        )
    if key_of_parts == key or not folder.path.exists():
        # The job was killed after its result was whole.
        folder.remove()
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
    if target.name and stats_folder(target).has_begun():
        return True
    return target.suffix in (".nc", ".zarr") and _stored_stats(target) is not None


def merge_stats(target: str | os.PathLike[str], *, overwrite: bool = False) -> xr.Dataset:
    """Merge the partial statistics beside a target, and write the target.

    If that was done before, the result is read.
    """
    path = target_path(target)
    if not overwrite and (finished := finished_stats(path, None)) is not None:
        return finished
    if not stats_folder(path).has_begun():
        raise SourceNotFoundError(
            f"{path} has no partial statistics to merge",
            given=f"nothing in {stats_folder(path).path}",
            remedy="pass the path that was passed to stats(path=..., part=...)",
        )
    try:
        return write_merged(path, overwrite=overwrite)
    except (StateError, OSError):
        if overwrite or not path.exists():
            raise
        # Another process was faster, and has removed the parts.
        return merge_stats(path)


def write_merged(target: Path, *, overwrite: bool) -> xr.Dataset:
    """Merge the files beside a target, write the result at one stroke, and remove the files."""
    folder = stats_folder(target)
    result = StatsParts(folder).merged()
    with writing(target.parent):
        folder.write_target(partial(_write_stats, result), replaces=overwrite)
    folder.remove()
    return result


def _write_stats(result: xr.Dataset, path: Path) -> None:
    """Write statistics in the format that the suffix of a path names."""
    try:
        if path.suffix == ".nc":
            result.to_netcdf(path)
            return
        with warnings.catch_warnings():
            # zarr says that the dtype of the labels, and metadata in one place, are not in the
            # format.
            warnings.simplefilter("ignore")
            result.to_zarr(path, zarr_format=3, consolidated=True)
    except RuntimeError as error:
        # The netCDF library does not tell a full disk from other failures.
        is_full = shutil.disk_usage(path.parent).free < result.nbytes + _LEAST_FREE
        raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from error
