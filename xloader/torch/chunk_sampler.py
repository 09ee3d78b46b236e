"""ChunkSampler: the planned order, as PyTorch's samplers give one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from torch.utils.data import BatchSampler, DistributedSampler

from xloader.core.option_checks import MOST, check_whole
from xloader.core.options import check_epoch, make_options
from xloader.errors import OptionError
from xloader.loader.rank_resolution import RankResolver
from xloader.planning.explain import Explanation
from xloader.torch.misuse import refuse_dealing_twice, refuse_state, require_samples
from xloader.torch.sampler_passes import BatchPass, IdPass, Passes

if TYPE_CHECKING:
    from xloader.samples.samples import Samples

_OTHER_OPTIONS = (
    *("lanes", "max_amplification", "max_retries", "on_error", "read_timeout", "spread"),
    "threads",
)


class ChunkSampler(DistributedSampler[int]):
    """Deals sample ids so that each chunk is read once, and by one worker.

    For a stock ``DataLoader`` over a :class:`MapDataset` of the same samples; what
    :func:`data_loader` puts together. Batch k of a rank is made of samples that worker
    ``k % num_workers`` alone reads chunks for. It is a :class:`DistributedSampler`, so trainers
    take it for what deals by ranks, which it does.

    Parameters
    ----------
    samples : Samples
        What is sampled.
    batch_size : int or callable, default 32
        Samples of a batch, on each rank; as of the ``DataLoader``. A function is called with
        the samples: :func:`batch_of` makes one that keeps batches within so many bytes.
    num_workers : int, default 0
        As of the ``DataLoader``.
    memory : int or str, default "2GiB"
        Bytes that all workers of this rank may use together.
    shuffle : bool, default True
        Whether each epoch has an order of its own; if not, ids ascend within each worker's part.
    seed : int, default 0
        With the epoch and the plan, it fixes the order.
    drop_last : bool, default False
        Whether samples that do not fill a global batch are left out. If not, the last batch is
        short on one rank, and padded on several with its last sample.
    rank, world_size : int, optional
        This process among those that train together. By default as ``torch.distributed``,
        ``RANK`` and ``WORLD_SIZE``, or a SLURM step say when the sampler is first used.
    prefetch_factor : int, default 2
        As of the ``DataLoader``: batches of each worker that wait for the training loop.
    persistent_workers : bool, default False
        As of the ``DataLoader``: whether workers, and chunks that they keep, outlive an epoch.
    **options
        ``threads``, ``max_amplification``, ``lanes``, ``spread``, ``read_timeout``,
        ``max_retries`` and ``on_error``, as for
        :meth:`Samples.loader`; threads are those of each worker.

    Raises
    ------
    MemoryBudgetError
        If the memory is too small, with the minimum that would do.
    LanesError
        If lanes do not divide the global batch, or ranks do not divide the lanes.
    OptionError
        If an option is outside its range.

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
        memory: int | str = "2GiB",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        **options: Any,
    ) -> None:
        check_options(options)
        require_samples(samples, "ChunkSampler")
        resolver = plan_workers(
            samples,
            num_workers,
            batch_size=batch_size(samples) if callable(batch_size) else batch_size,
            memory=memory,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            prefetch=prefetch_factor,
            **options,
        )
        # Without workers, chunks are kept by the process that iterates.
        is_lasting = persistent_workers or not num_workers
        self._passes = Passes(resolver, num_workers, is_lasting=is_lasting)
        # Not the parent's own: it would look up the ranks now, and make them fast.
        self.dataset = samples  # type: ignore[assignment]
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.batch_size = resolver.asked.batch_size
        self.num_workers = num_workers

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Number of this process among those that train together."""
        return self._passes.resolver.settle().options.world.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """How many processes train together."""
        return self._passes.resolver.settle().options.world.world_size

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Ids of an epoch on this rank, with those that fill the last batch up."""
        return self.total_size // self.num_replicas

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Ids of an epoch on all ranks."""
        rank_plan = self._passes.resolver.settle()
        if self.drop_last or rank_plan.options.world.world_size > 1:
            return rank_plan.num_steps * rank_plan.options.global_batch
        return rank_plan.num_samples

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration deals."""
        return self._passes.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        """Choose it, as :meth:`set_epoch`."""
        self._passes.set_epoch(check_epoch(epoch))

    def __len__(self) -> int:
        """Ids of an epoch on this rank, with those that fill the last batch up."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """The ids of an epoch, batch by batch. After its last one, the next epoch begins.

        The iterator has a ``state_dict`` and a ``load_state_dict``, which torchdata's
        ``StatefulDataLoader`` asks for; the sampler has none.

        Raises
        ------
        RanksError
            If accelerate is about to deal them out once more.
        """
        refuse_dealing_twice("a ChunkSampler")
        self._passes.resolver.settle()
        return IdPass(self._passes)

    def __getattr__(self, name: str) -> NoReturn:
        raise refuse_state("ChunkSampler", name, "call sampler.resume(epoch, step)")

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration deals.

        The epoch that was to be resumed keeps its step.

        Raises
        ------
        OptionError
            If there is none such.
        """
        self.epoch = epoch

    def resume(self, epoch: int, step: int) -> None:
        """Begin the next iteration where an earlier run of the program was stopped.

        A ``DataLoader`` runs ahead of the training loop, so only the loop knows how many
        batches it was trained on. Samples and options, the number of workers among them, must
        be what they were then. What comes is the rest of that epoch, read anew as far as it was
        in memory; the iteration after that is whole.

        Parameters
        ----------
        epoch : int
            The epoch that was under way.
        step : int
            Batches of this rank in that epoch that were trained on. With all of them, the next
            iteration is an empty one.

        Raises
        ------
        OptionError
            If there is no such step.

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
        self._passes.resume(epoch, step)

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """What the next iteration will cost, summed over the workers. No value is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether to speak of this rank or of all ranks together.
        """
        return self._passes.explain(scope)

    def batches(self) -> ChunkBatches:
        """The same ids as lists, one a batch: for ``DataLoader(batch_sampler=...)``."""
        return ChunkBatches(self)

    def steps(self) -> BatchPass:
        """The ids of an epoch, a list for each batch."""
        self._passes.resolver.settle()
        return BatchPass(self._passes)


class ChunkBatches(BatchSampler):
    """The batches of a :class:`ChunkSampler`, as lists of ids.

    Parameters
    ----------
    sampler : ChunkSampler
        What deals the ids.
    """

    def __init__(self, sampler: ChunkSampler) -> None:
        super().__init__(sampler, sampler.batch_size, sampler.drop_last)
        self._dealer = sampler

    def __iter__(self) -> Iterator[list[int]]:
        refuse_dealing_twice("a ChunkSampler")
        return self._dealer.steps()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration deals."""
        self._dealer.set_epoch(epoch)

    def resume(self, epoch: int, step: int) -> None:
        """Begin the next iteration at a step, as :meth:`ChunkSampler.resume`."""
        self._dealer.resume(epoch, step)


def plan_workers(samples: Samples, num_workers: int, **options: Any) -> RankResolver:
    """Plan for so many workers, which share the memory of a rank.

    Raises
    ------
    OptionError
        If the number of workers is none, or leaves one with nothing but padding.
    """
    num_workers = check_whole("num_workers", num_workers, 0, MOST)
    asked = make_options(output="numpy", **options)
    return RankResolver(samples.recipe, asked, max(num_workers, 1))


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that a ``DataLoader`` has no use for, or that nobody knows.

    Raises
    ------
    OptionError
        With those that there are.
    """
    for name, value in options.items():
        if name not in _OTHER_OPTIONS:
            raise OptionError(
                f"there is no option {name!r} here",
                given=f"{name}={value!r}",
                allowed="those of the signature, and " + ", ".join(_OTHER_OPTIONS),
                remedy="pass it to the DataLoader, or use samples.loader(...)",
            )
