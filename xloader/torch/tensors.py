"""Tensors over NumPy's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from xloader.errors import MissingDependencyError

if TYPE_CHECKING:
    import torch


def tensor_maker() -> Callable[[NDArray[Any]], torch.Tensor]:
    """A function that makes a tensor of an array without a copy.

    Raises
    ------
    MissingDependencyError
        If PyTorch is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> array = np.zeros(3)
    >>> tensor = tensor_maker()(array)
    >>> array[0] = 7
    >>> tensor.tolist()
    [7.0, 0.0, 0.0]
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "PyTorch is not installed",
            given='output="torch"',
            allowed='output="numpy" without it',
            remedy='pip install "xloader[torch]"',
        ) from error
    return torch.from_numpy
