"""`ChunkSampler`: a PyTorch sampler that gives sample ids in the planned order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

from torch.utils.data import BatchSampler, DistributedSampler

from xloader.core.option_checks import MOST, check_whole
from xloader.core.options import PLAN_OPTIONS, PlanKeywords, make_options
from xloader.core.ranks import World
from xloader.errors import OptionError
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.memory_share import take_share
from xloader.loader.ranks.rank_resolver import RankResolver
from xloader.planning.explain import Explanation
from xloader.torch.misuse import refuse_dealing_twice, refuse_state, require_samples
from xloader.torch.sampler_passes import BatchPass, Passes

if TYPE_CHECKING:
    from xloader.samples.samples import Samples


class ChunkSampler(DistributedSampler[int]):
    """Sampler whose order lets each chunk be read once.

    It is for a stock ``DataLoader`` over a :class:`MapDataset` of the same samples;
    :func:`data_loader` puts the three together. The class is a ``DistributedSampler``, so trainers
    know that it divides the samples among ranks itself.

    Parameters
    ----------
    samples : Samples
        The samples to order.
    batch_size : int or callable, default 32
        Samples per batch, on each rank, as for the ``DataLoader``; or a function of the samples,
        such as ``xloader.torch.batch_of(nbytes="64MiB")``.
    num_workers, prefetch_factor, persistent_workers : optional
        As for the ``DataLoader``.
    memory : int or str, optional
        Bytes that all workers of this rank may use together, as for :meth:`Samples.loader`.
    shuffle : bool, default True
        Whether samples are shuffled anew in each epoch. If not, ids ascend within each worker's
        part.
    seed, drop_last, world, **options
        As for :meth:`Samples.loader`; so are ``on_error``, ``plan`` and ``threads`` (of each
        worker).

    Raises
    ------
    MemoryBudgetError
        If the memory is too small; the error gives the minimum that is enough.
    OptionError
        If an option is unknown or out of range, lanes do not divide the global batch, or ranks the
        lanes.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> from torch.utils.data import DataLoader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = xloader.open(ds).window(time=2)
    >>> sampler = ChunkSampler(samples, batch_size=2)
    >>> len(sampler), sorted(sampler)
    (5, [0, 1, 2, 3, 4])
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int | Callable[[Samples], int] = 32,
        *,
        num_workers: int = 0,
        memory: int | str | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        world: World | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        **options: Unpack[PlanKeywords],
    ) -> None:
        check_options(options)
        require_samples(samples, "ChunkSampler")
        num_workers = check_whole("num_workers", num_workers, 0, MOST)
        chosen = make_options(
            batch_size=batch_size(samples) if callable(batch_size) else batch_size,
            memory=memory,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            world=world,
            prefetch=prefetch_factor,
            output="numpy",
            **options,
        )
        chosen = take_share(chosen, (samples.recipe,))
        resolver = RankResolver(samples.recipe, chosen, max(num_workers, 1))
        # Without workers, the process that iterates keeps the chunks from epoch to epoch.
        is_lasting = persistent_workers or not num_workers
        self._passes = Passes(resolver, num_workers, is_lasting=is_lasting)
        # The parent's __init__ is not called: it would look up the ranks now, and fix them.
        self.dataset = samples  # type: ignore[assignment]
        self.shuffle, self.seed, self.drop_last = chosen.shuffle, chosen.seed, chosen.drop_last
        self.batch_size = chosen.batch_size
        self.num_workers = num_workers

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Number of this process among those that train together."""
        return self._passes.resolver.settle().options.ranks.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of processes that train together."""
        return self._passes.resolver.settle().options.ranks.world_size

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Number of ids in an epoch on this rank, including those that fill up the last batch."""
        return self._passes.resolver.settle().num_each

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Number of ids in an epoch on all ranks, including those that fill up the last batch."""
        return self.num_samples * self.num_replicas

    @property
    def epoch(self) -> int:
        """The epoch whose ids the next iteration gives."""
        return self._passes.cursor.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        """Choose the epoch, as :meth:`set_epoch` does."""
        self._passes.cursor.set_epoch(epoch)

    def __len__(self) -> int:
        """Number of ids in an epoch on this rank, including those that fill up the last batch."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """Iterator over the ids of an epoch, batch by batch.

        After its last id, the next epoch begins. The iterator has a ``state_dict`` and a
        ``load_state_dict``, which torchdata's ``StatefulDataLoader`` asks for. The sampler has
        none.

        Raises
        ------
        RanksError
            If accelerate is about to divide the ids among ranks once more.
        """
        refuse_dealing_twice("a ChunkSampler")
        self._passes.resolver.settle()
        return BatchPass(is_single=True, passes=self._passes)

    def __getattr__(self, name: str) -> NoReturn:
        raise refuse_state("ChunkSampler", name, "call sampler.resume(epoch, step)")

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose ids the next iteration gives.

        If this epoch was chosen by :meth:`resume`, it still begins at the step given there.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.

        Raises
        ------
        OptionError
            If the number is not a whole number from 0 on.
        """
        self.epoch = epoch

    def resume(self, epoch: int, step: int) -> None:
        """Begin the next iteration where an earlier run was stopped, with the rest of that epoch.

        A ``DataLoader`` runs ahead, so only the training loop knows the step. Samples and options,
        the number of workers included, must be those of the earlier run.

        Parameters
        ----------
        epoch, step : int
            The epoch that was under way, and the number of batches of this rank that were trained
            on.

        Raises
        ------
        OptionError
            If there is no such epoch or step.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> samples = xloader.open(ds).window(time=2)
        >>> whole = list(ChunkSampler(samples, batch_size=2))
        >>> sampler = ChunkSampler(samples, batch_size=2)
        >>> sampler.resume(epoch=0, step=1)
        >>> list(sampler) == whole[2:], sampler.epoch, len(list(sampler))
        (True, 1, 5)
        """
        num_steps = self._passes.resolver.settle().num_steps
        self._passes.cursor.resume(Position.checked(epoch, step, num_steps))

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """Predict what the next iteration costs, summed over the workers. No value is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether the numbers are those of this rank or of all ranks together.

        Returns
        -------
        Explanation
            As from :meth:`Samples.explain`.
        """
        return self._passes.explain(scope)

    def batches(self) -> ChunkBatches:
        """The same ids as lists, one for each batch: for ``DataLoader(batch_sampler=...)``.

        Returns
        -------
        ChunkBatches
            Shares epoch and position with this sampler.
        """
        return ChunkBatches(self)

    def steps(self) -> BatchPass:
        """Iterator over the ids of an epoch, one list for each batch.

        Returns
        -------
        BatchPass
            Begins where the next iteration of this sampler begins.
        """
        self._passes.resolver.settle()
        return BatchPass(is_single=False, passes=self._passes)


class ChunkBatches(BatchSampler):
    """Batch sampler that gives the batches of a :class:`ChunkSampler` as lists of ids."""

    def __init__(self, sampler: ChunkSampler) -> None:
        super().__init__(sampler, sampler.batch_size, sampler.drop_last)
        self._dealer = sampler

    def __iter__(self) -> Iterator[list[int]]:
        refuse_dealing_twice("a ChunkSampler")
        return self._dealer.steps()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches the next iteration gives."""
        self._dealer.set_epoch(epoch)

    def resume(self, epoch: int, step: int) -> None:
        """Begin the next iteration at a step, as :meth:`ChunkSampler.resume` does."""
        self._dealer.resume(epoch, step)


def check_options(options: Mapping[str, Any]) -> None:
    """Check that all further options are known and have a meaning under a ``DataLoader``."""
    for name, value in options.items():
        if name not in PLAN_OPTIONS:
            raise OptionError(
                f"there is no option {name!r} here",
                given=f"{name}={value!r}",
                allowed="the options in the signature, and " + ", ".join(PLAN_OPTIONS),
                remedy="pass it to the DataLoader, or use samples.loader(...)",
            )
