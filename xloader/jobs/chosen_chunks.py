"""The chunks and shards of a store to write: as they were given, or as they are advised."""

from __future__ import annotations

from typing import Any

from xloader.errors import OptionError
from xloader.jobs.target_arrays import Sizes


def chosen_chunks(
    chunks: Sizes | None, shards: Sizes | None, advice: Any
) -> tuple[Sizes, Sizes | None] | None:
    """The sizes to write.

    Parameters
    ----------
    chunks, shards : mapping, optional
        Sizes that were given.
    advice : Advice or ChunkProposal, optional
        The result of `Samples.advise`, of which the first proposal is taken, or one proposal.

    Returns
    -------
    (mapping, mapping or None) or None
        The sizes of chunks and shards; None if nothing was given.

    Raises
    ------
    OptionError
        If sizes and advice are given, or shards without chunks, or the advice is none.
    """
    if advice is None:
        if chunks is None and shards is not None:
            raise OptionError(
                "shards are given without chunks",
                given=f"shards={shards!r}",
                allowed="chunks, and shards that hold whole chunks",
                remedy="pass chunks= too, or leave both out",
            )
        return None if chunks is None else (chunks, shards)
    if chunks is not None or shards is not None:
        raise OptionError(
            "chunks are given twice",
            given="advice= together with chunks= or shards=",
            allowed="one of them",
            remedy="leave advice= out, or the sizes",
        )
    proposals = getattr(advice, "proposals", (advice,))
    # Where no other chunks are better, those of today are kept.
    proposal = proposals[0] if proposals else advice.current
    if not hasattr(proposal, "chunks") or not hasattr(proposal, "shards"):
        raise OptionError(
            "the advice is not that of samples.advise()",
            given=type(advice).__name__,
            allowed="an Advice, or one of its proposals",
            remedy="pass advice=samples.advise(batch_size=...)",
        )
    return proposal.chunks, proposal.shards
