"""The patches that a generator cuts out of an array, and the batches that they form.

A patch is one input of xbatcher. All is computed from a few numbers for each dimension, so memory
does not grow with the number of patches. An example: a dimension of 10 elements, patches of 4 that
overlap by 2, and two patches in a batch::

    offset     0  1  2  3  4  5  6  7  8  9
    patch 0    x  x  x  x                       batch 0
    patch 1          x  x  x  x                 batch 0
    patch 2                x  x  x  x           batch 1
    patch 3                      x  x  x  x     batch 1
    stride     `--'  = size - overlap

Patches and batches are numbered in C order. The dimensions of ``batch_dims`` that are not in
``input_dims`` come first, so they vary slowest; those of ``input_dims`` follow. If patches are not
joined, each patch is a batch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xloader.core.axis import Ints
from xloader.core.messages import unknown
from xloader.core.option_checks import MOST, check_whole
from xloader.errors import EmptySamplesError, OptionError, SampleIndexError


@dataclass(frozen=True)
class Line:
    """The patches along one dimension."""

    dim: Hashable
    size: int
    stride: int
    num_patches: int
    per_batch: int
    num_batches: int

    def patches_of(self, batch: int) -> range:
        """Numbers of the patches in a batch, empty if the patches are used up before it."""
        first = min(batch * self.per_batch, self.num_patches)
        return range(first, min(first + self.per_batch, self.num_patches))

    def slice_of(self, patch: int) -> slice:
        """Offsets of the elements of a patch, as a slice."""
        return slice(patch * self.stride, patch * self.stride + self.size)


@dataclass(frozen=True)
class Patches:
    """The patches of an array, and the batches that they form."""

    lines: tuple[Line, ...]
    input_dims: tuple[Hashable, ...]
    is_joined: bool

    def __len__(self) -> int:
        return math.prod(line.num_batches for line in self.lines)

    @cached_property
    def num_patches(self) -> int:
        """Number of patches, including those that are in no batch."""
        return math.prod(line.num_patches for line in self.lines)

    @property
    def is_even(self) -> bool:
        """Whether every batch has the same number of patches."""
        return all(line.num_batches * line.per_batch <= line.num_patches for line in self.lines)

    @property
    def is_in_order(self) -> bool:
        """Whether the batches, in order, hold all patches in order, with none left out."""
        if any(line.num_batches * line.per_batch < line.num_patches for line in self.lines):
            return False
        # A batch is a box of patches. Its numbers are consecutive if the box spans the whole
        # array along every dimension after the first one that has several patches per batch.
        wide = [line for line in self.lines if line.per_batch > 1]
        first = self.lines.index(wide[0]) if wide else len(self.lines)
        return self.is_even and all(line.num_batches == 1 for line in self.lines[first + 1 :])

    def normal(self, batch: int) -> int:
        """A batch's number in ``[0, len(self))``."""
        if not -len(self) <= batch < len(self):
            raise SampleIndexError(
                "no batch has this index", given=batch, allowed=f"[{-len(self)}, {len(self)})"
            )
        return batch % len(self)

    def ranges_of(self, batch: int) -> tuple[range, ...]:
        """Numbers of the patches in a batch, along each dimension that is cut.

        `batch`: the batch's number, not negative.
        """
        at = _split(batch, [line.num_batches for line in self.lines])
        ranges = tuple(line.patches_of(n) for line, n in zip(self.lines, at, strict=True))
        if not all(ranges):
            raise EmptySamplesError(
                f"the batch {batch} has no patch",
                given={line.dim: line for line in self.lines},
                remedy="pass batch_dims that are multiples of input_dims - input_overlap",
            )
        return ranges

    def ids_of(self, batch: int) -> Ints:
        """Numbers of the patches in a batch, ascending, int64, shape ``(num_patches,)``."""
        ids = np.zeros(1, np.int64)
        for line, along in zip(self.lines, self.ranges_of(batch), strict=True):
            ids = (ids[:, None] * line.num_patches + np.asarray(along, np.int64)).reshape(-1)
        return ids

    def selector(self, patch: int) -> dict[Any, slice]:
        """Slices by which ``isel`` cuts out a patch."""
        at = _split(patch, [line.num_patches for line in self.lines])
        return {line.dim: line.slice_of(n) for line, n in zip(self.lines, at, strict=True)}

    def hull(self, batch: int) -> dict[Any, slice]:
        """Slices by which ``isel`` cuts out the hull of a batch: the smallest box around it."""
        ends = [
            (line.slice_of(along[0]).start, line.slice_of(along[-1]).stop)
            for line, along in zip(self.lines, self.ranges_of(batch), strict=True)
        ]
        return {line.dim: slice(*end) for line, end in zip(self.lines, ends, strict=True)}

    def starts_of(self, batch: int) -> Ints:
        """Offsets of a batch's patches in its hull, int64, shape ``(num_patches, num_dims)``."""
        ranges = self.ranges_of(batch)
        counts = [len(along) for along in ranges]
        numbers = np.indices(counts, np.int64).reshape(len(counts), math.prod(counts)).T
        return numbers * np.array([line.stride for line in self.lines], np.int64)


def make_patches(
    sizes: Mapping[Any, int],
    input_dims: Mapping[Any, int],
    input_overlap: Mapping[Any, int],
    batch_dims: Mapping[Any, int],
    *,
    is_joined: bool,
) -> Patches:
    """The patches and batches for xbatcher's arguments."""
    alone = {dim: size for dim, size in batch_dims.items() if dim not in input_dims}
    shared = {dim: size for dim, size in batch_dims.items() if dim in input_dims}
    lines = []
    for dim, given in {**alone, **input_dims}.items():
        size = _whole("size", dim, given)
        overlap = _whole("overlap", dim, input_overlap.get(dim, 0))
        if dim not in sizes:
            raise unknown(dim, map(str, sizes), "dimension")
        if overlap >= size or size > sizes[dim]:
            raise OptionError(
                f"patches do not fit along {dim!r}",
                given=f"{size} elements that overlap by {overlap}",
                allowed=f"at most {sizes[dim]} elements, and a smaller overlap than elements",
                remedy="pass smaller input_dims or batch_dims, or a smaller input_overlap",
            )
        stride = size - overlap
        num_patches = (sizes[dim] - size) // stride + 1
        per_batch, num_batches = 1, num_patches
        if is_joined and dim in shared:
            length = max(1, _whole("batch", dim, shared[dim]))
            per_batch, num_batches = -(-length // stride), sizes[dim] // length
        elif is_joined and dim in alone and shared:
            # If input_dims and batch_dims share another dimension, xbatcher counts the batches
            # along this one by their length, without the overlap.
            num_batches = sizes[dim] // size
        elif is_joined and dim not in alone:
            per_batch, num_batches = num_patches, 1
        lines.append(Line(dim, size, stride, num_patches, per_batch, num_batches))
    patches = Patches(tuple(lines), tuple(input_dims), is_joined)
    if not len(patches):
        raise OptionError(
            "not even one whole batch fits the dimensions",
            given=f"batch_dims={dict(batch_dims)}",
            allowed=f"at most {dict(sizes)}",
            remedy="pass smaller batch_dims",
        )
    return patches


def _split(number: int, counts: list[int]) -> list[int]:
    """The index along each dimension that a number in C order stands for."""
    return [int(place) for place in np.unravel_index(number, counts)]


def _whole(word: str, dim: Hashable, value: Any) -> int:
    return check_whole(f"the {word} along {dim!r}", value, -MOST, MOST)
