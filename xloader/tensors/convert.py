"""Convert NumPy arrays to tensors without a copy, and check that PyTorch is installed.

PyTorch is imported only when one of these functions is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.messages import extra_remedy
from xloader.core.output_dtypes import BFLOAT16
from xloader.errors import MissingDependencyError

if TYPE_CHECKING:
    import torch


def tensor_maker() -> Callable[[NDArray[Any]], torch.Tensor]:
    """Function that makes a tensor from an array without a copy."""
    require_torch('output="torch"', allowed='without PyTorch, output="numpy"')
    return _tensor_of


def _tensor_of(array: NDArray[Any]) -> torch.Tensor:
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def join_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors along their first axis, on the device where they are."""
    import torch

    return torch.cat(list(tensors))


def require_torch(given: str, allowed: str | None = None) -> None:
    """Raise an error with advice if PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"PyTorch is not installed ({error})",
            given=given,
            allowed=allowed,
            remedy=extra_remedy("torch"),
        ) from error
