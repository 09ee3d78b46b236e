"""Collate functions, which make a batch of PyTorch tensors from samples that hold NumPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset as TensorDataset
from torch.utils.data import default_collate, get_worker_info

from xloader.errors import OptionError, UnsupportedDataError
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.row_list import Rows

Axes = int | tuple[int, ...]
"""Axes of one sample's array. Axis 0 is the first; negative axes count from the end."""


def collate(samples: Any) -> Any:
    """Make a batch of tensors from samples. Arrays that are stacked already are not stacked again.

    Parameters
    ----------
    samples : Rows, Batch or list
        The value that a dataset of xloader gives a ``DataLoader``, or any list of samples: tuples
        with one array, tensor or number for each field, or arrays alone.

    Returns
    -------
    Batch, tuple of torch.Tensor, or torch.Tensor
        A batch of tensors, which share the memory of stacked arrays; for a plain list, a tuple of
        tensors of shape ``(n, ...)``, or one tensor. Anything else is left to
        :func:`torch.utils.data.default_collate`.

    Raises
    ------
    OptionError
        If there is no sample, or shapes differ: use :class:`PadCollate` then.
    UnsupportedDataError
        If no tensor can hold a value, or a worker process has put a tensor on a GPU.

    Examples
    --------
    >>> batch = Batch([np.zeros((2, 3)), np.array([5, 6])], ["x", "y"], np.array([4, 1]))
    >>> collate(Rows(batch))
    Batch(x=float64 (2, 3), y=int64 (2,), num_samples=2)
    >>> collate([(np.zeros(3), 5), (np.ones(3), 6)])[1]
    tensor([5, 6])
    """
    if isinstance(samples, Rows) and samples.batch is not None:
        samples = samples.batch
    if isinstance(samples, Batch):
        columns = samples.as_dict().items()
        return samples.with_arrays(hand_over(array, name) for name, array in columns)
    first = first_of(samples)
    if not is_plain_tuple(first):
        is_array = isinstance(first, np.ndarray | np.generic | torch.Tensor)
        return stack(list(samples), "the samples") if is_array else default_collate(samples)
    names, columns_of = split_columns(samples)
    tensors = [stack(column, name) for name, column in zip(names, columns_of, strict=True)]
    return _as_batch(samples, tensors)


@dataclass(frozen=True)
class PadCollate:
    """Collate function for samples of unequal length, which pads the shorter ones at the end.

    For each padded field, a field ``<name>_lengths`` of int64 follows after all others, of shape
    ``(n,)``, or ``(n, k)`` for a tuple of k axes.

    Parameters
    ----------
    axes : int, tuple of int, or mapping, default 0
        Axes of a sample's array along which lengths may differ, for all fields that have them; or
        by a field's name or position, and other fields are not padded.
    fill_value : float or mapping, optional
        The value to pad with, for all fields or by field; by default NaN for floats, and 0 or
        False.

    Examples
    --------
    >>> pad = PadCollate({"x": 0})
    >>> rows = Rows.of([(np.ones(2), 7), (np.ones(4), 8)], ["x", "y"], np.array([4, 1]))
    >>> batch = pad(rows)
    >>> batch
    Batch(x=float64 (2, 4), y=int64 (2,), x_lengths=int64 (2,), num_samples=2)
    >>> batch.x[0].tolist(), batch.x_lengths.tolist()
    ([1.0, 1.0, nan, nan], [2, 4])

    A mask of the padded elements, as attention of PyTorch takes it:

    >>> torch.arange(batch.x.shape[1]) >= batch.x_lengths[:, None]
    tensor([[False, False,  True,  True],
            [False, False, False, False]])
    """

    axes: Axes | Mapping[str | int, Axes] = 0
    fill_value: float | Mapping[str | int, float] | None = None

    def __call__(self, samples: Any) -> Any:
        """Pad the samples and stack them.

        Parameters
        ----------
        samples : Rows, Batch or list
            As for :func:`collate`.

        Returns
        -------
        Batch or tuple of torch.Tensor
            A batch, or a tuple of tensors if names are not known. The lengths come last.

        Raises
        ------
        OptionError
            If there is no sample; if a field does not exist or does not have the axes; if lengths
            differ along other axes; if a fill value does not fit a field.
        UnsupportedDataError
            As for :func:`collate`.
        """
        if isinstance(samples, Batch):
            samples = Rows(samples)
        first = first_of(samples)
        if not is_plain_tuple(first):
            samples, first = [(sample,) for sample in samples], (first,)
        names, columns = split_columns(samples)
        self._check_fields(names)
        arrays, lengths = [], {}
        for place, (name, column) in enumerate(zip(names, columns, strict=True)):
            axes = self._axes_of(name, place, column[0])
            if axes is None:
                arrays.append(stack(column, name))
                continue
            fill_value = _of_field(self.fill_value, name, place)
            padded, sizes = _pad(column, name, axes, fill_value)
            arrays.append(padded)
            lengths[f"{name}_lengths"] = sizes
        return _as_batch(samples, [*arrays, *lengths.values()], lengths)

    def _check_fields(self, names: Sequence[str]) -> None:
        for option in (self.axes, self.fill_value):
            for field in option if isinstance(option, Mapping) else ():
                if field not in names and field not in range(len(names)):
                    raise OptionError(
                        "PadCollate names a field that samples do not have",
                        given=repr(field),
                        allowed=f"{list(names)}, or their positions from 0 to {len(names) - 1}",
                    )

    def _axes_of(self, name: str, place: int, value: Any) -> Axes | None:
        """The axes to pad a field along; None if it is stacked without padding."""
        axes: Axes | None = _of_field(self.axes, name, place)
        ndim = value.ndim if isinstance(value, torch.Tensor) else np.ndim(value)
        is_there = axes is not None and all(-ndim <= axis < ndim for axis in _as_tuple(axes))
        if not is_there and axes is not None and isinstance(self.axes, Mapping):
            raise OptionError(
                f"the field {name!r} does not have the axes that PadCollate would pad",
                given=f"axes {axes} of samples with {ndim} dimensions",
                allowed=f"axes from {-ndim} to {ndim - 1}" if ndim else "no axes",
            )
        return axes if is_there else None


def _as_batch(samples: Any, tensors: list[Any], more_names: Iterable[str] = ()) -> Any:
    """A batch if names and ids of the samples are known; else a tuple of the tensors."""
    if not isinstance(samples, Rows) or not samples.is_whole:
        return tuple(tensors)
    assert samples.names is not None
    assert samples.ids is not None
    names = (*samples.names, *more_names)
    return Batch(tensors, names, samples.ids, samples.is_padding, samples.origin)


def _pad(
    values: list[Any], name: str, axes: Axes, fill_value: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One tensor of a field's values, padded to the longest, and their lengths along the axes."""
    refuse_device_tensors(values, f"the field {name!r}")
    tensors = [torch.as_tensor(hand_over(value, name)) for value in values]
    ndim = tensors[0].ndim
    padded = {axis % ndim for axis in _as_tuple(axes)}
    for tensor in tensors:
        sizes = [n for axis, n in enumerate(tensor.shape) if axis not in padded]
        expected = [n for axis, n in enumerate(tensors[0].shape) if axis not in padded]
        if tensor.ndim != ndim or sizes != expected:
            raise OptionError(
                f"the samples of the field {name!r} differ along axes other than {axes}",
                given=f"shapes {tuple(tensors[0].shape)} and {tuple(tensor.shape)}",
                remedy="name all axes to pad: PadCollate((0, 1)), or PadCollate({'inputs': 1})",
            )
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    longest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    fill = _fill_of(dtype, fill_value, name)
    whole = torch.full((len(tensors), *longest), fill, dtype=dtype, device=tensors[0].device)
    for row, tensor in enumerate(tensors):
        whole[row][tuple(slice(n) for n in tensor.shape)] = tensor
    if isinstance(axes, int):
        return whole, torch.tensor([tensor.shape[axes] for tensor in tensors])
    return whole, torch.tensor([[tensor.shape[axis] for axis in axes] for tensor in tensors])


def _fill_of(dtype: torch.dtype, fill_value: float | None, name: str) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan") if fill_value is None else fill_value
    value = 0 if fill_value is None else fill_value
    least, most = (
        (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    )
    if not least <= value <= most or value != int(value):
        raise OptionError(
            f"the field {name!r} cannot hold the fill value",
            given=f"{fill_value} for {str(dtype).removeprefix('torch.')}",
            allowed=f"whole numbers from {least} to {most}",
            remedy="pass one for each field: PadCollate(fill_value={'inputs': -1.0, 'targets': 0})",
        )
    return int(value)


def _of_field(option: Any, name: str, place: int) -> Any:
    return option.get(name, option.get(place)) if isinstance(option, Mapping) else option


def _as_tuple(axes: Axes) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


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
        raise OptionError("samples do not have the same number of fields", given=sorted(counts))
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
