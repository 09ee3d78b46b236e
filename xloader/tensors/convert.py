"""Tensors over NumPy's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from xloader.core.messages import extra_remedy
from xloader.errors import MissingDependencyError, OptionError

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
    require_torch('output="torch"', allowed='output="numpy" without it')
    import torch

    return torch.from_numpy


def require_torch(given: str, allowed: str | None = None) -> None:
    """Refuse what cannot be had without PyTorch.

    Raises
    ------
    MissingDependencyError
        If PyTorch is not installed.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"PyTorch is not installed ({error})",
            given=given,
            allowed=allowed,
            remedy=extra_remedy("torch"),
        ) from error


def check_device(device: Any) -> None:
    """Refuse a device that tensors cannot be on, before anything is read for it.

    Raises
    ------
    OptionError
        If PyTorch has no such device here.
    """
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise OptionError(
            "PyTorch has no such device here",
            given=f"device={device!r}: {str(error).splitlines()[0]}",
            allowed='what torch.device takes and this machine has, such as "cpu"',
            remedy="leave device out, and move batches with batch.to(device)",
        ) from error
