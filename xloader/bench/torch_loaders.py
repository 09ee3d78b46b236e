"""A PyTorch ``DataLoader`` whose epochs can be measured in turns with other loaders."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from xloader.bench.turns import BatchSize


class _StoppableBatches(BatchSampler):
    """The ids of each batch of an epoch, until it is stopped."""

    is_stopped = False

    def __iter__(self) -> Iterator[list[int]]:
        self.is_stopped = False
        return takewhile(lambda _: not self.is_stopped, super().__iter__())


class DataLoaderPass:
    """Starts epochs of a ``DataLoader``. Its workers live until it is closed."""

    def __init__(
        self,
        dataset: Any,
        *,
        num_workers: int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> None:
        methods = multiprocessing.get_all_start_methods()
        # Threads of other loaders, and some libraries of stores, do not survive a fork.
        method = "forkserver" if "forkserver" in methods else "spawn"
        generator = torch.Generator().manual_seed(seed)
        order = (
            RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        )
        self._batches = _StoppableBatches(order, batch_size, drop_last)
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset,
            batch_sampler=self._batches,
            num_workers=num_workers,
            multiprocessing_context=method if num_workers else None,
            persistent_workers=bool(num_workers),
        )

    def __call__(self) -> Iterator[BatchSize]:
        """Start an epoch."""
        assert self._loader is not None, "a closed loader starts no epoch"
        coming = iter(self._loader)
        try:
            for batch in coming:
                yield BatchSize(len(batch[0]), sum(field.nbytes for field in batch))
        except GeneratorExit:
            # Workers would make the batches that they were asked for in the turns of the others.
            self._batches.is_stopped = True
            for _ in coming:
                pass
            raise

    def close(self) -> None:
        """End the workers."""
        self._loader = None
