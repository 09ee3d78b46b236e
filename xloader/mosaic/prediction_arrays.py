"""Predictions as NumPy arrays, whatever library made them. None of these libraries is imported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import MosaicError, SampleIndexError, UnsupportedDataError
from xloader.recipe.layout import FieldLayout


class RemainingIds(np.ndarray[Any, Any]):
    """Ids of the samples that a mosaic lacks. `Samples.select` takes them if there are none."""


def as_array(values: Any) -> NDArray[Any]:
    """A NumPy array of an array or tensor, in the memory of the host."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.resolve_neg().numpy()
    elif hasattr(values, "__cuda_array_interface__"):
        values = values.get()
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def as_ids(ids: Any, num_ids: int) -> Ints:
    """Check sample ids."""
    array = as_array(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SampleIndexError(
            "these are not sample ids",
            given=f"{array.dtype} of shape {array.shape}",
            allowed="whole numbers of shape (n,), such as batch.ids",
        )
    outside = array[(array < 0) | (array >= num_ids)]
    if outside.size:
        raise SampleIndexError(
            "the sample id is out of range",
            given=int(outside[0]),
            allowed=f"[0, {num_ids})",
            remedy="pass the ids of the samples that the mosaic was made with: batch.ids",
        )
    return array.astype(np.int64)


def as_predictions(values: Any, num_rows: int, layout: FieldLayout) -> NDArray[Any]:
    """Check predictions, and give them the dtype in which they are kept."""
    array = as_array(values)
    if array.shape != (num_rows, *layout.shape):
        raise MosaicError(
            f"the predictions do not have the shape of the field {layout.name!r}",
            given=array.shape,
            allowed=f"{(num_rows, *layout.shape)}: the samples, then {layout.dims}",
            remedy="give the predictions the shape of the field in a batch; name another field "
            "with field=, or make the mosaic with samples whose field has this shape",
        )
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biuf" or (kind == "f" and size > 8):
        raise UnsupportedDataError(
            "the predictions are not real numbers of up to 64 bits",
            given=f"dtype {array.dtype}",
            allowed="bool, integer and floating dtypes, and bfloat16",
            remedy='convert them, for example with .astype("float32")',
        )
    is_wide = size == 8 or (kind in "iu" and size == 4)
    return array.astype(np.float64 if is_wide else np.float32, copy=False)
