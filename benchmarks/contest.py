"""One layout measured: xloader, the machine's limit and other libraries take turns."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import ExitStack

from benchmarks import ours
from benchmarks.layouts import Layout
from benchmarks.measure import Effort, Speed
from benchmarks.results import Result
from benchmarks.rivals import sequential, shuffled
from benchmarks.turns import Competitor, Play, on_cores


def hold(
    layout: Layout,
    place: str,
    effort: Effort,
    *,
    limit: Play | None = None,
    readers: Collection[str] = (),
    makers: Collection[str] = (),
    num_cores: int | None = None,
) -> Result:
    """Measure a layout.

    Parameters
    ----------
    layout : Layout
    place : str
        Path or URL of the layout's store.
    effort : Effort
    The reference that measures the machine's limit: `reference.play`, or a function like it.
    readers, makers : collection of str
        Names of the libraries that read the store sequentially (`rivals.sequential`) and of those
        that make shuffled batches (`rivals.shuffled`).
    num_cores : int, optional
        How many cores each may use; all of them by default.

    Raises
    ------
    AbsentError
        If xloader or the reference cannot run.
    """
    with ExitStack() as stack:

        def enter(name: str, play: Play, *args: object) -> Competitor:
            return stack.enter_context(Competitor(name, on_cores, num_cores, play, *args))

        loader = enter("xloader", ours.play, layout, place)
        # Alone, because its plan is timed.
        plan = loader.require(loader.ready())
        others = {
            name: enter(name, sequential.play, name, layout.store, place, effort)
            for name in readers
        } | {name: enter(name, shuffled.play, name, layout, place, effort) for name in makers}
        bare = [enter("reference", limit, layout, place, plan)] if limit is not None else []
        for competitor in (*bare, *others.values()):
            competitor.ready()
        limits, epochs = [], []
        speeds: dict[str, list[Speed]] = {name: [] for name in others}
        for number in range(1 + effort.num_turns):
            epoch = loader.require(loader.turn())
            limits += [c.require(c.turn(epoch.num_reads)).seconds for c in bare]
            epochs.append(epoch)
            for name, competitor in others.items():
                if (speed := competitor.turn()) is not None and number:
                    speeds[name].append(speed)
        found = {name: _best(others[name], speeds[name]) for name in others}
    return Result(
        layout=layout,
        plan=plan,
        first=epochs[0],
        epochs=tuple(epochs[1:]),
        limit_seconds=min(limits[1:], default=None),
        shuffled={name: found[name] for name in makers},
        sequential={name: found[name] for name in readers},
    )


def _best(competitor: Competitor, speeds: list[Speed]) -> Speed | str:
    if competitor.absence is None:
        return max(speeds, key=lambda speed: speed.gb_per_second)
    print(f"{competitor.name}: {competitor.absence}", file=sys.stderr)
    return competitor.absence.reason
