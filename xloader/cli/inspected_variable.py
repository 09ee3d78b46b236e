"""One variable of a store: its chunks, its size, how it is read, and what is absent of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xloader.core.cores import usable_cores
from xloader.core.footprint import Footprint
from xloader.core.nbytes import show_nbytes
from xloader.engine.threads import ThreadTask
from xloader.errors import ChunkError
from xloader.jobs.chunk_sweep import ChunkSweep, ChunkValues, group_of, whole_recipe
from xloader.recipe.recipe import Recipe
from xloader.show.json_values import values_by_name
from xloader.sources.base import Source, Variable
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
    packing = recipe.variable(name).packing
    whole = whole_recipe(recipe, (name,))
    group = group_of(whole, name)
    num_asked = min(group.num_blocks, most_chunks or group.num_blocks)
    places = np.linspace(0, group.num_blocks - 1, num_asked).astype(np.int64)
    # Several threads add to these at once.
    counts: list[tuple[int, int]] = []
    errors: dict[tuple[int, ...], str] = {}

    def count(chunk: ChunkValues) -> None:
        values = chunk.values if packing is None else packing.unpack(chunk.values)
        is_nan = np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, bool)
        counts.append((values.size, int(is_nan.sum())))

    def tolerant(task: ThreadTask) -> ThreadTask:
        def do(attempts: Attempts) -> None:
            try:
                task.do(attempts)
            except ChunkError as error:
                if len(task.reads) == 1:
                    errors[task.reads[0].chunk] = str(error)
                    return
                # One broken chunk fails all that are read with it.
                for read in task.reads:
                    for single in sweep.read(group, [read.chunk], count):
                        tolerant(single).do(attempts)

        return ThreadTask(task.reads, do)

    footprint = Footprint(whole.require_windows(), (group,))
    with ChunkSweep(whole, footprint, _MOST_NBYTES, usable_cores()) as sweep:
        for begin in range(0, len(places), _WAVE_CHUNKS):
            blocks = [
                tuple(map(int, np.unravel_index(place, group.shape)))
                for place in places[begin : begin + _WAVE_CHUNKS]
            ]
            sweep.do([tolerant(task) for task in sweep.read(group, blocks, count)])
    return NanCount(
        len(counts),
        sum(size for size, _ in counts),
        sum(num_nans for _, num_nans in counts),
        len(errors),
        # Threads find them in any order.
        tuple(text for _, text in sorted(errors.items())[:_NUM_NAMED]),
        num_asked == group.num_blocks,
    )


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
    num_objects: int | None = None
    num_absent: int | None = None
    num_beyond: int | None = None
    num_empty: int | None = None
    absent: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    nans: NanCount | None = None

    @property
    def ratio(self) -> float | None:
        """Bytes of the values divided by stored bytes; None if not known."""
        return self.nbytes / self.stored_nbytes if self.stored_nbytes else None

    def to_dict(self) -> dict[str, Any]:
        """The attributes by name, with the ratio and the share of NaN."""
        nans = self.nans and values_by_name(self.nans, "share")
        return values_by_name(self, "ratio") | {"nans": nans}

    def row(self) -> dict[str, str]:
        """The texts of a row of a table, by their headings."""
        about = "about " * self.is_estimated
        stored = "-" if self.stored_nbytes is None else about + show_nbytes(self.stored_nbytes)
        packed = f" as {self.stored_dtype}" * (self.stored_dtype != self.dtype)
        return {
            "variable": self.name,
            "dims": " ".join(self.dims),
            "shape": " x ".join(f"{size:,}" for size in self.shape),
            "dtype": self.dtype + packed,
            "chunks": show_sizes(self.chunks),
            "shards": "-" if self.shards is None else show_sizes(self.shards),
            "chunk": show_nbytes(self.chunk_nbytes),
            "decoded": show_nbytes(self.nbytes),
            "stored": stored,
            "ratio": "-" if self.ratio is None else f"{self.ratio:.1f}",
        }


def inspect_variable(
    source: Source, variable: Variable, nans: NanCount | None
) -> InspectedVariable:
    """Look at a variable of a source. No chunk is read."""
    nbytes = math.prod(variable.shape) * variable.dtype.itemsize
    stored_all = math.prod(variable.shape) * variable.stored_dtype.itemsize
    inventory = inventory_of(source, variable.name)
    objects = stored_objects_of(source, variable.name)
    stored_nbytes, is_estimated, listed = None, False, {}
    if inventory is not None:
        listed = values_by_name(inventory)
        del listed["nbytes"]
        listed |= {"num_empty": len(inventory.empty), "empty": inventory.empty[:_NUM_NAMED]}
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
        nans=nans,
        **listed,
    )


def show_sizes(sizes: tuple[Sizes, ...]) -> str:
    """Return the sizes of chunks as text; unequal ones as a range."""
    return " x ".join(
        f"{size:,}" if isinstance(size, int) else f"{min(size):,}-{max(size):,}" for size in sizes
    )
