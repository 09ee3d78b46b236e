"""`Rollout`: a loader whose samples change from epoch to epoch, such as windows that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Unpack

from xloader.core.option_checks import check_callable
from xloader.core.options import LoaderKeywords
from xloader.errors import OptionError, StateError
from xloader.loader.loader import Loader
from xloader.loader.ranks.state import unusable_state
from xloader.loader.reports.report import Report
from xloader.loader.trainer_attributes import TrainerAttributes
from xloader.planning.explain import Explanation
from xloader.planning.plan import Plan
from xloader.recipe.recipe import Recipe
from xloader.samples.samples import Samples
from xloader.show.cards import Card, Words


class Rollout(TrainerAttributes):
    """Loader whose samples may change from epoch to epoch.

    A new plan is made only where the samples differ from those of the epoch before.

    Parameters
    ----------
    make : callable
        Called with the number of an epoch, returns the :class:`Samples` of that epoch. It must
        return the same samples each time it is called with the same number.
    **options
        As for :meth:`Samples.loader`.

    Raises
    ------
    OptionError
        If ``make`` is not callable or returns no samples, or an option is outside its range.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> def make(epoch):
    ...     steps = 2 + epoch // 2  # two epochs of each length
    ...     return xloader.open(ds).window(time=steps, stride=1)
    >>> with Rollout(make, batch_size=4, output="numpy") as loader:
    ...     for epoch in range(4):
    ...         shapes = [batch.t2m.shape for batch in loader]
    ...         print(epoch, shapes[0], sum(shape[0] for shape in shapes))
    0 (4, 2, 4) 9
    1 (4, 2, 4) 9
    2 (4, 3, 4) 8
    3 (4, 3, 4) 8
    """

    def __init__(self, make: Callable[[int], Samples], **options: Unpack[LoaderKeywords]) -> None:
        check_callable("make", make)
        self._make = make
        self._options = options
        self._loader = self._make_loader(0)
        self._made_for = 0
        self._reported: Loader | None = None

    def __len__(self) -> int:
        return len(self._aligned())

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter`` delivers."""
        return self._loader.epoch

    @property
    def batch_size(self) -> int:
        """Number of samples in a batch, on each rank."""
        return self._loader.batch_size

    @property
    def num_samples(self) -> int:
        """Number of samples in the next epoch, over all ranks."""
        return self._aligned().num_samples

    @property
    def plan(self) -> Plan:
        """The plan of the next epoch."""
        return self._aligned().plan

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` delivers; see :meth:`Loader.set_epoch`.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.
        """
        self._loader.set_epoch(epoch)

    def explain(self, scope: Literal["rank", "world"] = "rank") -> Explanation:
        """Predict what the next ``iter`` costs; see :meth:`Loader.explain`.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether the numbers are those of this rank or of all ranks together.
        """
        return self._aligned().explain(scope)

    def report(self) -> Report:
        """Report of the epoch under way, or of the last one; see :meth:`Loader.report`."""
        return (self._reported or self._loader).report()

    def state_dict(self) -> dict[str, Any]:
        """Position and plan of the loader, as plain JSON values; see :meth:`Loader.state_dict`."""
        return self._aligned().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of a saved rollout; see :meth:`Loader.load_state_dict`.

        Parameters
        ----------
        state : dict
            The value of :meth:`state_dict`, from any rank, perhaps stored as JSON.

        Raises
        ------
        StateError
            If the state has no epoch, or is damaged; if it belongs to other samples or another
            global batch, or its plan is not the plan that this rollout makes.
        OptionError
            If the number of ranks does not divide the state's lanes.
        MemoryBudgetError
            If the state's plan needs more memory than this loader has.
        """
        given: object = state
        epoch = given.get("epoch") if isinstance(given, Mapping) else None
        if type(epoch) is not int or epoch < 0:
            raise unusable_state("it has no epoch", type(state).__name__)
        loader = self._make_loader(epoch)
        plan = loader.plan
        loader.load_state_dict(state)
        if loader.plan != plan:
            raise StateError(
                "this rollout makes another plan than the state's, so later epochs would differ",
                given="options or a number of ranks that lead to another plan",
                allowed="the options and ranks of the rollout that saved it; with lanes, any "
                "number of ranks that divides them",
                remedy="pass the same memory, prefetch and plan",
            )
        # Later epochs are planned from the options, and need the state's seed to be the same.
        self._options["seed"] = state["seed"]
        self._loader.close()
        self._loader, self._made_for = loader, epoch

    def close(self) -> None:
        """Stop all reads under way and free the memory. It can be called more than once."""
        self._loader.close()

    def __repr__(self) -> str:
        return f"<xloader.Rollout: {self._in_words()}>"

    def _repr_html_(self) -> str:
        shown = self._loader
        is_next = shown.epoch == self._made_for
        note = "The samples of the next epoch" if is_next else "The samples of an earlier epoch"
        note += " and their loader:" if is_next else " and their loader, until the next one begins:"
        content = [Words([note]), *shown.card().parts]
        return Card("xloader.Rollout", self._in_words(), content).to_html()

    def _in_words(self) -> str:
        return f"batches of {self.batch_size}, epoch {self.epoch}"

    def __iter__(self) -> Iterator[Any]:
        # Only at the first batch: trainers ask for an iterator before they set the epoch.
        loader = self._reported = self._aligned()
        yield from loader

    def _aligned(self) -> Loader:
        """The loader of the next epoch, made anew if that epoch has other samples."""
        epoch = self._loader.epoch
        if epoch == self._made_for:
            return self._loader
        samples = self._samples_of(epoch)
        if not _are_alike(samples.recipe, self._loader.recipe):
            self._loader.close()
            self._loader = self._loader_of(samples, epoch)
        self._made_for = epoch
        return self._loader

    def _make_loader(self, epoch: int) -> Loader:
        return self._loader_of(self._samples_of(epoch), epoch)

    def _loader_of(self, samples: Samples, epoch: int) -> Loader:
        loader = samples.loader(**self._options)
        loader.set_epoch(epoch)
        return loader

    def _samples_of(self, epoch: int) -> Samples:
        samples = self._make(epoch)
        if not isinstance(samples, Samples):
            raise OptionError(
                f"the function of the rollout did not return samples for epoch {epoch}",
                given=type(samples).__name__,
                allowed="xloader.Samples with windows, as from xloader.open(...).window(...)",
                remedy="return the samples of the epoch from the function",
            )
        return samples


def _are_alike(first: Recipe, second: Recipe) -> bool:
    try:
        return first == second
    except ValueError:
        # Recorded arguments may be arrays, whose == is an array and no single bool.
        return False
