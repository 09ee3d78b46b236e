r"""Partial statistics in files, from which a job that was killed goes on.

Beside the result ``stats.nc`` lies a folder until the job is done::

    stats.nc.parts/
        form/stats.json               the form of the result
        form/labels.zarr/             its coordinates
        nodes/3f2a9c51-000000.nodes   the statistics of some chunks, merged as far as they go
        nodes/...

Files are added, and none is changed. So a process that is killed leaves whole files only, and parts
of a job on several machines do not meet.

Merges numbered parts in a fixed order, whatever the order in which they come.

The parts are the leaves of a binary tree, and each node merges its two children. The tree depends
on the number of leaves alone. So the bits of the result depend neither on the order, nor on the
number of threads, nor on how the leaves are divided among processes::

    level 2                     0
                        /                \
    level 1         0                       1
                 /     \                /     \
    leaves      0       1               2       3       4        (the last goes up alone)

Two siblings are merged as soon as both are there. What is kept is few complete subtrees.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

import xarray as xr

from xloader.core.messages import show_count
from xloader.errors import OptionError, StateError
from xloader.jobs.statistics.chunk_reduction import ChunkOrder
from xloader.jobs.statistics.moments import LabelledMoments
from xloader.jobs.statistics.stats_template import StatsTemplate
from xloader.sources.stores.write_places import remove_folder, whole_file, whole_folder, writing

T = TypeVar("T")

Node = tuple[int, int]
"""Level and index: a node covers the leaves ``index << level`` to ``(index + 1) << level``."""


class MergeTree(Generic[T]):
    """A tree that merges numbered leaves."""

    def __init__(self, num_leaves: int, merge: Callable[[T, T], T]) -> None:
        assert num_leaves > 0
        self.num_leaves = num_leaves
        self._merge = merge
        self.nodes: dict[Node, T] = {}

    def add(self, leaf: int, value: T) -> None:
        """Add the value of a leaf."""
        self.add_node((0, leaf), value)

    def add_node(self, node: Node, value: T) -> None:
        """Add the value of a complete subtree, as `nodes` of another tree gives it."""
        level, index = node
        if not 0 <= index < self._num_nodes(level) or self._overlaps(node):
            raise OptionError(
                "this part cannot be merged",
                given=f"leaves {index << level} to {(index + 1) << level}",
                remedy="merge each part once, of the same job",
            )
        while (merger := self.offer(node, value)) is not None:
            node, first, second = merger
            value = self._merge(first, second)

    def offer(self, node: Node, value: T) -> tuple[Node, T, T] | None:
        """Put a value in its place; or, if its sibling is there, take that for a merger.

        Threads call it one at a time, and merge meanwhile. It does not check whether leaves come
        twice.
        """
        level, index = node
        while self._num_nodes(level) > 1:
            sibling = index ^ 1
            if sibling < self._num_nodes(level):
                sibling_value = self.nodes.pop((level, sibling), None)
                if sibling_value is None:
                    break
                pair = (value, sibling_value) if index < sibling else (sibling_value, value)
                return (level + 1, index >> 1), *pair
            level, index = level + 1, index >> 1
        self.nodes[level, index] = value
        return None

    @property
    def is_complete(self) -> bool:
        """Whether no leaf is missing."""
        return (
            len(self.nodes) == 1 and (self.num_leaves - 1).bit_length() == next(iter(self.nodes))[0]
        )

    def missing(self) -> list[tuple[int, int]]:
        """The leaves that are missing, as half-open intervals, ascending."""
        gaps, at = [], 0
        for level, index in sorted(self.nodes, key=lambda node: node[1] << node[0]):
            begin = index << level
            if begin > at:
                gaps.append((at, begin))
            at = min((index + 1) << level, self.num_leaves)
        if at < self.num_leaves:
            gaps.append((at, self.num_leaves))
        return gaps

    def result(self) -> T:
        """The merger of all leaves."""
        missing = self.missing()
        if missing:
            raise OptionError(
                "parts of the job are missing",
                given=f"{sum(end - begin for begin, end in missing)} of {self.num_leaves} missing",
                remedy="run the parts that are missing, and merge again",
            )
        (value,) = self.nodes.values()
        return value

    def _num_nodes(self, level: int) -> int:
        return -(-self.num_leaves >> level)

    def _overlaps(self, node: Node) -> bool:
        """Whether a leaf of the node is there already."""
        level, index = node
        above = ((level + up, index >> up) for up in range(self.num_leaves.bit_length() + 1))
        if any(ancestor in self.nodes for ancestor in above):
            return True
        begin, end = index << level, (index + 1) << level
        return any(begin <= number << up < end for up, number in self.nodes)


FORM_FILE: Final = Path("form", "stats.json")
_LABELS: Final = Path("form", "labels.zarr")
_MOST_HEAD: Final = 1 << 12
_PIECE_NBYTES: Final = 1 << 20

Tree = tuple[int, int]
"""Number of a variable, and of one of its trees."""


@dataclass(frozen=True)
class StoredNode:
    """The statistics of a complete subtree, in a file."""

    tree: Tree
    node: Node
    path: Path
    offset: int
    nbytes: int

    def load(self) -> LabelledMoments:
        """Read it."""
        # An equal job that was faster may have removed it.
        with writing(self.path.parent), open(self.path, "rb") as file:
            file.seek(self.offset)
            return LabelledMoments.from_bytes(file.read(self.nbytes))


def stats_folder(target: Path) -> Path:
    """The folder of the partial statistics of a target."""
    return target.with_name(target.name + ".parts")


class StatsParts:
    """The folder of partial statistics of a target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            text = (folder / FORM_FILE).read_text("utf-8")
            with xr.open_zarr(folder / _LABELS, consolidated=False) as labels:
                self.template = StatsTemplate.from_json(text, labels.load())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{folder} holds no partial statistics that this version of xloader can read",
                given=str(error),
                remedy="remove it, or pass overwrite=True to begin anew",
            ) from error
        # Files of one run never meet those of another.
        self._token = uuid.uuid4().hex[:8]
        self._num_files = 0

    def add(self, nodes: dict[Tree, dict[Node, LabelledMoments]]) -> None:
        """Write the statistics of some subtrees as a file, and empty the dicts.

        The file appears at one stroke.
        """
        entries, bodies = [], []
        for tree in sorted(nodes):
            for node in sorted(nodes[tree]):
                # Taken out, so that they are not in memory twice.
                body = nodes[tree].pop(node).to_bytes()
                entries.append([*tree, *node, len(body)])
                bodies.append(body)
        if not entries:
            return
        index = json.dumps(entries).encode()
        crc = zlib.crc32(index)
        for body in bodies:
            crc = zlib.crc32(body, crc)
        head = {
            "key": self.template.key,
            "index": len(index),
            "nbytes": len(index) + sum(map(len, bodies)),
            "crc32": crc,
        }
        path = self.folder / "nodes" / f"{self._token}-{self._num_files:06d}.nodes"
        with writing(self.folder):
            path.parent.mkdir(exist_ok=True)
            with whole_file(path) as file:
                file.write(json.dumps(head).encode() + b"\n" + index)
                for body in bodies:
                    file.write(body)
        self._num_files += 1

    def nodes(self) -> list[StoredNode]:
        """All subtrees in whole files, each leaf in one of them only.

        A subtree that lies in a larger one was computed by two runs at a time, with the same bits;
        it is left out.
        """
        nodes: dict[tuple[Tree, Node], StoredNode] = {}
        for path in sorted((self.folder / "nodes").glob("*.nodes")):
            for node in _nodes_of(path, self.template.key):
                nodes.setdefault((node.tree, node.node), node)
        return [node for key, node in nodes.items() if not _is_within(*key, nodes)]

    def damaged(self) -> list[Path]:
        """Files that cannot be read, and so do not count."""
        paths = sorted((self.folder / "nodes").glob("*.nodes"))
        return [path for path in paths if not _nodes_of(path, self.template.key)]


def _is_within(tree: Tree, node: Node, nodes: dict[tuple[Tree, Node], StoredNode]) -> bool:
    level, index = node
    return any((tree, (level + up, index >> up)) in nodes for up in range(1, 64 - level))


def _nodes_of(path: Path, key: str) -> list[StoredNode]:
    """The subtrees of a file; none if it is damaged or belongs to another job."""
    try:
        with open(path, "rb") as file:
            line = file.readline(_MOST_HEAD)
            head = json.loads(line)
            if head["key"] != key or path.stat().st_size != len(line) + head["nbytes"]:
                return []
            index = file.read(head["index"])
            crc = zlib.crc32(index)
            while piece := file.read(_PIECE_NBYTES):
                crc = zlib.crc32(piece, crc)
            if crc != head["crc32"]:
                return []
            nodes, at = [], len(line) + len(index)
            for variable, tree, level, number, nbytes in json.loads(index):
                nodes.append(StoredNode((variable, tree), (level, number), path, at, nbytes))
                at += nbytes
            return nodes
    except (OSError, ValueError, KeyError, TypeError):
        return []


def open_stats_parts(target: Path, template: StatsTemplate, *, overwrite: bool) -> StatsParts:
    """Open the partial statistics of a target, which are begun if there are none."""
    folder = stats_folder(target)
    if not (folder / FORM_FILE).exists():
        if folder.exists() and any(folder.iterdir()) and not overwrite:
            _check_is_ours(folder)
        _make(folder, template)
    try:
        parts = StatsParts(folder)
        differing = template.differing(parts.template)
        if not differing:
            return parts
        raise StateError(
            f"{folder} holds statistics of another job",
            given=f"a job with other {', '.join(differing)}",
            remedy="call it as before, choose another path, or pass overwrite=True to begin anew",
        )
    except StateError:
        if not overwrite:
            raise
    remove_folder(folder)
    _make(folder, template)
    return StatsParts(folder)


def _check_is_ours(folder: Path) -> None:
    """Refuse a folder that holds something else, such as the predictions of a mosaic."""
    strange = [path.name for path in folder.iterdir() if path.suffix != ".partial"]
    if strange:
        raise StateError(
            f"{folder} holds something else than partial statistics",
            given=", ".join(sorted(strange)[:3]),
            remedy="choose another path, or remove the folder",
        )


def _make(folder: Path, template: StatsTemplate) -> None:
    """Make a folder of parts."""
    with whole_folder(folder / FORM_FILE.parent, FORM_FILE.name) as form:
        (form / FORM_FILE.name).write_text(template.to_json(), "utf-8")
        template.labels.to_zarr(form / _LABELS.name, zarr_format=3, consolidated=False)


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

Nodes = dict[Tree, dict[Node, LabelledMoments]]
"""The statistics of complete subtrees."""

Finished = Callable[[int, int, LabelledMoments], None]


class StatsTrees:
    """The trees of all variables. Any thread may add to them."""

    def __init__(
        self,
        orders: list[ChunkOrder],
        finished: Finished | None = None,
        parts: StatsParts | None = None,
        flush_nbytes: int = 0,
    ) -> None:
        self._orders = orders
        self._finished = finished
        self._parts = parts
        self._flush_nbytes = flush_nbytes
        self._flushed = time.monotonic()
        self._lock = threading.Lock()
        self._trees: dict[Tree, MergeTree[LabelledMoments]] = {}

    def add_piece(self, variable: int, piece: int, value: LabelledMoments) -> None:
        """Add the statistics of a piece of a variable."""
        order = self._orders[variable]
        tree = order.tree_of(piece)
        self.add((variable, tree), (0, piece - int(order.edges[tree])), value)

    def add(self, key: Tree, node: Node, value: LabelledMoments) -> None:
        """Add the statistics of a subtree of a tree."""
        with self._lock:
            tree = self._trees.get(key)
            if tree is None:
                num_leaves = self._orders[key[0]].num_leaves(key[1])
                tree = self._trees[key] = MergeTree(num_leaves, LabelledMoments.merge)
        while True:
            with self._lock:
                merger = tree.offer(node, value)
                if merger is None:
                    if self._finished is not None and tree.is_complete:
                        self._finished(*key, tree.result())
                        del self._trees[key]
                    return
            # Without the lock: moments of many cells take a while.
            node, first, second = merger
            value = first.merge(second)

    def drain(self) -> Nodes:
        """The subtrees that were made since the last call, which are forgotten here."""
        with self._lock:
            nodes = {tree: dict(merged.nodes) for tree, merged in self._trees.items()}
            self._trees.clear()
        return nodes

    @property
    def nbytes(self) -> int:
        """Bytes of the subtrees that are kept."""
        with self._lock:
            return sum(v.nbytes for tree in self._trees.values() for v in tree.nodes.values())

    def flush(self, *, is_last: bool = False) -> None:
        """Write the subtrees, if they go to files, and it is time. No thread may be at work."""
        if self._parts is None:
            return
        is_late = time.monotonic() - self._flushed > _FLUSH_SECONDS
        if is_late or is_last or self.nbytes > self._flush_nbytes:
            self._parts.add(self.drain())
            self._flushed = time.monotonic()
