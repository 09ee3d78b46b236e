"""Turn the values of one field, over several samples, into one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from xloader.errors import OptionError, UnsupportedDataError
from xloader.loader.batches.row_list import Rows


def refuse_device_tensors(value: Any, what: str) -> None:
    """Raise an error if a worker process has put a tensor on a device other than the CPU."""
    worker = get_worker_info()
    if worker is None:
        return
    for tensor in _tensors_in(value):
        if tensor.device.type != "cpu":
            raise UnsupportedDataError(
                f"{what} holds a tensor that a worker process put on a device: the tensor's memory "
                "is freed when the worker ends, a forked worker cannot use CUDA at all, and each "
                "worker would create its own CUDA context on the GPU",
                given=f"device {str(tensor.device)!r} in worker {worker.id}",
                remedy="pass pin_memory=True, and move batches in the main process with "
                "batch.to(device, non_blocking=True)",
            )


def _tensors_in(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for member in value:
            yield from _tensors_in(member)
    elif isinstance(value, Mapping):
        yield from _tensors_in(list(value.values()))


def first_of(samples: Sequence[Any]) -> Any:
    """The first sample of a list."""
    if not len(samples):
        raise OptionError("there are no samples to make a batch of", given="an empty list")
    return samples[0]


def is_plain_tuple(sample: Any) -> bool:
    """Whether a sample is a tuple or list of fields, and not a named tuple.

    Named tuples keep their class when they are collated.
    """
    return isinstance(sample, tuple | list) and not hasattr(sample, "_fields")


def split_columns(samples: Sequence[Sequence[Any]]) -> tuple[Sequence[str], list[list[Any]]]:
    """Names of the fields, and the values of each field over all samples."""
    counts = {len(sample) for sample in samples}
    if len(counts) != 1:
        raise OptionError(
            "samples do not have the same number of fields",
            given=sorted(counts),
        )
    names = samples.names if isinstance(samples, Rows) else None
    columns = [list(column) for column in zip(*samples, strict=True)]
    return names or [str(place) for place in range(len(columns))], columns


def stack(values: list[Any], name: str) -> Any:
    """Stack the values of a field into one tensor.

    Values that are neither arrays nor tensors are left to ``default_collate``.
    """
    refuse_device_tensors(values, f"the field {name!r}")
    if not all(isinstance(value, np.ndarray | np.generic | torch.Tensor) for value in values):
        return default_collate(values)
    tensors = [hand_over(value, name) for value in values]
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len(shapes) > 1:
        raise OptionError(
            f"the samples of the field {name!r} have unequal shapes, so they cannot be stacked",
            given=", ".join(map(str, shapes)),
            remedy="pass collate_fn=xloader.torch.PadCollate(), or make the shapes equal in "
            "transform",
        )
    # In a worker, default_collate stacks straight into memory shared with the main process.
    return default_collate(tensors)


def hand_over(array: Any, name: str) -> Any:
    """Make a tensor that shares an array's memory, or holds a copy where PyTorch cannot share it.

    Arrays are copied if they are read-only, have negative strides or a foreign byte order. Values
    that are not arrays are returned unchanged.
    """
    if not isinstance(array, np.ndarray | np.generic):
        refuse_device_tensors(array, f"the field {name!r}")
        return array
    array = np.asarray(array)
    is_native = array.dtype.isnative
    if not array.flags.writeable or not is_native or any(step < 0 for step in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise UnsupportedDataError(
            f"the field {name!r} holds values that a tensor cannot hold",
            given=f"dtype {array.dtype}",
            remedy="convert the values to numbers in map or transform",
        ) from error
