"""ElementList: element numbers that are no range, in one array that pickles small."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class ElementList(Sequence[int]):
    """Element numbers that never decrease, kept in one array.

    Neighbours differ by few and mostly equal steps. So a pickle holds the compressed steps: a
    million elements, each repeated six times, take about two kilobytes.
    """

    def __init__(self, elements: Any) -> None:
        values = np.asarray(elements, np.int64)
        assert values.ndim == 1
        assert not len(values) or (values[0] >= 0 and (np.diff(values) >= 0).all())
        is_narrow = not len(values) or values[-1] < 1 << 31
        self._values = values.astype(np.int32 if is_narrow else np.int64)
        self._values.setflags(write=False)

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> ElementList: ...
    def __getitem__(self, index: int | slice) -> int | ElementList:
        if isinstance(index, slice):
            return ElementList(self._values[index])
        return int(self._values[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self._values if dtype is None else self._values.astype(dtype, copy=False)
        return values.copy() if copy else values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ElementList) and np.array_equal(self._values, other._values)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        if len(self) <= 10:
            return f"ElementList({self._values.tolist()})"
        return f"ElementList({len(self)} from {self[0]} to {self[-1]}, {self._digest})"

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self._values.astype("<i8").tobytes()).hexdigest()[:32]

    def __reduce__(self) -> tuple[object, ...]:
        steps = np.diff(self._values.astype(np.int64), prepend=0)
        most = int(steps.max(initial=0))
        dtype = np.min_scalar_type(most).str[1:]
        return _unpickle, (zlib.compress(steps.astype(f"<{dtype}").tobytes()), dtype)


def as_elements(elements: Any) -> range | ElementList:
    """A range where the numbers are equally spaced and increase, else a list of them."""
    values = np.asarray(elements, np.int64)
    steps = np.diff(values)
    step = int(steps[0]) if len(steps) else 1
    if len(values) and step > 0 and (steps == step).all():
        return range(int(values[0]), int(values[-1]) + 1, step)
    return ElementList(values)


def _unpickle(compressed: bytes, dtype: str) -> ElementList:
    steps = np.frombuffer(zlib.decompress(compressed), f"<{dtype}")
    return ElementList(np.cumsum(steps, dtype=np.int64))
