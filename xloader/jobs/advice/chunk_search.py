"""Searches better chunks: promising shapes first, then those near the best of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xloader.cluster.cluster_tasks import find_cluster
from xloader.core.options import LoaderOptions, make_options
from xloader.errors import OptionError
from xloader.jobs.advice.chunk_advice import Advice, ChunkProposal
from xloader.jobs.advice.chunk_shapes import (
    Shape,
    candidate_shapes,
    diverse_shapes,
    neighbour_shapes,
)
from xloader.jobs.advice.chunk_trials import ChunkTrials, choose, kinds_of, value_of
from xloader.jobs.advice.read_speed import ReadSpeed, measure_speed
from xloader.jobs.materialize.target_arrays import Sizes
from xloader.recipe.recipe import Recipe

_FIRST_PLANS = 10
_NEAR_PLANS = 5
_ROUNDS = 2
"""At most 10 + 2 x 5 shapes are planned for, and today's chunks twice: as they are, in shards.

Of the first ten, four are enough if no other can be clearly better than one of them.
"""

_MANY_IDS = 200_000
"""Ids of a subset from which on shapes are first compared for all windows."""


def find_advice(
    recipe: Recipe, options: LoaderOptions, *, measure: bool = False, client: Any = None
) -> Advice:
    """Find better chunks; see `Samples.advise`."""
    recipe.require_windows()
    options = options.settled()
    tasks = find_cluster(client, recipe) if measure else None
    if tasks is not None:
        speed = tasks.call("measuring how fast chunks decode", measure_speed, recipe)
    else:
        speed = measure_speed(recipe) if measure else ReadSpeed()
    trials = ChunkTrials(recipe, options, speed)
    current = trials.current()
    tried = _search(trials, current.chunks)
    if not tried and current.explanation is None:
        raise trials.least_error()
    # Where the memory is small, each chunk may have to be read more often than allowed.
    chosen = choose(current, trials.within_limit(tried)) or choose(current, tried)
    return Advice(current, tuple(chosen), trials.speed, trials.num_plans)


def _search(trials: ChunkTrials, today: Shape) -> list[ChunkProposal]:
    """Plan for promising shapes. Of many samples out of more windows, only for a few of them."""
    recipe = trials.recipe
    if recipe.subset is None or recipe.slab is not None or recipe.num_ids < _MANY_IDS:
        return _search_all(trials, today)
    # Each plan for so many ids takes seconds, and for all windows a fraction of one.
    scouts = ChunkTrials(replace(recipe, subset=None), trials.options, trials.speed)
    scouted = _search_all(scouts, today)
    trials.num_plans += scouts.num_plans
    chosen = kinds_of(trials.within_limit(scouted) or scouted)
    return trials.propose([proposal.chunks for proposal in chosen])


def _search_all(trials: ChunkTrials, today: Shape) -> list[ChunkProposal]:
    """Plan for promising shapes, then for those near the best of them."""
    tried = trials.propose([today])
    shapes = candidate_shapes(trials.part)
    tried += trials.propose(
        diverse_shapes([shape for shape in shapes if shape != today], _FIRST_PLANS)
    )
    for _ in range(_ROUNDS):
        known = [*(proposal.chunks for proposal in tried), *trials.failed]
        left = [shape for shape in shapes if shape not in known]
        if not left or any(map(trials.is_ideal, tried)):
            break
        front = max(tried, key=value_of).chunks if tried else shapes[0]
        tried += trials.propose(neighbour_shapes(left, front, _NEAR_PLANS))
    return tried


def chosen_chunks(
    recipe: Recipe,
    chunks: Sizes | None,
    shards: Sizes | None,
    advice: Advice | ChunkProposal | None,
) -> tuple[Sizes, Sizes | None]:
    """The sizes to write.

    The sizes of shards; None for none.
    """
    if chunks is not None and advice is None:
        return chunks, shards
    if chunks is not None or shards is not None:
        raise OptionError(
            "chunks are given twice" if advice is not None else "shards are given without chunks",
            given=f"chunks={chunks!r}, shards={shards!r}" + ", and advice=" * (advice is not None),
            remedy=(
                "pass chunks= too, or leave shards= out"
                if advice is None
                else "leave advice= out, or the sizes"
            ),
        )
    if advice is None:
        advice = find_advice(recipe.planned, make_options())
    # Where no other chunks are better, those of today are kept.
    proposal = advice.best if isinstance(advice, Advice) else advice
    if not isinstance(proposal, ChunkProposal):
        raise OptionError(
            "the advice is not that of samples.advise()",
            given=type(advice).__name__,
            remedy="pass advice=samples.advise(batch_size=...)",
        )
    return proposal.chunks, proposal.shards
