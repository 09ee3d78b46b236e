r"""Merges numbered parts in a fixed order, whatever the order in which they come.

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

from collections.abc import Callable
from typing import Generic, TypeVar

from xloader.errors import OptionError

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
