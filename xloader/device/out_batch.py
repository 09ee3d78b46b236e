"""Tensors of the user that each batch is written to, for CUDA graphs: their addresses stay."""

from __future__ import annotations

from typing import Any

import torch

from xloader.errors import OptionError
from xloader.loader.batches.batch import Batch

_REMEDY = "make it from a first batch: out = batch.with_arrays([t.clone() for t in batch])"


def check_out(out: Any, example: Batch) -> None:
    """Check that a batch can hold what is delivered. The number of rows is not checked."""
    if not isinstance(out, Batch):
        raise OptionError(
            "out must be a Batch", given=type(out).__name__, allowed="Batch", remedy=_REMEDY
        )
    if out.names != example.names:
        raise OptionError(
            "out has other fields",
            given=list(out.names),
            allowed=list(example.names),
            remedy=_REMEDY,
        )
    for name, tensor, own in zip(out.names, out, example, strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise OptionError(
                f"the field {name!r} of out is no tensor",
                given=type(tensor).__name__,
                allowed="torch.Tensor",
                remedy=_REMEDY,
            )
        given, allowed = _look(tensor), _look(own)
        if given != allowed or tensor.ndim != own.ndim:
            raise OptionError(
                f"the field {name!r} of out does not fit the batches",
                given=given,
                allowed=allowed,
                remedy=_REMEDY,
            )


def check_rows(out: Batch, batch_size: int, last_size: int) -> None:
    """Check that batches have as many rows as ``out``."""
    rows = {len(tensor) for tensor in out}
    if rows != {batch_size}:
        raise OptionError(
            "out has another number of rows than the batches",
            given=f"{sorted(rows)} rows",
            allowed=f"{batch_size} rows",
            remedy=_REMEDY,
        )
    if last_size != batch_size:
        raise OptionError(
            "the last batch of an epoch is shorter than out",
            given=f"{last_size} rows in the last batch, {batch_size} in out",
            allowed="batches of the same size",
            remedy="pass drop_last=True",
        )


def _look(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} (n, {', '.join(map(str, tensor.shape[1:]))}) on {tensor.device}"
