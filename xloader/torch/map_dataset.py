"""Datasets of PyTorch by index: `MapDataset` reads samples, `tensor_dataset` holds all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset, TensorDataset

from xloader.core.nans import OnNan, check_on_nan
from xloader.core.options import LoaderOptions
from xloader.loader.ranks.rank_resolver import with_memory
from xloader.samples.single_samples import listed_ids, normal_ids
from xloader.tensors.collate import hand_over
from xloader.tensors.item_transforms import ItemTransforms
from xloader.torch.misuse import require_samples
from xloader.torch.sampler_passes import FirstId, step_tag_of
from xloader.torch.worker_reader import WorkerReader, as_batch
from xloader.torch.worker_setup import preload_for_workers, sendable_errors
from xloader.transforms.rng import Chance, sample_keys

if TYPE_CHECKING:
    from xloader.samples.samples import Samples


class MapDataset(Dataset[Any]):
    """Dataset of samples by index: tuples of NumPy arrays.

    Under a :class:`ChunkSampler`, each chunk is read once. Under any other sampler, the chunks used
    last are kept in memory: ``samples.explain(order=ids, cache="lru")`` predicts the cost.

    Parameters
    ----------
    samples : Samples
        The samples to read.
    memory : int or str, optional
        Bytes for all workers of a rank, under other samplers; by default a quarter of the rank's
        share of the machine.
    transform, target_transform : callable, optional
        Called with the first, and with the second field of a sample; the results replace them.
    transforms : callable, optional
        In place of the two: called with all fields as arguments, returns as many values.
    threads : int, optional
        Threads of each worker that load and gather; by default its share of the cores.
    on_nan : {"warn", "raise", "ignore"}
        As for :meth:`Samples.loader`, before ``transform``, in each process.

    Raises
    ------
    OptionError
        If an option is outside its range, or one of the functions cannot be called.

    Examples
    --------
    >>> import xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> dataset = MapDataset(xloader.open(ds).window(time=2))
    >>> len(dataset), dataset[1][0].tolist()
    (5, [[8.0, 9.0, 10.0, 11.0], [12.0, 13.0, 14.0, 15.0]])
    """

    def __init__(
        self,
        samples: Samples,
        memory: int | str | None = None,
        *,
        transform: Callable[..., Any] | None = None,
        target_transform: Callable[..., Any] | None = None,
        transforms: Callable[..., Any] | None = None,
        threads: int | None = None,
        on_nan: OnNan = "warn",
    ) -> None:
        require_samples(samples, "MapDataset")
        self.samples = samples
        self._options = with_memory(
            LoaderOptions(
                # One for training and one for validation take half together.
                memory="25%" if memory is None else memory,
                output="numpy",
                threads=threads,
                on_nan=check_on_nan(on_nan),
            )
        )
        self._transforms = ItemTransforms(transform, target_transform, transforms)
        self._transforms.check(samples.fields)
        self._reader: WorkerReader | None = None
        # Made before workers are, so that their batches refer to the samples of this process.
        _ = samples.recipe.token

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        """Read one sample as a tuple of arrays; for a list or a slice, a list of such tuples.

        Parameters
        ----------
        index : int, slice, or array-like of int or bool
            A sample's id, or several. Negative ids count from the end.

        Raises
        ------
        SampleIndexError
            If an id is out of range.
        ChunkError
            If a chunk cannot be read.
        """
        ids = listed_ids(len(self), index)
        if np.ndim(ids):
            return self.__getitems__(index if isinstance(index, list) else ids.tolist())
        # The first id of a batch carries a step tag, also if a DataLoader asks for ids singly.
        (sample,) = self.__getitems__([index if isinstance(index, FirstId) else ids.item()])
        return sample

    def __getitems__(self, ids: Sequence[int]) -> list[Any]:
        """Read the samples of one batch together.

        Parameters
        ----------
        ids : sequence of int
            Sample ids, as a sampler gives them.

        Returns
        -------
        Rows
            A list with a tuple for each sample. Without transforms it keeps the stacked arrays for
            :func:`collate`. If ``transforms`` returned anything but one value for each field, it
            is a plain list.

        Raises
        ------
        SampleIndexError
            If an id is out of range.
        ChunkError
            If a chunk cannot be read.
        ForkError
            If the store cannot be used in a process that was forked.
        """
        with sendable_errors():
            return self._read(ids)

    def close(self) -> None:
        """Stop the threads of this process and free the memory. The next read starts them again."""
        if self._reader is not None and not self._reader.is_foreign:
            self._reader.close()
        self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        preload_for_workers()
        # The reader is not pickled: each process makes its own.
        return {**self.__dict__, "_reader": None}

    def _read(self, ids: Sequence[int]) -> list[Any]:
        if self._reader is None or self._reader.is_foreign:
            self._reader = WorkerReader(self.samples.recipe, self._options)
        step_tag = step_tag_of(ids)
        delivery = None if step_tag is None else self._reader.step(step_tag, ids)
        times = None if delivery is None else delivery.occurrences
        chance = None
        if step_tag is not None and step_tag.is_of(ids):
            # Random numbers belong to the step, also if it is read out of turn or elsewhere.
            chance = Chance(step_tag.plan_tag.options.seed, step_tag.epoch, times)
        if delivery is None or chance is None:
            batch = self._reader.read(normal_ids(len(self), np.asarray(ids)))
        else:
            batch = as_batch(delivery, self.samples.recipe, chance)
        if chance is None:
            return self._transforms.apply(batch, None)
        keys = sample_keys(chance.seed, chance.epoch, batch.ids, times)
        return self._transforms.apply(batch, keys)


def tensor_dataset(
    samples: Samples, memory: int | str = "2GiB", on_nan: OnNan = "warn"
) -> TensorDataset:
    """Read all samples into memory.

    Parameters
    ----------
    samples : Samples
        The samples to read, in ascending order of ids.
    memory : int or str, default "2GiB"
        Bytes for the tensors, and for the reads and batches while they are filled.
    on_nan : {"warn", "raise", "ignore"}
        What to do about NaN, as for :meth:`Samples.loader`.

    Returns
    -------
    torch.utils.data.TensorDataset
        One tensor for each field. Row ``i`` is sample ``i``, on every rank.

    Raises
    ------
    MemoryBudgetError
        If the samples do not fit; the error gives the memory that is enough.
    OptionError
        If samples are weighted, or ``on_nan`` is none of the choices.
    NanError
        If a sample holds NaN, with ``on_nan="raise"``.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> dataset = tensor_dataset(xloader.open(ds).window(time=2), memory="16MiB")
    >>> len(dataset), dataset[3][0].tolist()
    (5, [[24.0, 25.0, 26.0, 27.0], [28.0, 29.0, 30.0, 31.0]])
    """
    # Workers do not use it, and its imports take a while.
    from xloader.samples.loader_verbs import whole_loader

    require_samples(samples, "tensor_dataset")
    with whole_loader(samples.recipe, memory, on_nan) as batches:
        arrays = {
            # In native byte order the tensor shares the array's memory, and is filled through it.
            name: np.empty((len(samples), *shape), samples.dtypes[name].newbyteorder("="))
            for name, shape in samples.shapes.items()
        }
        # Before anything is read, so that values that no tensor can hold are an error at once.
        tensors = [hand_over(array, name) for name, array in arrays.items()]
        for batch in batches:
            for name, array in arrays.items():
                array[batch.ids[0] : batch.ids[-1] + 1] = batch[name]
        return TensorDataset(*tensors)
