"""The loader of several sets of samples: it composes the batches of one loader for each set.

::

    era5   Loader  \
                     ComposedRun -> EpochIterator -> batches
    cmip   Loader  /

Order, reads, memory, faults and states are those of the sets' own loaders. What is added here is
which set gives which row, and the division of the memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from numpy.typing import NDArray

from xloader.core.messages import names_function
from xloader.core.options import LoaderOptions
from xloader.core.ranks import World, find_world
from xloader.errors import OptionError, StateError, printable
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.row_list import Rows
from xloader.loader.epoch_iterator import EpochIterator, EpochRun, closed_loader
from xloader.loader.interleaved.composed_run import (
    NUM_HELD,
    ComposedProgress,
    ComposedRun,
    DeviceRows,
    HostRows,
    SetFeed,
)
from xloader.loader.interleaved.interleaved_figures import (
    InterleavedExplanation,
    InterleavedReport,
    find_set,
    report_of,
    summed,
)
from xloader.loader.interleaved.sample_sets import Interleaving, SampleSets
from xloader.loader.interleaved.set_loaders import SetLoaders
from xloader.loader.loader import Loader
from xloader.loader.ranks.cursor import Cursor, Position
from xloader.loader.ranks.rank_resolver import process_group
from xloader.loader.ranks.state import VERSION, another_option, check_form, sign, unusable_state
from xloader.loader.reports.explain_notes import memory_note
from xloader.loader.reports.progress import NOTHING_YET, BarCounts, make_bar
from xloader.loader.trainer_attributes import TrainerAttributes
from xloader.planning.explain import Explanation
from xloader.recipe.recipe import Recipe
from xloader.show.sample_cards import draw_weights, loader_card, option_facts

if TYPE_CHECKING:
    from xloader.show.canvas import Picture


_KEYS: Final = ("version", "epoch", "step", "interleave", "sets", "check")


def make_state(
    position: Position, interleaving: Interleaving, set_states: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the state at a position."""
    return sign(
        {
            "version": VERSION,
            "epoch": position.epoch,
            "step": position.step,
            "interleave": _describe(interleaving, list(set_states)),
            "sets": dict(set_states),
        }
    )


def read_parts(
    state: object, interleaving: Interleaving, names: Sequence[str]
) -> tuple[Position, dict[str, Any]]:
    """Check that a loader can continue from a state, but for the states of its sets."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise unusable_state("it is not a state of xloader", type(state).__name__)
    if "interleave" not in state:
        raise StateError(
            "this is the state of a loader of one set",
            given=f"a state with the keys {', '.join(map(str, state))}",
            allowed="a value of state_dict() of a loader that xloader.interleave made",
            remedy="load it into the loader of that set",
        )
    check_form(state, _KEYS, ("epoch", "step"))
    _check_same(state["interleave"], _describe(interleaving, names))
    if state["step"] > interleaving.num_steps:
        raise unusable_state(
            f"its step is beyond the {interleaving.num_steps} steps of an epoch", state["step"]
        )
    # Where the loader of each set begins follows from the step, whatever their own states say.
    if not isinstance(state["sets"], Mapping) or not set(names) <= state["sets"].keys():
        raise unusable_state("it lacks the state of a set", type(state["sets"]).__name__)
    return Position(state["epoch"], state["step"]), dict(state["sets"])


def _describe(interleaving: Interleaving, names: Sequence[str]) -> dict[str, Any]:
    """Everything that fixes which set gives which row of which step."""
    return {
        "sets": list(names),
        "weights": list(interleaving.pattern.weights),
        "num_samples": interleaving.num_samples,
        "drop_last": interleaving.drop_last,
        "patterns": interleaving.dealers,
        "lanes": interleaving.lanes,
        "rows_of_a_pattern": interleaving.step_rows,
    }


def _check_same(saved: object, expected: Mapping[str, Any]) -> None:
    counts = ("patterns", "lanes", "rows_of_a_pattern")
    if not isinstance(saved, Mapping) or not all(type(saved.get(n)) is int for n in counts):
        raise unusable_state("it does not say which set gives which rows", type(saved).__name__)
    differing = [name for name in expected if saved.get(name) != expected[name]]
    if not differing:
        return
    if differing[0] in counts:
        ranks, batch = expected["patterns"], expected["patterns"] * expected["rows_of_a_pattern"]
        raise StateError(
            "the state was saved with another number of ranks or lanes, or another "
            "batch_size, so that rows would come from other sets",
            given=f"{ranks} ranks or lanes, {expected['lanes']} lanes, a global batch of {batch}",
            allowed=f"{saved['patterns']} ranks or lanes, {saved['lanes']} lanes, a global batch "
            f"of {saved['patterns'] * saved['rows_of_a_pattern']}",
            remedy="use as many ranks, and the same batch_size; a training that may "
            "go on with another number of ranks needs lanes= from its start, and the same "
            "batch_size * world_size",
        )
    name = differing[0]
    raise another_option(
        {"sets": "list of sets", "weights": "ratio of weights"}.get(name, name),
        expected[name],
        saved.get(name),
        "interleave the same sets, in the same order and with the same weights and num_samples, "
        "and pass the same drop_last",
    )


class InterleavedLoader(TrainerAttributes):
    """Iterable over batches with rows of several sets, in exact proportions.

    It is made by :meth:`Interleaved.loader`, and used as a :class:`Loader`. Each ``iter`` is one
    epoch. After a complete epoch, the next ``iter`` delivers the next one. After a break in the
    middle, it starts the same epoch again from its first batch.

    Parameters
    ----------
    sets : SampleSets
        The sets.
    options : LoaderOptions
        The options of :meth:`Interleaved.loader`.
    make_loader : callable
        Makes the loader of one set from its recipe and options.
    hand_over : callable
        Converts a composed array into what is delivered.
    join : callable, optional
        Concatenates arrays on a device; by default batches are composed in ordinary memory.

    Raises
    ------
    MemoryBudgetError
        If the memory is too small for the sets together. The error gives the minimum that
        suffices.
    EmptySamplesError
        If a set has no row in an epoch.
    LanesError
        As for :class:`Loader`.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> a, b = (xloader.open(ds + shift).window(time=1) for shift in (0, 100))
    >>> both = xloader.interleave({"a": (a, 0.7), "b": (b, 0.3)})
    >>> with both.loader(batch_size=5, output="numpy") as loader:
    ...     for batch in loader:
    ...         print(batch.source.tolist(), batch.t2m.shape)
    ['a', 'a', 'a', 'a', 'b'] (5, 1, 4)
    ['a', 'a', 'a', 'b', 'b'] (5, 1, 4)
    ['a', 'a', 'a', 'b'] (4, 1, 4)
    """

    def __init__(
        self,
        sets: SampleSets,
        options: LoaderOptions,
        make_loader: Callable[[Recipe, LoaderOptions], Loader],
        hand_over: Callable[[NDArray[Any]], Any],
        join: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        self.sets = sets
        self.options = options
        self._make_loader = make_loader
        self._hand_over = hand_over
        self._join = join
        self._cursor = Cursor(options.shuffle)
        self._run: ComposedRun | None = None
        self._progress: ComposedProgress | None = None
        self._is_closed = False
        self._is_settled = False
        self._locks: dict[int, threading.RLock] = {}
        self._rows: HostRows | DeviceRows | None = None
        self._made: SetLoaders | None = None
        # As for a loader of one set: errors come at once, unless a later rank may resolve them.
        may_change = options.rank is None and process_group() is None
        try:
            settled = options.settled()
        except OptionError:
            if not may_change:
                raise
            return
        try:
            self._made = self._make(settled)
        except OptionError:
            if not may_change or options.lanes is None:
                raise

    def __len__(self) -> int:
        """Number of batches of an epoch on this rank."""
        return self._settle().interleaving.num_steps

    @property
    def num_samples(self) -> int:
        """Number of rows of an epoch, over all ranks."""
        return sum(self._settle().interleaving.taken)

    @property
    def rank(self) -> int:
        """Number of this process among those that divide the samples, from 0."""
        return self._settle().world.rank

    @property
    def world_size(self) -> int:
        """Number of processes that divide the samples."""
        return self._settle().world.world_size

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next ``iter`` delivers."""
        return self._cursor.epoch

    @property
    def batch_size(self) -> int:
        """Number of rows of a batch of one rank."""
        return self.options.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` delivers; see :meth:`Loader.set_epoch`.

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
        """The position of the loader: after the last batch that was yielded.

        Returns
        -------
        dict
            Plain JSON values, about 1 KB for each set. The state of any rank restores all ranks.
        """
        made, position = self._settle(), self._cursor.position
        interleaving = made.interleaving
        set_states = {}
        for index, (name, loader) in enumerate(made.loaders.items()):
            first = interleaving.begin(index, position.step) or 0
            set_states[name] = loader.state_at(Position(position.epoch, first))
        return make_state(position, interleaving, set_states)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position of a loader of the same sets. No chunk is read yet.

        The rest of the epoch, and all later epochs, are those that the other loader would have
        delivered. With ``lanes=`` that holds for any number of ranks that divides the lanes.
        Without it, the number of ranks must be the same.

        Parameters
        ----------
        state : dict
            The return value of :meth:`state_dict` on any rank, also after a round trip through
            JSON.

        Raises
        ------
        StateError
            If the state is damaged, or was saved with other sets, weights or samples, another
            ``num_samples``, batch or ``drop_last``, or, without ``lanes=``, with another number
            of ranks. Nothing is loaded then.
        MemoryBudgetError
            If the plans of the state need more memory than this loader has.
        ClosedError
            If the loader is closed.
        """
        self._check_open()
        made = self._settle()
        position, set_states = read_parts(state, made.interleaving, list(made.loaders))
        for name, loader in made.loaders.items():
            try:
                loader.check_state(set_states[name])
            except StateError as error:
                raise StateError(
                    f"the set {name!r}: {error.what}",
                    given=error.given,
                    allowed=error.allowed,
                    remedy=error.remedy,
                ) from error
        self._stop()
        for name, loader in made.loaders.items():
            loader.load_state_dict(set_states[name])
        self._cursor.load(position, made.interleaving.num_steps)

    def explain(self, scope: Literal["rank", "world"] = "rank") -> InterleavedExplanation:
        """Predict what the next ``iter`` will read and hold in memory. No chunk of data is read.

        Parameters
        ----------
        scope : {"rank", "world"}
            Whether to count this rank alone or all ranks together.

        Returns
        -------
        InterleavedExplanation
            The prediction: sums, and a part for each set.

        Raises
        ------
        OptionError
            If the scope is neither of these.
        """
        if scope not in ("rank", "world"):
            raise OptionError("unknown scope", given=repr(scope), allowed="'rank' or 'world'")
        made, start = self._settle(), self._cursor.start
        interleaving = made.interleaving
        sets: dict[str, Explanation] = {}
        for index, (name, loader) in enumerate(made.loaders.items()):
            first = interleaving.begin(index, start.step)
            if first is not None:
                sets[name] = loader.explain_from(Position(start.epoch, first), scope)
        num_ranks = interleaving.world_size if scope == "world" else 1
        num_left = interleaving.num_rows - interleaving.rows_before(start.step)
        num_steps = interleaving.num_steps - start.step
        composed = num_ranks * min(num_steps, NUM_HELD) * made.composed_nbytes
        notes = [*filter(None, [memory_note(self.options)])]
        notes += [f"{name}: {note}" for name, cost in sets.items() for note in cost.notes]
        return InterleavedExplanation(
            num_samples=num_ranks * interleaving.rank_dealers * num_left,
            num_steps=num_steps,
            peak_nbytes=composed + sum(cost.peak_nbytes for cost in sets.values()),
            shares=made.shares(self.sets),
            sets=sets,
            num_shared_reads=sum(cost.num_shared_reads for cost in sets.values()),
            notes=(*notes, *self._rounding_note(interleaving)),
            **summed(sets),
        )

    def preview(
        self,
        name: str | None = None,
        num_rows: int = 3,
        *,
        channel: str | Sequence[str] | None = None,
    ) -> Picture:
        """Draw rows of one set that the next ``iter`` would deliver. The loader does not move on.

        Parameters
        ----------
        name : str, optional
            The set. It may be left out if there is only one.
        num_rows, channel
            As for :meth:`Loader.preview`.

        Returns
        -------
        matplotlib.figure.Figure
            The first rows of the set's own batch, of which the next batch takes its rows.

        Raises
        ------
        OptionError
            If no set is named, and there are several.
        UnknownNameError
            If there is no such set, or no field has the channel.
        EmptySamplesError
            If the set has no rows left in the epoch.
        ChunkError
            If a chunk of the batch cannot be read.
        MissingDependencyError
            If matplotlib is not installed.
        """
        self._check_open()
        made, start = self._settle(), self._cursor.start
        loader = find_set(made.loaders, name, "loader.preview")
        first = made.interleaving.begin([*made.loaders.values()].index(loader), start.step)
        # After its last batch, a loader says itself that nothing is left.
        position = Position(start.epoch, len(loader) if first is None else first)
        return loader.preview_from(position, num_rows, channel)

    def batch_variance(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse: rows of several sets are no sample of one population, which a ratio is about."""
        raise OptionError(
            "batch_variance compares the batches of one set of samples with its full shuffle",
            given=f"a loader of {len(self.sets.sets)} sets",
            allowed="the loader of one set",
            remedy="call it on the loader of each set: samples.loader(...).batch_variance()",
        )

    def report(self) -> InterleavedReport:
        """Measurements of the epoch under way, or of the last one.

        Returns
        -------
        InterleavedReport
            The amounts read, and the speed: sums, and a part for each set.

        Raises
        ------
        OptionError
            If no epoch has begun.
        """
        progress = self._progress
        if progress is None:
            raise OptionError(
                "there is nothing to report yet",
                allowed="a report after a first batch",
                remedy="iterate over the loader, or call explain() for the prediction",
            )
        made = self._settle()
        return report_of(progress, made.shares(self.sets), made.composed_nbytes)

    def progress(self, **tqdm_options: Any) -> Any:
        """Iterate over an epoch with a progress bar of tqdm; see :meth:`Loader.progress`.

        Parameters
        ----------
        **tqdm_options
            Keyword arguments of ``tqdm.auto.tqdm``.

        Returns
        -------
        tqdm.tqdm
            The bar. Iterate over it in place of the loader.

        Raises
        ------
        MissingDependencyError
            If tqdm is not installed.
        """
        return make_bar(self, self._cursor.start.step, tqdm_options)

    def close(self) -> None:
        """Stop the threads and release the memory. It may be called more than once."""
        self._is_closed = True
        with self._lock:
            self._stop()
            for loader in self._made.loaders.values() if self._made else ():
                loader.close()

    def __iter__(self) -> Iterator[Any]:
        """Deliver the batches of one epoch: of the next epoch each time, or the rest of a state."""
        with self._lock:
            self._check_open()
            number = self._cursor.begin()
            self._stop()
            return EpochIterator(self._cursor, number, self._begin, self._deliver)

    def __reduce__(self) -> tuple[object, ...]:
        arguments = (self.sets, self.options, self._make_loader, self._hand_over, self._join)
        return InterleavedLoader, arguments

    def __repr__(self) -> str:
        return printable(f"<xloader.InterleavedLoader of {self._in_words()}>")

    def _repr_html_(self) -> str:
        num_steps = None if self._made is None else self._made.interleaving.num_steps
        start = self._cursor.start
        return loader_card(
            "xloader.InterleavedLoader",
            self._in_words(),
            option_facts(
                self.options, start.epoch, start.step, num_steps, is_closed=self._is_closed
            ),
            None,
            None if self._progress is None else self.report(),
            {member.name: member.recipe for member in self.sets.sets},
            draw_weights(self.sets.weights),
        ).to_html()

    def _in_words(self) -> str:
        count = "" if self._made is None else f"{self._made.interleaving.num_steps} "
        names = ", ".join(self.sets.names)
        return f"{names}: {count}batches of {self.batch_size}, epoch {self.epoch}"

    @property
    def _lock(self) -> threading.RLock:
        """Lock under which iterations begin and end."""
        # One per process: a lock held by another thread during a fork stays locked in the child.
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def bar_counts(self) -> BarCounts:
        """The counters of the epoch under way, or of the last one, for a progress bar."""
        progress = self._progress
        if progress is None:
            return NOTHING_YET
        set_counts = [loader.bar_counts() for loader in progress.loaders.values()]
        seconds = progress.end - progress.begin if progress.num_steps else 0.0
        read_nbytes = sum(counts.read_nbytes for counts in set_counts)
        waited = sum(counts.wait_seconds for counts in set_counts)
        return BarCounts(progress.begin, read_nbytes, seconds, waited)

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_loader()

    # Making the loaders of the sets

    def _settle(self) -> SetLoaders:
        """The loaders of all sets, made for the rank that this process has at the first use."""
        made = self._made
        if self._is_settled and made is not None:
            # Each loader raises if its rank has changed since.
            for loader in made.loaders.values():
                len(loader)
            return made
        world = find_world(self.options.rank, self.options.world_size) or World()
        if made is None or made.world != world:
            made = self._made = self._make(self.options.settled())
        self._is_settled = True
        return made

    def _make(self, settled: LoaderOptions) -> SetLoaders:
        """Make the loaders of all sets, for the ranks of these options."""
        self._rows = None
        is_on_host = self._join is None
        return SetLoaders.of(self.sets, self.options, settled, self._make_loader, is_on_host)

    def _rounding_note(self, interleaving: Interleaving) -> list[str]:
        num_samples = self.sets.num_samples
        if num_samples is None or num_samples == sum(interleaving.taken):
            return []
        left = num_samples - sum(interleaving.taken)
        return [
            f"{left:,} of {num_samples:,} rows are left out, so that all ranks take the same steps"
            + " and each batch is full" * interleaving.drop_last
        ]

    # Iterating

    def _begin(self) -> EpochRun:
        """Stop the run under way, and make the next one."""
        with self._lock:
            self._stop()
            made, start = self._settle(), self._cursor.start
            interleaving = made.interleaving
            feeds, at_work = [], {}
            for index, (name, loader) in enumerate(made.loaders.items()):
                first = interleaving.begin(index, start.step)
                batches = None
                if first is not None:
                    loader.move_to(Position(start.epoch, first))
                    batches, at_work[name] = iter(loader), loader
                feeds.append(SetFeed(name, batches, first or 0))
            names = tuple(out.name for out in self.sets.outputs)
            if self._rows is None:
                size = self.options.batch_size
                self._rows = (
                    HostRows(names, self._hand_over, size)
                    if self._join is None
                    else DeviceRows(names, self._join)
                )
            run = ComposedRun(interleaving, feeds, self._rows, names, start.step)
            self._run, self._progress = run, ComposedProgress(at_work)
            self._cursor.restart()
            return EpochRun(run, self._progress, start, interleaving.num_steps, num_again=0)

    def _stop(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run = None

    def _deliver(self, batch: Batch, epoch: int) -> Any:
        if self.options.collate_fn is None:
            return batch
        with names_function(f"collate_fn on a batch of {len(batch.ids)} samples"):
            return self.options.collate_fn(Rows(batch))
