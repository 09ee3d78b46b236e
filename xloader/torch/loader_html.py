"""HTML of the stock ``DataLoader`` that `data_loader` makes. Nothing is planned for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xloader.core.nbytes import show_nbytes
from xloader.display.sample_cards import sample_parts
from xloader.html.cards import Card, CardSection, Facts, Words

if TYPE_CHECKING:
    from xloader.torch.chunk_sampler import ChunkSampler


def loader_html(sampler: ChunkSampler, memory_nbytes: int) -> str:
    """The card of a ``DataLoader`` with this sampler, as notebooks show it."""
    order = f"shuffled, seed {sampler.seed}" if sampler.shuffle else "not shuffled"
    workers = f"{sampler.num_workers:,} processes" if sampler.num_workers else "none: threads read"
    rows = [
        ("next iteration", f"epoch {sampler.epoch:,}"),
        ("order", order + ", last batch dropped if short" * sampler.drop_last),
        ("workers", workers),
        ("memory", f"{show_nbytes(memory_nbytes)} allowed"),
    ]
    recipe = sampler.dataset.recipe  # type: ignore[attr-defined]
    parts = (
        Facts(rows),
        Words(["Call loader.explain() to see what an epoch will read."]),
        CardSection("samples", sample_parts(recipe), is_open=False),
    )
    summary = f"batches of {sampler.batch_size} of xloader's samples, epoch {sampler.epoch:,}"
    return Card("torch.utils.data.DataLoader", summary, parts).to_html()
