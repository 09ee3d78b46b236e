"""SelectedSource: variables that are selections of another source's variables.

An open dataset that was cut, transposed and renamed reads the same chunks as before::

    stored      (time, level, lat)   chunks (4, 1, 10)
    offered     (lat, when)          when = time[3:9], level = 2

The chunks of an offered variable are called blocks here. Each block is a stored chunk that the
selection touches, cut down to the elements that the selection keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Axis, Ints, Selection
from xloader.sources.arrays import catalog
from xloader.sources.base import Fetched, Outcome, Read, Source, Variable, View, key_within
from xloader.sources.chunk_sizes import Sizes, StoredObjects, compact, stored_objects_of
from xloader.sources.fetched import Deferred


@dataclass(frozen=True)
class Selected:
    """The selection from a stored variable, and the order of its dimensions."""

    base: str
    kept: tuple[int | Selection, ...]
    order: tuple[int, ...]


class SelectedBlocks:
    """Conversion between the blocks that are offered and the chunks that are stored."""

    def __init__(self, selected: Selected, base: Variable) -> None:
        self.selected = selected
        self.axes = tuple(
            Axis(size, chunks, range(kept, kept + 1) if isinstance(kept, int) else kept)
            for size, chunks, kept in zip(base.shape, base.chunks, selected.kept, strict=True)
        )
        # Along whole dimensions, which are the most common, blocks are the stored chunks.
        self._is_whole = [axis.selection == range(axis.stored_size) for axis in self.axes]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the offered variable."""
        return tuple(self.axes[dim].size for dim in self.selected.order)

    @property
    def chunks(self) -> tuple[Sizes, ...]:
        """Sizes of the blocks along each offered dimension."""
        return tuple(map(self._sizes_along, self.selected.order))

    @property
    def thinning(self) -> int:
        """Number of stored values decoded for each one kept, at most."""
        ratio = 1
        for dim, axis in enumerate(self.axes):
            if not self._is_whole[dim]:
                most = int(np.diff(axis.edges).max(initial=1))
                ratio *= -(-max(axis.max_read_size, 1) // most)
        return ratio

    def _sizes_along(self, dim: int) -> Sizes:
        """Sizes of the blocks along a stored dimension."""
        axis = self.axes[dim]
        if self._is_whole[dim] and isinstance(axis.chunks, int):
            # The sizes are not listed, because there may be billions.
            return max(min(axis.chunks, axis.size), 1)
        return compact(tuple(np.diff(axis.edges).tolist()))

    @cached_property
    def _expand(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Axes and new dimensions that turn an offered array into a stored one."""
        order = self.selected.order
        dropped = tuple(dim for dim in range(len(self.axes)) if dim not in order)
        return tuple(int(axis) for axis in np.argsort(order)), dropped

    def chunk(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the stored chunk that a block is cut from."""
        axes = zip(self.axes, self._stored(chunk, 0), self._is_whole, strict=True)
        return tuple(
            block if is_whole else axis.stored_chunk(block) for axis, block, is_whole in axes
        )

    def read(self, read: Read) -> Read:
        """The read of the stored chunk that a read of a block needs."""
        axes = zip(self.axes, self._stored(read.chunk, 0), self._is_whole, strict=True)
        parts = [
            (block, slice(0, axis.size_of(block)), 0) if is_whole else axis.stored_part(block)
            for axis, block, is_whole in axes
        ]
        cuts = self._stored(read.cut, slice(0, 1))
        return Read(
            variable=self.selected.base,
            chunk=tuple(chunk for chunk, _, _ in parts),
            cut=tuple(_compose(kept, cut) for (_, kept, _), cut in zip(parts, cuts, strict=True)),
        )

    def place(self, out: NDArray[Any]) -> NDArray[Any]:
        """View of the output array that has the stored variable's dimensions."""
        axes, dropped = self._expand
        return np.expand_dims(out.transpose(axes), dropped)

    def _stored(self, offered: Sequence[Any], dropped: Any) -> list[Any]:
        """Values in the order of the stored dimensions, with one value for dropped ones."""
        stored = [dropped] * len(self.axes)
        for dim, value in zip(self.selected.order, offered, strict=True):
            stored[dim] = value
        return stored


class SelectedSource(View):
    """A source whose variables are selections of another source's variables."""

    def __init__(
        self, base: Source, selected: Mapping[str, Selected], dims: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._base = base
        self.name = base.name
        self._selected = dict(selected)
        self._dims = dict(dims)
        bases = Counter(view.base for view in selected.values())
        self._repeated = {base for base, count in bases.items() if count > 1}
        self._views = {
            name: SelectedBlocks(view, base.variables[view.base]) for name, view in selected.items()
        }
        self._variables = {
            name: replace(
                base.variables[view.selected.base],
                name=name,
                dims=dims[name],
                shape=view.shape,
                chunks=view.chunks,
                thinning=view.thinning * base.variables[view.selected.base].thinning,
            )
            for name, view in self._views.items()
        }
        kept = {name: [view.kept, view.order, view.base] for name, view in selected.items()}
        self.fingerprint = catalog.fingerprint(
            self._variables, {name: [base.fingerprint, repr(kept[name])] for name in kept}
        )

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Bundle of the stored chunk; see `Source.bundle_of`.

        Two selections from one stored variable have bundles of their own.
        """
        key = super().bundle_of(variable, self._views[variable].chunk(chunk))
        return key_within(variable, key) if self._selected[variable].base in self._repeated else key

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch the stored chunks of some blocks together; see `Source.fetch`."""
        views = [self._views[read.variable] for read in reads]
        stored = [view.read(read) for view, read in zip(views, reads, strict=True)]
        fetched = self._base.fetch(stored)

        def decode(outs: Sequence[NDArray[Any]]) -> Outcome:
            return fetched.decode([view.place(out) for view, out in zip(views, outs, strict=True)])

        return Deferred(decode, fetched.nbytes)

    def _reader_of(self, variable: str) -> tuple[Source, str]:
        """The source that is selected from, and the name of the stored variable."""
        return self._base, self._selected[variable].base

    def stored_objects(self, variable: str) -> StoredObjects | None:
        """The stored objects of the stored variable; None for shards, which a selection shifts."""
        stored = stored_objects_of(self._base, self._views[variable].selected.base)
        return None if stored is None or stored.shards is not None else stored

    def __reduce__(self) -> tuple[object, ...]:
        # The rest is derived from these, and its size grows with the number of chunks.
        return SelectedSource, (self._base, self._selected, self._dims)


def _compose(outer: slice | Ints, inner: slice | Ints) -> slice | NDArray[np.int64]:
    """The cut that equals one cut after another. Both increase and count from 0."""
    if isinstance(outer, slice):
        step = outer.step or 1
        if isinstance(inner, slice):
            kept = range(outer.start, outer.stop, step)[inner]
            return slice(kept.start, kept.stop, kept.step)
        return np.asarray(outer.start + step * inner, np.int64)
    return np.asarray(outer[inner], np.int64)
