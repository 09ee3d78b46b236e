"""From a description to batches: the verbs that make a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from xloader.core.nans import OnNan
from xloader.core.option_checks import MOST, check_choice, check_whole
from xloader.core.options import LoaderOptions, make_options
from xloader.errors import OptionError
from xloader.loader.loader import Loader
from xloader.loader.notes import with_notes
from xloader.planning.explain import Explanation
from xloader.planning.explain_order import explain_cached, explain_order
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import make_layouts
from xloader.samples.subset_verbs import Choosing, normal_ids
from xloader.tensors.convert import check_device, tensor_maker
from xloader.transforms.outputs import make_outputs


class Loading(Choosing):
    """The verbs that make a plan, above those that say what is planned for."""

    def loader(
        self,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        memory: int | str = "2GiB",
        output: Literal["torch", "numpy"] = "torch",
        device: Any = None,
        collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None = None,
        threads: int | None = None,
        processes: int = 0,
        prefetch: int = 2,
        on_error: Literal["raise", "skip"] = "raise",
        max_amplification: float = 1.05,
        lanes: int | None = None,
        spread: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        read_timeout: float | None = None,
        max_retries: int | None = None,
        on_nan: OnNan = "warn",
        **unknown: Any,
    ) -> Loader:
        """Plan epochs of shuffled batches within a memory budget. Nothing is read yet.

        Parameters
        ----------
        batch_size : int, default 32
            Samples of a batch, on each rank.
        shuffle : bool, default True
            Whether each epoch has an order of its own; if not, ids ascend.
        seed : int, default 0
            With the epoch and the plan, it fixes the order. From -2**63 to 2**64 - 1, as
            ``torch.manual_seed`` takes it.
        drop_last : bool, default False
            Whether samples that do not fill a global batch are left out. If not, the last batch
            is short on one rank, and padded on several: ``batch.is_padding`` says where.
        memory : int or str, default "2GiB"
            Bytes that this rank may use for batches, reads under way and decoded chunks.
        output : {"torch", "numpy"}
            What batches are made of.
        device : torch.device or str, optional
            Where tensors go, by :meth:`Batch.to`.
        collate_fn : callable, optional
            Makes what is delivered from a list of samples, each a tuple with one array or
            tensor for each field, as in PyTorch.
        threads : int, optional
            Threads that load and gather, 4096 at most; the cores that the process may use by
            default.
        processes : int, default 0
            Worker processes; there are none yet.
        prefetch : int, default 2
            Batches made ahead of need.
        on_error : {"raise", "skip"}
            What to do about a chunk that cannot be had. Raise at the batch it belongs to; or let
            another row of the batch take the place of each row that needs it, so that batches
            and steps stay as they are: ``batch.is_padding`` says where, ``report()`` which chunks
            and how many samples. A batch without a good row raises all the same.
        max_amplification : float, default 1.05
            How often a chunk may be read on average, where windows straddle chunks.
        lanes : int, optional
            Independent parts of the order, which ranks divide among them: one a rank by
            default. With it given, batches are the same on any world size that divides it.
        spread : int, optional
            How many later tiles come in while a tile hands out its samples; by default, what
            the memory allows.
        rank, world_size : int, optional
            This process among those that train together. By default as ``torch.distributed``,
            ``RANK`` and ``WORLD_SIZE``, or a SLURM step say when the loader is first used.
        read_timeout : float, optional
            Seconds that each attempt at a read may take: by default what :func:`xloader.open`
            was given, and 300.0 there.
        max_retries : int, optional
            Attempts after the first, where that fails for a reason that may pass: by default
            what :func:`xloader.open` was given, and 4 there.
        on_nan : {"warn", "count", "raise", "ignore"}
            What to do about NaN in floating fields, after the transforms: warn once, where one
            of the first eight batches of an epoch holds any; look at all batches and count them
            in ``report().num_nan``; look at all and raise at the first; or look at none.
        **unknown
            Nothing else is taken; the error says what is meant by PyTorch's names.

        Returns
        -------
        Loader
            An iterable of :class:`Batch`.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small, with the minimum that would do.
        LanesError
            If lanes do not divide the global batch, or ranks do not divide the lanes.
        OptionError
            If an option is outside its range.
        MissingDependencyError
            If tensors are asked for and PyTorch is not installed.
        """
        options = {k: v for k, v in locals().items() if k not in ("self", "unknown")}
        loader = self._loader(make_options(**options, **unknown))
        # A function that fails on any batch does so now, and not at the first one.
        make_outputs(self.recipe, make_layouts(self.recipe))
        return loader

    def explain(
        self,
        order: ArrayLike | None = None,
        *,
        cache: Literal["lru"] | None = None,
        num_workers: int = 1,
        **options: Any,
    ) -> Explanation:
        """What an epoch would cost. No value is read.

        Parameters
        ----------
        order : array_like of int, optional
            Sample ids in an order of your own, whose cost within the same memory is told
            instead: exactly up to 10 million of them, from the first 10 million beyond that.
        cache : {None, "lru"}
            How the order would be carried out. By default it is known beforehand, so that what
            is needed farthest ahead is dropped first. With "lru" it is not, as where a sampler
            hands out batches: each worker begins with no chunks and keeps those that it used
            last, sample by sample.
        num_workers : int, default 1
            With ``cache``: workers that share ``memory`` and take turns at batches, as those of
            a PyTorch ``DataLoader`` do; 0 is the process itself. Each makes ``prefetch`` batches
            ahead.
        **options
            As for :meth:`loader`. With ``cache``, the order is that of this rank, and only
            ``batch_size``, ``memory`` and ``prefetch`` matter.

        Raises
        ------
        SampleIndexError
            If the order holds an id that is out of range.
        MemoryBudgetError
            If the memory is too small, with the minimum that would do.
        OptionError
            If an option is outside its range.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> from xloader.testing import write_store
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 1000)))})
        >>> samples = xloader.open(write_store(ds, {"t2m": (16, 1000)})).window(time=1)
        >>> order = np.arange(960).reshape(60, 16).T.ravel()
        >>> told = samples.explain(order, cache="lru", memory="4MiB", num_workers=2)
        >>> told.num_reads, samples.explain(memory="4MiB").num_reads
        (960, 60)
        """
        _check_cache(cache, num_workers)
        if cache is None and num_workers != 1:
            # A loader's own error says what stands here for it.
            options["num_workers"] = num_workers
        chosen = make_options(**{"output": "numpy", **options})
        if cache is None:
            loader = self._loader(chosen)
            if order is None:
                return loader.explain()
            ids = normal_ids(self.recipe.num_ids, np.asarray(order))
            told = explain_order(loader.footprint, loader.plan, ids, loader.explain())
            # What drop_last leaves out of an epoch is not left out of an order.
            return with_notes(told, self.recipe)
        if order is None:
            raise OptionError(
                "a cache is simulated for an order of your own",
                given=f"cache={cache!r} without an order",
                remedy="pass order=, such as list(sampler), or leave cache out",
            )
        layouts = make_layouts(self.recipe)
        footprint = make_footprint(self.recipe, layouts)
        source = self.recipe.source
        told = explain_cached(
            footprint,
            layouts,
            normal_ids(self.recipe.num_ids, np.asarray(order)),
            {name: source.path_of(name) for name in footprint.variables},
            memory_nbytes=chosen.memory_nbytes,
            batch_size=chosen.batch_size,
            prefetch=chosen.prefetch,
            num_workers=max(num_workers, 1),
        )
        return with_notes(told, self.recipe)

    def _loader(self, options: LoaderOptions) -> Loader:
        if options.output == "numpy":
            return Loader(self.recipe, options, np.asarray)
        hand_over = tensor_maker()
        if options.device is not None:
            check_device(options.device)
        return Loader(self.recipe, options, hand_over)


def _check_cache(cache: Any, num_workers: Any) -> None:
    remedy = 'pass cache="lru", which drops what was not used for longest'
    check_choice("cache", cache, (None, "lru"), remedy)
    check_whole("num_workers", num_workers, 0, MOST)
