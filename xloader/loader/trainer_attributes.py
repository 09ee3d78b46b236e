"""The attributes of a `DataLoader` that trainers ask a loader for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sized
from typing import Any, Self


class TrainerAttributes(ABC):
    """Attributes of a ``DataLoader`` that trainers look up, for loaders that are none.

    accelerate's ``skip_first_batches``, which ``transformers.Trainer`` calls, makes a
    ``DataLoader`` of ``dataset``, ``batch_sampler`` and ``collate_fn``. It delivers the batches of
    the loader.
    """

    prefetch_factor = None

    @property
    def sampler(self) -> Self:
        """The loader itself, as trainers call ``loader.sampler.set_epoch``."""
        return self

    @property
    def batch_sampler(self) -> Self:
        """The loader itself, as trainers look for a sampler here first."""
        return self

    @property
    def dataset(self) -> Sized:
        """As many samples as an epoch of all ranks has. It gives back each batch of the loader."""
        return _Delivered(self)

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """The batch as it is: the loader has called the ``collate_fn`` of its options."""
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of samples of an epoch, over all ranks."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading and free the memory."""


class _Delivered:
    """A dataset whose "indices" are the batches that a loader has delivered."""

    def __init__(self, loader: TrainerAttributes) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.num_samples

    def __getitems__(self, batch: Any) -> Any:
        return batch
