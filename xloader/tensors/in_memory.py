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

    Parameters
    ----------
    batches : iterable of Batch
        Batches of arrays, whose ids ascend from 0.
    num_samples : int
        Number of samples in all batches together.
    shapes, dtypes : mapping by field
        Shape and dtype of one sample of each field.

    Returns
    -------
    torch.utils.data.TensorDataset
        Tensors of shape ``(num_samples, *shape)``, in the order of ``shapes``.

    Raises
    ------
    UnsupportedDataError
        If a field holds values that no tensor can hold.

    Examples
    --------
    >>> batches = [Batch([np.array([[i, i]])], ["x"], np.array([i])) for i in range(3)]
    >>> dataset = fill_tensors(batches, 3, {"x": (2,)}, {"x": np.dtype("int64")})
    >>> dataset[2]
    (tensor([2, 2]),)
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
