"""`Rollout`: a loader whose samples change from epoch to epoch, such as windows that grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from xloader.core.option_checks import check_callable
from xloader.core.options import LoaderKeywords, lists_options, make_options
from xloader.core.ranks import World
from xloader.errors import OptionError, StateError
from xloader.loader.epoch_iterator import EpochRun
from xloader.loader.loader import Loader
from xloader.loader.planned_loader import PlannedLoader
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.state import unusable_state
from xloader.planning.plan import Plan
from xloader.recipe.recipe import Recipe
from xloader.samples.loader_verbs import make_loader
from xloader.samples.samples import Samples
from xloader.show.cards import Card, Words

if TYPE_CHECKING:
    from xloader.loader.reports.batch_variance import BatchVariance
    from xloader.planning.explain import Explanation
    from xloader.show.canvas import Picture


class Rollout(Loader):
    """Loader whose samples may change from epoch to epoch, such as their horizon.

    Parameters
    ----------
    make : callable
        Called with the number of an epoch, returns its :class:`Samples`: the same each time. A new
        plan is made only where they differ.
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

    _name = "Rollout"

    @lists_options
    def __init__(self, make: Callable[[int], Samples], **options: Unpack[LoaderKeywords]) -> None:
        check_callable("make", make)
        self._make = make
        first = self._samples_of(0).recipe
        super().__init__(make_options(**options), first)
        self._loader = make_loader(first, self.options)
        self._made_for = 0
        self._outdated: list[PlannedLoader] = []

    def __len__(self) -> int:
        return len(self._aligned())

    @property
    def num_samples(self) -> int:
        """Number of samples in the next epoch, over all ranks."""
        return self._aligned().num_samples

    @property
    def _world(self) -> World:
        return self._aligned()._world

    @property
    def plan(self) -> Plan:
        """The plan of the next epoch."""
        return self._aligned().plan

    def _measure_variance(
        self, variable: str | None, num_batches: int, epoch: int
    ) -> BatchVariance:
        # Of the next epoch, or of another one of the same samples.
        return self._aligned()._measure_variance(variable, num_batches, epoch)

    def _prepare(self) -> EpochRun:
        loader = self._aligned()
        self._stop()
        loader.move_to(self._cursor.start)
        loader._announce()
        return loader._begin()

    def _deliver(self, delivery: Any, epoch: int) -> Any:
        return self._loader._deliver(delivery, epoch)

    def _explain(self, start: Position, scope: Literal["rank", "world"]) -> Explanation:
        return self._aligned()._explain(start, scope)

    def _preview(
        self, start: Position, num_rows: int, channel: str | Sequence[str] | None, name: str | None
    ) -> Picture:
        return self._aligned()._preview(start, num_rows, channel, name)

    def _save(self, position: Position) -> dict[str, Any]:
        return self._aligned()._save(position)

    def _load(self, state: Mapping[str, Any]) -> None:
        given: object = state
        epoch = given.get("epoch") if isinstance(given, Mapping) else None
        if type(epoch) is not int or epoch < 0:
            raise unusable_state("it has no epoch", type(state).__name__)
        loader = make_loader(self._samples_of(epoch).recipe, self.options)
        plan = loader.plan
        loader.load_state_dict(state)
        if loader.plan != plan:
            raise StateError(
                "this rollout makes another plan than the state's, so later epochs would differ",
                given="options or a number of ranks that lead to another plan",
                remedy="pass memory, prefetch, plan and ranks as for the rollout saved; with "
                "lanes, any number of ranks that divides them",
            )
        # Later epochs are planned from the options, and need the state's seed to be the same.
        self.options = replace(self.options, seed=state["seed"])
        self._stop()
        self._loader.close()
        self._loader, self._made_for = loader, epoch
        self._cursor.load(loader._cursor.position, len(loader))

    def _stop(self) -> None:
        super()._stop()
        while self._outdated:
            self._outdated.pop().close()

    def _release(self) -> None:
        self._loader.close()

    def _card(self) -> Card:
        note = Words(["The samples for which a loader was made last, and this loader:"])
        return Card("xloader.Rollout", self._in_words(), [note, *self._loader._card().parts])

    def _in_words(self) -> str:
        return f"batches of {self.batch_size}, epoch {self.epoch}"

    def _aligned(self) -> PlannedLoader:
        """The loader of the next epoch, made anew if that epoch has other samples."""
        epoch = self.epoch
        if epoch != self._made_for:
            samples = self._samples_of(epoch)
            if not _are_alike(samples.recipe, self._loader.recipe):
                # Not closed yet: an iterator that has not begun goes over to the new epoch.
                self._outdated.append(self._loader)
                self._loader = make_loader(samples.recipe, self.options)
            self._made_for = epoch
        return self._loader

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
