"""Tensors of a worker's batches that reach the training process without a copy.

PyTorch copies every tensor of a worker into new shared memory. Tensors that lie in a slot of
`xloader.torch.lent_slots` are lent instead: a few numbers are sent for each. All others are sent
as PyTorch does it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info

from xloader.engine.buffers import MakeMemory
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.torch.lent_slots import Borrower, Lender, LentBatches, Loan

MORE_SLOTS: Final = 1
"""Slots of a worker beside the batches of its plan: for a moment, a loop has both the batch before
and the next one. Without that slot, PyTorch would copy one batch in ten, which takes twice the
memory of a slot."""

_lender = Lender()
_borrower = Borrower()


def memory_to_lend(rank_plan: RankPlan) -> MakeMemory | None:
    """The maker of the memory for batches of a worker, from which they are sent without a copy.

    It has `MORE_SLOTS` slots more than the plan counts batches of a worker.
    """
    global _lender
    if get_worker_info() is None:
        return None
    if not _lender.is_here:
        _lender = Lender()
    ForkingPickler.register(torch.Tensor, _reduce)
    budget, workers = rank_plan.plan.budget, rank_plan.plan.workers
    num_slots = min(budget.num_batches + MORE_SLOTS, -(-rank_plan.num_steps // workers))
    return partial(LentBatches, lender=_lender, num_slots=max(num_slots, 1))


def _reduce(tensor: torch.Tensor) -> Any:
    # PyTorch's way for all that is more than an array.
    with contextlib.suppress(TypeError, RuntimeError):
        is_bfloat16 = tensor.dtype == torch.bfloat16
        array: NDArray[Any] = (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy()
        loan = _lender.lend(array)
        if loan is not None:
            return _rebuild, (loan, array.shape, array.strides, array.dtype, tensor.dtype)
    return _rebuild_copy, reduce_tensor(tensor)  # type: ignore[no-untyped-call]


def _rebuild(
    loan: Loan,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype,
    torch_dtype: torch.dtype,
) -> torch.Tensor:
    # A DataLoader drops the queue of its workers when they have ended.
    caller = sys._getframe(1)
    is_queue = caller.f_globals.get("__name__") == "multiprocessing.queues"
    queue = caller.f_locals.get("self") if is_queue else None
    array = np.ndarray(shape, dtype, _borrower_here().borrow(loan, queue), 0, strides)
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == torch_dtype else tensor.view(torch_dtype)


def _rebuild_copy(rebuild: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    # Where the user keeps many batches, only copies come until slots are given back.
    _borrower_here().give_back()
    return rebuild(*args)


def _borrower_here() -> Borrower:
    global _borrower
    if not _borrower.is_here:
        # A fork has copied the slots of the parent's workers.
        _borrower = Borrower()
    return _borrower
