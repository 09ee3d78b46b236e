"""One variable of a store: its chunks, its size, how it is read, and what is absent of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xloader.core.cores import usable_cores
from xloader.core.footprint import Footprint, Group
from xloader.core.nbytes import show_nbytes
from xloader.engine.threads import ThreadTask
from xloader.errors import ChunkError
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues, group_of, whole_recipe
from xloader.recipe.recipe import Recipe
from xloader.show.json_values import values_by_name
from xloader.sources.base import Read, Source, Variable
from xloader.sources.chunk_sizes import (
    Sizes,
    encoding_of,
    inventory_of,
    num_chunks,
    stored_objects_of,
)
from xloader.sources.retries import Attempts

_MOST_NBYTES: Final = 1 << 28
"""Decoded bytes that are being read at a time."""

_WAVE_CHUNKS: Final = 1 << 12

_NUM_NAMED: Final = 3


@dataclass(frozen=True)
class NanCount:
    """NaN in the chunks of one variable.

    Parameters
    ----------
    num_chunks : int
        Chunks that were read.
    num_values : int
        Values in these chunks.
    num_nans : int
        NaN among them, unpacked fill values included.
    num_unreadable : int
        Chunks that could not be read.
    errors : tuple of str
        The errors of the first few of these.
    is_whole : bool
        Whether all chunks were asked for, and not only some.
    """

    num_chunks: int
    num_values: int
    num_nans: int
    num_unreadable: int
    errors: tuple[str, ...]
    is_whole: bool

    @property
    def share(self) -> float | None:
        """Share of NaN from 0 to 1; None if no value was read."""
        return self.num_nans / self.num_values if self.num_values else None


def count_nans(recipe: Recipe, name: str, most_chunks: int | None = None) -> NanCount:
    """Count NaN in the chunks of a variable."""
    if not math.prod(recipe.variable(name).shape):
        return NanCount(0, 0, 0, 0, (), is_whole=True)
    whole = whole_recipe(recipe, (name,))
    group = group_of(whole, name)
    count = min(group.num_blocks, most_chunks or group.num_blocks)
    places = np.linspace(0, group.num_blocks - 1, count).astype(np.int64)
    tally = _NanTally(recipe, name)
    footprint = Footprint(whole.require_windows(), (group,))
    with ChunkSweep(whole, footprint, _MOST_NBYTES, usable_cores()) as sweep:
        for begin in range(0, len(places), _WAVE_CHUNKS):
            chunks = np.unravel_index(places[begin : begin + _WAVE_CHUNKS], group.shape or (1,))
            blocks = list(zip(*(numbers.tolist() for numbers in chunks), strict=True))
            if not group.shape:
                blocks = [()] * len(blocks)
            _read(sweep, group, blocks, tally)
    return NanCount(
        tally.num_chunks,
        tally.num_values,
        tally.num_nans,
        len(tally.errors),
        # Threads find them in any order.
        tuple(text for _, text in sorted(tally.errors.items())[:_NUM_NAMED]),
        count == group.num_blocks,
    )


class _NanTally:
    """Counts of the chunks read so far, which several threads add to."""

    def __init__(self, recipe: Recipe, name: str) -> None:
        self._packing = recipe.variable(name).packing
        self._lock = threading.Lock()
        self.num_chunks = self.num_values = self.num_nans = 0
        self.errors: dict[tuple[int, ...], str] = {}

    def add(self, chunk: ChunkValues) -> None:
        """Count the values of a chunk."""
        values = chunk.values if self._packing is None else self._packing.unpack(chunk.values)
        num_nans = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
        with self._lock:
            self.num_chunks += 1
            self.num_values += values.size
            self.num_nans += num_nans

    def note(self, read: Read, error: ChunkError) -> None:
        """Keep the error of a chunk that could not be read."""
        with self._lock:
            self.errors[read.chunk] = str(error)


def _read(
    sweep: ChunkSweep, group: Group, blocks: Sequence[tuple[int, ...]], tally: _NanTally
) -> None:
    def tolerant(task: ThreadTask) -> Callable[[Attempts], None]:
        def do(attempts: Attempts) -> None:
            try:
                task.do(attempts)
            except ChunkError as error:
                if len(task.reads) == 1:
                    tally.note(task.reads[0], error)
                    return
                # One broken chunk fails all that are read with it.
                for read in task.reads:
                    for single in sweep.read(group, [read.chunk], tally.add):
                        tolerant(single)(attempts)

        return do

    tasks = sweep.read(group, blocks, tally.add)
    sweep.do([ThreadTask(task.reads, tolerant(task)) for task in tasks])


COLUMNS: Final = (
    *("variable", "dims", "shape", "dtype", "chunks", "shards", "chunk"),
    *("decoded", "stored", "ratio"),
)
"""Headings of `InspectedVariable.cells`."""


@dataclass(frozen=True)
class InspectedVariable:
    """One variable of a store.

    Parameters
    ----------
    name : str
        Its name.
    dims : tuple of str
        Its dimensions.
    shape : tuple of int
        Its shape.
    dtype, stored_dtype : str
        Dtype of its values, and of the numbers in the store, which differ where it is packed.
    units : str
        Its units; empty if not known.
    chunks : tuple of (int or tuple of int)
        Per dimension, the size of every chunk, or of each where they differ.
    shards : tuple of (int or tuple of int) or None
        The same of shards; None without shards, or if they are not known.
    num_chunks : int
        Number of its chunks.
    chunk_nbytes : int
        Decoded bytes of its largest chunk, packed if it is packed.
    nbytes : int
        Bytes of its values, unpacked.
    stored_nbytes : int or None
        Bytes in the store; None if not known.
    is_estimated : bool
        Whether the stored bytes are estimated from a few objects.
    path : str
        How it is read, in words, and why if it is not read directly.
    is_direct : bool
        Whether xloader decodes its chunks itself.
    num_objects : int or None
        Stored objects that it may have; None if the store cannot be listed.
    num_absent, num_beyond, num_empty : int or None
        Objects that are absent, that lie outside its shape, and that have no bytes.
    absent, beyond, empty : tuple of str
        Keys of the first few of these.
    nans : NanCount or None
        NaN in its chunks, if they were read.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    stored_dtype: str
    units: str
    chunks: tuple[Sizes, ...]
    shards: tuple[Sizes, ...] | None
    num_chunks: int
    chunk_nbytes: int
    nbytes: int
    stored_nbytes: int | None
    is_estimated: bool
    path: str
    is_direct: bool
    num_objects: int | None
    num_absent: int | None
    num_beyond: int | None
    num_empty: int | None
    absent: tuple[str, ...]
    beyond: tuple[str, ...]
    empty: tuple[str, ...]
    nans: NanCount | None

    @property
    def ratio(self) -> float | None:
        """Bytes of the values divided by stored bytes; None if not known."""
        return self.nbytes / self.stored_nbytes if self.stored_nbytes else None

    def to_dict(self) -> dict[str, Any]:
        """The attributes by name, with the ratio and the share of NaN."""
        nans = self.nans and values_by_name(self.nans, "share")
        return values_by_name(self, "ratio") | {"nans": nans}

    def cells(self) -> list[str]:
        """The texts of a row, under the headings `COLUMNS`."""
        about = "about " * self.is_estimated
        stored = "-" if self.stored_nbytes is None else about + show_nbytes(self.stored_nbytes)
        packed = f" as {self.stored_dtype}" * (self.stored_dtype != self.dtype)
        return [
            self.name,
            " ".join(self.dims),
            " x ".join(f"{size:,}" for size in self.shape),
            self.dtype + packed,
            show_sizes(self.chunks),
            "-" if self.shards is None else show_sizes(self.shards),
            show_nbytes(self.chunk_nbytes),
            show_nbytes(self.nbytes),
            stored,
            "-" if self.ratio is None else f"{self.ratio:.1f}",
        ]


def inspect_variable(
    source: Source, variable: Variable, nans: NanCount | None
) -> InspectedVariable:
    """Look at a variable of a source. No chunk is read."""
    nbytes = math.prod(variable.shape) * variable.dtype.itemsize
    stored_all = math.prod(variable.shape) * variable.stored_dtype.itemsize
    inventory = inventory_of(source, variable.name)
    objects = stored_objects_of(source, variable.name)
    stored_nbytes, is_estimated = None, False
    if inventory is not None and inventory.nbytes is not None:
        stored_nbytes = inventory.nbytes
    elif objects is not None and objects.stored_share is not None:
        there = 1.0
        if inventory is not None and inventory.num_objects:
            there -= inventory.num_absent / inventory.num_objects
        stored_nbytes, is_estimated = round(objects.stored_share * stored_all * there), True
    largest = [size if isinstance(size, int) else max(size, default=1) for size in variable.chunks]
    path, encoding = source.path_of(variable.name), encoding_of(source, variable.name)
    if encoding.filters:
        path = f"{path}; {', '.join(encoding.filters)}"
    return InspectedVariable(
        name=variable.name,
        dims=variable.dims,
        shape=variable.shape,
        dtype=str(variable.dtype),
        stored_dtype=encoding.dtype or str(variable.stored_dtype),
        units=str(variable.attrs.get("units", "")),
        chunks=variable.chunks,
        shards=None if objects is None else objects.shards,
        num_chunks=math.prod(map(num_chunks, variable.chunks, variable.shape)),
        chunk_nbytes=math.prod(largest) * variable.stored_dtype.itemsize,
        nbytes=nbytes,
        stored_nbytes=stored_nbytes,
        is_estimated=is_estimated,
        path=path,
        is_direct=path.startswith("direct"),
        num_objects=None if inventory is None else inventory.num_objects,
        num_absent=None if inventory is None else inventory.num_absent,
        num_beyond=None if inventory is None else inventory.num_beyond,
        num_empty=None if inventory is None else len(inventory.empty),
        absent=() if inventory is None else inventory.absent,
        beyond=() if inventory is None else inventory.beyond,
        empty=() if inventory is None else inventory.empty[:3],
        nans=nans,
    )


def show_sizes(sizes: tuple[Sizes, ...]) -> str:
    """Return the sizes of chunks as text; unequal ones as a range."""
    return " x ".join(
        f"{size:,}" if isinstance(size, int) else f"{min(size):,}-{max(size):,}" for size in sizes
    )
