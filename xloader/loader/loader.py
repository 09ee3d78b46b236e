"""The loader: the iterable over batches that a training loop uses.

`Loader` is the same for all kinds of samples: position, iteration, report and end. Three kinds make
the batches: `PlannedLoader` of one set of samples, `InterleavedLoader` of several sets, and
`Rollout` of samples that change from epoch to epoch.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Literal, Self

from xloader.core.messages import names_function
from xloader.core.options import LoaderOptions
from xloader.core.ranks import World
from xloader.errors import ClosedError, OptionError, printable
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.row_list import Rows
from xloader.loader.epoch_iterator import EpochIterator, EpochRun, StepRun
from xloader.loader.progress import Progress, make_bar
from xloader.loader.ranks.cursor import Cursor, Position
from xloader.loader.ranks.memory_share import give_back, take_share

if TYPE_CHECKING:
    from xloader.loader.reports.batch_variance import BatchVariance
    from xloader.loader.reports.report import Report
    from xloader.planning.explain import Explanation
    from xloader.recipe.recipe import Recipe
    from xloader.show.canvas import Picture
    from xloader.show.cards import Card, Drawing


class Loader(ABC):
    """Iterable over shuffled batches; each ``iter`` is one epoch.

    It reads each chunk as few times as the memory allows. ``len(loader)`` counts the batches of an
    epoch on this rank. After a complete epoch, the next ``iter`` delivers the next one; after a
    break, the same one from its first batch. :meth:`Samples.loader` makes it.

    Parameters
    ----------
    options : LoaderOptions
        The options of :meth:`Samples.loader`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = xloader.open(ds).window(time=2, stride=1)
    >>> with samples.loader(batch_size=4, output="numpy") as loader:
    ...     sizes = [len(batch.ids) for batch in loader]
    >>> sizes, loader.report().num_reads
    ([4, 4, 1], 1)
    """

    prefetch_factor = None
    _name = "Loader"

    def __init__(self, options: LoaderOptions, *recipes: Recipe) -> None:
        self.options = take_share(options, recipes)
        self._has_share = self.options is not options
        self._cursor = Cursor(options.shuffle)
        # The iterator itself is not kept: one that nobody holds is collected, and ends its run.
        self._run: StepRun | None = None
        self._progress: Progress | None = None
        self._is_closed = False
        self._locks: dict[int, threading.RLock] = {}

    # Filled in by each kind of loader

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches of an epoch on this rank."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of samples of an epoch, over all ranks."""

    @property
    @abstractmethod
    def _world(self) -> World:
        """Rank and world size; the first use settles them."""

    @abstractmethod
    def _prepare(self) -> EpochRun:
        """Make the run that begins at the cursor's start."""

    @abstractmethod
    def _deliver(self, delivery: Any, epoch: int) -> Any:
        """Make the value that the user gets."""

    @abstractmethod
    def _save(self, position: Position) -> dict[str, Any]:
        """Make the state at a position."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> None:
        """Check a state, and move to its position."""

    @abstractmethod
    def _explain(self, start: Position, scope: Literal["rank", "world"]) -> Explanation:
        """Predict an iteration that would start at a position."""

    @abstractmethod
    def _preview(
        self, start: Position, num_rows: int, channel: str | Sequence[str] | None, name: str | None
    ) -> Picture:
        """Draw the first batch of an iteration that would start at a position."""

    @abstractmethod
    def _card(self) -> Card:
        """The loader as notebooks show it. Nothing is planned, and no data is read."""

    @abstractmethod
    def _in_words(self) -> str:
        """The loader in a few words."""

    @abstractmethod
    def _release(self) -> None:
        """Release memory, threads and processes for good."""

    def _collate(self, batch: Batch) -> Any:
        """Call the user's ``collate_fn``, if there is one."""
        if self.options.collate_fn is None:
            return batch
        with names_function(f"collate_fn on a batch of {len(batch.ids)} samples"):
            return self.options.collate_fn(Rows(batch))

    def _make_card(
        self,
        num_steps: int | None,
        costs: Mapping[str, Explanation] | None,
        recipes: Mapping[str, Recipe],
        drawing: Drawing | None = None,
    ) -> Card:
        """The card of a loader, whose number of steps may not be known yet."""
        from xloader.show.sample_cards import loader_card, option_facts

        at, report = self._cursor.start, None if self._progress is None else self.report()
        facts = option_facts(self.options, at.epoch, at.step, num_steps, is_closed=self._is_closed)
        name = f"xloader.{self._name}"
        return loader_card(name, self._in_words(), facts, costs, report, recipes, drawing)

    def _announce(self) -> None:  # noqa: B027
        """Warn of an epoch that is about to begin."""

    # What all have

    @property
    def rank(self) -> int:
        """Number of this process among those that divide the samples, from 0."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """Number of processes that divide the samples."""
        return self._world.world_size

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next ``iter`` delivers."""
        return self._cursor.epoch

    @property
    def batch_size(self) -> int:
        """Number of samples of a batch of one rank."""
        return self.options.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` delivers.

        If it is the epoch of a state that was just loaded, the position of that state is kept.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.

        Raises
        ------
        OptionError
            If the number is not a whole one, is negative or is too large.
        """
        self._cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was yielded.

        Returns
        -------
        dict
            Plain JSON values, under 2 KB for each set of samples. The state of any rank restores
            all ranks. A state saved after the last batch of an epoch continues with the next epoch.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> samples = xloader.open(ds).window(time=2, stride=1)
        >>> loader = samples.loader(batch_size=4, output="numpy")
        >>> for batch in loader:
        ...     state = loader.state_dict()
        ...     break
        >>> other = samples.loader(batch_size=4, output="numpy")
        >>> other.load_state_dict(state)
        >>> len(list(other)), state["epoch"], state["step"]
        (2, 0, 1)
        """
        return self._save(self._cursor.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position. No chunk is read yet.

        The loader takes the plan and the seed of the state. The next ``iter`` delivers the rest of
        its epoch, on any number of ranks that divides the state's lanes.

        Parameters
        ----------
        state : dict
            The value of :meth:`state_dict` on any rank, also after a round trip through JSON.

        Raises
        ------
        StateError
            If the state is damaged, or of other samples, another global batch, ``shuffle`` or
            ``drop_last``.
        OptionError
            If the ranks do not divide the state's lanes. The error names rank counts that do.
        MemoryBudgetError
            If the plan of the state needs more memory than this loader has.
        ClosedError
            If the loader is closed.
        """
        self._check_open()
        self._load(state)

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """Predict what the next ``iter`` will read. No chunk of data is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether to count this rank alone or all ranks together.

        Returns
        -------
        Explanation
            The prediction.

        Raises
        ------
        OptionError
            If the scope is neither of these.
        """
        if scope not in ("rank", "world"):
            raise OptionError("unknown scope", given=repr(scope), allowed="'rank' or 'world'")
        return self._explain(self._cursor.start, scope)

    def preview(
        self,
        num_rows: int = 3,
        *,
        channel: str | Sequence[str] | None = None,
        name: str | None = None,
    ) -> Picture:
        """Draw the first batch that the next ``iter`` would deliver. The loader does not move on.

        Parameters
        ----------
        num_rows : int, default 3
            The most rows of the batch that are drawn.
        channel : str or sequence of str, optional
            As for :meth:`Samples.plot`.
        name : str, optional
            Of several sets of samples, the one whose own batch is drawn.

        Returns
        -------
        matplotlib.figure.Figure
            As :meth:`Samples.plot` draws rows, with shapes, dtypes, bytes and the share of NaN.
            Functions of `OnDevice` and a ``collate_fn`` are not called.

        Raises
        ------
        EmptySamplesError
            If no batch is left.
        ChunkError
            If a chunk of the batch cannot be read.
        UnknownNameError
            If no field has the channel, or there is no such set.
        OptionError
            If there are several sets, and none is named.
        MissingDependencyError
            If matplotlib is not installed.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> loader = xloader.open(ds).window(time=2).loader(batch_size=4, output="numpy")
        >>> print(loader.preview().get_suptitle())
        First of 2 batches of epoch 0: 4 samples, 256 B
        t2m (4, 2, 4) float64
        >>> len(list(loader))
        2
        """
        self._check_open()
        return self._preview(self._cursor.start, num_rows, channel, name)

    def batch_variance(
        self, variable: str | None = None, num_batches: int = 64, *, epoch: int | None = None
    ) -> BatchVariance:
        """Measure how much the means of batches vary, against those of a full shuffle.

        That is the noise which a training's gradient sees. The samples of some batches of the epoch
        are read once, which is often most chunks of an epoch. The loader does not move on.

        Parameters
        ----------
        variable : str, optional
            Name of a variable; by default all. After :meth:`Samples.map` or a recorded method, of a
            channel or field.
        num_batches : int, default 64
            Global batches that are looked at, evenly over the epoch. With 64 the standard error is
            at most about a fifth of the ratio.
        epoch : int, optional
            Number of the epoch; by default the one that the next ``iter`` delivers.

        Returns
        -------
        BatchVariance
            ``ratio`` of the variances, its ``standard_error``, and ``effective_batch_size``.

        Raises
        ------
        EmptySamplesError
            If the epoch has fewer than two full batches.
        OptionError
            If ``num_batches`` or ``epoch`` is outside its range, or the loader has several sets.
        UnknownNameError
            If no field has the variable.
        UnsupportedDataError
            If a field holds no real numbers.
        MemoryBudgetError
            If the loader's memory is too small to read the samples beside the sums.
        ChunkError
            If a chunk cannot be read.

        Notes
        -----
        With the means ``m_b`` of ``K`` of the ``n`` global batches of ``B`` samples, and squares
        summed over at most 4,096 elements of each sample and variable that are finite in all
        samples:

        .. code-block:: text

           M     = B * sum((m_b - mean of all m_b)**2) / (K - 1)
           W     = sum((sample - mean of its batch)**2)
           S2    = ((n - 1) * M + n / K * W) / (n * B - 1)
           ratio = M / S2

        This is the design effect of cluster sampling (Kish, *Survey Sampling*, Wiley, 1965), with
        the variances of Cochran, *Sampling Techniques*, Wiley, 1977, section 9.4; exact if all
        batches are taken. Values are those after all transforms, but before :class:`OnDevice` and
        ``collate_fn``.

        Examples
        --------
        The samples of a batch are equal, so a batch is worth one sample:

        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.repeat(np.arange(64.0), 4)[:, None])})
        >>> samples = xloader.open(ds).window(time=1)
        >>> with samples.loader(batch_size=4, shuffle=False, output="numpy") as loader:
        ...     found = loader.batch_variance("t2m")
        >>> round(found.ratio, 1), round(found.effective_batch_size, 1), found.num_reads
        (4.0, 1.0, 1)
        """
        self._check_open()
        number = self.epoch if epoch is None else epoch
        return self._measure_variance(variable, num_batches, number)

    def _measure_variance(
        self, variable: str | None, num_batches: int, epoch: int
    ) -> BatchVariance:
        raise OptionError(
            "batch_variance compares the batches of one set of samples with its full shuffle",
            given=self._in_words(),
            remedy="call it on the loader of each set: samples.loader(...).batch_variance()",
        )

    def report(self) -> Report:
        """Measurements of the epoch under way, or of the last one.

        Returns
        -------
        Report
            The amounts read, and the speed.

        Raises
        ------
        OptionError
            If no epoch has begun.
        """
        if self._progress is None:
            raise OptionError(
                "there is nothing to report yet", remedy="iterate over the loader, or see explain()"
            )
        return self._progress.report()

    def progress(self, **tqdm_options: Any) -> Any:
        """Iterate over an epoch with a progress bar of tqdm, in a terminal or a notebook.

        It shows batches, the decoded bytes read per second, and the share of the time in which the
        training loop waited.

        Parameters
        ----------
        **tqdm_options
            Keyword arguments of ``tqdm.auto.tqdm``, such as ``desc``. By default, only rank 0 shows
            a bar: pass ``disable=False`` for all ranks.

        Returns
        -------
        tqdm.tqdm
            The bar, to iterate over in place of the loader.

        Raises
        ------
        MissingDependencyError
            If tqdm is not installed.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> loader = xloader.open(ds).window(time=2).loader(batch_size=4, output="numpy")
        >>> [len(batch.ids) for batch in loader.progress(disable=True)]
        [4, 1]
        """
        return make_bar(self, lambda: self._progress, self._cursor.start.step, tqdm_options)

    def close(self) -> None:
        """Stop the threads and release the memory. It may be called more than once.

        It returns within two seconds: a thread that is stuck in a read ends by itself later. A
        closed loader cannot be iterated any more.
        """
        self._is_closed = True
        with self._lock:
            self._stop()
            self._release()
        if self._has_share:
            give_back(self.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Deliver the batches of one epoch: of the next epoch each time, or the rest of a state."""
        with self._lock:
            self._check_open()
            # Before the run stops: a thread that waits for the run's next batch is told why.
            number = self._cursor.begin()
            self._stop()
            self._announce()
            return EpochIterator(self._cursor, number, self._begin, self._deliver)

    # What trainers look for in a `DataLoader`. accelerate's ``skip_first_batches``, which
    # ``transformers.Trainer`` calls, makes one of dataset, batch_sampler and collate_fn.

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

    def __repr__(self) -> str:
        return printable(f"<xloader.{self._name}: {self._in_words()}>")

    def _repr_html_(self) -> str:
        return self._card().to_html()

    @property
    def _lock(self) -> threading.RLock:
        """Lock under which iterations begin and end, one at a time: they share the memory."""
        # One per process: a lock held by another thread during a fork stays locked in the child.
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(
                "the loader is closed",
                remedy="make a new loader; to go on in the middle of the epoch, "
                "new.load_state_dict(closed.state_dict())",
            )

    def _begin(self) -> EpochRun:
        """Stop the run under way, and make the next one."""
        with self._lock:
            self._stop()
            epoch_run = self._prepare()
            self._run, self._progress = epoch_run.run, epoch_run.progress
            self._cursor.restart()
            return epoch_run

    def _stop(self) -> None:
        # The run is closed even if its iterator was: a garbage collection on one of the run's own
        # threads may have done that, which neither waits for the threads nor frees their blocks.
        if self._run is not None:
            self._run.close()
        self._run = None


class _Delivered:
    """A dataset whose "indices" are the batches that a loader has delivered."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.num_samples

    def __getitems__(self, batch: Any) -> Any:
        return batch
