"""The two datasets of xbatcher for PyTorch's ``DataLoader``, with xloader's reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import xarray as xr
from torch.utils import data

from xloader.core.messages import warn_caller
from xloader.core.option_checks import check_callable
from xloader.errors import BatchGeneratorWarning, UnsupportedDataError
from xloader.torch.worker_setup import set_up_worker
from xloader.xbatcher.generator import BatchGenerator

if TYPE_CHECKING:
    _MapBase: TypeAlias = data.Dataset[Any]
    _IterableBase: TypeAlias = data.IterableDataset[Any]
else:
    _MapBase, _IterableBase = data.Dataset, data.IterableDataset


def to_tensor(xr_obj: xr.Dataset | xr.DataArray) -> torch.Tensor:
    """Copy the values of an xarray object into a tensor.

    Parameters
    ----------
    xr_obj : xarray.Dataset or xarray.DataArray
        The object. A Dataset must have exactly one data variable.

    Returns
    -------
    torch.Tensor
        A tensor of the same shape and values.

    Examples
    --------
    >>> to_tensor(xr.DataArray([1.0, 2.0], dims="x")).tolist()
    [1.0, 2.0]
    """
    if isinstance(xr_obj, xr.Dataset):
        xr_obj = xr_obj.to_array().squeeze(dim="variable")
    return torch.tensor(xr_obj.to_numpy())


class GeneratorMapDataset(_MapBase):
    """Map-style dataset of the batches of one generator, or of pairs of batches of two.

    Parameters
    ----------
    X_generator : BatchGenerator
        Generator of the inputs. Its length is that of the dataset.
    y_generator : BatchGenerator, optional
        Generator of the targets.
    transform, target_transform : callable, optional
        Functions that take a batch of inputs, or of targets, as an xarray object and return a
        tensor.

    Warns
    -----
    BatchGeneratorWarning
        If the generators differ in length.

    Examples
    --------
    >>> import numpy as np
    >>> from xloader.xbatcher import MapDataset
    >>> da = xr.DataArray(np.arange(6.0), dims="x")
    >>> dataset = MapDataset(BatchGenerator(da, {"x": 2}))
    >>> len(dataset), dataset[2].tolist()
    (3, [4.0, 5.0])
    """

    def __init__(
        self,
        X_generator: Any,
        y_generator: Any = None,
        transform: Callable[[Any], torch.Tensor] = to_tensor,
        target_transform: Callable[[Any], torch.Tensor] = to_tensor,
    ) -> None:
        check_callable("transform", transform)
        check_callable("target_transform", target_transform)
        _warn_of_lengths(X_generator, y_generator)
        self.X_generator = X_generator
        self.y_generator = y_generator
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self) -> int:
        return len(self.X_generator)

    def __getitem__(self, idx: Any) -> Any:
        """Read one batch."""
        set_up_worker()
        if torch.is_tensor(idx):
            if idx.numel() != 1:
                raise NotImplementedError(
                    f"{type(self).__name__} takes one whole number as an index. Given: {idx!r}"
                )
            idx = int(idx)
        batches = [_one(self.X_generator, idx)]
        if self.y_generator is not None:
            batches.append(_one(self.y_generator, idx))
        if any(batch.chunks for batch in batches):
            from dask.base import compute

            # One call for both, since the graphs of inputs and targets may have tasks in common.
            batches = list(compute(*batches))  # type: ignore[no-untyped-call]
        inputs = _transformed(self.transform, batches[0], "transform")
        if len(batches) == 1:
            return inputs
        return inputs, _transformed(self.target_transform, batches[1], "target_transform")


class GeneratorIterableDataset(_IterableBase):
    """Iterable dataset of pairs of batches of two generators, in order.

    With several workers, each worker reads a contiguous part of the batches and uses an equal part
    of the generators' memory. So every batch is read once. If one generator is longer, its last
    batches are left out.

    Parameters
    ----------
    X_generator, y_generator : BatchGenerator
        Generators of the inputs and of the targets.

    Warns
    -----
    BatchGeneratorWarning
        If the generators differ in length.

    Examples
    --------
    >>> import numpy as np
    >>> from xloader.xbatcher import IterableDataset
    >>> da = xr.DataArray(np.arange(4.0), dims="x")
    >>> dataset = IterableDataset(BatchGenerator(da, {"x": 2}), BatchGenerator(-da, {"x": 2}))
    >>> [(x.tolist(), y.tolist()) for x, y in dataset]
    [([0.0, 1.0], [-0.0, -1.0]), ([2.0, 3.0], [-2.0, -3.0])]
    """

    def __init__(self, X_generator: Any, y_generator: Any) -> None:
        _warn_of_lengths(X_generator, y_generator)
        self.X_generator = X_generator
        self.y_generator = y_generator

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        set_up_worker()
        worker = data.get_worker_info()
        number, num_shares = (0, 1) if worker is None else (worker.id, worker.num_workers)
        count = min(len(self.X_generator), len(self.y_generator))
        for inputs, targets in zip(
            _share(self.X_generator, count, number, num_shares),
            _share(self.y_generator, count, number, num_shares),
            strict=True,
        ):
            yield to_tensor(inputs), to_tensor(targets)


def _one(generator: Any, idx: Any) -> Any:
    """Read one batch, with this worker's part of the memory."""
    worker = data.get_worker_info()
    if worker is None or not isinstance(generator, BatchGenerator):
        return generator[idx]
    return generator.read(idx, worker.num_workers)


def _share(generator: Any, count: int, number: int, num_shares: int) -> Iterator[Any]:
    """One worker's contiguous part of the first ``count`` batches."""
    batches = range(number * count // num_shares, (number + 1) * count // num_shares)
    if isinstance(generator, BatchGenerator):
        return generator.iterate(batches, num_shares)
    return (generator[n] for n in batches)


def _transformed(function: Callable[[Any], torch.Tensor], batch: Any, name: str) -> torch.Tensor:
    """The result of a user's transform. Raise if it is not a tensor."""
    tensor = function(batch)
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedDataError(
            f"{name} did not return a tensor",
            given=f"{type(tensor).__name__} from {function!r}",
            remedy="end it with xloader.xbatcher.to_tensor",
        )
    return tensor


def _warn_of_lengths(first: Any, second: Any) -> None:
    """Warn if two generators differ in length."""
    if second is not None and len(first) != len(second):
        warn_caller(
            f"the generators have {len(first)} and {len(second)} batches: the extra batches of "
            "the longer one are left out, or raise an error",
            BatchGeneratorWarning,
        )
