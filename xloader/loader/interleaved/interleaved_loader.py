"""The loader of several sets of samples: it composes the batches of one loader for each set.

::

    era5   Loader  \
                     ComposedRun -> EpochIterator -> batches
    cmip   Loader  /

Order, reads, memory, faults and states are those of the sets' own loaders. What is added here is
which set gives which row, and the division of the memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from xloader.core.cores import MemoryLimit, usable_cores
from xloader.core.options import LoaderOptions
from xloader.core.ranks import World, find_world
from xloader.errors import StateError
from xloader.loader.batches.batch import Batch
from xloader.loader.epoch_iterator import EpochRun
from xloader.loader.interleaved.composed_run import (
    NUM_HELD,
    ComposedRun,
    Composer,
    SetFeed,
)
from xloader.loader.interleaved.sample_sets import Interleaving, SampleSets
from xloader.loader.interleaved.set_loaders import SetLoaders
from xloader.loader.loader import Loader
from xloader.loader.planned_loader import PlannedLoader
from xloader.loader.progress import Progress
from xloader.loader.ranks.cursor import Position
from xloader.loader.ranks.memory_share import hold_share
from xloader.loader.ranks.rank_resolver import memory_limit, require_common, try_early
from xloader.loader.ranks.state import (
    VERSION,
    another_option,
    check_form,
    read_state,
    sign,
    unusable_state,
)
from xloader.loader.reports.advice import too_short
from xloader.loader.reports.explain_notes import memory_note
from xloader.loader.reports.report import Report
from xloader.planning.explain import Explanation
from xloader.recipe.recipe import Recipe
from xloader.show.cost_figures import Figures, SetShare, find_set, sum_variables
from xloader.show.sample_cards import draw_weights

if TYPE_CHECKING:
    from xloader.show.canvas import Picture
    from xloader.show.cards import Card


_KEYS: Final = ("version", "epoch", "step", "interleave", "sets", "check")


def read_parts(
    state: object, interleaving: Interleaving, names: Sequence[str]
) -> tuple[Position, dict[str, Any]]:
    """Check that a loader can continue from a state, but for the states of its sets."""
    if isinstance(state, Mapping) and "version" in state and "interleave" not in state:
        raise StateError(
            "this is the state of a loader of one set",
            given=f"a state with the keys {', '.join(map(str, state))}",
            remedy="load it into the loader of that set",
        )
    state = check_form(state, _KEYS, ("epoch", "step"))
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
            "go on with another number of ranks needs plan=PlanRules(lanes=...) from its "
            "start, and the same batch_size * world_size",
        )
    name = differing[0]
    raise another_option(
        {"sets": "list of sets", "weights": "ratio of weights"}.get(name, name),
        expected[name],
        saved.get(name),
        "interleave the same sets, in the same order and with the same weights and num_samples, "
        "and pass the same drop_last",
    )


class InterleavedLoader(Loader):
    """Loader of several sets of samples, whose rows share batches in exact proportions.

    `make_loader` makes the loader of one set. `hand_over` converts a composed array into what is
    delivered. `join` concatenates arrays on a device; without it, batches are composed in ordinary
    memory.
    """

    def __init__(
        self,
        sets: SampleSets,
        options: LoaderOptions,
        make_loader: Callable[[Recipe, LoaderOptions], PlannedLoader],
        hand_over: Callable[[NDArray[Any]], Any],
        join: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        super().__init__(options, *(member.recipe for member in sets.sets))
        self.sets = sets
        self._make_loader = make_loader
        names = tuple(out.name for out in sets.outputs)
        self._composer = Composer(names, options.batch_size, hand_over, join)
        self._is_settled = False
        # As for a loader of one set: errors come at once, unless a later rank may resolve them.
        self._limit: MemoryLimit | None = None
        self._made = try_early(self.options, self._make)
        hold_share(self.options)

    def __len__(self) -> int:
        """Number of batches of an epoch on this rank."""
        return self._settle().interleaving.num_steps

    @property
    def num_samples(self) -> int:
        """Number of rows of an epoch, over all ranks."""
        return sum(self._settle().interleaving.taken)

    @property
    def _world(self) -> World:
        return self._settle().world

    def _save(self, position: Position) -> dict[str, Any]:
        made = self._settle()
        set_states = {
            name: made.loaders[name]._save(start or Position(position.epoch))
            for name, start in made.starts(position).items()
        }
        interleave = _describe(made.interleaving, list(set_states))
        where = {"version": VERSION, "epoch": position.epoch, "step": position.step}
        return sign({**where, "interleave": interleave, "sets": set_states})

    def _load(self, state: Mapping[str, Any]) -> None:
        made = self._settle()
        position, set_states = read_parts(state, made.interleaving, list(made.loaders))
        for name, loader in made.loaders.items():
            try:
                read_state(set_states[name], loader._resolver.settle())
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

    def _explain(self, start: Position, scope: Literal["rank", "world"]) -> Explanation:
        made = self._settle()
        interleaving = made.interleaving
        sets = {
            name: made.loaders[name]._explain(at, scope)
            for name, at in made.starts(start).items()
            if at is not None
        }
        num_ranks = interleaving.world_size if scope == "world" else 1
        num_left = interleaving.num_rows - interleaving.rows_before(start.step)
        num_steps = interleaving.num_steps - start.step
        composed = num_ranks * min(num_steps, NUM_HELD) * made.composed_nbytes
        notes = [*filter(None, [memory_note(self.options)])]
        notes += [f"{name}: {note}" for name, cost in sets.items() for note in cost.notes]
        return Explanation(
            num_samples=num_ranks * interleaving.rank_dealers * num_left,
            num_steps=num_steps,
            peak_nbytes=composed + sum(cost.peak_nbytes for cost in sets.values()),
            shares=made.shares(self.sets),
            num_shared_reads=sum(cost.num_shared_reads for cost in sets.values()),
            notes=(*notes, *self._rounding_note(interleaving)),
            _budget=self._limit.in_words(self.options.memory_share) if self._limit else "",
            **summed(sets),
        )

    def _preview(
        self, start: Position, num_rows: int, channel: str | Sequence[str] | None, name: str | None
    ) -> Picture:
        made = self._settle()
        loader = find_set(made.loaders, name, "loader.preview")
        at = dict(zip(made.loaders.values(), made.starts(start).values(), strict=True))[loader]
        # After its last batch, a loader says itself that nothing is left.
        position = at or Position(start.epoch, len(loader))
        return loader._preview(position, num_rows, channel, None)

    def __reduce__(self) -> tuple[object, ...]:
        functions = (self._make_loader, self._composer.hand_over, self._composer.join)
        return InterleavedLoader, (self.sets, self.options, *functions)

    def _card(self) -> Card:
        num_steps = None if self._made is None else self._made.interleaving.num_steps
        recipes = {member.name: member.recipe for member in self.sets.sets}
        return self._make_card(num_steps, None, recipes, draw_weights(self.sets.weights))

    def _in_words(self) -> str:
        count = "" if self._made is None else f"{self._made.interleaving.num_steps} "
        names = ", ".join(self.sets.names)
        return f"{names}: {count}batches of {self.batch_size}, epoch {self.epoch}"

    # Making the loaders of the sets

    def _settle(self) -> SetLoaders:
        """The loaders of all sets, made for the rank that this process has at the first use."""
        made = self._made
        if self._is_settled and made is not None:
            # Each loader raises if its rank has changed since.
            for loader in made.loaders.values():
                len(loader)
            return made
        world = find_world(self.options.world) or World()
        limit = memory_limit(self.options, world)
        if made is None or (made.world, self._limit) != (world, limit):
            made = self._made = self._make(self.options.settled(), limit)
        is_capped = limit is None or all(x.plan.is_resident for x in made.loaders.values())
        require_common(limit, world, is_capped=is_capped)
        self._is_settled = True
        return made

    def _make(self, settled: LoaderOptions, limit: MemoryLimit | None) -> SetLoaders:
        """Make the loaders of all sets, for the ranks of these options."""
        is_on_host = self._composer.join is None
        settled, self._limit = settled.with_memory(limit), limit
        return SetLoaders.of(self.sets, self.options, settled, self._make_loader, is_on_host)

    def _rounding_note(self, interleaving: Interleaving) -> list[str]:
        num_samples = self.sets.num_samples or 0
        left = num_samples - sum(interleaving.taken)
        if left <= 0:
            return []
        return [
            f"{left:,} of {num_samples:,} rows are left out, so that all ranks take the same steps"
            + " and each batch is full" * interleaving.drop_last
        ]

    # Iterating

    def _prepare(self) -> EpochRun:
        made, start = self._settle(), self._cursor.start
        interleaving = made.interleaving
        feeds, at_work = [], {}
        for name, at in made.starts(start).items():
            if at is None:
                feeds.append(SetFeed(name, None, 0))
                continue
            loader = at_work[name] = made.loaders[name]
            loader.move_to(at)
            feeds.append(SetFeed(name, iter(loader), at.step))
        run = ComposedRun(interleaving, feeds, self._composer, start.step)
        progress = ComposedProgress(at_work, made.shares(self.sets), made.composed_nbytes)
        return EpochRun(run, progress, start, interleaving.num_steps, num_again=0)

    def _release(self) -> None:
        for loader in self._made.loaders.values() if self._made else ():
            loader.close()

    def _deliver(self, batch: Batch, epoch: int) -> Any:
        return self._collate(batch)


_SUMS: Final = (
    *("num_requests", "num_retries", "num_missing", "num_threads", "num_ahead", "ahead_seconds"),
    *("wait_seconds", "lock_wait_seconds", "core_wait_seconds"),
)
"""Figures of a report that are sums over the sets, beside those of `summed`."""


def summed(sets: Mapping[str, Figures]) -> dict[str, Any]:
    """The figures of several sets that are sums: reads, bytes, regions and dropped windows."""
    figures = list(sets.values())
    variables = {f"{name}/{v}": cost for name, s in sets.items() for v, cost in s.variables.items()}
    dropped: Counter[str] = Counter()
    for cost in figures:
        dropped.update(cost.dropped_windows)
    names = ("mixing", "full_mixing", "num_dropped_windows")
    return {
        **sum_variables(variables),
        **{name: sum(getattr(cost, name) for cost in figures) for name in names},
        "dropped_windows": dict(dropped),
        "is_exact": all(cost.is_exact for cost in figures),
        "sets": sets,
    }


@dataclass
class ComposedProgress(Progress):
    """Counters of the composed batches delivered so far."""

    loaders: Mapping[str, Loader]
    shares: Mapping[str, SetShare]
    composed_nbytes: int

    def add(self, delivery: Batch) -> None:
        """Count a batch."""
        self.num_steps += 1
        num_skipped = int(np.count_nonzero(delivery.is_padding))
        self.num_skipped += num_skipped
        self.num_samples += len(delivery.ids) - num_skipped
        self.delivered_nbytes += sum(int(array.nbytes) for array in delivery)
        self.end = time.perf_counter()

    def _bar_counts(self) -> tuple[int, float, float]:
        counts = [p._bar_counts() for loader in self.loaders.values() if (p := loader._progress)]
        return sum(num for num, _, _ in counts), self.seconds, sum(wait for _, _, wait in counts)

    def report(self) -> Report:
        """The report of an epoch of several sets."""
        reports = {name: loader.report() for name, loader in self.loaders.items()}
        every = reports.values()
        num_nan = {f"{n}/{f}": num for n, r in reports.items() for f, num in r.num_nan.items()}
        skipped = tuple(
            (f"{name}/{variable}", index)
            for name, report in reports.items()
            for variable, index in report.skipped_chunks
        )
        busy: Counter[str] = Counter()
        for report in every:
            busy.update(report.busy_seconds)
        held = min(self.num_steps, NUM_HELD) * self.composed_nbytes
        return Report(
            num_samples=self.num_samples,
            num_steps=self.num_steps,
            peak_nbytes=held + sum(report.peak_nbytes for report in every),
            shares=self.shares,
            num_skipped_samples=self.num_skipped,
            skipped_chunks=skipped,
            num_nan=num_nan,
            delivered_nbytes=self.delivered_nbytes,
            seconds=self.seconds,
            busy_seconds=dict(busy),
            # Each set counts all of the process.
            cpu_seconds=max((report.cpu_seconds for report in every), default=0.0),
            num_cores=max(r.num_cores for r in every) if reports else usable_cores(),
            least_seconds=max((report.least_seconds for report in every), default=0.0),
            **_worst_wait(reports, self.seconds),
            **{name: sum(getattr(report, name) for report in every) for name in _SUMS},
            **summed(reports),
        )


def _worst_wait(reports: Mapping[str, Report], seconds: float) -> dict[str, Any]:
    """The bottleneck of several sets, and advice on it."""
    if seconds and (caution := too_short(seconds)):
        return {"bottleneck": "unclear", "advice": caution}
    waits = {name: report.wait_seconds for name, report in reports.items()}
    if not waits or sum(waits.values()) < seconds / 10:
        return {"bottleneck": "consumer", "advice": "The training loop is slower than the loader."}
    name = max(waits, key=waits.__getitem__)
    stage, busy = reports[name].bottleneck, reports[name].busy_seconds
    if stage == "consumer" and busy:
        # While one set is waited for, the others have a slow consumer.
        stage = max(busy, key=busy.__getitem__)
    advice = (
        f"The set {name!r} was waited for longest, {waits[name]:.2f} s; "
        f"report().sets[{name!r}] says more."
    )
    return {"bottleneck": stage, "advice": advice}
