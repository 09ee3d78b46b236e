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

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import show_count
from xloader.errors import SourceNotFoundError, StateError
from xloader.jobs.kept_result import JobForm, JobParts, KeptResult
from xloader.jobs.statistics.moments import STATISTICS, LabelledMoments, moments_table
from xloader.jobs.statistics.quantile_sketch import quantile_label
from xloader.sources.stores.bounded_reads import local_path

T = TypeVar("T")

Node = tuple[int, int]
"""Level and index: a node covers the leaves ``index << level`` to ``(index + 1) << level``."""

Tree = tuple[int, int]
"""Number of a variable, and of one of its trees."""

Nodes = Mapping[Tree, Mapping[Node, LabelledMoments]]
"""The statistics of complete subtrees."""

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
class StatsTemplate(JobForm):
    """The form of a result of statistics. It holds no values, and can be written as JSON."""

    name = "stats"
    noun = "statistics"
    mark = "xloader_job"

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
        return xr.Dataset(values, coords, {**template.attrs, template.mark: template.key})


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


class StatsParts:
    """The partial statistics of a target."""

    def __init__(self, parts: JobParts[StatsTemplate]) -> None:
        self._parts = parts
        self.template = parts.form

    def add(self, nodes: dict[Tree, dict[Node, LabelledMoments]]) -> None:
        """Write the statistics of some subtrees as a file, and empty the dicts."""
        if any(nodes.values()):
            # Taken out, so that they are not in memory twice.
            self._parts.add(
                (_name_of(tree, node), nodes[tree].pop(node).to_bytes())
                for tree in sorted(nodes)
                for node in sorted(nodes[tree])
            )

    def nodes(self) -> tuple[dict[tuple[Tree, Node], Path], list[Path]]:
        """The file of each subtree, each leaf in one of them only; and the damaged files.

        A subtree that lies in a larger one was computed by two runs at a time, with the same bits;
        it is left out.
        """
        places, damaged = self._parts.places()
        paths = {_node_of(name): path for name, path in places.items()}
        kept = {key: path for key, path in sorted(paths.items()) if not _is_within(*key, paths)}
        return kept, damaged

    def merged(self) -> xr.Dataset:
        """The result of all files."""
        nodes, damaged = self.nodes()
        note = f"; {len(damaged)} files are damaged, such as {damaged[0].name}" if damaged else ""
        entries = self._parts.read({_name_of(*key): path for key, path in nodes.items()})
        values = ((*_node_of(name), LabelledMoments.from_bytes(data)) for name, data in entries)
        return _merge(self.template, nodes, values, note)


def _name_of(tree: Tree, node: Node) -> str:
    """The name of a subtree's entry in a file of parts."""
    return "-".join(map(str, (*tree, *node)))


def _node_of(name: str) -> tuple[Tree, Node]:
    variable, tree, level, index = map(int, name.split("-"))
    return (variable, tree), (level, index)


def _is_within(tree: Tree, node: Node, nodes: Mapping[tuple[Tree, Node], Path]) -> bool:
    level, index = node
    return any((tree, (level + up, index >> up)) in nodes for up in range(1, 64 - level))


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


def has_stats(path: str | os.PathLike[str]) -> bool:
    """Whether statistics lie at a path, or partial ones beside it."""
    kept = KeptResult(Path(local_path(path)).expanduser(), StatsTemplate)
    # The root of a file system has no name, and no folder beside it.
    if kept.target.name and kept.folder.has_begun():
        return True
    return kept.target.suffix in (".nc", ".zarr") and kept.stored() is not None


def merge_stats(path: str | os.PathLike[str], *, overwrite: bool = False) -> xr.Dataset:
    """Merge the partial statistics beside a target, and write the target.

    If that was done before, the result is read.
    """
    kept = KeptResult.at(path, StatsTemplate)
    if not overwrite and (finished := kept.finished(None)) is not None:
        return finished
    if not kept.folder.has_begun():
        raise SourceNotFoundError(
            f"{kept.target} has no partial statistics to merge",
            given=f"nothing in {kept.folder.path}",
            remedy="pass the path that was passed to stats(path=..., part=...)",
        )
    try:
        return write_merged(kept, overwrite=overwrite)
    except (StateError, OSError):
        if overwrite or not kept.target.exists():
            raise
        # Another process was faster, and has removed the parts.
        return merge_stats(path)


def write_merged(kept: KeptResult[StatsTemplate], *, overwrite: bool) -> xr.Dataset:
    """Merge the files beside a target, write the result at one stroke, and remove the files."""
    result = StatsParts(JobParts(kept)).merged()
    kept.write(result, overwrite=overwrite)
    return result
