"""All samples in memory, as PyTorch's own ``TensorDataset``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from torch.utils.data import TensorDataset as TensorDataset

from xloader.loader.batches.batch import Batch
from xloader.tensors.columns import hand_over


def fill_tensors(
    batches: Iterable[Batch],
    num_samples: int,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, np.dtype],
) -> TensorDataset:
    """Copy all batches into one tensor for each field.

    Tensors of shape ``(num_samples, *shape)``, in the order of ``shapes``.
    """
    arrays = {
        # In native byte order the tensor shares the array's memory, and is filled through it.
        name: np.empty((num_samples, *shape), dtypes[name].newbyteorder("="))
        for name, shape in shapes.items()
    }
    # Before anything is read, so that values that no tensor can hold are an error at once.
    tensors = [hand_over(array, name) for name, array in arrays.items()]
    for batch in batches:
        for name, array in arrays.items():
            array[batch.ids[0] : batch.ids[-1] + 1] = batch[name]
    return TensorDataset(*tensors)
