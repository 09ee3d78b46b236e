"""Sample ids as a user gives them: a slice, a mask or a sequence, with negative ids allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import SampleIndexError


def listed_ids(size: int, key: Any) -> NDArray[Any]:
    """Ids that a slice, a mask or a sequence stands for. They are not checked yet."""
    if isinstance(key, slice):
        return np.arange(*key.indices(size), dtype=np.int64)
    flags = as_mask(size, key)
    return np.asarray(key) if flags is None else np.flatnonzero(flags)


def as_mask(size: int, key: Any) -> NDArray[np.bool_] | None:
    """The flags, if a key is a mask with one flag for each of ``size`` samples, else None."""
    if isinstance(key, slice):
        return None
    flags = np.asarray(key)
    return flags if flags.dtype == bool and flags.shape == (size,) else None


def normal_ids(size: int, ids: NDArray[Any]) -> Ints:
    """Check ids and count negative ones from the end.

    Ids in ``[0, size)``, int64, shape ``(n,)``.
    """
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise SampleIndexError(
            "these are not sample ids",
            given=f"{ids.dtype} of shape {ids.shape}",
            allowed="a slice, a 1-d sequence of ints, or a mask with one flag for each sample",
        )
    outside = ids[(ids < -size) | (ids >= size)]
    if outside.size:
        raise SampleIndexError(
            "the sample id is out of range",
            given=int(outside[0]),
            allowed=f"[{-size}, {size})",
            remedy="pass an id below len(samples)",
        )
    # Only after the range check: a large uint64 would overflow int64.
    ids = ids.astype(np.int64)
    return np.where(ids < 0, ids + size, ids)
