"""`data_loader`: a stock ``DataLoader`` whose dataset, sampler and collate function match."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from xloader.core.messages import warn_caller
from xloader.core.nans import OnNan
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import MOST, MOST_NBYTES, check_callable, check_whole
from xloader.core.options import PLAN_OPTIONS, refuse_unknown
from xloader.errors import OptionError, WorkersWarning
from xloader.loader.processes.script_import import is_importing_script, refuse_while_importing
from xloader.show.cards import Card, CardSection, Facts, Words
from xloader.show.sample_cards import sample_parts
from xloader.tensors.collate import collate
from xloader.torch.chunk_sampler import ChunkSampler
from xloader.torch.map_dataset import MapDataset

if TYPE_CHECKING:
    from xloader.samples.samples import Samples


def loader_html(sampler: ChunkSampler) -> str:
    """The card of a ``DataLoader`` with this sampler, as notebooks show it."""
    order = f"shuffled, seed {sampler.seed}" if sampler.shuffle else "not shuffled"
    workers = f"{sampler.num_workers:,} processes" if sampler.num_workers else "none: threads read"
    rows = [
        ("next iteration", f"epoch {sampler.epoch:,}"),
        ("order", order + ", last batch dropped if short" * sampler.drop_last),
        ("workers", workers),
        ("memory", f"{sampler._passes.resolver.options.memory_in_words} allowed"),
    ]
    recipe = sampler.dataset.recipe  # type: ignore[attr-defined]
    sections = (
        Facts(rows),
        Words(["Call loader.explain() to see what an epoch will read."]),
        CardSection("samples", sample_parts(recipe), is_open=False),
    )
    summary = f"batches of {sampler.batch_size} of xloader's samples, epoch {sampler.epoch:,}"
    return Card("torch.utils.data.DataLoader", summary, sections).to_html()


_OF_THE_PLAN = (*PLAN_OPTIONS, "seed", "world")
_NOT_YOURS = {
    "batch_sampler": "to use your own, make a DataLoader(MapDataset(samples), batch_sampler=...)",
    "dataset": "pass samples",
    "sampler": "leave out a DistributedSampler, because data_loader divides samples among ranks; "
    "to use your own sampler, make a DataLoader(MapDataset(samples), sampler=...)",
}


def data_loader(
    samples: Samples,
    batch_size: int | Callable[[Samples], int] = 32,
    *,
    num_workers: int = 0,
    shuffle: bool = True,
    memory: int | str | None = None,
    drop_last: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    transform: Callable[..., Any] | None = None,
    target_transform: Callable[..., Any] | None = None,
    transforms: Callable[..., Any] | None = None,
    on_nan: OnNan = "warn",
    **kwargs: Any,
) -> DataLoader[Any]:
    """Make a stock ``DataLoader`` that reads each chunk once.

    It puts together :class:`MapDataset`, :class:`ChunkSampler` and :func:`collate`. Workers stay
    alive from epoch to epoch.

    Parameters
    ----------
    samples : Samples
        The samples to read.
    batch_size, num_workers, shuffle, memory, drop_last
        As for :class:`ChunkSampler`.
    collate_fn : callable, optional
        Makes a batch from a list of samples; :func:`collate` by default.
    transform, target_transform, transforms, on_nan
        As for :class:`MapDataset`.
    **kwargs
        ``seed``, ``world`` and the further options of :class:`ChunkSampler`. All others are passed
        to the ``DataLoader``.

    Returns
    -------
    torch.utils.data.DataLoader
        With ``explain()`` and ``set_epoch(epoch)`` of the sampler. Epochs advance by themselves.

    Raises
    ------
    MemoryBudgetError, OptionError
        As for :class:`ChunkSampler`; also if a sampler is passed.
    WorkersError
        In a worker that imports a script without a guard.

    Warns
    -----
    WorkersWarning
        With ``in_order=False``, which lets any worker make any batch.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> loader = data_loader(xloader.open(ds).window(time=2), batch_size=2)
    >>> len(loader), [tuple(batch.t2m.shape) for batch in loader]
    (3, [(2, 2, 4), (2, 2, 4), (1, 2, 4)])
    """
    _check_rest(kwargs)
    num_workers = check_whole("num_workers", num_workers, 0, MOST)
    check_callable("collate_fn", collate_fn)
    planned = {name: kwargs.pop(name) for name in _OF_THE_PLAN if name in kwargs}
    if num_workers:
        kwargs = _for_workers(num_workers, kwargs)
    sampler = ChunkSampler(
        samples,
        batch_size,
        num_workers=num_workers,
        memory=memory,
        shuffle=shuffle,
        drop_last=drop_last,
        prefetch_factor=kwargs.get("prefetch_factor") or 2,
        persistent_workers=kwargs.get("persistent_workers", False),
        **planned,
    )
    dataset = MapDataset(
        samples,
        memory,
        transform=transform,
        target_transform=target_transform,
        transforms=transforms,
        threads=planned.get("threads"),
        on_nan=on_nan,
    )
    loader_class: type[DataLoader[Any]] = DataLoader
    if num_workers and is_importing_script():
        loader_class = _ImportedLoader
    loader = loader_class(
        dataset,
        sampler.batch_size,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate_fn or collate,
        drop_last=drop_last,
        **kwargs,
    )
    # Methods of the instance, as the class stays the stock one. Lightning and accelerate ask the
    # sampler to set the epoch, transformers.Trainer asks the loader, or the batch sampler within
    # one that skips batches.
    methods: Any = loader
    methods.explain = sampler.explain
    methods.set_epoch = methods.batch_sampler.set_epoch = sampler.set_epoch
    methods._repr_html_ = functools.partial(loader_html, sampler)
    return loader


def _check_rest(kwargs: Mapping[str, Any]) -> None:
    """Check for arguments of a ``DataLoader`` that `data_loader` sets itself.

    A ``worker_init_fn`` that cannot be called is an error as well.
    """
    for name, remedy in _NOT_YOURS.items():
        if name in kwargs:
            raise OptionError(
                f"data_loader makes the {name} itself",
                given=f"{name}={kwargs[name]!r}",
                remedy=remedy,
            )
    known = {*_OF_THE_PLAN, *inspect.signature(DataLoader).parameters}
    known |= {*inspect.signature(data_loader).parameters} - {"samples", "kwargs"}
    refuse_unknown(kwargs, sorted(known - {*_NOT_YOURS}))
    check_callable("worker_init_fn", kwargs.get("worker_init_fn"))


def batch_of(
    *, nbytes: int | str | None = None, num_elements: int | None = None
) -> Callable[[Samples], int]:
    """Function that chooses the batch size by a limit of bytes, or of elements.

    Parameters
    ----------
    nbytes : int or str, optional
        Largest size of a batch in bytes, over all fields.
    num_elements : int, optional
        Largest number of elements in a batch, over all fields.

    Returns
    -------
    callable
        Takes samples and returns how many of them fit in a batch, 1 at least.

    Raises
    ------
    OptionError
        If neither is given, or one is outside its range.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.zeros((10, 4), np.float32))})
    >>> batch_of(nbytes="1KiB")(xloader.open(ds).window(time=2)), 2 * 4 * 4
    (32, 32)
    """
    if nbytes is None and num_elements is None:
        raise OptionError("batch_of needs a limit", allowed="nbytes=, num_elements=, or both")
    most_nbytes = None if nbytes is None else parse_nbytes(nbytes)
    if num_elements is not None:
        num_elements = check_whole("num_elements", num_elements, 1, MOST_NBYTES)

    def size(samples: Samples) -> int:
        """The largest batch size within all limits."""
        counts = {name: math.prod(shape) for name, shape in samples.shapes.items()}
        sizes = []
        if most_nbytes is not None:
            num_bytes = sum(counts[n] * dtype.itemsize for n, dtype in samples.dtypes.items())
            sizes.append(most_nbytes // max(num_bytes, 1))
        if num_elements is not None:
            sizes.append(num_elements // max(sum(counts.values()), 1))
        return max(min(*sizes, MOST), 1)

    return size


class _ImportedLoader(DataLoader[Any]):
    """Loader that a worker process makes as it imports the script anew. It refuses to iterate."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        refuse_while_importing(f"a DataLoader with num_workers={self.num_workers}")
        return super().__iter__()


def _for_workers(num_workers: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a ``DataLoader`` with workers, with defaults for those that are not given."""
    kwargs = {"persistent_workers": True, **kwargs}
    if num_workers > 1 and not kwargs.get("in_order", True):
        warn_caller(
            "with in_order=False any worker may make any batch, so each chunk may be read many "
            "times, through a cache: leave in_order out",
            WorkersWarning,
        )
    return kwargs
