"""All samples in memory, as PyTorch's own ``TensorDataset``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import TensorDataset

from xloader.core.nans import OnNan
from xloader.samples.loader_verbs import whole_loader
from xloader.tensors.collate import hand_over
from xloader.torch.misuse import require_samples

if TYPE_CHECKING:
    from xloader.samples.samples import Samples


def tensor_dataset(
    samples: Samples, memory: int | str = "2GiB", on_nan: OnNan = "warn"
) -> TensorDataset:
    """Read all samples into memory.

    Parameters
    ----------
    samples : Samples
        The samples to read, in ascending order of ids.
    memory : int or str, default "2GiB"
        Bytes for the tensors, and for the reads and batches while they are filled.
    on_nan : {"warn", "raise", "ignore"}
        What to do about NaN, as for :meth:`Samples.loader`.

    Returns
    -------
    torch.utils.data.TensorDataset
        One tensor for each field, in the order of :attr:`Samples.fields`. Row ``i`` is sample
        ``i``, on every rank.

    Raises
    ------
    MemoryBudgetError
        If the samples do not fit; the error gives the memory that is enough.
    OptionError
        If samples are weighted, because the dataset holds each sample once, or if ``on_nan`` is
        none of the choices.
    NanError
        If a sample holds NaN, with ``on_nan="raise"``.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> dataset = tensor_dataset(xloader.open(ds).window(time=2), memory="16MiB")
    >>> len(dataset), dataset[3][0].tolist()
    (5, [[24.0, 25.0, 26.0, 27.0], [28.0, 29.0, 30.0, 31.0]])
    """
    require_samples(samples, "tensor_dataset")
    with whole_loader(samples.recipe, memory, on_nan) as batches:
        arrays = {
            # In native byte order the tensor shares the array's memory, and is filled through it.
            name: np.empty((len(samples), *shape), samples.dtypes[name].newbyteorder("="))
            for name, shape in samples.shapes.items()
        }
        # Before anything is read, so that values that no tensor can hold are an error at once.
        tensors = [hand_over(array, name) for name, array in arrays.items()]
        for batch in batches:
            for name, array in arrays.items():
                array[batch.ids[0] : batch.ids[-1] + 1] = batch[name]
        return TensorDataset(*tensors)
