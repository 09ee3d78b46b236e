"""The chunks and shards of a store to write: as they were given, or as they are advised."""

from __future__ import annotations

from xloader.core.options import make_options
from xloader.errors import OptionError
from xloader.jobs.advice.chunk_advice import Advice, ChunkProposal
from xloader.jobs.advice.chunk_search import find_advice
from xloader.jobs.materialize.target_arrays import Sizes
from xloader.recipe.recipe import Recipe


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
            allowed="chunks, with or without shards; or advice; or none of them",
            remedy="pass chunks= too, or leave shards= out"
            if advice is None
            else "leave advice= out, or the sizes",
        )
    if advice is None:
        advice = find_advice(recipe.planned, make_options())
    # Where no other chunks are better, those of today are kept.
    proposal = advice.best if isinstance(advice, Advice) else advice
    if not isinstance(proposal, ChunkProposal):
        raise OptionError(
            "the advice is not that of samples.advise()",
            given=type(advice).__name__,
            allowed="an Advice, or one of its proposals",
            remedy="pass advice=samples.advise(batch_size=...)",
        )
    return proposal.chunks, proposal.shards
