"""ChunkSampler: the planned order, as PyTorch's samplers give one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import BatchSampler, DistributedSampler

from xloader.dealing import deal_ids
from xloader.errors import OptionError
from xloader.explain import Explanation, touched_blocks
from xloader.itinerary import Itinerary
from xloader.options import make_options
from xloader.torch.checks import require_samples
from xloader.torch.tickets import Agreement, BatchIds, FirstId, Ticket
from xloader.torch.trainers import refuse_dealing_twice
from xloader.working import check_padding

if TYPE_CHECKING:
    from xloader.samples import Samples

_OTHER_OPTIONS = ("lanes", "max_amplification", "spread", "threads")


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
        ``RANK`` and ``WORLD_SIZE``, or a SLURM step say.
    prefetch_factor : int, default 2
        As of the ``DataLoader``: batches of each worker that wait for the training loop.
    persistent_workers : bool, default False
        As of the ``DataLoader``: whether workers, and chunks that they keep, outlive an epoch.
    **options
        ``threads``, ``max_amplification``, ``lanes`` and ``spread``, as for
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
        self._itinerary = plan_workers(
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
        asked = self._itinerary.options
        world = asked.world
        super().__init__(
            samples,  # type: ignore[arg-type]
            world.world_size,
            world.rank,
            shuffle,
            seed,
            drop_last,
        )
        self.batch_size = asked.batch_size
        self.num_workers = num_workers
        epoch = self._itinerary.epoch(0)
        # What the parent class works out from len(samples) is not what is dealt.
        self.total_size = self._itinerary.footprint.num_samples
        if drop_last or world.world_size > 1:
            self.total_size = epoch.num_steps * asked.global_batch
        self.num_samples = self.total_size // world.world_size
        # Without workers, chunks are kept by the process that iterates.
        self._is_lasting = persistent_workers or not num_workers
        self._kept: list[set[tuple[int, int]]] = [set() for _ in range(epoch.sublanes.workers)]
        self._num_passes = 0

    def __len__(self) -> int:
        """Ids of an epoch on this rank, with those that fill the last batch up."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """The ids of an epoch, batch by batch. After its last one, the next epoch begins.

        Raises
        ------
        RanksError
            If accelerate is about to deal them out once more.
        """
        refuse_dealing_twice("a ChunkSampler")
        return self._ids(self.steps())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration deals.

        Raises
        ------
        OptionError
            If it is negative.
        """
        if epoch < 0:
            raise OptionError("the epoch is negative", given=epoch, allowed=">= 0")
        super().set_epoch(epoch)

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """What the next epoch will cost, summed over the workers. Nothing is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether to speak of this rank or of all ranks together.
        """
        itinerary = self._itinerary
        return itinerary.explain(itinerary.epoch(self.epoch), scope, self._kept)

    def batches(self) -> ChunkBatches:
        """The same ids as lists, one a batch: for ``DataLoader(batch_sampler=...)``."""
        return ChunkBatches(self)

    def _ids(self, steps: Iterator[BatchIds]) -> Iterator[int]:
        for ids in steps:
            yield FirstId.of(ids[0], ids.ticket)
            yield from ids[1:]

    def steps(self) -> Iterator[BatchIds]:
        """The ids of an epoch, a list for each batch."""
        itinerary, number = self._itinerary, self.epoch
        itinerary.warn(self.explain(), stacklevel=3)
        self._num_passes += 1
        pass_number = self._num_passes
        agreement = Agreement(itinerary.options, itinerary.plan, itinerary.recipe.fingerprint)
        epoch = itinerary.epoch(number)
        workers, size = epoch.sublanes.workers, itinerary.options.batch_size
        dealt = []
        for worker in range(workers):
            numbers = itinerary.sublanes(worker)
            orders = [lane.order for lane in epoch.lanes(numbers)]
            num_steps = epoch.sublanes.num_steps_of(numbers[0])
            dealt.append(deal_ids(orders, itinerary.plan.lane_share, num_steps))
        last = [0] * workers
        for step in range(epoch.num_steps):
            ids = next(dealt[step % workers]).tolist()
            if itinerary.options.world.world_size > 1:
                ids += (ids[-1:] or last[step % workers : step % workers + 1]) * (size - len(ids))
            last[step % workers] = ids[-1]
            if step + 1 == epoch.num_steps:
                # Whether or not the loop asks for one batch more, the epoch is complete.
                self._finish(number)
            yield BatchIds(ids, Ticket.of(ids, agreement, number, step, pass_number))
        if not epoch.num_steps:
            self._finish(number)

    def _finish(self, number: int) -> None:
        itinerary = self._itinerary
        if self._is_lasting and itinerary.plan.is_resident:
            for worker, kept in enumerate(self._kept):
                kept |= touched_blocks(itinerary.epoch(number), itinerary.sublanes(worker))
        if self.epoch == number:
            # Another may have been chosen meanwhile.
            self.epoch = number + 1


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


def plan_workers(samples: Samples, num_workers: int, **options: Any) -> Itinerary:
    """Plan for so many workers, which share the memory of a rank.

    Raises
    ------
    OptionError
        If the number of workers is none, or leaves one with nothing but padding.
    """
    if num_workers < 0:
        raise OptionError(
            "num_workers is no number of processes",
            given=repr(num_workers),
            allowed="0, for none beside this one, or more",
        )
    asked = make_options(output="numpy", **options)
    itinerary = Itinerary(samples.recipe, asked, max(num_workers, 1))
    check_padding(itinerary)
    return itinerary


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
