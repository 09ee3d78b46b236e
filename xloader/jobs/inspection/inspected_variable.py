"""One variable of a store: its chunks, its size, how it is read, and what is absent of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from xloader.core.nbytes import show_nbytes
from xloader.jobs.inspection.nan_counts import NanCount
from xloader.sources.base import Source, Variable
from xloader.sources.chunk_sizes import Sizes, num_chunks
from xloader.sources.stored_objects import encoding_of, inventory_of, stored_objects_of

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
        found = {own.name: getattr(self, own.name) for own in fields(self)}
        nans = self.nans
        found["nans"] = nans and {
            **{own.name: getattr(nans, own.name) for own in fields(nans)},
            "share": nans.share,
        }
        return found | {"ratio": self.ratio}

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
        f"{own:,}" if isinstance(own, int) else f"{min(own):,}-{max(own):,}" for own in sizes
    )
