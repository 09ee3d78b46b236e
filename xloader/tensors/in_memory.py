"""All samples in memory, as PyTorch's own dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from torch.utils.data import TensorDataset as TensorDataset

from xloader.loader.batch import Batch
from xloader.tensors.columns import hand_over


def fill_tensors(
    batches: Iterable[Batch],
    num_samples: int,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, np.dtype],
) -> TensorDataset:
    """Gather batches into one tensor a field.

    Parameters
    ----------
    batches : iterable of Batch
        Of arrays, their ids ascending from 0.
    num_samples : int
        How many samples there are.
    shapes, dtypes : mapping by field
        Of one sample.

    Returns
    -------
    torch.utils.data.TensorDataset
        Of tensors of shape ``(num_samples, *shape)``, in the order of ``shapes``.

    Raises
    ------
    UnsupportedDataError
        If a field holds what no tensor can.

    Examples
    --------
    >>> batches = [Batch([np.array([[i, i]])], ["x"], np.array([i])) for i in range(3)]
    >>> dataset = fill_tensors(batches, 3, {"x": (2,)}, {"x": np.dtype("int64")})
    >>> dataset[2]
    (tensor([2, 2]),)
    """
    arrays = {
        # Tensors have no foreign byte order, and must share this memory to be filled through it.
        name: np.empty((num_samples, *shape), dtypes[name].newbyteorder("="))
        for name, shape in shapes.items()
    }
    # Before anything is read: what tensors cannot hold is refused here.
    tensors = [hand_over(array, name) for name, array in arrays.items()]
    for batch in batches:
        for name, array in arrays.items():
            array[batch.ids[0] : batch.ids[-1] + 1] = batch[name]
    return TensorDataset(*tensors)
