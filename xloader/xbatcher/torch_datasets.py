"""xbatcher's two datasets for PyTorch's ``DataLoader``, with xloader reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import xarray as xr

from xloader.core.messages import extra_remedy, warn_caller
from xloader.core.option_checks import check_callable
from xloader.errors import MissingDependencyError, UnsupportedDataError, XloaderWarning
from xloader.torch.worker_watch import end_in_time
from xloader.xbatcher.generator import BatchGenerator
from xloader.xbatcher.reading import part_of

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingDependencyError(
        "PyTorch is not installed",
        given="xloader.xbatcher's datasets for PyTorch",
        allowed="xloader.xbatcher.BatchGenerator without it",
        remedy=extra_remedy("torch"),
    ) from error

if TYPE_CHECKING:
    _MapBase: TypeAlias = data.Dataset[Any]
    _IterableBase: TypeAlias = data.IterableDataset[Any]
else:
    _MapBase, _IterableBase = data.Dataset, data.IterableDataset


def to_tensor(xr_obj: xr.Dataset | xr.DataArray) -> torch.Tensor:
    """A tensor of an xarray object's values, copied.

    Parameters
    ----------
    xr_obj : xarray.Dataset or xarray.DataArray
        A Dataset must have one data variable.

    Examples
    --------
    >>> to_tensor(xr.DataArray([1.0, 2.0], dims="x")).tolist()
    [1.0, 2.0]
    """
    if isinstance(xr_obj, xr.Dataset):
        xr_obj = xr_obj.to_array().squeeze(dim="variable")
    return torch.tensor(xr_obj.to_numpy())


class GeneratorMapDataset(_MapBase):
    """Batches of one generator, or pairs of two, by index.

    Parameters
    ----------
    X_generator : BatchGenerator
        Gives inputs.
    y_generator : BatchGenerator, optional
        Gives targets.
    transform, target_transform : callable, optional
        Take an xarray object and return a tensor.

    Warns
    -----
    XloaderWarning
        If the generators differ in length.

    Examples
    --------
    >>> import numpy as np
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
        """Read one batch: a tensor, or a tuple of two where there are targets."""
        end_in_time()
        if torch.is_tensor(idx):
            if idx.numel() != 1:
                raise NotImplementedError(
                    f"{type(self).__name__} takes one whole number. Given: {idx!r}"
                )
            idx = int(idx)
        batches = [_one(self.X_generator, idx)]
        if self.y_generator is not None:
            batches.append(_one(self.y_generator, idx))
        if any(batch.chunks for batch in batches):
            from dask.base import compute

            # Together, as inputs and targets may share tasks.
            batches = list(compute(*batches))  # type: ignore[no-untyped-call]
        inputs = _transformed(self.transform, batches[0], "transform")
        if len(batches) == 1:
            return inputs
        return inputs, _transformed(self.target_transform, batches[1], "target_transform")


class GeneratorIterableDataset(_IterableBase):
    """Pairs of batches of two generators, in order.

    In several workers each gives a contiguous part of the batches, and takes its share of the
    generators' memory: every batch comes once.

    Parameters
    ----------
    X_generator, y_generator : BatchGenerator
        Give inputs and targets.

    Warns
    -----
    XloaderWarning
        If the generators differ in length.

    Examples
    --------
    >>> import numpy as np
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
        end_in_time()
        worker = data.get_worker_info()
        part, num_parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        count = min(len(self.X_generator), len(self.y_generator))
        for inputs, targets in zip(
            _part(self.X_generator, count, part, num_parts),
            _part(self.y_generator, count, part, num_parts),
            strict=True,
        ):
            yield to_tensor(inputs), to_tensor(targets)


def _one(generator: Any, idx: Any) -> Any:
    worker = data.get_worker_info()
    if worker is None or not isinstance(generator, BatchGenerator):
        return generator[idx]
    return generator.read(idx, worker.num_workers)


def _part(generator: Any, count: int, part: int, num_parts: int) -> Iterator[Any]:
    batches = part_of(count, part, num_parts)
    if isinstance(generator, BatchGenerator):
        return generator.iterate(batches, num_parts)
    return (generator[n] for n in batches)


def _transformed(function: Callable[[Any], torch.Tensor], batch: Any, name: str) -> torch.Tensor:
    tensor = function(batch)
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedDataError(
            f"{name} gave no tensor",
            given=f"{type(tensor).__name__} from {function!r}",
            allowed="a function of an xarray object that returns a torch.Tensor",
            remedy="end it with xloader.xbatcher.to_tensor",
        )
    return tensor


def _warn_of_lengths(first: Any, second: Any) -> None:
    if second is not None and len(first) != len(second):
        warn_caller(
            f"the generators have {len(first)} and {len(second)} batches: those of the longer "
            "one without a partner are left out, or an error",
            XloaderWarning,
        )
