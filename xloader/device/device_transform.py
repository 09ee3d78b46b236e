"""The user's function on batches that are on the device, such as an augmentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from xloader.core.messages import names_function
from xloader.errors import OptionError, TransformError, UnsupportedDataError
from xloader.loader.batches.batch import Batch
from xloader.transforms.rng import NO_EPOCH, Chance


@dataclass(frozen=True)
class DeviceTransform:
    """A function that is called with each batch on the device, in the consumer's stream."""

    function: Callable[..., Any]
    is_random: bool
    number: int

    def apply(self, batch: Batch, device: torch.device, chance: Chance) -> Batch:
        """Call the function, and check what it returns."""
        more = (chance.rng(batch.ids, self.number),) if self.is_random else ()
        with names_function(f"device_transform on a batch of {batch.num_samples} samples"):
            result = self.function(batch, *more)
        tensors = _in_order(result, batch)
        for name, tensor in zip(batch.names, tensors, strict=True):
            _check_tensor(name, tensor, batch.num_samples, device)
        return batch.with_arrays(tensors)

    def try_on(self, zeros: Batch, device: torch.device) -> Batch:
        """Call the function with a batch of zeros, to find its mistakes before anything is read."""
        try:
            return self.apply(zeros, device, NO_EPOCH)
        except TransformError as error:
            raise OptionError(
                f"a transform failed on zeros: {error.what}",
                remedy="make it work on any batch, even of zeros; its own error is the cause of "
                "this one. With device_random=True, it is called with random numbers as well",
            ) from error.__cause__


def _in_order(result: Any, batch: Batch) -> list[Any]:
    """The fields of a result, in the order of the batch."""
    if isinstance(result, Batch):
        result = result.as_dict()
    allowed = f"the fields {list(batch.names)}, as a batch, a dict or a tuple"
    remedy = "return batch.with_arrays([...]) with one tensor for each field"
    if isinstance(result, Mapping):
        if set(result) != set(batch.names):
            raise OptionError(
                "device_transform changed the fields",
                given=list(result),
                allowed=allowed,
                remedy=remedy,
            )
        return [result[name] for name in batch.names]
    if not isinstance(result, tuple | list) or len(result) != len(batch):
        is_sequence = isinstance(result, tuple | list)
        raise OptionError(
            "device_transform returned something else",
            given=f"{len(result)} values" if is_sequence else type(result).__name__,
            allowed=allowed,
            remedy=remedy,
        )
    return list(result)


def _check_tensor(name: str, tensor: Any, num_rows: int, device: torch.device) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedDataError(
            f"device_transform returned no torch.Tensor for the field {name!r}",
            given=type(tensor).__name__,
        )
    if tensor.device != device:
        raise OptionError(
            f"device_transform moved the field {name!r} to another device",
            given=str(tensor.device),
            remedy="compute on the tensors' own device: pass device=batch[0].device where you "
            "make tensors",
        )
    if not tensor.ndim or len(tensor) != num_rows:
        raise OptionError(
            f"device_transform changed the number of samples of the field {name!r}",
            given=f"shape {tuple(tensor.shape)} for {num_rows} rows",
            remedy="keep the first dimension as it is: ids belong to its rows",
        )
