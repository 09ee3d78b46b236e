"""Convert NumPy arrays to tensors without a copy, and check that PyTorch is installed.

PyTorch is imported only when one of these functions is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.messages import extra_remedy
from xloader.core.output_dtypes import BFLOAT16
from xloader.errors import MissingDependencyError, OptionError

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
    _imported("torch", "PyTorch", given, allowed, extra_remedy("torch"))


def _imported(module: str, name: str, given: str, allowed: str | None, remedy: str) -> Any:
    """A library, imported. Raise an error with advice if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{name} is not installed ({error})", given=given, allowed=allowed, remedy=remedy
        ) from error


def jax_maker(dtypes: Mapping[str, np.dtype]) -> Callable[[NDArray[Any]], Any]:
    """Function that makes a JAX array from an array, on JAX's CPU."""
    jax = _imported(
        "jax", "JAX", 'output="jax"', 'without JAX, output="numpy"', extra_remedy("jax")
    )
    # JAX's types do not list its settings.
    config: Any = jax.config
    try:
        jax.devices("cpu")
    except RuntimeError as error:
        raise OptionError(
            "JAX was started without its CPU, where batches are made",
            given=f"JAX platforms {config.jax_platforms!r}: {str(error).splitlines()[0]}",
            remedy="set JAX_PLATFORMS=cuda,cpu before JAX is imported, or leave it unset",
        ) from error
    wide = [name for name, dtype in dtypes.items() if dtype.kind in "iu" and dtype.itemsize == 8]
    if wide and not config.jax_enable_x64:
        raise OptionError(
            "JAX is set to 32 bits, and would cut off integers of 64 bits",
            given=f"fields {wide} with {dtypes[wide[0]]}",
            remedy='convert the field, for example with .map(lambda ds: ds.astype("int32")), or '
            'call jax.config.update("jax_enable_x64", True) first',
        )
    return _jax_array_of


def cupy_maker() -> Callable[[NDArray[Any]], Any]:
    """Function that makes a CuPy array from an array, on CuPy's current device.

    DLPack does not move memory to a GPU, so the array is copied. The copy is done when the
    function returns, since the loader uses the array's memory again.
    """
    remedy = "install the package of CuPy for your CUDA, such as cupy-cuda12x"
    cupy = _imported("cupy", "CuPy", 'output="cupy"', 'without CuPy, output="numpy"', remedy)
    if not cupy.is_available():
        raise OptionError(
            "CuPy finds no GPU",
            given='output="cupy"',
            allowed='without a GPU, output="numpy"',
            remedy="run on a machine with a GPU, or look at cupy.show_config()",
        )
    return _cupy_array_of


def _jax_array_of(array: NDArray[Any]) -> Any:
    import jax
    import jax.numpy as jnp

    if not array.flags.c_contiguous or not array.flags.writeable:
        # JAX takes neither other strides nor memory that is marked as read-only.
        array = array.copy(order="C")
    if array.dtype == BFLOAT16:
        return jax.dlpack.from_dlpack(array.view(np.uint16)).view(jnp.bfloat16)
    return jax.dlpack.from_dlpack(array)


def _cupy_array_of(array: NDArray[Any]) -> Any:
    import cupy

    return cupy.asarray(array, blocking=True)
