"""The statistics under way: for each variable and place, a tree that merges those of its pieces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from xloader.jobs.statistics.chunk_order import ChunkOrder
from xloader.jobs.statistics.merge_tree import MergeTree, Node
from xloader.jobs.statistics.moments import LabelledMoments
from xloader.jobs.statistics.stats_parts import StatsParts, Tree

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
