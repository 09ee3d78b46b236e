r"""Results of chunks that are merged in a fixed order, in memory and in files.

What is merged are numbered leaves of a binary tree, and each node merges its two children. The tree
depends on the number of leaves alone. So the bits of the result depend neither on the order, nor on
the number of threads, nor on how the leaves are divided among processes::

    level 2                     0
                        /                \
    level 1         0                       1
                 /     \                /     \
    leaves      0       1               2       3       4        (the last goes up alone)

Two siblings are merged as soon as both are there. What is kept is few complete subtrees. A file
of parts holds some of them, each as an entry.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar
from zipfile import ZipFile, ZipInfo

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import StateError, TargetWarning, XloaderWarning
from xloader.jobs.kept_result import JobForm, JobParts, KeptResult, path_here
from xloader.sources.stores.write_places import writing

T = TypeVar("T")

Node = tuple[int, int]
"""Level and index: a node covers the leaves ``index << level`` to ``(index + 1) << level``."""

Tree = tuple[int, int]
"""Number of a variable, and of one of its trees."""

Leaves = Sequence[Sequence[int]]
"""For each variable, the number of leaves of each of its trees."""

Nodes = Mapping[Tree, Mapping[Node, Any]]
"""The values of complete subtrees."""


@dataclass(frozen=True, kw_only=True)
class TreeForm(JobForm):
    """The form of a result that is merged of trees.

    `value_type`: with `nbytes`, `merge(other)`, `to_bytes()` and `from_bytes(data)`. `result_type`:
    of a form, with `dataset()` and, for whole trees on any thread, `put(variable, tree, value)`.
    """

    value_type: ClassVar[type[Any]]
    result_type: ClassVar[type[Any]]
    warning: ClassVar[type[XloaderWarning]] = TargetWarning
    smaller: ClassVar[str] = "take fewer variables"

    @property
    def leaves(self) -> Leaves:
        """For each variable, the number of leaves of each of its trees."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        raise NotImplementedError

    def whole(self, result: Any) -> xr.Dataset:
        """The dataset of a result into which all trees are put, with the stamp of the job."""
        dataset: xr.Dataset = result.dataset()
        return dataset.assign_attrs({self.mark: self.stamp})

    def pieces_without(self, nodes: Iterable[tuple[Tree, Node]]) -> list[NDArray[np.bool_]]:
        """Per variable, the leaves that lie in none of some subtrees."""
        edges = [np.cumsum([0, *leaves]).tolist() for leaves in self.leaves]
        pieces = [np.ones(along[-1], np.bool_) for along in edges]
        for (variable, tree), (level, index) in nodes:
            begin, end = edges[variable][tree : tree + 2]
            last = min(begin + ((index + 1) << level), end)
            pieces[variable][begin + (index << level) : last] = False
        return pieces

    def merged(
        self,
        nodes: Iterable[tuple[Tree, Node]],
        values: Iterable[tuple[Tree, Node, Any]],
        note: str = "",
    ) -> xr.Dataset:
        """The result of some subtrees, one value after the other."""
        num_missing = sum(int(pieces.sum()) for pieces in self.pieces_without(nodes))
        if num_missing:
            raise StateError(
                f"{self.noun} of some chunks are missing",
                given=f"{num_missing} of {sum(map(sum, self.leaves))} missing{note}",
                remedy="run the parts that were not run or were killed, and merge again",
            )
        result = self.result_type(self)
        trees = MergeTrees(self.leaves, result.put)
        for tree, node, value in values:
            trees.add(tree, node, value)
        return self.whole(result)


class MergeTree(Generic[T]):
    """A tree that merges numbered leaves, each of which comes once, on any thread."""

    def __init__(self, num_leaves: int, merge: Callable[[T, T], T]) -> None:
        assert num_leaves > 0
        self.num_leaves = num_leaves
        self._merge = merge
        self._lock = threading.Lock()
        self.nodes: dict[Node, T] = {}

    def add(self, node: Node, value: T) -> bool:
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


class TreeParts(JobParts[TreeForm]):
    """The parts of a result that is merged of trees: zip files, with an entry for each subtree."""

    def __init__(self, kept: KeptResult[Any]) -> None:
        super().__init__(kept)
        self._mark = json.dumps({"key": self.form.key}).encode()

    def add(self, nodes: dict[Tree, dict[Node, Any]]) -> None:
        """Write what was made of some subtrees as a file, and empty the dicts."""
        if not any(nodes.values()):
            return
        with self.new_file() as file, ZipFile(file, "w") as archive:
            archive.comment = self._mark
            for tree in sorted(nodes):
                for node in sorted(nodes[tree]):
                    # Taken out, so that they are not in memory twice.
                    data = nodes[tree].pop(node).to_bytes()
                    archive.writestr(ZipInfo(_name_of(tree, node)), data)

    def nodes(self) -> tuple[dict[tuple[Tree, Node], Path], list[Path]]:
        """The file of each subtree, each leaf in one of them only; and the damaged files.

        A subtree that lies in a larger one was computed by two runs at a time, with the same bits;
        it is left out.
        """
        paths: dict[tuple[Tree, Node], Path] = {}
        damaged = []
        for path in self.paths():
            try:
                with ZipFile(path) as archive:
                    if archive.comment != self._mark or archive.testzip():
                        raise ValueError(path.name)
                    for name in archive.namelist():
                        paths.setdefault(_node_of(name), path)
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
        return self.form.merged(nodes, self._read(nodes), note)

    def _read(self, nodes: Mapping[tuple[Tree, Node], Path]) -> Iterator[tuple[Tree, Node, Any]]:
        """The values of some subtrees, file by file."""
        files: dict[Path, list[tuple[Tree, Node]]] = {}
        for key, path in nodes.items():
            files.setdefault(path, []).append(key)
        for path, keys in files.items():
            # An equal job that was faster may have removed it.
            with writing(path.parent), ZipFile(path) as archive:
                for key in keys:
                    yield *key, self.form.value_type.from_bytes(archive.read(_name_of(*key)))


def _name_of(tree: Tree, node: Node) -> str:
    """The name of a subtree's entry in a file of parts."""
    return "-".join(map(str, (*tree, *node)))


def _node_of(name: str) -> tuple[Tree, Node]:
    variable, tree, level, index = map(int, name.split("-"))
    return (variable, tree), (level, index)


def _is_within(tree: Tree, node: Node, nodes: Mapping[tuple[Tree, Node], Path]) -> bool:
    level, index = node
    return any((tree, (level + up, index >> up)) in nodes for up in range(1, 64 - level))


_FLUSH_SECONDS: Final = 10.0
"""Subtrees are written after so much time, or when they take too many bytes."""


class MergeTrees:
    """The trees of all variables. Any thread may add to them.

    `finished`: takes what each tree that is complete was merged to; None to keep them.
    """

    def __init__(
        self,
        leaves: Leaves,
        finished: Callable[[int, int, Any], None] | None = None,
        parts: TreeParts | None = None,
        flush_nbytes: int = 0,
    ) -> None:
        self._leaves = leaves
        self._finished = finished
        self._parts = parts
        self._flush_nbytes = flush_nbytes
        self._flushed = time.monotonic()
        self._lock = threading.Lock()
        self._trees: dict[Tree, MergeTree[Any]] = {}

    def add(self, key: Tree, node: Node, value: Any) -> None:
        """Add what was made of a subtree of a tree."""
        with self._lock:
            tree = self._trees.get(key)
            if tree is None:
                num_leaves = self._leaves[key[0]][key[1]]
                tree = self._trees[key] = MergeTree(num_leaves, lambda a, b: a.merge(b))
        if tree.add(node, value) and self._finished is not None:
            self._finished(*key, tree.result())
            with self._lock:
                del self._trees[key]

    def drain(self) -> dict[Tree, dict[Node, Any]]:
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


def merge_files(
    path: object, form_type: type[TreeForm], *, overwrite: bool = False
) -> xr.Dataset | None:
    """Merge the parts beside a target, and write the target; if that was done before, read it.

    None where nothing of this kind lies.
    """
    target = path_here(path)
    if target is None or target.suffix not in form_type.suffixes:
        return None
    kept = KeptResult(target, form_type)
    if not kept.has_begun() and (overwrite or form_type.stored(target) is None):
        return None
    merge = partial(write_merged, kept, overwrite=overwrite)
    finished, merged = kept.finished_or(None, merge, overwrite=overwrite)
    return finished if merged is None else merged


def write_merged(kept: KeptResult[Any], *, overwrite: bool) -> xr.Dataset:
    """Merge the files beside a target, write the result at one stroke, and remove the files."""
    result = TreeParts(kept).merged()
    kept.write(result, overwrite=overwrite)
    return result
