"""Sample ids as a user names them: a slice, a mask, a sequence, negative ones from the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import SampleIndexError


def listed_ids(size: int, key: Any) -> NDArray[Any]:
    """What a slice, a mask of all samples or anything else names, not yet checked as ids."""
    if isinstance(key, slice):
        return np.arange(*key.indices(size), dtype=np.int64)
    ids = np.asarray(key)
    return np.flatnonzero(ids) if ids.dtype == bool and ids.shape == (size,) else ids


def normal_ids(size: int, ids: NDArray[Any]) -> Ints:
    """Ids in ``[0, size)``, negative ones counted from the end.

    Raises
    ------
    SampleIndexError
        If they are no ids, or out of range.
    """
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise SampleIndexError(
            "this names no samples",
            given=f"{ids.dtype} of shape {ids.shape}",
            allowed="a slice, a 1-d sequence of ints, or a mask of all samples",
        )
    outside = ids[(ids < -size) | (ids >= size)]
    if outside.size:
        raise SampleIndexError(
            "the sample id is out of range",
            given=int(outside[0]),
            allowed=f"[{-size}, {size})",
            remedy="len(samples) counts the ids",
        )
    # Not before they are known to be in range, as the largest uint64 is no int64.
    ids = ids.astype(np.int64)
    return np.where(ids < 0, ids + size, ids)
